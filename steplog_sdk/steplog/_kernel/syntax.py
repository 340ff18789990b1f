"""The tree that the standard library's parser makes of an expression over bytes, and what can be read off it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

# How the standard library's own parser reads an expression; repeats that give nothing back are safe by themselves.
REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT")
SINGLE: Final = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
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


def required(sequence: Iterable[Any]) -> Iterator[frozenset[int]]:
    """What one character of each round has to be."""
    for node in sequence:
        name, argument = named(node)
        if name == "SUBPATTERN" or (name in REPEATS and argument[0] > 0):
            yield from required(argument[-1])
        elif name in SINGLE:
            yield bytes_of(name, argument)


def letters(sequence: Iterable[Any]) -> Iterator[frozenset[int]]:
    """What each of its characters may be."""
    for node in sequence:
        name, argument = named(node)
        if name in SINGLE:
            yield bytes_of(name, argument)
        for part in parts(name, argument):
            yield from letters(part)


def parts(name: str, argument: Any) -> list[Any]:
    """The sequences inside a node."""
    if name == "BRANCH":
        return list(argument[1])
    if name in (*REPEATS, "POSSESSIVE_REPEAT", "SUBPATTERN", "ASSERT", "ASSERT_NOT"):
        return [argument[-1]]
    return [argument] if name == "ATOMIC_GROUP" else []


def is_endless(argument: Any) -> bool:
    """Whether a repeat may as well have no end."""
    return int(argument[1]) > _ENDLESS


def named(node: Any) -> tuple[str, Any]:
    """The name of a node, and what it holds."""
    return str(node[0]), node[1]


def bytes_of(name: str, argument: Any) -> frozenset[int]:
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
        parts = [named(part) for part in argument]
        found = {byte for part, inner in parts if part != "NEGATE" for byte in bytes_of(part, inner)}
        found = _ALL.difference(found) if parts[0][0] == "NEGATE" else found
    return frozenset(other for byte in found for other in bytes((byte,)).swapcase() + bytes((byte,)))
