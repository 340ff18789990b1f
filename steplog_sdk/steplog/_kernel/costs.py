"""How long a search for an expression may take: in proportion to the text, or to its square.

The standard library tries every way to match from every place. That is too much in two cases. A repeat without an end
that fails is tried anew from each letter that it went over; not so where something stands before it that cannot be
inside it, because then those letters begin no match. And repeats or alternatives that share letters, side by side, are
tried in all combinations. What is accepted takes at most `MOST` steps or so for each byte of the text.

It errs on the safe side: an expression that it calls costly may be harmless, one that it does not is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from steplog._kernel.syntax import REPEATS, SINGLE, bytes_of, letters, named, parts

MOST: Final = 256
"""Ways to match from one place, at most."""

# Rounds of which each place may be asked for so many, one after the other.
_LONG: Final = 4096

_Set = frozenset[int]


def is_costly(tree: Any) -> bool:
    """Whether a search may take longer than in proportion to the text."""
    return _ways(_flat(tree), [], follows=False) > MOST


def _flat(sequence: Any) -> list[tuple[str, Any]]:
    """The nodes of a sequence, groups opened."""
    found: list[tuple[str, Any]] = []
    for node in sequence:
        name, argument = named(node)
        found += _flat(argument[-1]) if name == "SUBPATTERN" else [(name, argument)]
    return found


def _ways(nodes: Sequence[tuple[str, Any]], before: list[_Set], *, follows: bool) -> int:
    """In how many ways a sequence may match from one place, those that count: more than `MOST` where there is no bound.

    Args:
        nodes: the sequence.
        before: what the characters right before it have to be, as far as the last repeat or alternative.
        follows: whether something behind it may fail.
    """
    ways, before = 1, list(before)
    for place, (name, argument) in enumerate(nodes):
        fails = follows or any(_may_fail(*node) for node in nodes[place + 1 :])
        if name in SINGLE:
            before.append(bytes_of(name, argument))
            continue
        ways *= _ways_of(name, argument, before, fails=fails)
        if ways > MOST:
            return ways
        if name in (*REPEATS, "POSSESSIVE_REPEAT", "BRANCH", "ATOMIC_GROUP"):
            before = []
    return ways


def _ways_of(name: str, argument: Any, before: list[_Set], *, fails: bool) -> int:
    if name == "BRANCH":
        return sum(_ways(_flat(part), before, follows=fails) for part in argument[1])
    if name in ("ASSERT", "ASSERT_NOT", "ATOMIC_GROUP"):
        return max(_ways(_flat(part), before, follows=True) for part in parts(name, argument))
    if name == "POSSESSIVE_REPEAT" or name in REPEATS:
        return _rounds(name, argument, before, fails=fails)
    # What is left looks at a place (`\b`), or asks for what an earlier group has found.
    return 1 if name == "AT" else MOST + 1


def _rounds(name: str, argument: Any, before: list[_Set], *, fails: bool) -> int:
    least, most, inner = int(argument[0]), int(argument[1]), _flat(argument[2])
    if least > _LONG:
        return MOST + 1
    its = frozenset().union(*letters(argument[2]))
    # Behind what cannot be inside it, a run of its letters is gone over from one place alone.
    is_apart = any(one.isdisjoint(its) for one in before)
    choices = 1 if name == "POSSESSIVE_REPEAT" and most <= _LONG else most - least + 1
    if not _is_plain(inner) and not _is_certain(inner):
        return MOST + 1
    if is_apart or not (fails or (least and not _is_plain(inner))):
        return 1
    if _is_plain(inner):
        return choices
    # The first round has no round before it that would tell where it begins.
    return _ways(inner, before, follows=True) * (choices**2 if fails else 1)


def _is_certain(inner: Sequence[tuple[str, Any]]) -> bool:
    """Whether the rounds of a repeated group can be cut in one way only."""
    within = [bytes_of(kind, its) for kind, its in inner if kind in SINGLE]
    # What is possessive gives nothing back, so of plain letters it is cut in one way.
    rest = [node for node in inner if node[0] != "POSSESSIVE_REPEAT" or not _is_plain(_flat(node[1][2]))]
    return _ways(rest, within, follows=True) == 1


def _is_plain(nodes: Sequence[tuple[str, Any]]) -> bool:
    return all(name in SINGLE for name, _ in nodes)


def _may_fail(name: str, argument: Any) -> bool:
    return not (name in (*REPEATS, "POSSESSIVE_REPEAT") and argument[0] == 0)
