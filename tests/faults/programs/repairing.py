"""Repair the damaged run `r` below FOLDER/home up to event 4: `python -m tests.faults.programs.repairing FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from steplog.stores.files import FileStore

if __name__ == "__main__":
    FileStore(Path(sys.argv[1]) / "home").repair("r", 4, by="test")
