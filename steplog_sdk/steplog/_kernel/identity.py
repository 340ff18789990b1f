"""Who a step is: its id follows from what is asked, not from when it is asked.

Content decides identity, so reordered and parallel effects find their own results again, and a step inserted into a
program does not shift the others. `occurrence` tells identical requests of one scope apart; it starts at zero on every
dispatch, so a re-run that asks for the same things yields the same ids.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, Final, Literal

import orjson

from steplog._kernel.canonical import canonical
from steplog._kernel.fold import RunState
from steplog.errors import InvalidArgument

Kind = Literal["llm_call", "tool_call", "local"]
Mode = Literal["safe", "keyed", "verify", "unsafe"]

MODES: Final[tuple[Mode, ...]] = ("safe", "keyed", "verify", "unsafe")

# 26 base32 digits carry 130 bits: a collision needs about 2^65 steps in one run. They are looked up two at a time,
# because the standard library's encoder takes longer than the rest of the identity together.
_PAIRS: Final = tuple(a + b for a in "abcdefghijklmnopqrstuvwxyz234567" for b in "abcdefghijklmnopqrstuvwxyz234567")
_SHIFTS: Final = tuple(range(120, -1, -10))


def args_hash(args: Any) -> str:
    """SHA-256 (64 hex digits) of the canonical form of an argument tree.

    Raises:
        EncodeError: the tree holds something that JSON cannot.
    """
    return hashlib.sha256(canonical(args)).hexdigest()


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
    bits = int.from_bytes(hashlib.sha256(identity).digest()[:17], "big") >> 6
    return "s_" + "".join([_PAIRS[(bits >> shift) & 1023] for shift in _SHIFTS])

Request = tuple[str, str, str, str]


class Gaps:
    """Identical requests of which a crash has left a later one in the log and not an earlier one.

    Concurrent branches count their requests in one order and may reach the log in another. The occurrences that are
    recorded are given out first: the program asks for all of them again, but not in an order that anybody knows.
    """

    def __init__(self, state: RunState) -> None:
        recorded: dict[Request, list[int]] = {}
        for step in state.steps.values():
            request = (step.scope, step.kind, step.target, step.started.get("args_hash", ""))
            recorded.setdefault(request, []).append(step.started.get("occurrence", 0))
        self._recorded = {
            request: sorted(numbers) for request, numbers in recorded.items() if max(numbers) >= len(numbers)
        }

    def occurrence(self, request: Request, before: int) -> int:
        """The occurrence of a request (scope, kind, target, args hash) that was made so often before."""
        recorded = self._recorded.get(request)
        if recorded is None:
            return before
        if before < len(recorded):
            return recorded[before]
        free = (number for number in itertools.count() if number not in recorded)
        return next(itertools.islice(free, before - len(recorded), None))


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
