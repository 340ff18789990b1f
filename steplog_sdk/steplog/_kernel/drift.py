"""Where two recorded requests first differ, and how to say so in a few lines."""

from __future__ import annotations

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
    stack: list[tuple[str, Any, Any]] = [("", recorded, found)]
    while stack:
        path, old, new = stack.pop()
        if isinstance(old, dict) and isinstance(new, dict):
            stack.extend(reversed(_pairs_of_dicts(path, old, new)))
        elif isinstance(old, list) and isinstance(new, list):
            stack.extend(reversed(_pairs_of_lists(path, old, new)))
        elif type(old) is not type(new) or old != new:
            return Difference(path, old, new)
    return None


def _pairs_of_dicts(path: str, old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    names = [*old, *(name for name in new if name not in old)]
    return [(f"{path}.{name}" if path else name, old.get(name, ABSENT), new.get(name, ABSENT)) for name in names]


def _pairs_of_lists(path: str, old: list[Any], new: list[Any]) -> list[tuple[str, Any, Any]]:
    longest = max(len(old), len(new))
    return [
        (f"{path}[{i}]", old[i] if i < len(old) else ABSENT, new[i] if i < len(new) else ABSENT) for i in range(longest)
    ]


def windows(difference: Difference) -> tuple[str, str]:
    """Both values as text of at most about a hundred characters, cut to where they begin to differ."""
    old, new = _text(difference.recorded), _text(difference.found)
    start = max(0, _common_prefix(old, new) - _BEFORE)
    return _cut(old, start), _cut(new, start)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _common_prefix(one: str, other: str) -> int:
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


def _cut(text: str, start: int) -> str:
    piece = text[start : start + _WINDOW]
    head = "..." if start else ""
    tail = "..." if start + _WINDOW < len(text) else ""
    return f"{head}{piece}{tail}".replace("\n", "\\n")
