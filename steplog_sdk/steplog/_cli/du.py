"""`steplog du`: what runs take on the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steplog._cli.lookup import Found, find_run, store_at
from steplog._cli.options import common
from steplog._cli.output import columns, console, emit_json, printable, size
from steplog._kernel.references import references
from steplog.errors import SteplogError

if TYPE_CHECKING:
    from steplog.stores.files import FileStore
    from steplog.stores.upkeep import Usage

HEADINGS = ("RUN", "LOG", "OWN", "SHARED", "TOTAL", "PLAIN")


@click.command(short_help="Tell what runs take on the disk.")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@common
def du(runs: tuple[str, ...], home: Path, as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Tell what each RUN takes on the disk; all runs of the home where none is named.

    LOG is its own files. OWN is what the bodies take that only this run names, SHARED what it has in common with other
    runs (stored once), both compressed. TOTAL is the three together, PLAIN the bodies and the log as they would be
    without compression and sharing.
    """
    chosen = [find_run(name, home) for name in runs]
    store = chosen[0].store if chosen else store_at(home)
    names = [found.run_id for found in chosen] or store.runs()
    rows, unread = _rows(store, names)
    whole = {"runs": sum(row["log"] for row in rows), "bodies": _bodies_size(store)}
    if as_json:
        emit_json({"runs": rows, "home": {"path": str(store.home), **whole}, "unread": unread})
    elif names:
        _print(rows, whole, unread)
    else:
        console().print(f"no runs in {home} yet; steplog run SCRIPT records one")
    return 1 if unread else 0


def _rows(store: FileStore, names: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The facts of runs. All runs of the home are read: only so it is known what is shared."""
    from steplog.stores.upkeep import usage

    bodies, unread = {}, []
    for run_id in dict.fromkeys([*names, *store.runs()]):
        try:
            bodies[run_id] = frozenset(_names(Found(store, Path(store.home), run_id)))
        except SteplogError as error:
            unread.append(f"{run_id}: {error}")
    found = usage(store.bodies, bodies)  # type: ignore[arg-type]  # a file store's bodies are in SQLite
    return [_facts(store, run_id, found[run_id]) for run_id in names if run_id in found], unread


def _names(found: Found) -> set[str]:
    view = found.store.read(found.run_id)
    return {name for event in view.events for name in references(event.data)}


def _facts(store: FileStore, run_id: str, usage: Usage) -> dict[str, Any]:
    folder = os.path.dirname(store.path_of(run_id))
    log = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
    total = log + usage.own + usage.shared
    return {"run": run_id, "log": log, **usage._asdict(), "total": total, "plain": usage.plain + log}


def _bodies_size(store: FileStore) -> int:
    beside = Path(store.home).glob("bodies.db*")
    return sum(path.stat().st_size for path in beside)


def _print(rows: list[dict[str, Any]], whole: dict[str, Any], unread: list[str]) -> None:
    from rich.text import Text

    target = console()
    cells = [
        [Text(row["run"]), *(Text(size(row[key])) for key in ("log", "own", "shared", "total", "plain"))]
        for row in rows
    ]
    headings = [Text(word, style="dim") for word in HEADINGS]
    for line in columns([headings, *cells], right=frozenset(range(1, len(HEADINGS)))):
        target.print(line)
    target.print(f"bodies.db {size(whole['bodies'])}, shared by all runs of the home")
    for row in rows:
        if row["missing"]:
            target.print(f"  {printable(row['run'])}: {row['missing']} of its bodies are not there (pruned or lost)")
    for said in unread:
        target.print(f"  not read: {printable(said)}")
