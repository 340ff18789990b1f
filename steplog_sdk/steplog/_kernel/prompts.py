"""How one conversation differs from another, message by message.

Two prompts of a long conversation share nearly everything. What helps is which messages stand in one of them only,
which were rewritten, and which arrived shorter than they were.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from steplog._kernel.align import common

ADDED: Final = "added"
LEFT_OUT: Final = "left out"
CHANGED: Final = "changed"
CUT: Final = "cut short"

# Names that a provider makes up anew for each call of a tool; what is said does not depend on them.
_MADE_UP: Final = re.compile(r"\b(?:call|toolu|fc|chatcmpl|msg|resp|rs)_[A-Za-z0-9_-]+")
_SAME_START: Final = 0.8
_WORTH: Final = 40


class Said(NamedTuple):
    """One message.

    Attributes:
        role: who speaks.
        text: what is said, tool calls and results written out.
    """

    role: str
    text: str


class Change(NamedTuple):
    """One difference between two conversations.

    Attributes:
        label: `added`, `left out`, `changed` or `cut short`.
        a: number of the message in the first conversation, from 1, or None.
        b: its number in the second, or None.
        role: who speaks.
        old: what the first says, or "".
        new: what the second says, or "".
    """

    label: str
    a: int | None
    b: int | None
    role: str
    old: str
    new: str


def plain(text: str) -> str:
    """A text without the names that a provider makes up, so that two answers of the same words are equal."""
    return _MADE_UP.sub("{id}", text)


def changes(a: Sequence[Said], b: Sequence[Said]) -> list[Change]:
    """What differs between two conversations, in the order of the second; empty where the same is said."""
    ours = [(plain(one.role), plain(one.text)) for one in a]
    theirs = [(plain(one.role), plain(one.text)) for one in b]
    found: list[Change] = []
    x = y = 0
    for i, j in [*common(ours, theirs), (len(a), len(b))]:
        found += _between(a, b, range(x, i), range(y, j))
        x, y = i + 1, j + 1
    return found


def _between(a: Sequence[Said], b: Sequence[Said], left: range, right: range) -> list[Change]:
    """The differences of two stretches that have no message in common: the same role is the same message, changed."""
    pairs = common([a[i].role for i in left], [b[j].role for j in right])
    found: list[Change] = []
    i, j = left.start, right.start
    for one, other in [*((left[x], right[y]) for x, y in pairs), (left.stop, right.stop)]:
        found += [Change(LEFT_OUT, k + 1, None, a[k].role, a[k].text, "") for k in range(i, one)]
        found += [Change(ADDED, None, k + 1, b[k].role, "", b[k].text) for k in range(j, other)]
        if one < left.stop and other < right.stop:
            old, new = a[one].text, b[other].text
            label = CUT if is_cut(old, new) else CHANGED
            found.append(Change(label, one + 1, other + 1, b[other].role, old, new))
        i, j = one + 1, other + 1
    return found


def is_cut(old: str, new: str) -> bool:
    """Whether a text is the beginning, or the beginning and the end, of a longer one: something has shortened it."""
    if len(old) < _WORTH or len(new) >= len(old):
        return False
    head = _common_length(old, new)
    tail = _common_length(old[::-1], new[::-1])
    return min(head + tail, len(new)) >= _SAME_START * len(new) and len(new) <= _SAME_START * len(old)


def _common_length(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
