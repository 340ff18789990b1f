"""What is known of a task and what has been done for it: a fold of what the model and the tools have answered."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

RUNNING: Final = "running"
SUSPENDED: Final = "suspended"
STOPPED: Final = "stopped"

DONE: Final = "done"
NEEDS_APPROVAL: Final = "needs_approval"
UNKNOWN_OUTCOME: Final = "unknown_outcome"

STOPS: Final = {
    DONE: "a final answer passed the check against the plan",
    "max_steps": "the limit of turns was reached",
    "max_tool_calls": "the limit of tool calls was reached",
    "max_tokens": "one more call of the model could have passed the limit of tokens",
    "deadline": "the active time was used up",
    "repeated_call": "the same call was proposed again and again",
    "no_progress": "several turns in a row changed nothing",
    NEEDS_APPROVAL: "a call waits for somebody's approval",
    UNKNOWN_OUTCOME: "a call that writes may or may not have happened",
    "cancelled": "somebody cancelled the task",
    "budget": "the budget of the run was reached",
}
"""Every reason for which a task stops, and what it means."""

Json = dict[str, Any]


@dataclass(slots=True)
class TaskState:
    """The state of one task. Only the loop changes it, from answers that it has checked.

    Attributes:
        task_id: the id of its run; for a task of an open run, with that of the step by which it began there.
        user_id: for whom it works; set by the application, never by the model.
        goal: what is to be done; set by the application.
        plan: the accepted plan: `id`, `tool`, `depends_on` and `status` (pending, done, failed) of each step.
        facts: what later steps may rely on: fields of results that a tool's `facts` allows, under
            `subject.field`.
        remembered: notes of earlier tasks, which the model is shown as notes and not as facts.
        last_result: what the tool or the loop said last.
        step: turns so far.
        tool_calls: calls of tools so far.
        tokens: what the model has read and written.
        elapsed: seconds of active time.
        seen: how often each call was proposed, by its fingerprint.
        stalls: turns in a row without progress.
        written: by key, what became of each call that writes: the `tool`, its `arguments`, its `status`.
        status: running, suspended or stopped.
        stop: why it does not run, one of `STOPS`, or None.
        outcome: what the model said of its final answer: `completed` or `cannot_complete`.
        answer: the text of the final answer.
        pending: the call that is held for approval, with its `key` and `digest`.
    """

    task_id: str
    user_id: str
    goal: str
    plan: list[Json] = field(default_factory=list)
    facts: Json = field(default_factory=dict)
    remembered: list[str] = field(default_factory=list)
    last_result: Json | None = None
    step: int = 0
    tool_calls: int = 0
    tokens: int = 0
    elapsed: float = 0.0
    seen: dict[str, int] = field(default_factory=dict)
    stalls: int = 0
    written: dict[str, Json] = field(default_factory=dict)
    status: str = RUNNING
    stop: str | None = None
    outcome: str | None = None
    answer: str | None = None
    pending: Json | None = None

    def to_json(self) -> str:
        """The whole state as JSON text, the same for equal states."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> TaskState:
        """The state that `to_json` has written."""
        return TaskState(**json.loads(text))

    def signature(self) -> str:
        """A digest of all that counts as progress: the facts, and the status of each plan step."""
        return fingerprint([self.facts, [[each["id"], each["status"]] for each in self.plan]])

    def planned(self, plan_step: str | None) -> Json | None:
        """The plan step of this id, or None."""
        return next((each for each in self.plan if each["id"] == plan_step), None)

    def planned_key(self, plan_step: str) -> str:
        """The key of a plan step, under which it is done at most once."""
        return f"{self.task_id}:{plan_step}"

    def open_steps(self) -> list[str]:
        """Ids of the plan steps that are still to be done."""
        return [each["id"] for each in self.plan if each["status"] == "pending"]

    def not_done(self, ids: list[str]) -> list[str]:
        """Those of some plan steps that are not done."""
        return [each for each in ids if (self.planned(each) or {}).get("status") != "done"]

    def spend(self, seconds: float) -> None:
        """Add to the active time."""
        # Sums of binary fractions would differ by how they were reached.
        self.elapsed = round(self.elapsed + seconds, 3)

    def finish(self, stop: str) -> None:
        """Stop, for one of the reasons in `STOPS`."""
        self.stop = stop
        self.status = SUSPENDED if stop == NEEDS_APPROVAL else STOPPED


def fingerprint(value: Any) -> str:
    """A digest of a JSON value: 16 hex digits, the same for equal values whatever the order of their keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
