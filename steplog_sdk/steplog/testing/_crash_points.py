"""Where a program is killed: every moment of every step of its baseline, and of its runs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from steplog._kernel import events as ev
from steplog._kernel.fold import fold
from steplog._kernel.state import RunState, StepState
from steplog._runtime.settings import cipher
from steplog.errors import InvalidArgument
from steplog.stores.files import FileStore

PHASES: Final = ("before-intent", "after-intent", "inside", "piece", "before-outcome", "after-outcome")
_OF_RUNS: Final = {ev.RUN_CREATED: ("after-created",), ev.RUN_ENDED: ("before-end", "after-end")}
# What a limited number of kills is spent on first: where an effect may be lost or doubled.
_WORTH: Final = ("before-outcome", "inside", "piece", "after-intent", "after-outcome", "before-intent")


class Point(NamedTuple):
    """A moment at which the program is killed.

    Attributes:
        number: its place in the list of all points of the baseline, from 1.
        phase: which moment of the step or run.
        step: the step, or the type of the run's event.
        kind: `llm_call`, `tool_call` or `local`; `run` for moments of a run.
        target: what the step asks for, by name.
        mode: its mode; "" for moments of a run.
        nth: which attempt, or which event of that type.
        ordinal: number of the step among all that ask for the same, from 1.
        inside: how far into its effect the middle of that is, or None.
        run: the run; two of them may have equal steps.
    """

    number: int
    phase: str
    step: str
    kind: str
    target: str
    mode: str
    nth: int
    ordinal: int
    inside: dict[str, Any] | None = None
    run: str = ""

    @property
    def name(self) -> str:
        """What `--only` takes: the step (as much of its id as one can read) and the moment."""
        place = self.step[:10] if self.kind != "run" else self.step
        return f"{place}:{self.phase}" + (f":{self.nth}" if self.nth > 1 else "")

    def is_named(self, wanted: str) -> bool:
        """Whether this is meant: by its number or its name.

        The step's id may be shortened, or be the name of its tool; the moment may be left out.
        """
        if wanted.isdecimal():
            return int(wanted) == self.number
        step, _, moment = wanted.partition(":")
        mine = self.phase, f"{self.phase}:{self.nth}"
        return (
            bool(step)
            and (self.step.startswith(step) or self.target == step)
            and (not moment or moment in mine[self.nth > 1 :])
        )

    def __str__(self) -> str:
        return f"{self.target} {self.phase}" if self.kind != "run" else f"{self.step} {self.phase}"


Key = tuple[str, str]
"""A step, by its run and its id."""


class Records(NamedTuple):
    """What a case has left behind.

    Attributes:
        runs: state of every run, by id.
        notes: what its processes have noted, in order.
        streams: steps whose answer came in several chunks.
    """

    runs: dict[str, RunState]
    notes: list[dict[str, Any]]
    streams: frozenset[str] = frozenset()

    @property
    def steps(self) -> dict[Key, StepState]:
        """Every step of every run."""
        return {(name, step.id): step for name, run in self.runs.items() for step in run.steps.values()}

    def counts(self, what: str) -> Counter[Key]:
        """How often each step's effect has begun, or has ended."""
        return Counter((note["run"], note["step"]) for note in self.notes if note["what"] == what)

    def successes(self) -> Counter[Key]:
        """How often each step's effect has returned. One that raised may be retried; that is its author's decision."""
        ended = (note for note in self.notes if note["what"] == "ended" and not note.get("failed"))
        return Counter((note["run"], note["step"]) for note in ended)

    def tools(self) -> dict[str, dict[str, Any]]:
        """What is known of each tool, by name."""
        return {note["name"]: note for note in self.notes if note["what"] == "tool"}


def read(folder: Path) -> Records:
    """Look at what the processes of a case have left."""
    store, runs = store_of(folder), {}
    for run_id in store.runs():
        runs[run_id] = fold(store.read(run_id).events)
    notes, answers = _lines(folder / "notes"), _lines(folder / "answers")
    streams = frozenset(answer["step"] for answer in answers if _is_stream(answer))
    return Records(runs, notes, streams)


def store_of(folder: Path) -> FileStore:
    """The store of a case."""
    return FileStore(folder / "home", durability="process", cipher=cipher())


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []


def _is_stream(answer: dict[str, Any]) -> bool:
    kinds = [value for name, value in answer.get("headers", ()) if name.lower() == "content-type"]
    return len(answer.get("chunks", ())) > 1 and any("event-stream" in kind for kind in kinds)


def points_of(folder: Path, baseline: Records) -> list[Point]:
    """Every moment of the baseline, steps in the order in which they began."""
    store, found, ordinals = store_of(folder), [], _ordinals(baseline)
    inside: dict[Key, list[Any]] = defaultdict(list)
    for note in baseline.notes:
        if note["what"] == "ended":
            inside[note["run"], note["step"]].append(note.get("inside"))
    begun = baseline.counts("begun")
    for run_id, run in baseline.runs.items():
        seen: Counter[str] = Counter()
        for event in store.read(run_id).events:
            if event.type in _OF_RUNS:
                seen[event.type] += 1
                place = event.type, "run", event.type, "", seen[event.type], 1
                found += [Point(0, phase, *place, run=run_id) for phase in _OF_RUNS[event.type]]
            elif event.type == ev.STEP_STARTED and event.step is not None:
                step, nth = run.steps[event.step], event.data.get("attempt", 1)
                key = run_id, step.id
                extents = inside[key]
                extent = extents[nth - 1] if nth <= len(extents) else None
                phases = _phases(step, extent, baseline, executed=begun[key] >= nth)
                found += [_point(phase, step, nth, ordinals[key], extent)._replace(run=run_id) for phase in phases]
    return [point._replace(number=number) for number, point in enumerate(found, 1)]


def _phases(step: StepState, extent: Any, baseline: Records, *, executed: bool) -> Iterator[str]:
    asks = step.kind == "llm_call"
    for phase in PHASES:
        if phase == "after-intent" and not executed:
            continue  # nothing of ours is called when it begins
        if phase == "inside" and not (extent or (asks and executed)):
            continue
        if phase == "piece" and step.id not in baseline.streams:
            continue
        yield phase


def _point(phase: str, step: StepState, nth: int, ordinal: int, extent: Any) -> Point:
    inside = (extent or {}) if phase == "inside" else None
    return Point(0, phase, step.id, step.kind, step.target, step.mode, nth, ordinal, inside)


def _ordinals(records: Records) -> dict[Key, int]:
    counted: Counter[str] = Counter()
    ordinals = {}
    for key, step in records.steps.items():
        counted[step.target] += 1
        ordinals[key] = counted[step.target]
    return ordinals


def chosen(points: Sequence[Point], only: Iterable[str], limit: int | None) -> list[Point]:
    """The points that are wanted.

    Raises:
        InvalidArgument: a name that no point has, or a limit below 1.
    """
    wanted = list(only)
    for name in wanted:
        if not any(point.is_named(name) for point in points):
            known = ", ".join(point.name for point in points[:8])
            message = (
                f"no kill point is named {name!r}; there are {len(points)}, such as {known}.\n"
                f"Name one by its number, or by a step and a moment: {points[0].name if points else 's_…:inside'}"
            )
            raise InvalidArgument(message)
    picked = [point for point in points if not wanted or any(point.is_named(name) for name in wanted)]
    if limit is None or limit >= len(picked):
        return picked
    if limit < 1:
        raise InvalidArgument(f"a limit of {limit} kill points leaves nothing to do; give 1 or more.")
    return sorted(sorted(picked, key=_worth)[:limit], key=lambda point: point.number)


def _worth(point: Point) -> tuple[int, int, int]:
    tools_first = ("tool_call", "llm_call", "run", "local").index(point.kind)
    phase = _WORTH.index(point.phase) if point.phase in _WORTH else len(_WORTH)
    # A safe effect that runs again does what it says; the others are what a crash is dangerous to.
    return (tools_first + (4 if point.mode == "safe" else 0), phase, point.number)
