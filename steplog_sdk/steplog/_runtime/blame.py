"""Which steps' failures an exception stands for.

A failure that ends its run is tried again on resume, so the run must know which step it came from, even when the agent
has wrapped the exception in others of its own. The exception itself carries the answer.

Not every exception in the chain counts. Python also links an exception to whatever was being handled when it was
raised. A step that fails while the agent handles the failure of another one did not fail because of it: the agent has
already reacted to that other failure, so it is replayed. Repeating it could repeat its effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steplog._kernel.codec_errors import SECRETS
from steplog._kernel.fold import RunState, StepState, behind, is_settled
from steplog._kernel.urls import scrub_urls


def blame(error: BaseException, step: str) -> None:
    """Note on an exception that it is, or passed through, the failure of a step."""
    trail = error.__dict__.setdefault("__steplog_steps__", [])
    if step not in trail:
        trail.append(step)


def blamed(error: BaseException | None, state: RunState) -> list[str]:
    """Ids of the steps whose failure an exception is, or was caused by.

    Args:
        error: the exception that leaves a run or a step.
        state: the folded log; behind the failure of a step only those inside it count as its cause, and a failure
            behind which the program went on to a side effect has been handled, unless it is itself what is leaving.
    """
    found: list[str] = []
    queue: list[tuple[BaseException | None, str, bool]] = [(error, "", True)]
    visited = set()
    while queue:
        current, within, leaving = queue.pop()
        if current is None or (id(current), within) in visited:
            continue
        visited.add((id(current), within))
        trail = [step for step in current.__dict__.get("__steplog_steps__", ()) if _inside(step, within, state.steps)]
        found += [step for step in trail if step not in found and (leaving or not _went_on(step, state))]
        # The first of a trail is the step in which the exception was raised; the others it only passed through.
        origin = trail[0] if trail else within
        queue += [(current.__cause__, origin, False), (current.__context__, origin, False)]
        if isinstance(current, BaseExceptionGroup):
            queue += [(part, within, leaving) for part in current.exceptions]
    return [step for step in found if step not in state.steps or not is_settled(state.steps[step])]


def _went_on(step: str, state: RunState) -> bool:
    """Whether the program did something else instead: repeating the step might then do both."""
    if step not in state.steps:
        return False
    return any(state.steps[following].mode != "safe" for following in behind(state, state.steps[step]))


def _inside(step: str, outer: str, steps: Mapping[str, StepState]) -> bool:
    scope = steps[step].scope if step in steps else ""
    while outer and scope != outer and scope in steps:
        scope = steps[scope].scope
    return scope == outer or not outer


def conceal(error: BaseException, secrets: Sequence[str]) -> list[str]:
    """Note which credentials the text of an exception may quote, so that they are taken out wherever it is recorded.

    What it was raised from, or while handling, may quote them as well.

    Returns:
        All that has been noted on it, the longest first.
    """
    seen: list[BaseException] = []
    queue = [error] if secrets else []
    while queue:
        current = queue.pop()
        if current not in seen:
            seen.append(current)
            noted = {*current.__dict__.get(SECRETS, ()), *secrets}
            current.__dict__[SECRETS] = sorted(noted, key=len, reverse=True)
            queue += [inner for inner in (current.__cause__, current.__context__) if inner is not None]
    return list(error.__dict__.get(SECRETS, ()))


def told(error: BaseException) -> dict[str, str]:
    """Class and message of an exception, as text that any log can hold."""
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001  # an exception that cannot print itself is still a failure to record
        message = f"<its message raises {type(broken).__name__}>"
    for secret in error.__dict__.get(SECRETS, ()):
        message = message.replace(secret, "[redacted]")
    message = scrub_urls(message)
    return {"type": type(error).__name__, "message": message[:2000].encode("utf-8", "backslashreplace").decode()}
