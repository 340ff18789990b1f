"""What a run waits for, and whether it has come: pure questions to a folded log, its inbox and a clock that is given.

Times are milliseconds since 1970 in UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from steplog._kernel import events as ev
from steplog._kernel.fold import BLOCKED, FINISHED, REPEATABLE, RunState
from steplog._kernel.inbox import APPROVE, CANCEL, REJECT, SIGNAL, Message

INTERRUPTED: Final = "interrupted"
"""Reason code of a run whose program was stopped."""

WAITING: Final = "waiting"
"""Reason code of a run that was suspended because it waits for a signal or a time."""


class Wait(NamedTuple):
    """A wait that has begun and has no outcome.

    Attributes:
        step: id of its step.
        signal: name of the signal that it waits for, or None where it waits for a time alone.
        until: when it ends without a signal, or None where it waits for as long as it takes.
    """

    step: str
    signal: str | None
    until: int | None


class Ready(NamedTuple):
    """Whether a run that nobody holds can go on by itself.

    Attributes:
        now: it can.
        why: what has come, or what it waits for, in a few words.
        at: when it can at the latest, where that is known.
    """

    now: bool
    why: str
    at: int | None = None


def open_waits(state: RunState) -> list[Wait]:
    """The waits of a run that have begun and have no outcome, in the order in which they began."""
    if state.controls is None or state.completed_once:
        return []
    found = []
    for step_id, wait in list(state.controls.waits.items()):
        step = state.steps.get(step_id)
        if step is not None and step.status not in FINISHED and step.given_up is None:
            found.append(Wait(step_id, wait.get("signal"), wait.get("until")))
    return found


def signal_for(state: RunState, step: str, name: str, reserved: Collection[str] = ()) -> str | None:
    """The message that a wait gets: the one that it has consumed, else the first of this name that nobody has.

    Args:
        state: the folded log.
        step: the wait.
        name: what it waits for.
        reserved: messages that other waits are about to consume.
    """
    if state.controls is None:
        return None
    named = [(found, each) for found, each in list(state.controls.signals.items()) if each["name"] == name]
    for found, signal in named:
        if signal.get("step") == step:
            return found
    return next((found for found, signal in named if "step" not in signal and found not in reserved), None)


def signal_data(state: RunState, message: str) -> dict[str, Any]:
    """The data of the `signal.received` that took a message. Raises StoreError where the log cannot be read."""
    assert state.controls is not None
    signal = state.controls.signals[message]
    found: dict[str, Any] = signal["data"] if state.source is None else state.source.read(signal["seq"])[0]
    return found


def unconsumed(state: RunState) -> dict[str, int]:
    """By name, how many signals the run has taken and no wait has consumed."""
    counts: dict[str, int] = {}
    for signal in () if state.controls is None else state.controls.signals.values():
        if "step" not in signal:
            counts[signal["name"]] = counts.get(signal["name"], 0) + 1
    return counts


def taken_as(message: Message) -> tuple[str, dict[str, Any]] | None:
    """Type and data of the event by which a run takes a message over; None for kinds that concern single steps."""
    said = {"message": message.id, "by": message.by, "note": message.note, "sent": message.ts}
    if message.kind == SIGNAL:
        return ev.SIGNAL_RECEIVED, {**said, "name": message.data.get("name"), "value": message.data.get("value")}
    return (ev.CANCEL_REQUESTED, said) if message.kind == CANCEL else None


def pending(state: RunState, messages: Sequence[Message]) -> list[Message]:
    """The messages of an inbox that the run has not taken, in order."""
    taken = () if state.controls is None else state.controls.taken
    return [message for message in messages if message.id not in taken]


def is_cancelling(state: RunState) -> bool:
    """Whether somebody has asked for the run to be cancelled, and it has not ended since."""
    return state.controls is not None and state.controls.cancel is not None and not state.completed_once


def must_unwind(state: RunState, step: str, *, live: bool) -> bool:
    """Whether a step that has no outcome must not begin, because its run was cancelled.

    Args:
        state: the folded log.
        step: the step.
        live: something new may happen. Where not, in a replay, it is cancelled where it was when it was recorded.
    """
    cancel = None if state.controls is None else state.controls.cancel
    if cancel is None:
        return False
    return step in cancel["delivered"] or (live and not state.completed_once)


def has_effects(state: RunState) -> bool:
    """Whether a run has done, or may have done, anything in the world that it may want to clean up."""
    return any(
        step.mode != "safe" and step.attempt > 0 and (step.status in FINISHED or step.orphan or step.id in state.live)
        for step in state.steps.values()
    )


def may_leave(state: RunState, scope: str) -> bool:
    """Whether the process may end in the middle of a wait inside a step, and start that step again later."""
    while scope:
        step = state.steps.get(scope)
        if step is None or step.mode not in REPEATABLE:
            return False
        scope = step.scope
    return True


def is_busy(state: RunState) -> bool:
    """Whether a step is under way that is neither a wait nor around one."""
    waits = {} if state.controls is None else state.controls.waits
    around: set[str] = set()
    for step_id in list(waits):
        while step_id in state.steps and step_id not in around:
            around.add(step_id)
            step_id = state.steps[step_id].scope  # noqa: PLW2901  # walks outwards
    return any(step_id not in around for step_id in tuple(state.live))


def readiness(state: RunState, messages: Sequence[Message], now: int) -> Ready:
    """Whether a suspended run can go on: what it waits for has come.

    Args:
        state: the folded log.
        messages: its whole inbox.
        now: the time.
    """
    new = pending(state, messages)
    if is_cancelling(state) or any(message.kind == CANCEL for message in new):
        return Ready(now=True, why="it was cancelled")
    if state.status == "suspended" and state.reason not in (WAITING, INTERRUPTED):
        return _decided(state, new, now)
    names = {*unconsumed(state), *(message.data.get("name") for message in new if message.kind == SIGNAL)}
    waits = open_waits(state)
    for wait in waits:
        if wait.signal is not None and wait.signal in names:
            return Ready(now=True, why=f"signal {wait.signal} has come")
        if wait.until is not None and wait.until <= now:
            return Ready(now=True, why="its time has come")
    if not waits:
        return Ready(now=False, why="it was interrupted")
    ends = [wait.until for wait in waits if wait.until is not None]
    awaited = ", ".join(dict.fromkeys(f"signal {wait.signal}" for wait in waits if wait.signal is not None))
    return Ready(now=False, why=f"it waits for {awaited or 'its time'}", at=min(ends, default=None))


def _decided(state: RunState, new: Sequence[Message], now: int) -> Ready:
    """Whether what a run needs a person for was decided, or the time for that is over."""
    held = {} if state.controls is None else state.controls.held
    blocked = {step: each for step, each in held.items() if state.steps[step].status == BLOCKED}
    said = any(message.kind in (APPROVE, REJECT) and message.data.get("step") in blocked for message in new)
    if said or any("approved" in each for each in blocked.values()):
        return Ready(now=True, why="somebody has decided")
    ends = [each["expires"] for each in blocked.values() if each.get("expires") is not None]
    if ends and min(ends) <= now:
        return Ready(now=True, why="the time to approve is over")
    return Ready(now=False, why=f"it needs a decision ({state.reason})", at=min(ends, default=None))
