"""Expressions of a program's own: refused where they would take out everything, nothing, or forever.

What is written passes them while the program waits, and texts of strangers are among it. So an expression in which a
text can be split in exponentially many ways is refused before it is used: one repeat inside another, without anything
between two rounds of the inner one that tells where it ends (Kirrage, Rathnayake and Thielecke, "Static Analysis for
Regular Expression Denial-of-Service Attacks", 2013, of which this is the plainest case). So is one whose search
may take the square of the text's length (`costs`).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from steplog._kernel import costs
from steplog._kernel.syntax import REPEATS, is_endless, letters, named, parts, required

# Lines as a log has them, in which there is no secret. An expression that finds most of one finds everything.
_ORDINARY: Final = (
    b'{"args":{"city":"Paris","days":3,"note":"please call back on Monday"},"kind":"tool_call","target":"weather"}',
    b"The parcel was sent on 12 May and arrives within 3 days, the customer has been told.",
)
_MOST: Final = 0.5


def check(made: re.Pattern[bytes]) -> None:
    """Refuse an expression that cannot be looked for in everything.

    Raises:
        ValueError: it matches the empty text or ordinary text, or text can be made that keeps it busy for ever.
    """
    # Before it is tried on anything.
    tree = _parsed(made)
    inside = next(_ambiguous(tree), None)
    if inside is not None:
        raise ValueError(
            "a repeat inside a repeat, as in (a+)+, can take for ever; let something stand between two rounds that "
            "is in neither, as in =(?:a+,)+, or make the inner one possessive, as in =(?:a++)+"
        )
    if costs.is_costly(tree):
        raise ValueError(
            f"a long text can keep it busy for minutes: a repeat without an end that fails is tried anew from each of "
            f"its letters. Give it an end, as in [a-z]{{1,64}}@ for [a-z]+@ (up to {costs.MOST} ways to match from one "
            f"place), or let it begin behind something that is not in it, as in id=[a-z]+@"
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
        name, argument = named(node)
        if name in REPEATS and is_endless(argument):
            yield from _unended(argument[2], [])
        for part in parts(name, argument):
            yield from _ambiguous(part)


def _unended(sequence: Iterable[Any], between: list[frozenset[int]]) -> Iterator[Any]:
    items = list(sequence)
    between = [*between, *required(items)]
    for node in items:
        name, argument = named(node)
        if name in REPEATS and is_endless(argument):
            its = frozenset().union(*letters(argument[2]))
            if not any(one.isdisjoint(its) for one in between):
                yield node
        elif name in REPEATS or name in ("SUBPATTERN", "BRANCH"):
            for part in parts(name, argument):
                yield from _unended(part, between)
