"""Why a run came to its end or stands still: the closed list of reason codes, by outcome.

Every `run.ended` and `run.suspended` names one of them, and so does the interrupt that stopped the run.
"""

from __future__ import annotations

from typing import Final

COMPLETED: Final = "completed"
ESCALATED: Final = "escalated"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
SUSPENDED: Final = "suspended"

REASONS: Final[dict[str, dict[str, str]]] = {
    COMPLETED: {"done": "the program came to its end"},
    ESCALATED: {"escalated": "the program handed its task to a person"},
    FAILED: {
        "error": "an exception left the run",
        "exit": "the program left by sys.exit with a code other than 0",
    },
    CANCELLED: {"cancelled": "somebody cancelled it"},
    SUSPENDED: {
        "approval": "a call waits for somebody to approve or reject it",
        "budget": "the next step would have exceeded a limit of its budget",
        "cancelled": "it is being cancelled",
        "drift": "the program asked for something else than its log holds",
        "forked": "it was forked and has not been started",
        "indeterminate": "a step may or may not have happened",
        "interrupted": "somebody stopped the program",
        "lease_lost": "another process has taken it over",
        "log_failed": "its log could not be written",
        "simulated": "a fork asked for a side effect, which it must not have",
        "unrecorded": "a replay asked for something that is not recorded",
        "unreplayable": "a recorded result cannot be returned",
        "waiting": "it waits for a signal or a time",
    },
}
"""By outcome, every reason code and what it means."""

CODES: Final = frozenset(code for codes in REASONS.values() for code in codes)


def meaning(outcome: str, reason: str | None) -> str:
    """What a reason code means, as a clause; "" for one that a later release has added."""
    return REASONS.get(outcome, {}).get(reason or "", "")
