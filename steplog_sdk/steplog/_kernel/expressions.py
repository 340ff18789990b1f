"""Expressions of a program's own: refused where they would take out everything, nothing, or forever.

What is written passes them while the program waits, and texts of strangers are among it. So an expression in which a
text can be split in exponentially many ways is refused before it is used: one repeat inside another, without anything
between two rounds of the inner one that tells where it ends (Kirrage, Rathnayake and Thielecke, "Static Analysis for
Regular Expression Denial-of-Service Attacks", 2013, of which this is the plainest case).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

# Lines as a log has them, in which there is no secret. An expression that finds most of one finds everything.
_ORDINARY: Final = (
    b'{"args":{"city":"Paris","days":3,"note":"please call back on Monday"},"kind":"tool_call","target":"weather"}',
    b"The parcel was sent on 12 May and arrives within 3 days, the customer has been told.",
)
_MOST: Final = 0.5

# How the standard library's own parser reads an expression; repeats that give nothing back are safe by themselves.
_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT")
_SINGLE: Final = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
_CATEGORIES: Final = {
    f"CATEGORY_{word}": letter
    for word, letter in (
        *(("DIGIT", rb"\d"), ("SPACE", rb"\s"), ("WORD", rb"\w")),
        *(("NOT_DIGIT", rb"\D"), ("NOT_SPACE", rb"\S"), ("NOT_WORD", rb"\W")),
    )
}
# Rounds above which a repeat may as well have no end.
_ENDLESS: Final = 20
_ALL: Final = frozenset(range(256))


def check(made: re.Pattern[bytes]) -> None:
    """Refuse an expression that cannot be looked for in everything.

    Raises:
        ValueError: it matches the empty text or ordinary text, or text can be made that keeps it busy for ever.
    """
    # Before it is tried on anything.
    inside = next(_ambiguous(_parsed(made)), None)
    if inside is not None:
        raise ValueError(
            "a repeat inside a repeat, as in (a+)+, can take for ever; let something stand between two rounds that "
            "is in neither, as in (?:a+,)+, or make the inner one possessive, as in (?:a++)+"
        )
    for text in (b"", *_ORDINARY):
        spans = [match.span("secret" if "secret" in made.groupindex else 0) for match in made.finditer(text)]
        if any(start == stop for start, stop in spans):
            raise ValueError("it matches the empty text")
        if sum(stop - start for start, stop in spans) > _MOST * len(text):
            raise ValueError(f"it matches ordinary text, such as {text.decode()!r}")


def _parsed(made: re.Pattern[bytes]) -> Any:
    # The standard library has no public name for its parser; every release since 3.11 has it here.
    return importlib.import_module("re._parser").parse(made.pattern, made.flags)


def _ambiguous(sequence: Iterable[Any]) -> Iterator[Any]:
    """Repeats inside an endless repeat of which a text does not tell where one round ends."""
    for node in sequence:
        name, argument = _named(node)
        if name in _REPEATS and _is_endless(argument):
            yield from _unended(argument[2], [])
        for part in _parts(name, argument):
            yield from _ambiguous(part)


def _unended(sequence: Iterable[Any], between: list[frozenset[int]]) -> Iterator[Any]:
    items = list(sequence)
    between = [*between, *_required(items)]
    for node in items:
        name, argument = _named(node)
        if name in _REPEATS and _is_endless(argument):
            letters = frozenset().union(*_letters(argument[2]))
            if not any(one.isdisjoint(letters) for one in between):
                yield node
        elif name in _REPEATS or name in ("SUBPATTERN", "BRANCH"):
            for part in _parts(name, argument):
                yield from _unended(part, between)


def _required(sequence: Iterable[Any]) -> Iterator[frozenset[int]]:
    """What one character of each round has to be."""
    for node in sequence:
        name, argument = _named(node)
        if name == "SUBPATTERN" or (name in _REPEATS and argument[0] > 0):
            yield from _required(argument[-1])
        elif name in _SINGLE:
            yield _bytes(name, argument)


def _letters(sequence: Iterable[Any]) -> Iterator[frozenset[int]]:
    for node in sequence:
        name, argument = _named(node)
        if name in _SINGLE:
            yield _bytes(name, argument)
        for part in _parts(name, argument):
            yield from _letters(part)


def _parts(name: str, argument: Any) -> list[Any]:
    """The sequences inside a node."""
    if name == "BRANCH":
        return list(argument[1])
    if name in (*_REPEATS, "POSSESSIVE_REPEAT", "SUBPATTERN", "ASSERT", "ASSERT_NOT"):
        return [argument[-1]]
    return [argument] if name == "ATOMIC_GROUP" else []


def _is_endless(argument: Any) -> bool:
    return int(argument[1]) > _ENDLESS


def _named(node: Any) -> tuple[str, Any]:
    return str(node[0]), node[1]


def _bytes(name: str, argument: Any) -> frozenset[int]:
    """The bytes that a node for one character stands for, in capital and small letters."""
    found: Iterable[int]
    if name == "LITERAL":
        found = {argument}
    elif name == "NOT_LITERAL":
        found = _ALL - {argument}
    elif name == "ANY":
        found = _ALL
    elif name == "RANGE":
        found = range(argument[0], argument[1] + 1)
    elif name == "CATEGORY":
        found = {byte for byte in _ALL if re.match(_CATEGORIES[str(argument)], bytes((byte,)))}
    else:
        parts = [_named(part) for part in argument]
        found = {byte for part, inner in parts if part != "NEGATE" for byte in _bytes(part, inner)}
        found = _ALL.difference(found) if parts[0][0] == "NEGATE" else found
    return frozenset(other for byte in found for other in bytes((byte,)).swapcase() + bytes((byte,)))
