"""Deciding on steps that wait for a person: what is sent from outside, and what the run makes of it.

A decision is a message in the run's inbox, so it can come from another process or machine with the same store, and
whether or not anybody holds the run. The first about a step counts, in the order of the inbox.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from steplog._kernel import events as ev
from steplog._kernel.approval import APPROVED, ELSE, ENDED, EXPIRED, OPEN, REJECTED, Standing, counts, hold, standing
from steplog._kernel.control import Asked, Verdict
from steplog._kernel.fork import steps_named
from steplog._kernel.inbox import APPROVE, REJECT, Message
from steplog._kernel.state import BLOCKED, RunState, StepState
from steplog._runtime import post
from steplog._runtime.cancelling import unwind_if_cancelled
from steplog._runtime.control import Gate
from steplog._runtime.mail import attend
from steplog._runtime.outcome import failure
from steplog.errors import InvalidArgument, StepRejected, UnknownStep
from steplog.stores.base import folded

if TYPE_CHECKING:
    from steplog._runtime.drive import Steps
    from steplog._runtime.mail import Taken
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Ticket
    from steplog.stores.base import Store


class HeldGate(Gate):
    """Holds what was blocked until somebody has decided on it, and takes the decisions out of the inbox."""

    name, order = "approval", 20

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        if recorder.mail is not None:
            recorder.mail.handlers |= {APPROVE: self._taken, REJECT: self._taken}

    def heed(self, ticket: Ticket) -> Steps[None]:
        """Take what was decided meanwhile; a branch that waits is where a cancellation is delivered, too."""
        yield from attend(self._recorder, ticket)
        step = self._recorder.journal.state.steps.get(ticket.step)
        if step is not None and step.status == BLOCKED:
            yield from unwind_if_cancelled(self._recorder, ticket)

    def judge(self, asked: Asked) -> Verdict:
        """Whether it was approved, was rejected, or has to wait on."""
        return hold(asked, now())

    def _taken(self, message: Message) -> Taken:
        """The event that a decision becomes. One that comes too late, or for no step that waits, changes nothing."""
        step, state = str(message.data.get("step")), self._recorder.journal.state
        type_ = ev.STEP_APPROVED if message.kind == APPROVE else ev.STEP_REJECTED
        data: dict[str, Any] = {"message": message.id, "by": message.by, "note": message.note}
        held = None if state.controls is None else state.controls.held.get(step)
        if held is None or step not in state.steps or not counts(held, step, message):
            return type_, step, {**data, "void": True}
        if type_ == ev.STEP_APPROVED:
            return type_, step, data
        why = _rejection(message)
        facts = {"rule": held["rule"], "reason": why, "by": message.by, "note": message.note}
        return type_, step, {**data, "rule": held["rule"], "why": why, "error": failure(StepRejected(why, **facts))}


def _rejection(message: Message) -> str:
    by = f" by {message.by}" if message.by else ""
    return f"This step was rejected{by}" + (f": {message.note}" if message.note else ".")


def now() -> int:
    """The present time in milliseconds since 1970."""
    return int(time.time() * 1000)


class Decision(NamedTuple):
    """What became of a decision.

    Attributes:
        run_id: the run.
        step: id of the step.
        counted: whether it is this decision that counts.
        standing: how the step stands now: `approved`, `rejected`, `expired`, `ended` (the run had ended) or `else` (it
            did not wait for a decision).
        by: whose decision counts, or None.
        message: all of that as a sentence, with the next command.
    """

    run_id: str
    step: str
    counted: bool
    standing: str
    by: str | None
    message: str


def approve(
    run_id: str, step: str, *, by: str | None = None, note: str | None = None, store: Store | None = None
) -> Decision:
    """Let a step run that waits for approval, with exactly the arguments that it has.

    The run need not be open anywhere; it goes on when it is resumed. Deciding twice, too late, or on a step that does
    not wait changes nothing.

    Args:
        run_id: the run.
        step: the step: its id, the beginning of it, or its number.
        by: who approves it, for the record.
        note: why, for the record.
        store: where the run lives; as installed by default.

    Returns:
        What became of it; `counted` says whether this is the decision that counts.

    Raises:
        UnknownRun, UnknownStep: there is no such run or step.
        StoreError: it could not be written.
    """
    return _decide(APPROVE, run_id, step, by, note, store)


def reject(
    run_id: str, step: str, *, by: str | None = None, note: str | None = None, store: Store | None = None
) -> Decision:
    """Keep a step that waits for approval from running, for ever. The agent gets `StepRejected` with `by` and `note`.

    As `approve` in everything else.
    """
    return _decide(REJECT, run_id, step, by, note, store)


def _decide(kind: str, run_id: str, step: str, by: str | None, note: str | None, store: Store | None) -> Decision:
    where = post.chosen(store)
    state = folded(where.read(run_id))
    found = step_named(state, step)
    before = standing(state, found.id, post.messages(where, run_id), now())
    if before.what != OPEN:
        return _told(state, found, before, counted=False)
    sent = post.send(where, run_id, kind, {"step": found.id, "at": now()}, by=by, note=note)
    # Another one may have been faster, or the run may have taken it by now.
    state = folded(where.read(run_id))
    after = standing(state, found.id, post.messages(where, run_id), now())
    return _told(state, found, after, counted=after.message == sent.id, held=post.is_held(where, run_id))


def step_named(state: RunState, name: str) -> StepState:
    """The step that a name means: an id, the beginning of one, or a number. Raises UnknownStep, InvalidArgument."""
    found = steps_named(state, name)
    if len(found) == 1:
        return found[0]
    waiting = [step for step in state.steps.values() if step.status == BLOCKED]
    known = "".join(f"\n  {step.id}  {step.kind} {step.target}" for step in waiting) or " none."
    if found:
        text = f"{name!r} names {len(found)} steps of run {state.run_id}. Steps that wait for approval:{known}"
        raise InvalidArgument(text, run_id=state.run_id, step=name)
    text = f"run {state.run_id} has no step {name!r}. Steps that wait for approval:{known}"
    raise UnknownStep(text, run_id=state.run_id, step=name)


def _told(state: RunState, step: StepState, found: Standing, *, counted: bool, held: bool = False) -> Decision:
    by = f" by {found.by}" if found.by else ""
    what = f"{step.kind} {step.target} ({step.id})"
    if counted:
        goes_on = (
            "The process that holds the run goes on by itself" if held else f"Go on: steplog resume {state.run_id}"
        )
        text = f"{what} is {found.what}{by}. {goes_on}" + ("." if held else "")
    elif found.what in (APPROVED, REJECTED):
        text = f"{what} was {found.what}{by} before, which counts. Nothing was changed."
    else:
        text = f"{what} {_WHY[found.what].format(step.status)}. Nothing was changed."
    return Decision(state.run_id, step.id, counted, found.what, found.by, text)


_WHY = {
    EXPIRED: "was not decided on in time, so it counts as rejected",
    ENDED: "needs no decision: its run has ended",
    ELSE: "does not wait for approval, it is {}",
    OPEN: "waits for approval",
}
