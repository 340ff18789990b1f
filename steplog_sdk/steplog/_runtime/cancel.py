"""Cancelling a run from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from steplog._kernel import events as ev
from steplog._kernel import reasons
from steplog._kernel.inbox import CANCEL
from steplog._kernel.state import RunState
from steplog._kernel.waiting import has_effects
from steplog._runtime import redaction, settings
from steplog._runtime.door import PROCESS
from steplog._runtime.drive import run as drive
from steplog._runtime.journal import Journal
from steplog._runtime.mail import Mail
from steplog._runtime.pack import Sink
from steplog._runtime.post import chosen, inbox_of, is_held, send
from steplog.errors import RunBusy
from steplog.stores.base import folded

if TYPE_CHECKING:
    from steplog.stores.base import Store

Outcome = Literal["sent", "pending", "ended", "over"]

SENT: Final = "sent"
PENDING: Final = "pending"
ENDED: Final = "ended"
OVER: Final = "over"


def cancel(
    run_id: str, *, by: str | None = None, note: str | None = None, now: bool = False, store: Store | None = None
) -> Outcome:
    """Cancel a run. Its program gets `Cancelled` at the next step that it asks for, and may clean up.

    A run that no process holds ends at once if it has had no effect: every step that it has done, or may have done, is
    of mode `safe`, so there is nothing that its program could want to clean up. One that has had effects gets the
    cancellation when it is resumed, unless `now` is given.

    Args:
        run_id: the run.
        by: who cancels it, for the record.
        note: why, for the record.
        now: end a run that nobody holds at once, without its cleanup.
        store: where the run lives; as installed by default.

    Returns:
        `sent`: a process holds the run; it is delivered there. `pending`: nobody does; it is delivered when the run is
        resumed, as `steplog resume --due` does. `ended`: the run has ended as cancelled. `over`: it had ended before,
        and nothing was changed.

    Raises:
        UnknownRun: there is no such run.
        StoreError: it could not be written.
    """
    where = chosen(store)
    state = folded(where.read(run_id))
    if state.completed_once:
        return OVER
    send(where, run_id, CANCEL, {}, by=by, note=note)
    if not now and has_effects(state):
        return SENT if is_held(where, run_id) else PENDING
    try:
        return _end(where, run_id, now=now)
    except RunBusy:
        return SENT


def _end(store: Store, run_id: str, *, now: bool) -> Outcome:
    """End a run that nobody holds. Raises RunBusy where somebody does."""
    redactor = redaction.redactor((PROCESS.settings or settings.resolve()).redact)
    journal = Journal.open(store, run_id, dict, redactor)
    try:
        if journal.state.completed_once:
            return OVER
        drive(Mail(journal, inbox_of(store, run_id), redactor).take())
        if not now and has_effects(journal.state):
            return PENDING  # somebody has held it in between; what it left is interrupted, as after a crash
        journal.wait(journal.submit(ev.RUN_ENDED, None, Sink(redactor).line(_said(journal.state))))
        return ENDED
    finally:
        journal.close()


def _said(state: RunState) -> dict[str, object]:
    found = (None if state.controls is None else state.controls.cancel) or {}
    by, note = found.get("by"), found.get("note")
    message = f"run {state.run_id} was cancelled" + (f" by {by}" if by else "") + (f": {note}" if note else "")
    said = {"message": f"{message} (while no process held it)", "by": by, "note": note}
    return {"outcome": reasons.CANCELLED, "reason": "cancelled", **said}
