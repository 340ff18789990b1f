"""The asyncio task that opened a run, and how a halt reaches it.

An interrupt raised in a child task normally arrives through `await`. Some frameworks never await the task that died
(an actor runtime whose queue simply stays empty), and the run would hang for ever. So the task that opened the run is
cancelled, again and again until it leaves, once the ordinary way has had its chance.
"""

from __future__ import annotations

from typing import Any, Final

from steplog._runtime.context import current_task
from steplog.errors import Interrupt

_FIRST_SECONDS: Final = 0.2
_AGAIN_SECONDS: Final = 0.5


class OwnerTask:
    """Cancels the task that opened a run when the run halts somewhere else; does nothing for a run of a thread."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._loop = None if task is None else task.get_loop()
        self._left = False
        self._cancelled = 0

    @classmethod
    def of(cls, task: Any) -> OwnerTask:
        """The owner that a run opened in `task` (or in no task) has."""
        return cls(task)

    def halted(self, _interrupt: Interrupt) -> None:
        """Make sure that the owner hears of it. Safe to call from any thread."""
        if self._loop is None or self._loop.is_closed() or current_task() is self._task:
            return
        self._loop.call_soon_threadsafe(self._loop.call_later, _FIRST_SECONDS, self._nudge)

    def left(self) -> None:
        """The owner has left the run's scope; the cancellations that are still pending on it are ours to take back."""
        self._left = True
        for _ in range(self._cancelled):
            self._task.uncancel()

    def _nudge(self) -> None:
        if self._loop is None or self._left or self._task.done():
            return
        self._task.cancel()
        self._cancelled += 1
        self._loop.call_later(_AGAIN_SECONDS, self._nudge)
