"""What messages, waits and a cancellation change in the state of a run; rows of the table in `fold.py`.

A message is taken over into the log by an event that names it, so that it is taken once, whatever dies in between. A
signal belongs to the wait that has consumed it, which is an event of its own: a wait that is cut off between that event
and its outcome gets the same signal again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from steplog._kernel import events as ev
from steplog._kernel.events import Event
from steplog._kernel.fold_control import controls, took
from steplog._kernel.fold_steps import forget_outcome
from steplog._kernel.state import FINISHED, PENDING, RunState


def _signal(state: RunState, event: Event) -> None:
    took(state, event)
    known = controls(state).signals
    for message in [each for each, signal in known.items() if _is_over(state, signal.get("step"))]:
        del known[message]
    signal = {"name": event.data.get("name"), "seq": event.seq}
    if state.source is None:
        signal["data"] = event.data
    known[str(event.data.get("message"))] = signal


def _is_over(state: RunState, step: str | None) -> bool:
    return step in state.steps and state.steps[step].status in FINISHED


def _consumed(state: RunState, event: Event) -> None:
    signal = controls(state).signals.get(str(event.data.get("message")))
    if signal is not None and "step" not in signal:
        signal["step"] = event.step


def _began(state: RunState, event: Event) -> None:
    found, get = controls(state).waits, event.data.get
    for step in [step for step in found if _is_over(state, step) or step == get("instead_of")]:
        del found[step]
    wait: dict[str, Any] = {"seq": event.seq}
    found[event.step or ""] = wait | {name: get(name) for name in ("signal", "until") if get(name) is not None}


def _requested(state: RunState, event: Event) -> None:
    took(state, event)
    if controls(state).cancel is None:
        said = {name: event.data.get(name) for name in ("message", "by", "note")}
        controls(state).cancel = {**said, "seq": event.seq, "delivered": {}}


def _delivered(state: RunState, event: Event) -> None:
    cancel = controls(state).cancel
    if cancel is not None:
        cancel["delivered"].setdefault(event.step or "", event.seq)
    step = state.steps.get(event.step or "")
    if step is not None and step.status in FINISHED and step.id in state.retry:
        # It had failed and was about to be tried again: its program has seen the cancellation, not that failure.
        forget_outcome(step)
        step.status = PENDING


INBOX: Final[dict[str, Callable[[RunState, Event], None]]] = {
    ev.SIGNAL_RECEIVED: _signal,
    ev.SIGNAL_CONSUMED: _consumed,
    ev.WAIT_BEGAN: _began,
    ev.CANCEL_REQUESTED: _requested,
    ev.CANCEL_DELIVERED: _delivered,
}
