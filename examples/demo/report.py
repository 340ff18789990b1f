"""What really happened, counted where it counts: in the ledger, at the provider, and in the log."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from rich.text import Text
from stage import KILLED, Stage

from steplog._cli.output import columns, console
from steplog._kernel import events as ev
from steplog._kernel.events import Event
from steplog.stores.files import FileStore

STYLES = {"ran": "green", "killed": "bold red", "from log": "cyan", "stopped": "yellow", "": ""}
NAMES = {"llm_call": "model", "tool_call": "tool"}


@dataclass(frozen=True)
class Row:
    """One step, and what each process of the run did with it."""

    kind: str
    target: str
    mode: str
    cells: list[str]


def events_of(stage: Stage) -> list[Event]:
    """The run's log."""
    return FileStore(stage.home).read(stage.run_id).events


def rows_of(stage: Stage) -> list[Row]:
    """Which step ran in which process, and where it was returned from the log."""
    log = events_of(stage)
    epochs = {event.data["pid"]: event.epoch for event in log if event.type == ev.RUN_CLAIMED}
    steps: dict[str, list[Event]] = {}
    for event in log:
        if event.step:
            steps.setdefault(event.step, []).append(event)
    rows = []
    for own in steps.values():
        begun = own[0].data
        cells = [_cell(own, epochs[ended.pid], killed=ended.code == KILLED) for ended in stage.ended]
        rows.append(Row(begun["kind"], begun["target"], begun["mode"], cells))
    return rows


def _cell(own: list[Event], epoch: int, *, killed: bool) -> str:
    """What the process of this epoch did with a step, out of the step's own events."""
    started = any(event.type == ev.STEP_STARTED and event.epoch == epoch for event in own)
    ended = [event for event in own if event.type in {ev.STEP_FINISHED, ev.STEP_RESOLVED}]
    if started:
        return "ran" if any(event.epoch == epoch for event in ended) else "killed"
    if any(event.epoch < epoch for event in ended):
        return "from log"
    return "stopped" if own[0].epoch < epoch and not killed else ""


@dataclass(frozen=True)
class Figures:
    """The count of one agent."""

    made: int
    cut_off: int
    saved: int
    entries: int
    twice: int
    same_answer: bool | None
    same_ledger: bool | None
    returned: int
    said_returned: int


def figures_of(stage: Stage, reference: Stage | None, hanging: int | None) -> Figures:
    """Count what happened to an agent that was killed, against one that was left alone."""
    rows = rows_of(stage)
    hits = stage.provider.hits()
    answered = [digest for number, digest in enumerate(hits, 1) if number != hanging]
    model = [cell for row in rows for cell in row.cells if row.kind == "llm_call"]
    last = [row.cells[-1] for row in rows]
    return Figures(
        made=len(hits) or model.count("ran") + model.count("killed"),
        cut_off=model.count("killed"),
        saved=model.count("from log"),
        entries=len(ledger_of(stage)),
        twice=_repeats(ledger_of(stage)) + _repeats(answered),
        same_answer=None if reference is None else answer_of(stage) == answer_of(reference),
        same_ledger=None if reference is None else ledger_of(stage) == ledger_of(reference),
        returned=last.count("from log"),
        said_returned=_said_returned(stage),
    )


def ledger_of(stage: Stage) -> list[str]:
    """What happened in the shop, one text for each entry, without the keys."""
    lines = stage.ledger.read_text().splitlines() if stage.ledger.exists() else []
    facts = [{key: value for key, value in json.loads(line).items() if key != "key"} for line in lines]
    return [json.dumps(fact, sort_keys=True) for fact in facts]


def answer_of(stage: Stage) -> str:
    """The last words of the process that finished the run."""
    return stage.ended[-1].out.strip()


def _repeats(things: list[str]) -> int:
    return sum(count - 1 for count in Counter(things).values())


def _said_returned(stage: Stage) -> int:
    """How many steps the last process itself counted as returned from the log."""
    line = next(line for line in stage.ended[-1].err.splitlines() if "returned from the log" in line)
    return int(line.rpartition(": ")[2].split()[0])


def print_steps(stage: Stage) -> None:
    """Print one line a step, one column a process."""
    heads = ["", "step", "may repeat?", *(f"process {number}" for number, _ in enumerate(stage.ended, 1))]
    lines = [[Text(head, style="dim") for head in heads]]
    for row in rows_of(stage):
        head = [Text(NAMES.get(row.kind, row.kind), style="dim"), Text(row.target), Text(row.mode, style="dim")]
        lines.append(head + [Text(cell, style=STYLES[cell]) for cell in row.cells])
    for line in columns(lines):
        console().print(Text("  ").append_text(line))


def print_totals(totals: dict[str, Figures]) -> None:
    """Print what a stranger wants to know."""
    figures = totals.values()
    cut = sum(one.cut_off for one in figures)
    lines = [
        ("model calls made", [one.made for one in figures], f"{cut} of them cut off by a kill, and made again"),
        ("model calls saved", [one.saved for one in figures], "returned from the log instead of paid for again"),
        (
            "ledger entries",
            [one.entries for one in figures],
            "refunds, orders and messages that really went out",
        ),
        ("executed twice", [one.twice for one in figures], "counted in the ledger and at the provider"),
    ]
    cells = [[Text(""), *(Text(name, style="dim") for name in totals), Text("")]]
    cells += [[Text(name), *(Text(str(n)) for n in numbers), Text(note, style="dim")] for name, numbers, note in lines]
    for line in columns(cells, right=frozenset(range(1, 1 + len(totals)))):
        console().print(Text("  ").append_text(line))
