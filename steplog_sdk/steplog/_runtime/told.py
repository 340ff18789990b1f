"""What a run that waits, or was cancelled, says: what happened, what it means, what to do, as exact commands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from steplog._kernel.waiting import WAITING, Wait
from steplog._runtime.messages import Named
from steplog.errors import Cancelled, Suspended


def moment(milliseconds: int) -> str:
    """A time as it is told, to the second, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def awaited(wait: Wait) -> str:
    """What a wait waits for, in a few words."""
    time = "" if wait.until is None else f"until {moment(wait.until)}"
    return " ".join(filter(None, (wait.signal and f"for signal {wait.signal}", time))) or "for nothing"


def waiting(run: Named, waits: Sequence[Wait]) -> Suspended:
    """The interrupt for a run whose process ends while it waits."""
    signals = [run.command("signal", wait.signal, "JSON") for wait in waits if wait.signal is not None]
    due = f"steplog resume --due{run.option}"
    commands = (*signals, due, run.command("resume"))
    what = "; ".join(awaited(wait) for wait in waits)
    options = "\n".join(f"  {command}" for command in commands)
    message = (
        f"run {run.run_id} waits {what}.\n"
        f"Nothing of it is under way, so its process ends. When what it waits for has come, it goes on by:\n{options}"
    )
    step = waits[0].step if waits else None
    return Suspended(message, run_id=run.run_id, step=step, reason=WAITING, commands=commands)


def cancelled(run: Named, cancel: dict[str, Any], step: str, what: str) -> Cancelled:
    """The interrupt for a run that was cancelled, at the step at which it is delivered."""
    by, note = cancel.get("by"), cancel.get("note")
    said = (f" by {by}" if by else "") + (f": {note}" if note else "")
    message = (
        f"run {run.run_id} was cancelled{said}.\n"
        f"Delivered at {what} ({step}), which does not happen. Steps that clean up, in except and finally, are still "
        f"allowed."
    )
    command = run.command("show")
    return Cancelled(message, run_id=run.run_id, step=step, by=by, note=note, commands=(command,))


def unwound_too_long(run: Named, first: Cancelled, seconds: float, steps: int) -> Cancelled:
    """The interrupt for a run that was cancelled and goes on cleaning up for longer than it may."""
    head = str(first).partition("\n")[0]
    message = (
        f"{head}\nIts cleanup took more than {seconds:.0f} seconds or {steps} steps, so nothing more of it happens."
    )
    return Cancelled(message, run_id=run.run_id, step=None, by=first.by, note=first.note, commands=first.commands)
