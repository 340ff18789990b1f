"""`steplog ls`: the runs of a home, newest first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steplog._cli import facts, waits
from steplog._cli.lookup import Found, holder_of, open_run, store_at
from steplog._cli.options import common
from steplog._cli.output import columns, console, emit_json, fits, one_line, printable
from steplog._kernel.fold import CLOSED_OUTCOMES
from steplog._kernel.words import counted
from steplog.errors import SteplogError

if TYPE_CHECKING:
    from rich.text import Text

HEADINGS = ("RUN", "STATUS", "STEPS", "TOKENS", "STARTED", "TIME", "GOAL")
RIGHT = frozenset({2, 5})

# The whole of it is in `steplog show`.
_WHY = 110

STATUS_STYLE = {
    "completed": "green",
    "running": "cyan",
    "interrupted": "yellow",
    "suspended": "yellow",
    "escalated": "magenta",
    "failed": "red",
    "cancelled": "red",
    "unreadable": "bold red",
}


@click.command(short_help="List the runs.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many of the newest.")
@common
def ls(limit: int, home: Path, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """List the runs, newest first.

    STATUS is `running` while a process holds the run, `interrupted` when its process died.
    """
    store = store_at(home)
    runs = store.runs()
    rows = [_facts(Found(store, home, run_id)) for run_id in runs[:limit]]
    if as_json:
        emit_json(rows)
    elif rows:
        _print(rows, len(runs))
    else:
        console().print(f"no runs in {home} yet; steplog run SCRIPT records one")


def _facts(found: Found) -> dict[str, Any]:
    try:
        return facts.run_facts(open_run(found).state, holder_of(found), waits.heard(found))
    except SteplogError as error:
        # One damaged log must not hide the others, least of all from the person who looks for it.
        return {"run": found.run_id, "status": "unreadable", "reason": type(error).__name__, "message": str(error)}


def _print(rows: list[dict[str, Any]], total: int) -> None:
    from rich.text import Text

    target = console()
    lines = columns([[Text(word, style="dim") for word in HEADINGS], *map(_cells, rows)], right=RIGHT)
    if fits(lines, target):
        heading, *runs = lines
        target.print(heading)
        for row, line in zip(rows, runs, strict=True):
            target.print(line)
            for name, text in why(row):
                target.print(Text(f"    {name}: {one_line(text, _WHY)}", style="dim"))
    else:
        for row in rows:
            _print_stacked(row)
    if total > len(rows):
        target.print(Text(f"{total - len(rows)} older runs: steplog ls --limit {total}", style="dim"))


def _cells(row: dict[str, Any]) -> list[Text]:
    from rich.text import Text

    return [
        Text(row["run"], style="bold"),
        Text(_marked(row), style=STATUS_STYLE.get(row["status"], "")),
        Text(steps(row)),
        Text(facts.tokens(row.get("tokens"))),
        Text(when(row.get("started"))),
        Text(facts.span(None if row.get("seconds") is None else row["seconds"] * 1000)),
        Text(one_line(", ".join(filter(None, [facts.fork_words(row.get("fork")), row.get("goal") or ""])))),
    ]


def _print_stacked(row: dict[str, Any]) -> None:
    """One run as a few short lines, for a terminal in which a table would break ids apart."""
    from rich.text import Text

    target = console()
    run, *rest = _cells(row)
    target.print(run)
    for heading, cell in zip(HEADINGS[1:], rest, strict=True):
        if cell.plain:
            target.print(Text.assemble((f"  {heading.lower():<8}", "dim"), cell))
    for name, text in why(row):
        target.print(Text.assemble((f"  {name:<8}", "dim"), one_line(text, _WHY)))


def why(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Why a run is as it is, and what it waits for."""
    if row.get("message") and not row.get("waits"):
        yield "why", row["message"]
    if row["status"] not in CLOSED_OUTCOMES:
        yield from waits.lines(row)


def _marked(row: dict[str, Any]) -> str:
    """The status, and for an interrupted run that a step in doubt keeps from going on, also that."""
    doubted = (row.get("steps") or {}).get(facts.IN_DOUBT, 0)
    if not doubted or row["status"] != facts.INTERRUPTED:
        return status_words(row)
    return f"{facts.INTERRUPTED} ({counted(doubted, 'step')} in doubt)"


def status_words(row: dict[str, Any]) -> str:
    """The status with its reason code, where that says more."""
    reason = row.get("reason")
    if not reason or (row["status"], reason) == ("completed", "done"):
        return str(row["status"])
    return printable(f"{row['status']} ({reason})")


def steps(row: dict[str, Any]) -> str:
    """Done and total steps as `3/4`; one whose result cannot be returned any more was done all the same."""
    counts = row.get("steps")
    return f"{counts['done'] + counts.get(facts.LOST, 0)}/{counts['total']}" if counts else ""


def when(stamp: str | None) -> str:
    """A time stamp in the reader's own time zone, to the second."""
    moment = facts.parse_time(stamp or "")
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else ""
