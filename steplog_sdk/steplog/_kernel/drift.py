"""Where two recorded requests first differ, and how to say so in a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

# A value is shown through a window of this many characters, whatever its size.
_WINDOW: Final = 100
_BEFORE: Final = 30


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT: Final = _Absent()


class Difference(NamedTuple):
    """The first place where two JSON trees differ.

    Attributes:
        path: as `messages[4].content`; "" when the trees differ as a whole.
        recorded: the recorded value there, or ABSENT.
        found: the present value there, or ABSENT.
    """

    path: str
    recorded: Any
    found: Any


def first_difference(recorded: Any, found: Any) -> Difference | None:
    """The first difference in document order, or None when the trees are equal.

    Types count: `1` and `1.0` differ, because a program can tell them apart.
    """
    return next(differences(recorded, found), None)


def count_differences(recorded: Any, found: Any, at_most: int = 100) -> int:
    """In how many places two trees differ, counted to a limit."""
    return sum(1 for _ in islice(differences(recorded, found), at_most))


def differences(recorded: Any, found: Any) -> Iterator[Difference]:
    """All differences in document order, as `first_difference` gives the first of them."""
    stack: list[tuple[str, Any, Any]] = [("", recorded, found)]
    while stack:
        path, old, new = stack.pop()
        if isinstance(old, dict) and isinstance(new, dict):
            stack.extend(reversed(_pairs_of_dicts(path, old, new)))
        elif isinstance(old, list) and isinstance(new, list):
            stack.extend(reversed(_pairs_of_lists(path, old, new)))
        elif type(old) is not type(new) or old != new or (old == 0 and str(old) != str(new)):  # 0.0 and -0.0
            yield Difference(path, old, new)


def _pairs_of_dicts(path: str, old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    names = [*old, *(name for name in new if name not in old)]
    return [(f"{path}.{name}" if path else name, old.get(name, ABSENT), new.get(name, ABSENT)) for name in names]


def _pairs_of_lists(path: str, old: list[Any], new: list[Any]) -> list[tuple[str, Any, Any]]:
    longest = max(len(old), len(new))
    return [
        (f"{path}[{i}]", old[i] if i < len(old) else ABSENT, new[i] if i < len(new) else ABSENT) for i in range(longest)
    ]


def windows(difference: Difference) -> tuple[str, str]:
    """Both values as text of at most about a hundred characters, cut to where they begin to differ.

    Line breaks and other characters that do not print are escaped, so that a window is one line on any terminal.
    """
    old, new = _text(difference.recorded), _text(difference.found)
    if old == new:
        # The text "1" and the number 1.
        old, new = repr(difference.recorded), repr(difference.found)
    common = common_prefix(old, new)
    return _cut(old, common), _cut(new, common)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def common_prefix(one: str, other: str) -> int:
    """How many characters two texts have in common at the beginning."""
    length = min(len(one), len(other))
    low, high = 0, length
    # Binary search on slices: prompts of a megabyte are ordinary here, and slices compare in C.
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cut(text: str, at: int) -> str:
    before = _fitting(reversed(text[max(0, at - _BEFORE) : at]), _BEFORE)[::-1]
    rest = _fitting(text[at : at + _WINDOW], _WINDOW - sum(map(len, before)))
    head = "..." if len(before) < at else ""
    tail = "..." if at + len(rest) < len(text) else ""
    return f"{head}{''.join(before)}{''.join(rest)}{tail}"


def _fitting(text: Iterable[str], room: int) -> list[str]:
    """As many characters as fit once they are escaped: a text of line breaks is twice as long as it looks."""
    shown = []
    for character in text:
        escaped = _printable(character)
        room -= len(escaped)
        if room < 0:
            break
        shown.append(escaped)
    return shown


def _printable(character: str) -> str:
    if character.isprintable() and character != "\\":
        return character
    return character.encode("unicode_escape").decode()
