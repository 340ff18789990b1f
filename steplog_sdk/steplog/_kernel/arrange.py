"""An order for the events of a log in which recording the same thing again changes little.

A log is in the order of time, and under concurrency time differs with every run. Here each step stands behind the one
that it followed (its lineage), with all of its events together; of branches that ran together, the name decides.
What this order does not say is kept beside it as a permutation, so the log can be had back exactly.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Told(NamedTuple):
    """What is read of an event.

    Attributes:
        step: its step, or None for an event of the run.
        scope: the enclosing step, as its `step.started` says, or "".
        after: the step behind which it came, as its `step.started` says, or None.
        name: by which steps of equal standing are sorted.
    """

    step: str | None
    scope: str = ""
    after: str | None = None
    name: str = ""


class _Step:
    """A step with its events and the steps inside and behind it."""

    def __init__(self, first: int, told: Told) -> None:
        self.told = told
        self.first = self.last = first
        self.events: list[int] = []
        self.inside: list[_Step] = []
        self.behind: list[_Step] = []


def arranged(events: Sequence[Told]) -> list[int]:
    """The numbers of the events in the stable order.

    What is said of the run before its first step comes first, then the steps, then what else is said of the run.
    """
    steps: dict[str, _Step] = {}
    of_run: list[int] = []
    for number, told in enumerate(events):
        if told.step is None:
            of_run.append(number)
            continue
        step = steps.setdefault(told.step, _Step(number, told))
        step.events.append(number)
        step.last = number
    roots: list[_Step] = []
    for step in steps.values():
        after, scope = steps.get(step.told.after or ""), steps.get(step.told.scope)
        # A log that was put together by hand may name itself or what comes later; it is listed all the same.
        if after is not None and after.first < step.first and after.told.scope == step.told.scope:
            after.behind.append(step)
        elif scope is not None and scope.first < step.first:
            scope.inside.append(step)
        else:
            roots.append(step)
    head = sum(number == place for place, number in enumerate(of_run))
    return [*of_run[:head], *_listed(roots), *of_run[head:]]


def _listed(roots: list[_Step]) -> list[int]:
    """The events of the steps, each with what is inside it and then what is behind it."""
    # Without recursion: a chain is as long as the run.
    listed: list[int] = []
    queue: list[_Step | list[int]] = [*reversed(_siblings(roots))]
    while queue:
        found = queue.pop()
        if isinstance(found, list):
            listed += found
            continue
        queue += reversed(_siblings(found.behind))
        if found.inside:
            # Its end stands behind what is inside it.
            queue.append(found.events[1:])
            queue += reversed(_siblings(found.inside))
            listed.append(found.events[0])
        else:
            listed += found.events
    return listed


def _siblings(steps: list[_Step]) -> list[_Step]:
    """Steps that came behind the same one: what ended before another began stands before it, else the name decides."""
    if len(steps) < 2:
        return steps
    waiting = sorted(steps, key=lambda step: step.first)
    ends = [(step.last, number) for number, step in enumerate(waiting)]
    heapq.heapify(ends)
    ready: list[tuple[str, str, int]] = []
    done: set[int] = set()
    found: list[_Step] = []
    begun = 0
    while len(found) < len(waiting):
        while ends[0][1] in done:
            heapq.heappop(ends)
        while begun < len(waiting) and waiting[begun].first <= ends[0][0]:
            told = waiting[begun].told
            heapq.heappush(ready, (told.name, told.step or "", begun))
            begun += 1
        number = heapq.heappop(ready)[2]
        done.add(number)
        found.append(waiting[number])
    return found


def said(order: Iterable[int]) -> str:
    """A permutation as text, with `a-b` for numbers that follow each other."""
    parts: list[list[int]] = []
    for number in order:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def read(text: str, count: int) -> list[int]:
    """The permutation of `count` numbers that a text says.

    Raises:
        ValueError: it says none.
    """
    order: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        order += range(int(first), min(int(last or first), count) + 1)
    if sorted(order) != list(range(count)):
        message = f"{text!r} is no order of {count} events"
        raise ValueError(message)
    return order
