"""`steplog verify`: is the log whole, and are the bodies that it names, and its inbox?"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click

from steplog._cli.lookup import Found, find_run
from steplog._cli.options import common
from steplog._cli.output import console, emit_json, error_facts, printable
from steplog._kernel.events import Event
from steplog._kernel.references import references
from steplog._kernel.words import counted
from steplog._runtime.post import readable
from steplog.errors import BodyMissing, Corrupt, StoreError
from steplog.stores.base import LogView


class Fault(NamedTuple):
    """A body that cannot be read.

    Attributes:
        event: the event that names it.
        sha256: its name.
        error: what the body store said.
    """

    event: Event
    sha256: str
    error: StoreError


class Gone(NamedTuple):
    """The bodies of a log that cannot be read.

    Attributes:
        faults: those that are missing, damaged or locked.
        pruned: names of those that `steplog prune` has deleted, which is no fault.
    """

    faults: list[Fault]
    pruned: set[str]


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
    """Check RUN's seals, its chain, every body that it names, and its inbox; with --all those of every run.

    With --all every body of the home is read too, whether a run names it or not. A body that `steplog prune` has
    deleted is counted, and is no fault.

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
    gone, inbox = unreadable_bodies(found, view, {}), readable(found.store, found.run_id)[1]
    if as_json:
        emit_json(_facts(view, gone, inbox))
    else:
        _print(view, gone, inbox)
    return 1 if gone.faults or inbox is not None else 0


def _report_damage(found: Found, error: Corrupt, *, as_json: bool) -> None:
    if as_json:
        emit_json({"ok": False, "run": found.run_id, **error_facts(error)})
        return
    target = console()
    target.print(f"damaged: {printable(str(error))}")
    for name in ("path", "line", "offset", "expected", "found", "last_good_seq"):
        value = getattr(error, name)
        target.print(f"  {name.replace('_', ' '):<14}{'-' if value is None else printable(str(value))}")


def unreadable_bodies(found: Found, view: LogView, known: dict[str, StoreError | None]) -> Gone:
    """The bodies that a log names and that cannot be read. `known` keeps what was found out, for the next log."""
    gone = Gone([], set())
    for event in view.events:
        for sha256 in references(event.data):
            if sha256 not in known:
                known[sha256] = _fault(found, sha256)
            error = known[sha256]
            if isinstance(error, BodyMissing) and getattr(error, "pruned", None):
                gone.pruned.add(sha256)
            elif error is not None:
                gone.faults.append(Fault(event, sha256, error))
    return gone


def _fault(found: Found, sha256: str) -> StoreError | None:
    try:
        found.store.bodies.get(sha256)
    except StoreError as error:
        return error
    return None


def bodies_facts(gone: Gone) -> dict[str, Any]:
    """What is to be said of bodies that cannot be read."""
    return {
        "pruned": len(gone.pruned),
        "faults": [
            {"seq": fault.event.seq, "step": fault.event.step, "body": fault.sha256, **error_facts(fault.error)}
            for fault in gone.faults
        ],
    }


def inbox_facts(inbox: StoreError | None) -> dict[str, Any]:
    """What is to be said of an inbox."""
    return {"inbox_error": None if inbox is None else error_facts(inbox)["error"]}


def _facts(view: LogView, gone: Gone, inbox: StoreError | None) -> dict[str, Any]:
    return {
        "ok": not gone.faults and inbox is None,
        "run": view.run_id,
        "events": len(view.events),
        "last_seal": view.events[-1].h if view.events else None,
        "bodies": len({sha256 for event in view.events for sha256 in references(event.data)}),
        "torn": view.torn,
        **inbox_facts(inbox),
        **bodies_facts(gone),
    }


def print_faults(faults: list[tuple[str, str]]) -> None:
    """Print what is wrong with bodies, by place; what helps stands once behind them.

    Args:
        faults: where, and the message of the error.
    """
    target = console()
    remedies: dict[str, None] = {}
    for where, message in faults:
        what, _, remedy = message.partition("\n")
        target.print(f"bad body: {where}: {printable(what)}")
        remedies[remedy] = None
    for remedy in remedies:
        if remedy:
            target.print(printable(remedy))


def _print(view: LogView, gone: Gone, inbox: StoreError | None) -> None:
    facts = _facts(view, gone, inbox)
    target = console()
    if inbox is not None:
        target.print(f"bad inbox: {printable(str(inbox))}")
    print_faults(
        [
            (f"event {fault.event.seq}" + (f", step {fault.event.step}" if fault.event.step else ""), str(fault.error))
            for fault in gone.faults
        ]
    )
    faults = len(gone.faults) + (inbox is not None)
    verdict = f"{counted(faults, 'fault')} in" if faults else "ok:"
    bodies = counted(facts["bodies"], "body", "bodies") + (f" ({len(gone.pruned)} pruned)" if gone.pruned else "")
    events = counted(facts["events"], "event")
    target.print(f"{verdict} {events}, {bodies}, last seal {facts['last_seal'] or '(none)'}")
    if view.torn:
        target.print(
            f"  a crash left {view.torn} bytes of an unfinished line behind the last event; "
            "the next writer cuts them and keeps a copy"
        )
