"""Who a step is: its id follows from what is asked, not from when it is asked.

Content decides identity, so reordered and parallel effects find their own results again, and a step inserted into a
program does not shift the others. `occurrence` tells identical requests of one scope apart; it starts at zero on every
dispatch, so a re-run that asks for the same things yields the same ids.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Any, Final, Literal

import orjson

from steplog._kernel.canonical import canonical, plain_bytes
from steplog.errors import InvalidArgument

Kind = Literal["llm_call", "tool_call", "local"]
Mode = Literal["safe", "keyed", "verify", "unsafe"]

MODES: Final[tuple[Mode, ...]] = ("safe", "keyed", "verify", "unsafe")

# 26 base32 digits carry 130 bits: a collision needs about 2^65 steps in one run. They are looked up two at a time,
# because the standard library's encoder takes longer than the rest of the identity together.
_PAIRS: Final = tuple(a + b for a in "abcdefghijklmnopqrstuvwxyz234567" for b in "abcdefghijklmnopqrstuvwxyz234567")
_NUMBERS: Final = struct.Struct(">QQB15x").unpack


def args_hash(args: Any) -> str:
    """SHA-256 (64 hex digits) of the canonical form of an argument tree.

    Raises:
        EncodeError: the tree holds something that JSON cannot.
    """
    return sha256(canonical(args)).hexdigest()


def plain_hash(args: Any) -> str | None:
    """The `args_hash` of a value that needs no encoding (see `canonical.is_plain`), or None of one that may need it."""
    text = plain_bytes(args)
    return None if text is None else sha256(text).hexdigest()


def step_id(scope: str, kind: str, target: str, hashed: str, occurrence: int) -> str:
    """The id of a step: `s_` and 26 base32 digits of SHA-256 over its canonical identity.

    Args:
        scope: id of the enclosing step, or "".
        kind: llm_call, tool_call or local.
        target: model id, tool name or local name.
        hashed: `args_hash` of the arguments.
        occurrence: how many identical submissions this dispatch has made before in the scope.
    """
    # For an array of strings and one small int, orjson's compact form is the canonical one.
    identity = orjson.dumps([scope, kind, target, hashed, occurrence])
    high, middle, low = _NUMBERS(sha256(identity).digest())
    pairs = _PAIRS
    # 13 pairs of digits are 130 bits: six from the first 64 with 4 bits left over, and so on.
    return (
        f"s_{pairs[high >> 54]}{pairs[high >> 44 & 1023]}{pairs[high >> 34 & 1023]}{pairs[high >> 24 & 1023]}"
        f"{pairs[high >> 14 & 1023]}{pairs[high >> 4 & 1023]}{pairs[(high & 15) << 6 | middle >> 58]}"
        f"{pairs[middle >> 48 & 1023]}{pairs[middle >> 38 & 1023]}{pairs[middle >> 28 & 1023]}"
        f"{pairs[middle >> 18 & 1023]}{pairs[middle >> 8 & 1023]}{pairs[(middle & 255) << 2 | low >> 6]}"
    )


def check_mode(mode: str, owner: str) -> Mode:
    """Return `mode` when it is one of the four, else raise InvalidArgument naming `owner`."""
    if mode in MODES:
        return mode
    known = ", ".join(MODES)
    message = (
        f"{owner}: unknown idempotency mode {mode!r}. The modes are {known}.\n"
        f'Write, for example: @steplog.step(mode="safe") for a tool that may be repeated after a crash.'
    )
    raise InvalidArgument(message)
