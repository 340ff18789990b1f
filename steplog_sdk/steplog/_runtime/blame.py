"""Which steps' failures an exception stands for.

A failure that ends its run is tried again on resume, so the run must know which step it came from, even when the agent
has wrapped the exception in others of its own. The exception itself carries the answer.

Not every exception in the chain counts. Python also links an exception to whatever was being handled when it was
raised. A step that fails while the agent handles the failure of another one did not fail because of it: the agent has
already reacted to that other failure, so it is replayed. Repeating it could repeat its effect.
"""

from __future__ import annotations

from collections.abc import Mapping

from steplog._kernel.fold import StepState


def blame(error: BaseException, step: str) -> None:
    """Note on an exception that it is, or passed through, the failure of a step."""
    trail = error.__dict__.setdefault("__steplog_steps__", [])
    if step not in trail:
        trail.append(step)


def blamed(error: BaseException | None, steps: Mapping[str, StepState]) -> list[str]:
    """Ids of the steps whose failure an exception is, or was caused by.

    Args:
        error: the exception.
        steps: the steps of the run; behind the failure of a step only those inside it count as its cause.
    """
    found: list[str] = []
    queue: list[tuple[BaseException | None, str]] = [(error, "")]
    visited = set()
    while queue:
        current, within = queue.pop()
        if current is None or (id(current), within) in visited:
            continue
        visited.add((id(current), within))
        trail = [step for step in current.__dict__.get("__steplog_steps__", ()) if _inside(step, within, steps)]
        found += [step for step in trail if step not in found]
        # The first of a trail is the step in which the exception was raised; the others it only passed through.
        origin = trail[0] if trail else within
        queue += [(current.__cause__, origin), (current.__context__, origin)]
        if isinstance(current, BaseExceptionGroup):
            queue += [(part, within) for part in current.exceptions]
    return found


def _inside(step: str, outer: str, steps: Mapping[str, StepState]) -> bool:
    scope = steps[step].scope if step in steps else ""
    while outer and scope != outer and scope in steps:
        scope = steps[scope].scope
    return scope == outer or not outer
