"""The facts a log is made of.

An event is a past fact. Event types are open for addition: a reader passes types it does not know through. `ts` is
for people; nothing in steplog decides by it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

FORMAT: Final = "steplog/1"

RUN_CREATED: Final = "run.created"
RUN_CLAIMED: Final = "run.claimed"
RUN_SUSPENDED: Final = "run.suspended"
RUN_ENDED: Final = "run.ended"
STEP_STARTED: Final = "step.started"
STEP_PROGRESSED: Final = "step.progressed"
STEP_FINISHED: Final = "step.finished"
STEP_SKIPPED: Final = "step.skipped"
STEP_RESOLVED: Final = "step.resolved"
STEP_DENIED: Final = "step.denied"
STEP_BLOCKED: Final = "step.blocked"
STEP_APPROVED: Final = "step.approved"
STEP_REJECTED: Final = "step.rejected"
SIGNAL_RECEIVED: Final = "signal.received"
SIGNAL_CONSUMED: Final = "signal.consumed"
WAIT_BEGAN: Final = "wait.began"
CANCEL_REQUESTED: Final = "cancel.requested"
CANCEL_DELIVERED: Final = "cancel.delivered"
RUN_BUDGETED: Final = "run.budgeted"
RUN_PROGRESSED: Final = "run.progressed"
LOG_RECOVERED: Final = "log.recovered"
LOG_WEAKENED: Final = "log.weakened"


class Event(NamedTuple):
    """One line of a log.

    Attributes:
        seq: position in the log, from 0 without gaps.
        type: past-tense name.
        step: step id, or None for an event of the run.
        epoch: which writer wrote it; grows by one with every `run.claimed`.
        ts: ISO 8601 in UTC, for people only.
        data: JSON object; its keys depend on `type`.
        prev: seal of the line before (32 hex digits).
        h: this line's own seal (32 hex digits).
    """

    seq: int
    type: str
    step: str | None
    epoch: int
    ts: str
    data: dict[str, Any]
    prev: str
    h: str
