"""`steplog verify --all`: every run of a home, and every body."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steplog._cli.lookup import Found, store_at
from steplog._cli.options import chosen_home
from steplog._cli.output import command, console, emit_json, error_facts, printable
from steplog._cli.verify import bodies_facts, inbox_facts, print_faults, unreadable_bodies
from steplog._kernel.words import counted
from steplog._runtime.post import readable
from steplog.errors import Corrupt, StoreError
from steplog.stores.base import BodyStore


def verify_all(home: Path, *, as_json: bool) -> int:
    """Check everything below a home; the exit code."""
    if not home.is_dir():
        message = (
            f"there is no home at {home}, so nothing was checked.\n"
            "Name it: steplog verify --all --home DIR, or set STEPLOG_HOME."
        )
        raise StoreError(message, path=str(home))
    store = store_at(home)
    known: dict[str, StoreError | None] = {}
    runs = [_checked(Found(store, home, run_id), known) for run_id in store.runs()]
    bodies = _bodies(store.bodies, known)
    wrong = [run for run in runs if not run["ok"]]
    facts = {
        "ok": not wrong and not bodies["faults"],
        "runs": runs,
        "damaged": [run["run"] for run in wrong],
        "events": sum(run["events"] for run in runs),
        "bodies": bodies,
    }
    if as_json:
        emit_json(facts)
    else:
        _print(facts, chosen_home(home))
    return 0 if facts["ok"] else 1


def _bodies(bodies: BodyStore, known: dict[str, StoreError | None]) -> dict[str, Any]:
    """What a body store says of itself, where it can: bodies that no run names are checked too."""
    check = getattr(bodies, "check", None)
    if check is None:
        return {"checked": len(known), "faults": []}
    try:
        stored = check()
    except StoreError as error:
        return {"checked": 0, "faults": [{"what": str(error), "sha256": None}]}
    return {"checked": stored.bodies, "faults": [fault._asdict() for fault in stored.faults]}


def _checked(found: Found, known: dict[str, StoreError | None]) -> dict[str, Any]:
    try:
        view = found.store.read(found.run_id)
    except StoreError as error:
        repairable = isinstance(error, Corrupt) and error.last_good_seq is not None
        return {"run": found.run_id, "ok": False, "events": 0, "repairable": repairable, **error_facts(error)}
    gone, inbox = unreadable_bodies(found, view, known), readable(found.store, found.run_id)[1]
    return {
        "run": found.run_id,
        "ok": not gone.faults and inbox is None,
        "events": len(view.events),
        "last_seal": view.events[-1].h if view.events else None,
        "torn": view.torn,
        **inbox_facts(inbox),
        **bodies_facts(gone),
    }


def _print(facts: dict[str, Any], home: Path | None) -> None:
    target = console()
    for run in facts["runs"]:
        if "error" in run:
            target.print(f"damaged: {printable(run['error']['message'])}")
            if run["repairable"]:
                target.print(f"  what to do: {command('repair', run['run'], home=home)}")
        if run.get("inbox_error"):
            target.print(f"bad inbox: {printable(run['inbox_error']['message'])}")
    print_faults(list(_bad_bodies(facts)))
    pruned = sum(run.get("pruned", 0) for run in facts["runs"])
    whole = len(facts["runs"]) - len(facts["damaged"])
    damaged = f", {len(facts['damaged'])} damaged: {', '.join(facts['damaged'])}" if facts["damaged"] else ""
    verdict = "ok" if facts["ok"] else "faults"
    counts = f"{counted(facts['events'], 'event')}, {counted(facts['bodies']['checked'], 'body', 'bodies')}"
    gone = f", {pruned} pruned" if pruned else ""
    target.print(f"{verdict}: {counted(whole, 'whole run')}{damaged}; {counts}{gone}")


def _bad_bodies(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for run in facts["runs"]:
        for fault in run.get("faults", ()):
            step = f", step {fault['step']}" if fault["step"] else ""
            yield f"run {run['run']}, event {fault['seq']}{step}", fault["error"]["message"]
    for fault in facts["bodies"]["faults"]:
        yield "bodies.db", str(fault["what"])
