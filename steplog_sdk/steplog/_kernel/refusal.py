"""How a walk through a value reports where it got stuck.

The walkers are recursive and run on every step, so they carry no path on the way down. A `Refused` collects it on the
way up instead: each level adds its own step, which costs nothing unless something is wrong.
"""

from __future__ import annotations

from typing import Final

DEPTH: Final = 100
"""Levels of nesting that a recorded tree may have; JSON tools in use refuse from 254 (orjson) or about 1,000 on."""

DIGITS: Final = 4300
"""Decimal digits that an int may have: Python's own default limit for reading one back."""

INT_LIMIT: Final = 10**DIGITS

_SHOWN = 160


def with_article(name: str) -> str:
    """A class as a sentence names it: `a datetime.date`, `an int`."""
    return f"{'an' if name[:1] in tuple('aeiouAEIOU') else 'a'} {name}"


class Misfit(ValueError):
    """What a person gave in place of a value is none of its type, and why."""


class Refused(Exception):
    """A value that a walk cannot take; becomes an `EncodeError` or a `DecodeError` at the entry point.

    Attributes:
        problem: the second half of a sentence that begins with the path.
        type_name: the type concerned.
    """

    def __init__(self, problem: str, type_name: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.type_name = type_name
        self._steps: list[str] = []
        self._holders: list[int] = []

    def inside(self, step: str, holder: object) -> Refused:
        """Add one level: `holder` contains the trouble at `step` (`.name` or `[0]`)."""
        self._steps.append(step)
        self._holders.append(id(holder))
        return self

    def path(self, where: str) -> str:
        """The path from `where` down to the trouble, as `result.items[3].socket`."""
        return where + "".join(reversed(self._steps))

    def loop(self, where: str) -> tuple[str, str] | None:
        """Where a value contains itself: the path of the inner and of the outer appearance, or None."""
        seen: dict[int, int] = {}
        steps = self._steps[::-1]
        for level, holder in enumerate(reversed(self._holders)):
            if holder in seen:
                return where + "".join(steps[:level]), where + "".join(steps[: seen[holder]])
            seen[holder] = level
        return None


def too_deep(value: object) -> Refused:
    """The refusal of a tree with more than `DEPTH` levels."""
    return Refused(f"nests deeper than {DEPTH} levels. Flatten it, or record the part that matters.", type_name(value))


def too_long(value: int) -> Refused:
    """The refusal of an int with more than `DIGITS` digits."""
    problem = f"is an int of more than {DIGITS:,} digits. Record it as bytes or as a hexadecimal str."
    return Refused(problem, type_name(value))


def key_step(key: object) -> str:
    """The step to a dict key or attribute: `.name` where that reads well, else `['any key']`."""
    if type(key) is str and key.isidentifier():
        return f".{key}"
    try:
        return f"[{shortened(repr(key), 60)}]"
    except Exception:  # noqa: BLE001 - the key's own repr may raise, and the path must not hide the first trouble
        return f"[<{class_name(type(key))}>]"


def type_name(value: object) -> str:
    """The name of a value's class as people write it: `int`, `socket.socket`."""
    return class_name(type(value))


def class_name(cls: type) -> str:
    """A class's dotted name; the module is left out for built-in types."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def shortened(text: str, limit: int = _SHOWN) -> str:
    """The text, with its middle left out where it is longer than `limit` characters."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"
