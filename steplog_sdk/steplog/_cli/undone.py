"""Whether a run was undone, and how far."""

from __future__ import annotations

from typing import Any

from steplog._cli import facts
from steplog._cli.lookup import Found, holder_of
from steplog._cli.ls import status_words, when
from steplog._kernel.fold import DONE, RUNNING, RunState
from steplog._runtime.blame import told
from steplog.errors import InvalidArgument, StoreError, UnknownRun
from steplog.stores.base import check_run_id, folded


def undone_facts(found: Found, run: RunState) -> dict[str, Any] | None:
    """What is known of the undoing of a run, from the log of `RUN.undo`; None where nobody has begun with it."""
    name = f"{found.run_id}.undo"
    try:
        state = folded(found.store.read(check_run_id(name)))
    except (UnknownRun, InvalidArgument):
        failed = ((run.ended or {}).get("undo") or {}).get("error")
        return {"run": name, "status": "not begun", "error": failed} if failed else None
    except StoreError as error:
        return {"run": name, "status": "cannot be read", "error": told(error)}
    # A run of this name that a program has opened by itself undoes nothing.
    trigger = state.created.get("trigger") or {}
    if trigger.get("kind") != "undo":
        return None
    known = facts.run_facts(state, holder_of(found._replace(run_id=name)))
    # An undo that is a step itself may have steps inside.
    done = sum(step.status == DONE and not step.scope for step in state.steps.values())
    return {
        "run": name,
        "status": known["status"],
        "reason": known["reason"],
        "undone": done,
        "of": trigger.get("steps"),
        "by": trigger.get("by"),
        "started": known["started"],
        "last": known["last"],
        "error": known["error"],
    }


def words(undone: dict[str, Any] | None) -> str:
    """The same as a line of text; "" where there is nothing to say."""
    if undone is None:
        return ""
    if "undone" not in undone:
        return f"{undone['status']}: {_first_line(undone['error'])}"
    count = f"{undone['undone']} of {undone['of']}" if undone["of"] is not None else str(undone["undone"])
    by = f" by {undone['by']}" if undone["by"] else ""
    failed = f": {_first_line(undone['error'])}" if undone["error"] else ""
    return f"{count} steps{by}, {when(undone['last'])}, run {undone['run']} {status_words(undone)}{failed}"


def next_line(undone: dict[str, Any] | None, run_id: str) -> list[str]:
    """The command that goes on with an undoing that has not come to its end."""
    open_ = undone is not None and undone["status"] not in ("completed", RUNNING, "cannot be read")
    return [f"steplog undo {run_id}"] if open_ else []


def _first_line(error: dict[str, Any]) -> str:
    return f"{error.get('type')}: {error.get('message', '')}".partition("\n")[0]
