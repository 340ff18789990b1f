"""`steplog verify`: is the log whole, and are the bodies that it names?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from steplog._cli.contents import references
from steplog._cli.lookup import Found, find_run
from steplog._cli.options import common
from steplog._cli.output import console, emit_json, error_facts, printable
from steplog._kernel.events import Event
from steplog.errors import Corrupt, StoreError
from steplog.stores.base import LogView


class Fault(NamedTuple):
    """A body that is missing or is not what its name says.

    Attributes:
        event: the event that names it.
        sha256: its name.
        error: what the body store said.
    """

    event: Event
    sha256: str
    error: StoreError


EXAMPLES = """\b
Examples:
  steplog verify last
  steplog verify --all --json
"""


@click.command(short_help="Check that a log, or all, are whole.", epilog=EXAMPLES)
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--all", "everything", is_flag=True, help="Check every run of the home, and all bodies.")
@common
def verify(run: str | None, home: Path, *, everything: bool, as_json: bool) -> int:
    """Check RUN's seals, its chain, and every body that it names; with --all those of every run.

    With --all every body of the home is read too, whether a run names it or not.

    Exit code: 0 when all is whole, 1 with the precise fault otherwise.
    """
    if everything == (run is not None):
        raise click.UsageError("Name a run, or say --all.")
    if run is None:
        from steplog._cli.verify_all import verify_all

        return verify_all(home, as_json=as_json)
    found = find_run(run, home)
    try:
        view = found.store.read(found.run_id)
    except Corrupt as error:
        _report_damage(found, error, as_json=as_json)
        return 1
    faults = list(body_faults(found, view, {}))
    if as_json:
        emit_json(_facts(view, faults))
    else:
        _print(view, faults)
    return 1 if faults else 0


def _report_damage(found: Found, error: Corrupt, *, as_json: bool) -> None:
    if as_json:
        emit_json({"ok": False, "run": found.run_id, **error_facts(error)})
        return
    target = console()
    target.print(f"damaged: {printable(str(error))}")
    for name in ("path", "line", "offset", "expected", "found", "last_good_seq"):
        value = getattr(error, name)
        target.print(f"  {name.replace('_', ' '):<14}{'-' if value is None else printable(str(value))}")


def body_faults(found: Found, view: LogView, known: dict[str, StoreError | None]) -> Iterator[Fault]:
    """The bodies that a log names and that cannot be read. `known` keeps what was found out, for the next log."""
    for event in view.events:
        for sha256 in references(event.data):
            if sha256 not in known:
                known[sha256] = _fault(found, sha256)
            error = known[sha256]
            if error is not None:
                yield Fault(event, sha256, error)


def _fault(found: Found, sha256: str) -> StoreError | None:
    try:
        found.store.bodies.get(sha256)
    except StoreError as error:
        return error
    return None


def _facts(view: LogView, faults: list[Fault]) -> dict[str, Any]:
    return {
        "ok": not faults,
        "run": view.run_id,
        "events": len(view.events),
        "last_seal": view.events[-1].h if view.events else None,
        "bodies": len({sha256 for event in view.events for sha256 in references(event.data)}),
        "torn": view.torn,
        "faults": [
            {"seq": fault.event.seq, "step": fault.event.step, "body": fault.sha256, **error_facts(fault.error)}
            for fault in faults
        ],
    }


def _print(view: LogView, faults: list[Fault]) -> None:
    facts = _facts(view, faults)
    target = console()
    for fault in faults:
        where = f"event {fault.event.seq}" + (f", step {fault.event.step}" if fault.event.step else "")
        target.print(f"bad body: {where}: {printable(str(fault.error))}")
    verdict = f"{len(faults)} faults in" if faults else "ok:"
    bodies = f"{facts['bodies']} bodies"
    target.print(f"{verdict} {facts['events']} events, {bodies}, last seal {facts['last_seal'] or '(none)'}")
    if view.torn:
        target.print(
            f"  a crash left {view.torn} bytes of an unfinished line behind the last event; "
            "the next writer cuts them and keeps a copy"
        )
