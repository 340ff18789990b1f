"""Which step of one run is which step of another.

A step's id says what was asked, so equal ids are the same request, in whatever order two runs made them. What is left
is paired scope by scope: first by lineage (a step of the same kind and target behind a pair is its counterpart, as
long as the runs go the same way), then by the longest common subsequence of what was asked in order, after Myers,
"An O(ND) Difference Algorithm and Its Variations" (1986). Runs that have nothing in common would take the square of
their length there; as in git and GNU diff, the search goes on from the furthest point when it has cost too much, so
that time grows with the length alone and a pairing may then be less than the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from steplog._kernel.state import RunState, StepState

# Edits that are looked for from one point before the search goes on from the furthest one.
_MOST: Final = 128

Content = Callable[[StepState], Hashable]


class Row(NamedTuple):
    """A step of one run, or two steps that are each other's counterparts.

    Attributes:
        a: the step of the first run, or None.
        b: the step of the second run, or None.
        same: both ask for the same.
        depth: how many steps enclose it.
    """

    a: StepState | None
    b: StepState | None
    same: bool
    depth: int


def align(a: RunState, b: RunState, content: Content) -> list[Row]:
    """Pair the steps of two runs, in the order of the first; what only the second has stands where it was made.

    Args:
        a: the first run, folded.
        b: the second run.
        content: what a step asks for, equal for equal requests. It is asked only for steps inside two different ones,
            whose ids cannot be equal.
    """
    within_a, within_b = _by_scope(a), _by_scope(b)
    rows: list[Row] = []
    stack: list[tuple[StepState | None, StepState | None, bool, int]] = []
    _push(stack, _pair(within_a.get("", []), within_b.get("", []), None), 0)
    while stack:
        one, other, same, depth = stack.pop()
        rows.append(Row(one, other, same, depth))
        inner_a = within_a.get(one.id, []) if one is not None else []
        inner_b = within_b.get(other.id, []) if other is not None else []
        if inner_a or inner_b:
            alike = one is not None and other is not None and one.id == other.id
            _push(stack, _pair(inner_a, inner_b, None if alike else content), depth + 1)
    return rows


_Pair = tuple[StepState | None, StepState | None, bool]


def _push(stack: list[tuple[StepState | None, StepState | None, bool, int]], pairs: list[_Pair], depth: int) -> None:
    stack.extend((*pair, depth) for pair in reversed(pairs))


def _by_scope(state: RunState) -> dict[str, list[StepState]]:
    found: dict[str, list[StepState]] = {}
    for step in state.steps.values():
        # A step whose enclosing step is not in the log stands at the top.
        found.setdefault(step.scope if step.scope in state.steps else "", []).append(step)
    return found


def _pair(a: Sequence[StepState], b: Sequence[StepState], content: Content | None) -> list[_Pair]:
    """The steps of one scope of each run, paired and in order."""
    mates = _Mates()
    _equal_requests(a, b, content, mates)
    equal = set(mates.of)
    _by_lineage(a, b, mates)
    for label in (_exact, _alike):
        left_a = [step for step in a if step.id not in mates.of]
        left_b = [step for step in b if step.id not in mates.taken]
        for i, j in common(list(map(label, left_a)), list(map(label, left_b))):
            mates.add(left_a[i], left_b[j])
    return list(_merged(a, b, mates, equal))


class _Mates:
    """Pairs found so far, by the ids of both sides."""

    def __init__(self) -> None:
        self.of: dict[str, StepState] = {}
        self.taken: set[str] = set()

    def add(self, one: StepState, other: StepState) -> None:
        self.of[one.id] = other
        self.taken.add(other.id)


def _equal_requests(a: Sequence[StepState], b: Sequence[StepState], content: Content | None, mates: _Mates) -> None:
    def key(step: StepState) -> Hashable:
        return step.id if content is None else (step.kind, step.target, content(step), step.occurrence)

    known = {key(step): step for step in b}
    for step in a:
        found = known.pop(key(step), None)
        if found is not None:
            mates.add(step, found)


def _by_lineage(a: Sequence[StepState], b: Sequence[StepState], mates: _Mates) -> None:
    """Pair what follows two counterparts (or nothing) in both runs, and what follows that, and so on."""
    here = _left_by_place(a, mates.of)
    there = _left_by_place(b, mates.taken)
    # In the order in which places come up, so that a step is paired before those that follow it.
    for after, ours in here.items():
        mate = None if after is None else mates.of.get(after)
        theirs = there.get(None if mate is None else mate.id, []) if after is None or mate is not None else []
        for label in (_exact, _alike):
            waiting: dict[Hashable, list[StepState]] = {}
            for step in reversed(theirs):
                if step.id not in mates.taken:
                    waiting.setdefault(label(step), []).append(step)
            for step in ours:
                if step.id not in mates.of and (found := waiting.get(label(step))):
                    mates.add(step, found.pop())


def _left_by_place(steps: Sequence[StepState], paired: Collection[str]) -> dict[str | None, list[StepState]]:
    found: dict[str | None, list[StepState]] = {}
    for step in steps:
        if step.id not in paired:
            found.setdefault(step.after, []).append(step)
    return found


def _exact(step: StepState) -> Hashable:
    return step.kind, step.target


def _alike(step: StepState) -> Hashable:
    """A call of another model is still the same call; another tool is another call."""
    return (step.kind,) if step.kind == "llm_call" else (step.kind, step.target)


def _merged(a: Sequence[StepState], b: Sequence[StepState], mates: _Mates, equal: set[str]) -> Iterator[_Pair]:
    place = {step.id: number for number, step in enumerate(b)}
    begun = 0
    for step in a:
        mate = mates.of.get(step.id)
        if mate is not None:
            yield from ((None, each, False) for each in b[begun : place[mate.id]] if each.id not in mates.taken)
            begun = max(begun, place[mate.id])
        yield step, mate, step.id in equal
    yield from ((None, each, False) for each in b[begun:] if each.id not in mates.taken)


def common(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """A long common subsequence of two sequences, as pairs of positions in order (Myers 1986, with a bound)."""
    pairs: list[tuple[int, int]] = []
    x = y = 0
    while x < len(a) and y < len(b):
        steps, x, y = _search(a, b, x, y)
        pairs += steps
    return pairs


def _search(a: Sequence[Hashable], b: Sequence[Hashable], x0: int, y0: int) -> tuple[list[tuple[int, int]], int, int]:
    """Pairs on the way from a point to the end, or to the furthest point within reach; and that point."""
    n, m = len(a) - x0, len(b) - y0
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    best, at = -1, (0, 0, 0)
    for edits in range(_MOST):
        trace.append(furthest.copy())
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
            x = furthest[k + 1] if down else furthest[k - 1] + 1
            y = x - k
            while x < n and y < m and a[x0 + x] == b[y0 + y]:
                x, y = x + 1, y + 1
            furthest[k] = x
            if x <= n and y <= m and x + y > best:
                best, at = x + y, (edits, x, y)
        if best == n + m:
            break
    pairs = [(x0 + x, y0 + y) for x, y in _walk_back(trace, *at)]
    return pairs, x0 + at[1], y0 + at[2]


def _walk_back(trace: list[dict[int, int]], edits: int, x: int, y: int) -> list[tuple[int, int]]:
    """The diagonal steps of the path to a point that was reached with so many edits, in order."""
    pairs: list[tuple[int, int]] = []
    for d in range(edits, -1, -1):
        before, k = trace[d], x - y
        down = k == -d or (k != d and before[k - 1] < before[k + 1])
        last = k + 1 if down else k - 1
        # Before the first edit stands the corner itself.
        from_x, from_y = (before[last], before[last] - last) if d else (0, 0)
        while x > from_x and y > from_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = from_x, from_y
    return pairs[::-1]
