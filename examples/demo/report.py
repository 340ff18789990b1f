"""What really happened, counted where it counts: in the ledger, at the provider, and in the log."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from stage import KILLED, Stage

Event = dict[str, Any]

CONSOLE = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
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
    """The run's log: one JSON object a line, for whoever can read JSON."""
    return [json.loads(line) for line in stage.log.read_text().splitlines()]


def rows_of(stage: Stage) -> list[Row]:
    """Which step ran in which process, and where it was returned from the log."""
    log = events_of(stage)
    epochs = {event["data"]["pid"]: event["epoch"] for event in log if event["type"] == "run.claimed"}
    steps: dict[str, list[Event]] = {}
    for event in log:
        if event["step"]:
            steps.setdefault(event["step"], []).append(event)
    rows = []
    for own in steps.values():
        begun = own[0]["data"]
        cells = [_cell(own, epochs[ended.pid], killed=ended.code == KILLED) for ended in stage.ended]
        rows.append(Row(begun["kind"], begun["target"], begun["mode"], cells))
    return rows


def _cell(own: list[Event], epoch: int, *, killed: bool) -> str:
    """What the process of this epoch did with a step, out of the step's own events."""
    started = any(event["type"] == "step.started" and event["epoch"] == epoch for event in own)
    ended = [event["epoch"] for event in own if event["type"] in {"step.finished", "step.resolved"}]
    if started:
        return "ran" if epoch in ended else "killed"
    if any(earlier < epoch for earlier in ended):
        return "from log"
    return "stopped" if own[0]["epoch"] < epoch and not killed else ""


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
    table = _table("", "step", "may repeat?", *(f"process {number}" for number, _ in enumerate(stage.ended, 1)))
    for row in rows_of(stage):
        cells = [Text(cell, style=STYLES[cell]) for cell in row.cells]
        table.add_row(Text(NAMES.get(row.kind, row.kind), style="dim"), row.target, Text(row.mode, style="dim"), *cells)
    CONSOLE.print(table)


def print_totals(totals: dict[str, Figures]) -> None:
    """Print what a stranger wants to know."""
    figures = totals.values()
    cut = sum(one.cut_off for one in figures)
    lines = [
        ("model calls made", [one.made for one in figures], f"{cut} cut off by a kill and made again"),
        ("model calls saved", [one.saved for one in figures], "returned from the log, not paid again"),
        ("ledger entries", [one.entries for one in figures], "what really went out of the shops"),
        ("executed twice", [one.twice for one in figures], "seen in the ledger or at the provider"),
    ]
    table = _table("", *totals, "")
    for name, numbers, note in lines:
        table.add_row(name, *map(str, numbers), Text(note, style="dim"))
    CONSOLE.print(table)


def _table(*heads: str) -> Table:
    return Table(*heads, box=None, padding=(0, 0, 0, 2), header_style="dim")
