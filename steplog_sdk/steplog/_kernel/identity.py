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
from steplog._kernel.fold import FINISHED, RunState
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


class Occurrences:
    """Which occurrence a request gets, among the identical ones of its scope.

    Mostly they are counted from zero. Concurrent branches, however, reach the log in another order than they are
    counted in, so a crash may leave a later occurrence finished and an earlier one open, or not recorded at all. The
    finished ones are given out first: whoever gets an open one runs its effect, and must not run it while what has
    happened already is still to be asked for.
    """

    def __init__(self, state: RunState) -> None:
        recorded: dict[Request, list[tuple[bool, int]]] = {}
        for step in state.steps.values():
            request = (step.scope, step.kind, step.target, step.started.get("args_hash", ""))
            # One that the program gave up was asked for in its turn like a finished one, and is given up again there.
            is_open = step.status not in FINISHED and step.given_up is None
            place = (is_open, step.started.get("occurrence", 0))
            recorded.setdefault(request, []).append(place)
        orders = ((request, [number for _, number in sorted(places)]) for request, places in recorded.items())
        self._orders = {request: order for request, order in orders if order != list(range(len(order)))}

    def of(self, request: Request, before: int) -> int:
        """The occurrence of a request (scope, kind, target, args hash) that this dispatch has made so often before."""
        order = self._orders.get(request)
        if order is None:
            return before
        if before < len(order):
            return order[before]
        free = (number for number in itertools.count() if number not in order)
        return next(itertools.islice(free, before - len(order), None))


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
