"""A submitted effect that has no straight answer: it waits, halts the run, or may happen.

`Recorder.ask` answers at once where the outcome is in the log and its turn has come. What is here is everything else,
and the order in which it is looked at.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from steplog._kernel.decide import FIRST, Decision, Effect, Forsaken, Halt, Proceed, Replay
from steplog._kernel.fold import StepState
from steplog._runtime import messages, straight
from steplog._runtime.accounts import await_accounts
from steplog._runtime.cancelling import unwind_if_cancelled
from steplog._runtime.context import Frame, current_task, owner
from steplog._runtime.dispatch import took
from steplog._runtime.drive import Pause, Steps, run, run_async
from steplog._runtime.explain import explain
from steplog._runtime.mail import attend
from steplog._runtime.ticket import Call, Earlier, Recorded, Ticket
from steplog.errors import Interrupt

if TYPE_CHECKING:
    from steplog._runtime.dispatch import Submitted
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.turns import Turn

log: Final = logging.getLogger("steplog")

_PAUSE_SECONDS: Final = 0.01

# A branch that sleeps on its way to a recorded step sleeps again on a resume. What branches have recorded is waited for
# this many times longer than what is missing in a sequence.
_LATE: Final = 12

# How much longer than when it was recorded (twice that, and this) a step waits to be cancelled again.
_FORSAKEN_SECONDS: Final = 60.0


class Question(NamedTuple):
    """A submitted effect that has no straight answer.

    Attributes:
        call: the effect.
        place: where in the run it is submitted.
        hashed: hash of its arguments.
        branch: the branch whose first request it is, or "".
        submitted: what it is and what was decided; None where that depends on what other branches ask for.
        turn: of a recorded outcome that others must be given before, else None.
    """

    call: Call
    place: Frame
    hashed: str
    branch: str
    submitted: Submitted | None
    turn: Turn | None


def begin(recorder: Recorder, call: Call, place: Frame) -> Ticket:
    """Submit an effect from a thread. Raises as `Recorder.ask` and `settle`."""
    who = owner()
    # In an event loop a plain call cannot wait for other branches: they go on only when it returns.
    may_wait = not who[1]
    if recorder.left:
        run(recorder.conclude_left())
    answer = recorder.ask(call, place, who, may_wait=may_wait)
    if isinstance(answer, StepState):
        return replayed(recorder, call, place, answer)
    return settle_in_thread(recorder, answer, may_wait=may_wait)


async def begin_async(recorder: Recorder, call: Call, place: Frame) -> Ticket:
    """The same from a task."""
    if recorder.left:
        await run_async(recorder.conclude_left())
    answer = recorder.ask(call, place, owner(), may_wait=True)
    if isinstance(answer, StepState):
        return replayed(recorder, call, place, answer)
    return await settle_in_task(recorder, answer)


def replayed(
    recorder: Recorder, call: Call, place: Frame, step: StepState, data: dict[str, Any] | None = None
) -> Ticket:
    """The ticket of an effect whose outcome is in the log: its step, and the data of that outcome if it was read."""
    recorder.note_replayed(step)
    effect = Effect(step.id, call.kind, call.target, place.scope, place.after, call.mode, call.attaches)
    ticket = Ticket(recorder, call, effect)
    ticket.attempt = step.attempt
    ticket.recorded = Recorded(recorder, step, data)
    return ticket


def settle_in_thread(recorder: Recorder, question: Question, *, may_wait: bool) -> Ticket:
    """The same as `settle` for a thread, the short way where a first attempt has nothing to wait for."""
    submitted = question.submitted
    if submitted is None or _may_wait_for_others(recorder, question.call, submitted, may_wait=may_wait):
        return run(settle(recorder, question, may_wait=may_wait))
    ticket = _plain_ticket(recorder, question, submitted)
    straight.proceed(recorder, ticket)
    return ticket


async def settle_in_task(recorder: Recorder, question: Question) -> Ticket:
    """The same for a task."""
    submitted = question.submitted
    if submitted is None or _may_wait_for_others(recorder, question.call, submitted, may_wait=True):
        return await run_async(settle(recorder, question, may_wait=True))
    ticket = _plain_ticket(recorder, question, submitted)
    await straight.proceed_async(recorder, ticket)
    return ticket


def _may_wait_for_others(recorder: Recorder, call: Call, submitted: Submitted, *, may_wait: bool) -> bool:
    """Whether an effect is anything but a first attempt that is free to begin."""
    mail, state = recorder.mail, recorder.journal.state
    return (
        submitted[2] != FIRST
        or recorder.control is not None
        or (mail is not None and mail.is_due(call))
        or state.controls is not None
        or submitted[0].id in state.retry
        or (may_wait and recorder.turns.holds_back())
    )


def settle(recorder: Recorder, question: Question, *, may_wait: bool) -> Steps[Ticket]:
    """Wait until an effect has its answer.

    Args:
        recorder: of the run.
        question: what `Recorder.ask` gave.
        may_wait: whether other branches can go on while this one waits; not so for a plain call in an event loop.

    Returns:
        Its ticket; it has the recorded outcome, which may be that it was denied just now, or its intent is written.

    Raises:
        Interrupt: the run is halted, or halts because of this effect.
    """
    call, place, hashed, branch, submitted, turn = question
    dispatch = recorder.dispatch
    submitted = submitted or (yield from await_accounts(dispatch, call, place, hashed, branch, recorder.drift_grace))
    effect, occurrence, decision = submitted
    mail = recorder.mail
    if (mail is not None and mail.is_due(call)) or recorder.journal.state.controls is not None:
        yield from heed(recorder, Ticket(recorder, call, effect), decision)
    if isinstance(decision, Halt) and decision.missed and dispatch.branched:
        decision = yield from _await_siblings(recorder, effect, decision, may_wait=may_wait)
    if isinstance(decision, Halt) and decision.reason == "drift" and recorder.on_drift == "warn":
        log.warning("%s", explain(recorder, decision, call, effect))
        decision = dispatch.decide(effect, on_drift="run")
    if isinstance(decision, Replay):
        # Asked again of one that has nothing to wait for, it says so again.
        turn = turn or recorder.take_turn(call, decision.step)
        yield from _in_time(recorder, turn, decision.step, may_wait=may_wait)
        return replayed(recorder, call, place, decision.step)
    if isinstance(decision, Forsaken):
        raise (yield from _wait_to_be_cancelled(recorder, decision.step))
    ticket = _ticket(recorder, question, effect, occurrence, decision)
    yield from _let_others_ask(recorder, may_wait=may_wait)
    if recorder.control is not None:
        yield from recorder.control.judge(ticket, may_wait=may_wait)
    if ticket.recorded is None and not ticket.verify:
        yield from recorder.proceed(ticket)
    return ticket


def _plain_ticket(recorder: Recorder, question: Question, submitted: Submitted) -> Ticket:
    """The ticket of a first attempt that may run."""
    call = question.call
    ticket = Ticket(recorder, call, submitted[0])
    ticket.hashed = question.hashed, submitted[1]
    if question.branch:
        ticket.branch = question.branch
    if call.account:
        ticket.account = recorder.dispatch.account(call)
    return ticket


def heed(recorder: Recorder, ticket: Ticket, decision: Decision) -> Steps[None]:
    """Take in what others have said to the run, before a step is settled. Raises Cancelled where it must not be."""
    yield from attend(recorder, ticket)
    if not isinstance(decision, (Replay, Forsaken)):
        yield from unwind_if_cancelled(recorder, ticket)


def _ticket(
    recorder: Recorder, question: Question, effect: Effect, occurrence: int, decision: Proceed | Halt
) -> Ticket:
    """The ticket of an effect that may run as far as the log is concerned. Halts the run where it may not."""
    call = question.call
    ticket = _plain_ticket(recorder, question, (effect, occurrence, decision))
    if isinstance(decision, Halt):
        raise recorder.halt(explain(recorder, decision, call, effect, ticket))
    if decision.attempt > 1 or effect.id in recorder.journal.state.retry:
        recorder.begins_again(effect)
    ticket.attempt = decision.attempt
    ticket.verify = decision.verify
    if decision.attach:
        ticket.earlier = Earlier(recorder, recorder.journal.state.steps[effect.id])
    return ticket


def _in_time(recorder: Recorder, turn: Turn | None, step: StepState, *, may_wait: bool) -> Steps[None]:
    if turn is not None:
        yield from turn.await_and_pass(may_wait=may_wait)
    if recorder.dispatch.paced:
        yield Pause(took(step))


def _let_others_ask(recorder: Recorder, *, may_wait: bool) -> Steps[None]:
    while may_wait and recorder.turns.holds_back():
        yield Pause(_PAUSE_SECONDS)
        recorder.refuse_if_halted()


def _await_siblings(recorder: Recorder, effect: Effect, halt: Halt, *, may_wait: bool) -> Steps[Decision]:
    """Give other branches time to ask for what is recorded, before its absence counts as drift."""
    if recorder.journal.state.completed_once or not may_wait:
        return halt._replace(hurried=not may_wait)
    dispatch, grace = recorder.dispatch, recorder.drift_grace
    waiting_for: Decision = halt
    asked, since, told = -1, 0.0, False
    while True:
        recorder.refuse_if_halted()
        waiting_for = dispatch.decide(effect)
        if not (isinstance(waiting_for, Halt) and waiting_for.missed):
            break
        if asked != dispatch.asked:
            asked, since = dispatch.asked, time.monotonic()
        waited = time.monotonic() - since
        patient = waiting_for.elsewhere or dispatch.may_be_late(waiting_for.missed)
        if waited > grace * (_LATE if patient else 1):
            break
        if waited > grace and not told:
            told = True
            what = "run %s: %s %s waits until the program asks for what is recorded and still missing, such as %s"
            log.warning(what, recorder.journal.run_id, effect.kind, effect.target, waiting_for.missed[0])
        yield Pause(_PAUSE_SECONDS)
    return waiting_for


def _wait_to_be_cancelled(recorder: Recorder, step: StepState) -> Steps[Interrupt]:
    deadline = time.monotonic() + _FORSAKEN_SECONDS + 2 * took(step)
    while current_task() is not None and time.monotonic() < deadline:
        yield Pause(_PAUSE_SECONDS)
        recorder.refuse_if_halted()
    return recorder.halt(messages.not_forsaken(recorder.named, step))
