"""What an exception came from, for the people who read a log: an agent's own error often hides the one that matters."""

from __future__ import annotations

from typing import Final

from steplog._runtime.blame import told

# An agent that wraps errors in a loop has a chain without end.
_MOST: Final = 8


def causes(error: BaseException) -> list[dict[str, str]]:
    """Class and message of what is behind an exception, nearest first: causes, what was handled, members of a group."""
    found: list[BaseException] = []
    queue = _behind(error)
    while queue and len(found) < _MOST:
        current = queue.pop(0)
        if current is not error and current not in found:
            found.append(current)
            queue += _behind(current)
    return [told(one) for one in found]


def _behind(error: BaseException) -> list[BaseException]:
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [one for one in (error.__cause__, error.__context__, *members) if one is not None]
