"""Run ids: a caller's own, checked, or a new ULID (github.com/ulid/spec): sortable by time, unique across machines."""

from __future__ import annotations

import os
import re
import time
from typing import Final

from steplog.errors import InvalidArgument

_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ALLOWED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


def new() -> str:
    """A new ULID: 48 bits of milliseconds since 1970 and 80 random bits, as 26 Crockford base32 digits."""
    value = (int(time.time() * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


def check_run_id(run_id: object) -> str:
    """Return a run id that can name a directory, else raise InvalidArgument."""
    if isinstance(run_id, str) and _ALLOWED.match(run_id):
        return run_id
    message = (
        f"{run_id!r} cannot be a run id. It must be 1 to 128 of the characters A-Z a-z 0-9 . _ - and begin with a "
        f'letter or digit.\nWrite, for example: steplog.run("refund-1001")'
    )
    raise InvalidArgument(message)
