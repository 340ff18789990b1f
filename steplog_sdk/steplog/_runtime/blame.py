"""Which steps' failures an exception stands for.

A failure that ends its run is tried again on resume, so the run must know which step it came from, even when the agent
has wrapped the exception in others of its own. The exception itself carries the answer.
"""

from __future__ import annotations


def blame(error: BaseException, step: str) -> None:
    """Note on an exception that it is, or passed through, the failure of a step."""
    trail = error.__dict__.setdefault("__steplog_steps__", [])
    if step not in trail:
        trail.append(step)


def blamed(error: BaseException | None) -> list[str]:
    """Ids of the steps whose failure an exception is, or was caused by."""
    found: list[str] = []
    queue, visited = [error], set()
    while queue:
        current = queue.pop()
        if current is None or id(current) in visited:
            continue
        visited.add(id(current))
        found += [step for step in current.__dict__.get("__steplog_steps__", ()) if step not in found]
        queue += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            queue += current.exceptions
    return found
