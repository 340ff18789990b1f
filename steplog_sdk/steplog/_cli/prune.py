"""`steplog prune`: delete what is old."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steplog._cli.lookup import find_run, store_at
from steplog._cli.options import common
from steplog._cli.output import console, emit_json, printable, size
from steplog._kernel.words import counted

if TYPE_CHECKING:
    from steplog.stores.retention import Retained

_AGE = re.compile(r"([0-9]{1,6})([dwmy])")
_DAYS = {"d": 1, "w": 7, "m": 30, "y": 365}


class Age(click.ParamType[int]):
    """An age such as `30d`, `6w`, `3m` or `1y`, in days."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Days."""
        match = _AGE.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is no age: write 30d (days), 6w (weeks), 3m (30 days each) or 1y.", param, ctx)
        return int(match[1]) * _DAYS[match[2]]


@click.command(short_help="Delete what is old.")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--bodies", type=Age(), metavar="AGE", help="Delete bodies that only runs older than this name, as 30d.")
@click.option("--runs", "run_age", type=Age(), metavar="AGE", help="Delete runs that ended longer ago, as 1y.")
@click.option("--force", is_flag=True, help="Also of runs that can still be resumed. They begin anew, effects and all.")
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@common
def prune(
    runs: tuple[str, ...],
    bodies: int | None,
    run_age: int | None,
    home: Path,
    *,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete old bodies and old runs; with RUN, of these runs alone.

    The lines of a run whose bodies went stay readable, and only the steps that need them cannot be replayed; so
    `--bodies 30d --runs 1y` keeps what happened for a year, and what was said for a month. A run that is older than
    the age and was not completed is kept, with its bodies: it can still be resumed. Bodies that no run names any more
    go in any case. Programs may go on recording meanwhile.
    """
    from steplog.stores.retention import Limits, prune_home

    if bodies is None and run_age is None:
        raise click.UsageError("Say what is old: steplog prune --bodies 30d --runs 1y --dry-run")
    found = [find_run(name, home) for name in runs]
    store = found[0].store if found else store_at(home)
    only = frozenset(each.run_id for each in found)
    done = prune_home(store, Limits(bodies, run_age, only, force, dry_run))
    if as_json:
        emit_json(_facts(done, dry_run=dry_run))
        return
    if not home.is_dir():
        console().print(f"no runs in {home} yet")
    _print(done, dry_run=dry_run)


def _facts(done: Retained, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "runs": [run._asdict() for run in done.runs],
        "kept": [run._asdict() for run in done.kept],
        "bodies": {"count": len(done.bodies.bodies), "names": done.bodies.bodies},
        "bytes": {
            "runs": sum(run.size for run in done.runs),
            "bodies": done.bodies.stored,
            "bodies_plain": done.bodies.plain,
        },
    }


def _print(done: Retained, *, dry_run: bool) -> None:
    target = console()
    verb = "would delete" if dry_run else "deleted"
    for run in done.runs:
        target.print(f"{verb} run {printable(run.run_id)}: {run.status}, last event {run.last}, {size(run.size)}")
    for kept in done.kept:
        target.print(f"kept run {printable(kept.run_id)}: {printable(kept.why)}")
    if any("resumed" in kept.why for kept in done.kept):
        target.print("  --force deletes these too; under the same id they would begin anew and repeat their effects")
    runs = sum(run.size for run in done.runs)
    bodies = done.bodies
    target.print(
        f"{verb} {counted(len(done.runs), 'run')} ({size(runs)}) and {counted(len(bodies.bodies), 'body', 'bodies')} "
        f"({size(bodies.stored)} in the file, {size(bodies.plain)} plain)"
    )
