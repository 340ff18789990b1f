"""State is a fold over the log. It is never stored as truth.

1. Everything that changes a run's state is an event, and `_TRANSITIONS` is the whole list of what an event changes.
2. Folding the head of a log and then its tail gives what folding the whole gives. So a saved state plus the events
   behind it is as good as the log, and a wrong or missing saved state costs speed only.

A step that a dead process left running comes back as `pending` with `orphan` set when the next writer claims the run;
one that may not be repeated comes back as `indeterminate`. Nothing here reads `ts`, because clocks step back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from steplog._kernel import events as ev
from steplog._kernel.events import Event
from steplog._kernel.fold_budget import account
from steplog._kernel.fold_control import CONTROL, judged
from steplog._kernel.fold_inbox import INBOX
from steplog._kernel.fold_steps import (
    REPEATABLE,
    add,
    behind,
    close,
    describe,
    forget_outcome,
    is_settled,
    kept,
    once,
    orphaned,
    supersede,
)
from steplog._kernel.state import (
    BLOCKED,
    DENIED,
    DONE,
    FAILED,
    FINISHED,
    INDETERMINATE,
    PENDING,
    RUNNING,
    RunState,
    StepState,
)

__all__ = [
    "BLOCKED",
    "CLOSED_OUTCOMES",
    "DENIED",
    "DONE",
    "FAILED",
    "FINISHED",
    "INDETERMINATE",
    "PENDING",
    "REPEATABLE",
    "RUNNING",
    "RunState",
    "StepState",
    "apply",
    "begin",
    "behind",
    "end",
    "fold",
    "is_settled",
]

# A run in one of these replays whole; anything new in it is drift. A failed or suspended run goes on instead.
CLOSED_OUTCOMES: Final = frozenset({"completed", "escalated", "cancelled"})


def fold(log: Iterable[Event], state: RunState | None = None) -> RunState:
    """State after `log`, starting from `state` (left as it is) or from an empty run."""
    result = RunState() if state is None else state.copy()
    for event in log:
        apply(result, event)
    return result


def apply(state: RunState, event: Event) -> None:
    """Advance `state` in place by one event. Types it does not know move only the head."""
    state.seq = event.seq
    state.head = event.h
    if event.seq == 0:
        state.first_ts = event.ts
    transition = _TRANSITIONS.get(event.type)
    if transition is not None:
        transition(state, event)
    if state.controls is not None and state.controls.budget is not None:
        account(state.controls.budget, state, event)
    state.last_ts = event.ts


def begin(state: RunState, step: StepState, data: bytes, seq: int, ts: str, seal: str) -> None:
    """What `apply` does with the first `step.started` of a step, for the process that has written it.

    Args:
        state: advanced in place.
        step: the step as `state.begun` makes it; `state` has none of this id.
        data: the event's data.
        seq: the event's number.
        ts: its timestamp.
        seal: its seal.
    """
    state.seq = state.last_start = seq
    state.head, state.last_ts = seal, ts
    source = state.source
    step.start = data if source is None else seq
    step.started_seq, step.started_ts, step.source = seq, ts, source
    step_id, scope = step.id, step.scope
    state.steps[step_id] = step
    if state.modules.get(step.target) != step.module:
        state.modules[step.target] = step.module
    state.followers.setdefault((scope, step.after), []).append(step_id)
    if scope:
        state.inner.setdefault(scope, []).append(step_id)
    state.live.add(step_id)


def end(state: RunState, step_id: str, data: bytes, seq: int, ts: str, seal: str) -> None:
    """What `apply` does with a `step.finished` that says `done` and nothing out of the ordinary. As `begin`."""
    state.seq, state.head, state.last_ts = seq, seal, ts
    step = state.steps.get(step_id)
    if step is None:
        return
    step.status = DONE
    step.orphan = step.allowed = step.incomplete = step.lost = step.settled = False
    step.given_up = step.job = None
    step.end = data if state.source is None else seq
    step.finished_seq, step.finished_ts = seq, ts
    state.live.discard(step_id)


def _created(state: RunState, event: Event) -> None:
    state.run_id = event.data.get("run_id", "")
    state.created = event.data
    state.status = RUNNING


def _claimed(state: RunState, event: Event) -> None:
    state.epoch = event.epoch
    state.claim = event.data
    state.claim_seq = event.seq
    if not state.completed_once:
        if event.epoch > 1:
            state.pauses.append([state.last_ts, event.ts])
        state.status = RUNNING
        state.reason = None
        state.ended = None
    for step_id in state.live:
        orphaned(state.steps[step_id])
    state.live.clear()
    # A cancellation that nothing followed was the end of that process, not a choice of the program.
    _forget_given_up(state, lambda seq: state.last_start < seq and not state.completed_once)
    state.given_up.clear()


def _forget_given_up(state: RunState, applies: Callable[[int], bool]) -> None:
    for step_id in state.given_up:
        step = state.steps[step_id]
        if step.given_up is not None and applies(step.given_up):
            step.given_up = None


def _suspended(state: RunState, event: Event) -> None:
    if event.data.get("reason") == "interrupted":
        # Somebody stopped the program, and it cancelled what was under way: none of that was its own choice.
        _forget_given_up(state, lambda _seq: True)
    if state.completed_once:
        return
    state.status = "suspended"
    state.reason = event.data.get("reason")
    state.ended = event.data


def _ended(state: RunState, event: Event) -> None:
    if state.completed_once and event.data.get("outcome") not in CLOSED_OUTCOMES:
        # A replay of a run that has ended may fail; that does not unmake its end.
        return
    state.status = event.data.get("outcome", "failed")
    state.reason = event.data.get("reason")
    state.ended = event.data
    if state.status in CLOSED_OUTCOMES and not state.completed_once:
        state.completed_once, state.closed_ts = True, event.ts
    state.retry.update(_to_retry(state, event))


def _started(state: RunState, event: Event) -> None:
    data = event.data
    state.last_start = event.seq
    step_id = event.step or ""
    known = state.steps.get(step_id)
    if known is None:
        known = add(state, event, step_id)
    else:
        if known.finished_seq is not None and known.finished_seq > state.claim_seq:
            # Its own retry policy repeats it, afresh: a call inside that timed out in the last attempt is made again.
            for inner in state.inner.get(step_id, ()):
                state.steps[inner].given_up = None
        if step_id in state.retry:
            supersede(state, known)
        known.mode = once(state, data.get("mode", known.mode))
        known.status = RUNNING
        known.attempt = data.get("attempt", known.attempt + 1)
        known.doubt = known.orphan and not known.allowed
        known.orphan = False
        known.allowed = False
        known.given_up = None
        known.start = kept(state, event)
        known.started_ts = event.ts
        forget_outcome(known)
        known.job = data.get("job")
    describe(state, known, data)
    if "judged" in data:
        judged(state, event)
    state.live.add(step_id)
    state.retry.discard(step_id)


def _progressed(state: RunState, event: Event) -> None:
    step = state.steps.get(event.step or "")
    if step is None or step.status in FINISHED or event.data.get("attempt", step.attempt) != step.attempt:
        return
    step.notes.append(kept(state, event))
    step.job = event.data.get("job", step.job)


def _finished(state: RunState, event: Event) -> None:
    step = state.steps.get(event.step or "")
    if step is None:
        return
    if event.data.get("outcome") == "cancelled":
        _give_up(state, step, event)
        return
    close(state, step, event, DONE if event.data.get("outcome") == "done" else FAILED)
    if "retry" not in event.data:
        return
    # A failed attempt that its step's own retry policy repeats names itself and the inner steps that made it fail.
    state.retry.update(_to_retry(state, event))


def _to_retry(state: RunState, event: Event) -> list[str]:
    """The failed steps that an event names to be tried again, without those that are settled."""
    steps = state.steps
    return [step for step in event.data.get("retry", ()) if step in steps and not is_settled(steps[step])]


def _give_up(state: RunState, step: StepState, event: Event) -> None:
    """The caller stopped waiting: the outcome is as open as after a crash, but the program may have gone on."""
    state.live.discard(step.id)
    if step.status not in FINISHED:
        orphaned(step)
    if state.status != "suspended":
        # After a halt, whatever is still under way is cancelled; that says nothing about the program.
        step.given_up = event.seq
        state.given_up.add(step.id)


def _skipped(state: RunState, event: Event) -> None:
    step = state.steps.get(event.step or "")
    if step is None:
        return
    state.live.discard(step.id)
    # The effect did not begin, so the step is where it was before this attempt; only the attempt number is used up.
    if event.data.get("reason") != "simulated":
        # What a fork refused was not the program's choice; it asks for it again.
        step.given_up = event.seq
        state.given_up.add(step.id)
    if step.doubt:
        orphaned(step)
    else:
        step.status = "skipped"
        step.orphan = False


def _resolved(state: RunState, event: Event) -> None:
    step = state.steps.get(event.step or "")
    if step is None:
        return
    how = event.data.get("how")
    if how == "retry":
        step.status = PENDING
        step.orphan = True
        step.allowed = True
        step.given_up = None
        forget_outcome(step)
        step.job = None
        state.live.discard(step.id)
    else:
        close(state, step, event, DONE if how == "done" else FAILED)


_TRANSITIONS: Final[dict[str, Callable[[RunState, Event], None]]] = {
    ev.RUN_CREATED: _created,
    ev.RUN_CLAIMED: _claimed,
    ev.RUN_SUSPENDED: _suspended,
    ev.RUN_ENDED: _ended,
    ev.STEP_STARTED: _started,
    ev.STEP_PROGRESSED: _progressed,
    ev.STEP_FINISHED: _finished,
    ev.STEP_SKIPPED: _skipped,
    ev.STEP_RESOLVED: _resolved,
    **CONTROL,
    **INBOX,
}
