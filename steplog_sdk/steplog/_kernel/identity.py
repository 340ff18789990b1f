"""Who a step is: its id follows from what is asked, not from when it is asked.

Content decides identity, so reordered and parallel effects find their own results again, and a step inserted into a
program does not shift the others. `occurrence` tells identical requests of one scope apart; it starts at zero on every
dispatch, so a re-run that asks for the same things yields the same ids.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import orjson

from steplog._kernel.canonical import canonical, plain_bytes
from steplog._kernel.fold import FINISHED, RunState
from steplog.errors import InvalidArgument

Kind = Literal["llm_call", "tool_call", "local"]
Mode = Literal["safe", "keyed", "verify", "unsafe"]

MODES: Final[tuple[Mode, ...]] = ("safe", "keyed", "verify", "unsafe")

# 26 base32 digits carry 130 bits: a collision needs about 2^65 steps in one run. They are looked up two at a time,
# because the standard library's encoder takes longer than the rest of the identity together.
_PAIRS: Final = tuple(a + b for a in "abcdefghijklmnopqrstuvwxyz234567" for b in "abcdefghijklmnopqrstuvwxyz234567")
_NUMBERS: Final = struct.Struct(">QQB15x").unpack


def args_hash(args: Any, *, plain: bool = False) -> str:
    """SHA-256 (64 hex digits) of the canonical form of an argument tree.

    Args:
        args: the tree.
        plain: the caller knows already that the tree `is_plain`.

    Raises:
        EncodeError: the tree holds something that JSON cannot.
    """
    if plain:
        try:
            return hashlib.sha256(plain_bytes(args)).hexdigest()
        except orjson.JSONEncodeError:  # it was changed meanwhile; below that is found again, and where
            pass
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
    high, middle, low = _NUMBERS(hashlib.sha256(identity).digest())
    pairs = _PAIRS
    # 13 pairs of digits are 130 bits: six from the first 64 with 4 bits left over, and so on.
    return (
        f"s_{pairs[high >> 54]}{pairs[high >> 44 & 1023]}{pairs[high >> 34 & 1023]}{pairs[high >> 24 & 1023]}"
        f"{pairs[high >> 14 & 1023]}{pairs[high >> 4 & 1023]}{pairs[(high & 15) << 6 | middle >> 58]}"
        f"{pairs[middle >> 48 & 1023]}{pairs[middle >> 38 & 1023]}{pairs[middle >> 28 & 1023]}"
        f"{pairs[middle >> 18 & 1023]}{pairs[middle >> 8 & 1023]}{pairs[(middle & 255) << 2 | low >> 6]}"
    )


Request = tuple[str, str, str]


class Occurrences:
    """Which occurrence a request gets, among the identical ones of its scope.

    In a sequence they are counted from zero. Concurrent branches reach the log in another order than they are counted
    in, and reach it in another order again when the run is resumed. So of the recorded ones that nobody has asked for
    yet a request gets

    1. one that was recorded at its own place, behind the same step: a branch finds what it did itself,
    2. else any other: an identical request is an identical request, wherever the program makes it now.

    Finished ones come first: whoever gets an open one runs its effect, and must not run it while what has happened
    already is still to be asked for. Only at its own place, where a task asks in its turn, a request that may be
    repeated gets its own number even if that one is open. When all recorded ones are given out, a request is a new one.
    """

    def __init__(self, state: RunState) -> None:
        recorded: dict[tuple[str, Request], list[_Place]] = {}
        for step in state.steps.values():
            request = (step.kind, step.target, step.args_hash)
            # One that the program gave up was asked for in its turn like a finished one, and is given up again there.
            is_open = step.status not in FINISHED and step.given_up is None
            may_run = is_open and step.mode != "safe"
            place = _Place(is_open, step.occurrence, may_run, step.after)
            recorded.setdefault((step.scope, request), []).append(place)
        # A single first occurrence is found by counting.
        several = ((key, places) for key, places in recorded.items() if len(places) > 1 or places[0].number > 0)
        self._recorded = {key: sorted(places, key=_by_outcome) for key, places in several}
        self._given: dict[str, dict[Request, int | _Group]] = {}

    def give(self, scope: str, request: Request, after: str | None) -> int:
        """The occurrence of a request (kind, target, args hash) that is made in a scope, behind the step `after`."""
        given = self._given.setdefault(scope, {})
        counted = given.get(request)
        if counted is None:
            places = self._recorded.get((scope, request))
            counted = 0 if places is None else _Group(places)
        if isinstance(counted, int):
            given[request] = counted + 1
            return counted
        given[request] = counted
        return counted.give(after)

    def restart(self, scope: str) -> None:
        """Give out the occurrences inside a step again, because the step is attempted again."""
        self._given.pop(scope, None)


class _Place(NamedTuple):
    """Where an occurrence was recorded.

    Attributes:
        is_open: it has no outcome.
        number: the occurrence.
        doubtful: it has no outcome and may not be repeated just so.
        after: id of the step that it follows, or None.
    """

    is_open: bool
    number: int
    doubtful: bool
    after: str | None


def _by_outcome(place: _Place) -> tuple[bool, int]:
    return place.is_open, place.number


def _by_turn(place: _Place) -> tuple[bool, int]:
    return place.doubtful, place.number


class _Group:
    """The recorded occurrences of one request, and which of them were given out."""

    def __init__(self, places: list[_Place]) -> None:
        self._left: dict[int, None] = dict.fromkeys(place.number for place in places)
        self._behind: dict[str | None, deque[int]] = {}
        for place in sorted(places, key=_by_turn):
            self._behind.setdefault(place.after, deque()).append(place.number)
        recorded = frozenset(self._left)
        self._new: Iterator[int] = (number for number in itertools.count() if number not in recorded)

    def give(self, after: str | None) -> int:
        behind = self._behind.get(after)
        while behind:
            number = behind.popleft()
            if number in self._left:
                del self._left[number]
                return number
        if self._left:
            number = next(iter(self._left))
            del self._left[number]
            return number
        return next(self._new)


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
