"""Where the program was when it imported steplog."""

from __future__ import annotations

import os
from typing import Final

DIRECTORY: Final = os.getcwd()
"""A relative home in the environment means a directory there, wherever the program moves."""
