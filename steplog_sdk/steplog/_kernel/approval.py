"""Steps that wait for a person: whether they may go on.

An approval is for one step. Its id is made of its arguments, so a call with other arguments is another step.
"""

from __future__ import annotations

from typing import Any, Final

from steplog._kernel.control import ALLOW, Allow, Asked, Block, Decided, Deny, Verdict

APPROVED: Final = "approved"
REJECTED: Final = "rejected"


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
    expires = held["expires"]
    if is_over(held, now):
        reason = f"Nobody has approved it in time (rule {held['rule']})."
        return Deny(held["rule"], reason, {"by": None, "note": None, "expired": True})
    why: Any = asked.state.steps[asked.id].started.get("why")
    return Block(held["rule"], str(why or ""), expires)


def is_over(held: dict[str, Any], now: int) -> bool:
    """Whether the time to decide on a blocked step has passed."""
    expires = held["expires"]
    return expires is not None and now >= expires
