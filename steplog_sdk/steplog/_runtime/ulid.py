"""New run ids: ULIDs (github.com/ulid/spec), sortable by time and unique across machines."""

from __future__ import annotations

import os
import time
from typing import Final

_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new() -> str:
    """A new ULID: 48 bits of milliseconds since 1970 and 80 random bits, as 26 Crockford base32 digits."""
    value = (int(time.time() * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))
