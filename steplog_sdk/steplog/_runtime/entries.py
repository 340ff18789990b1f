"""The events of a step, and of a halt, on their way to the log.

Most steps are ordinary: a first attempt, arguments and a result that are short and hold no secret. These are told by a
few looks, and their lines are put together without asking what else could be in them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog._kernel import events as ev
from steplog._runtime import lines
from steplog._runtime.blame import told
from steplog._runtime.group import Entry
from steplog._runtime.pack import Sink
from steplog.errors import LeaseLost, LogFailed, StoreError

if TYPE_CHECKING:
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Ticket
    from steplog.errors import Interrupt

log: Final = logging.getLogger("steplog")


def intent(ticket: Ticket) -> Entry:
    """The `step.started` of an attempt."""
    recorder = ticket.recorder
    # What is set aside in a budget must outlive a loss of power, or a resumed run would spend it once more.
    sync = ticket.call.mode != "safe" or (ticket.charged and ticket.call.kind != "local")
    plain = lines.plain_intent(ticket, recorder.redactor)
    if plain is not None:
        return Entry(ev.STEP_STARTED, ticket.step, plain[0], (), sync=sync, facts=plain[1])
    sink = Sink(recorder.redactor, recorder.journal.store.bodies.name)
    line = lines.intent(ticket, sink)
    return Entry(ev.STEP_STARTED, ticket.step, line, sink.bodies, sync=sync, facts=sink.facts)


def outcome(ticket: Ticket, outcome: str, detail: dict[str, Any], waited: float) -> Entry:
    """The `step.finished` of an attempt."""
    recorder = ticket.recorder
    if recorder.allowance is not None:
        detail = {**detail, **recorder.allowance.concluded(ticket, outcome, detail)}
    plain = lines.plain_outcome(ticket, detail, recorder.redactor) if outcome == "done" and not waited else None
    if plain is not None:
        return Entry(ev.STEP_FINISHED, ticket.step, plain, (), sync=True, facts=True)
    bodies = recorder.journal.store.bodies
    sink = Sink(recorder.redactor, bodies.name)
    line = lines.outcome(ticket, outcome, detail, waited, sink)
    if sink.redacted:
        sink = Sink(recorder.redactor, bodies.name)
        line = sink.event(lambda into: lines.outcome(ticket, outcome, detail, waited, into), bodies)
        if sink.redacted:
            lines.warn_of_loss(ticket)
    return Entry(ev.STEP_FINISHED, ticket.step, line, sink.bodies, sync=True, facts=sink.facts)


def skipped(ticket: Ticket) -> Entry:
    """The `step.skipped` of an attempt that was interrupted between its intent and its effect."""
    if ticket.recorder.allowance is not None:
        ticket.recorder.allowance.took_back(ticket)
    return Entry(ev.STEP_SKIPPED, ticket.step, b'{"reason":"interrupted before the effect began"}', (), sync=True)


def given_up(ticket: Ticket) -> Entry:
    """The `step.finished` of an attempt of which the caller will not see what becomes, or has become."""
    total = time.perf_counter() - ticket.began
    data = {"outcome": "cancelled", "attempt": ticket.attempt, "ms": {"total": lines.ms(total)}}
    if ticket.recorder.allowance is not None:
        data |= ticket.recorder.allowance.concluded(ticket, "cancelled", {})
    return Entry(ev.STEP_FINISHED, ticket.step, orjson.dumps(data), (), sync=True)


def settled(ticket: Ticket, result: Any) -> Entry:
    """The `step.resolved` of a step that the tool's own `verify` found done, with the encoded result."""
    bodies = ticket.recorder.journal.store.bodies
    sink = Sink(ticket.recorder.redactor, bodies.name)
    line = sink.event(lambda into: lines.settled(result, into), bodies)
    return Entry(ev.STEP_RESOLVED, ticket.step, line, sink.bodies, sync=True)


def note_suspended(recorder: Recorder, interrupt: Interrupt) -> None:
    """Write the `run.suspended` of a run that an interrupt stops."""
    data = {
        "reason": interrupt.reason,
        "step": interrupt.step,
        "message": told(interrupt)["message"],
        "commands": list(interrupt.commands),
        **{name: getattr(interrupt, name) for name in interrupt.noted},
    }
    journal = recorder.journal
    try:
        journal.wait(journal.put(Entry(ev.RUN_SUSPENDED, None, Sink(recorder.redactor).line(data), (), sync=True)))
    except (StoreError, LogFailed, LeaseLost) as failed:
        # The run stops all the same, and the interrupt tells the user why; only the note for readers is missing.
        log.error("run %s stopped (%s); recording that failed: %s", journal.run_id, interrupt.reason, failed)  # noqa: TRY400  # the interrupt has the traceback
