"""`steplog export` and `steplog import`: a run in one file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from steplog._cli import program as programs
from steplog._cli.lookup import Found, find_run, store_at
from steplog._cli.options import chosen_home, common
from steplog._cli.output import command, console, emit_json, printable, size
from steplog._kernel.events import Event
from steplog._kernel.references import references
from steplog._kernel.words import counted
from steplog._runtime.origin import WRAPPED


def _names(event: Event) -> list[str]:
    return list(references(event.data))


@click.command("export", short_help="Write a run to one file.")
@click.argument("run", metavar="RUN")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Where to.  [default: RUN.steplog]"
)
@click.option(
    "--as-test", type=click.Path(path_type=Path), metavar="FILE", help="Write a test that replays it, and its cassette."
)
@click.option("--redacted", is_flag=True, help="Write a test also of a run that has lost secrets.")
@common
def export(
    run: str,
    output: Path | None,
    as_test: Path | None,
    redacted: bool,  # noqa: FBT001
    home: Path,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Write RUN to one file: its log as it is, and every body that it names.

    `steplog import FILE` takes it into another home, where it can be looked at, replayed and resumed. The file can be
    read by its owner only; where STEPLOG_KEY is set, its bodies are encrypted. A run that is under way is written as
    far as it is.

    With --as-test it becomes a test instead: a file that starts the program again, offline, and expects the recorded
    end; of a run that was interrupted, that the program gets as far again.
    """
    from steplog.stores.archive import export_run

    found = find_run(run, home)
    if as_test is not None:
        _as_test(found, as_test, redacted=redacted, as_json=as_json)
        return
    target = output or Path(f"{found.run_id}.steplog")
    written = export_run(found.store, found.run_id, str(target), _names)
    if as_json:
        emit_json({"file": str(target), **written._asdict()})
        return
    lines = console()
    held = f"{counted(written.events, 'event')}, {counted(written.bodies, 'body', 'bodies')}"
    lines.print(f"{target}: {held}, {size(written.size)}")
    if written.missing:
        gone = counted(len(written.missing), "body that it names is gone", "bodies that it names are gone")
        lines.print(f"  {gone}; the steps that need them cannot be replayed")


def _as_test(found: Found, target: Path, *, redacted: bool, as_json: bool) -> None:
    from steplog.stores.base import folded
    from steplog.testing.incident import as_test

    created = folded(found.store.read(found.run_id)).created
    program = programs.recorded(created.get("entry"), found.run_id, found.home)
    entry = {"name": program.name, "argv": program.argv, "cwd": program.cwd, "module": program.is_module}
    if not program.is_module:
        entry["name"] = str(Path(program.cwd, program.name))
    wrapped = (created.get("trigger") or {}).get("kind") == WRAPPED
    written = as_test(found.store, found.run_id, entry, str(target), wrapped=wrapped, redacted=redacted)
    if as_json:
        emit_json({"file": str(target), **written._asdict()})
        return
    lines = console()
    lines.print(f"{target}: run {printable(found.run_id)} as a test, with {printable(written.cassette)}")
    if written.interrupted:
        lines.print(f"  The run is {written.interrupted}: the test plays it as far as it is, and ends there.")
    if written.redacted:
        lines.print(f"  {counted(written.redacted, 'step')} will return a marker in the place of a secret.")
    if not re.fullmatch(r"test_.*\.py|.*_test\.py", target.name):
        lines.print("  pytest finds it by itself only where `python_files` names it, or as test_*.py.")
    lines.print(f"  pytest {target}")


@click.command("import", short_help="Take a run from such a file.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@common
def import_(file: Path, home: Path, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Take a run that `steplog export` has written to FILE into this home, under its own id.

    Everything in it is verified first. A run of that id is never replaced. Resume it in one place only: what the one
    does after the export, the other does not know of.
    """
    from steplog.stores.intake import import_run

    done = import_run(store_at(home), str(file), _names)
    facts: dict[str, Any] = {"new": done.new, **done.archived._asdict()}
    if as_json:
        emit_json(facts)
        return
    run_id, what = printable(done.archived.run_id), "imported" if done.new else "already there:"
    held = f"{counted(done.archived.events, 'event')}, {counted(done.archived.bodies, 'body', 'bodies')}"
    console().print(f"{what} run {run_id}: {held}")
    console().print(f"  {command('show', done.archived.run_id, home=chosen_home(home))}")
