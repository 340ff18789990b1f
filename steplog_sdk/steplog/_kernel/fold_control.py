"""What the events that steer a run change in its state: the second half of the table in `fold.py`.

A step that is denied or blocked has a place in the log like one that has begun. It was asked for there, so a program
that is started again asks for it there again, and is given what was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from steplog._kernel import events as ev
from steplog._kernel import fold_budget
from steplog._kernel.controls import Controls
from steplog._kernel.events import Event
from steplog._kernel.fold_steps import add, close, describe, forget_outcome, kept, supersede
from steplog._kernel.state import BLOCKED, DENIED, RunState, StepState


def controls(state: RunState) -> Controls:
    """The control state of a run, made when it is first needed."""
    if state.controls is None:
        state.controls = Controls()
    return state.controls


def took(state: RunState, event: Event) -> None:
    """Note that the message which an event names has been taken."""
    message = event.data.get("message")
    if isinstance(message, str):
        controls(state).taken[message] = event.seq


def judged(state: RunState, event: Event) -> None:
    """Take over what a `step.started` says of the judgement that let it begin."""
    policy = _table(_table(event.data.get("judged")).get("policy"))
    for rule, bucket in _table(policy.get("took")).items():
        known = controls(state).buckets
        # Branches may have written what they took in another order than they took it: the emptier bucket is the later.
        if rule not in known or _taken(bucket) > _taken(known[rule]):
            known[rule] = list(bucket)


def _asked(state: RunState, event: Event) -> StepState:
    """The step that an event names and describes, and that has not begun an attempt with it."""
    state.last_start = event.seq
    step_id, data = event.step or "", event.data
    known = state.steps.get(step_id)
    if known is None:
        known = add(state, event, step_id)
        known.attempt = data.get("attempt", 1) - 1
    else:
        if step_id in state.retry:
            supersede(state, known)
        known.start, known.started_ts = kept(state, event), event.ts
    describe(state, known, data)
    state.retry.discard(step_id)
    return known


def _denied(state: RunState, event: Event) -> None:
    # Like any failure that ends its run, one that says when to come again is tried again on resume.
    _refuse(state, _asked(state, event), event, settled="retry_after" not in event.data)


def _refuse(state: RunState, step: StepState, event: Event, *, settled: bool) -> None:
    close(state, step, event, DENIED)
    step.settled = settled
    # A secret may be taken out of what was asked for; what the agent got instead is whole, as it got it from the log.
    step.lost = step.incomplete = False


def _blocked(state: RunState, event: Event) -> None:
    step = _asked(state, event)
    forget_outcome(step)
    step.status, step.orphan, step.allowed, step.given_up = BLOCKED, False, False, None
    state.live.discard(step.id)
    get = event.data.get
    controls(state).held[step.id] = {"rule": get("rule"), "seq": event.seq, "expires": get("expires")}


def _approved(state: RunState, event: Event) -> None:
    took(state, event)
    held = _undecided(state, event)
    if held is not None:
        held["approved"] = _said(event)


def _rejected(state: RunState, event: Event) -> None:
    took(state, event)
    held = _undecided(state, event)
    if held is None:
        return
    held["rejected"] = _said(event)
    _refuse(state, state.steps[event.step or ""], event, settled=True)


def _limited(state: RunState, event: Event) -> None:
    known = controls(state)
    known.budget = fold_budget.limited(known.budget, event)


def _undecided(state: RunState, event: Event) -> dict[str, Any] | None:
    """What is known of the blocked step that an event decides on, or None where there is nothing to decide."""
    step = state.steps.get(event.step or "")
    held = None if state.controls is None else state.controls.held.get(event.step or "")
    if step is None or step.status != BLOCKED or held is None or "approved" in held or "void" in event.data:
        return None
    return held


def _taken(bucket: Sequence[float]) -> tuple[float, float]:
    left, at = bucket
    return at, -left


def _said(event: Event) -> dict[str, Any]:
    return {name: event.data.get(name) for name in ("by", "note", "message")}


def _table(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


CONTROL: Final[dict[str, Callable[[RunState, Event], None]]] = {
    ev.STEP_DENIED: _denied,
    ev.STEP_BLOCKED: _blocked,
    ev.STEP_APPROVED: _approved,
    ev.STEP_REJECTED: _rejected,
    ev.RUN_BUDGETED: _limited,
}
