"""Steps that wait for a person: whether they may go on, and what a decision about one comes to.

An approval is for one step. Its id is made of its arguments, so a call with other arguments is another step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from steplog._kernel.control import ALLOW, Allow, Asked, Block, Decided, Deny, Verdict
from steplog._kernel.fold_steps import REPEATABLE
from steplog._kernel.inbox import APPROVE, REJECT, Message
from steplog._kernel.state import BLOCKED, RunState

APPROVED: Final = "approved"
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
OPEN: Final = "open"
ENDED: Final = "ended"
ELSE: Final = "else"

_DONE_BY: Final = {APPROVE: APPROVED, REJECT: REJECTED}


def hold(asked: Asked, now: int) -> Verdict:
    """Whether a step that was blocked may run.

    Args:
        asked: the step.
        now: milliseconds since 1970.
    """
    held = asked.held
    if held is None:
        return ALLOW
    if APPROVED in held:
        return Allow(held[APPROVED])
    if REJECTED in held:
        return Decided()
    if is_over(held, now):
        reason = f"Nobody has approved it in time (rule {held['rule']})."
        return Deny(held["rule"], reason, {"by": None, "note": None, "expired": True})
    why: Any = asked.state.steps[asked.id].started.get("why")
    return Block(held["rule"], str(why or ""), held["expires"])


def is_over(held: dict[str, Any], at: Any) -> bool:
    """Whether the time to decide on a blocked step had passed at a time, in milliseconds since 1970."""
    expires = held["expires"]
    return expires is not None and isinstance(at, int) and at >= expires


def may_suspend(state: RunState) -> bool:
    """Whether a run may be suspended: nothing is under way that would be in doubt afterwards."""
    return all(state.steps[step].mode in REPEATABLE for step in tuple(state.live) if step in state.steps)


class Standing(NamedTuple):
    """How a step stands with those who may decide on it.

    Attributes:
        what: `open` (it waits for a decision), `approved`, `rejected`, `expired`, `ended` (its run has), or `else`: it
            does not wait for anybody.
        by: who has decided, or None.
        note: why, or None.
        message: id of the message that decided, or None.
    """

    what: str
    by: str | None = None
    note: str | None = None
    message: str | None = None


def standing(state: RunState, step: str, messages: Iterable[Message], now: int) -> Standing:
    """How a step stands, with what was said about it and the run has not taken yet.

    Args:
        state: the folded log.
        step: its id.
        messages: all messages to the run, in order.
        now: milliseconds since 1970.
    """
    held = None if state.controls is None else state.controls.held.get(step)
    if held is None:
        return Standing(ENDED if state.completed_once else ELSE)
    for word in (APPROVED, REJECTED):
        if word in held:
            said = held[word]
            return Standing(word if said["message"] is not None else EXPIRED, **said)
    if state.completed_once:
        return Standing(ENDED)
    if state.steps[step].status != BLOCKED:
        return Standing(ELSE)
    taken = state.controls.taken if state.controls is not None else {}
    for message in messages:
        if message.id not in taken and counts(held, step, message):
            return Standing(_DONE_BY[message.kind], message.by, message.note, message.id)
    return Standing(EXPIRED if is_over(held, now) else OPEN)


def counts(held: dict[str, Any], step: str, message: Message) -> bool:
    """Whether a message decides on a blocked step: it is about it, and was sent in time."""
    is_decision = message.kind in _DONE_BY and message.data.get("step") == step
    return is_decision and not is_over(held, message.data.get("at"))
