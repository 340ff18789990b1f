"""The code that opened a run, and how a halt reaches it.

An interrupt raised in a child task normally arrives through `await`. Some frameworks never await the task that died
(an actor runtime whose queue simply stays empty), and the run would hang for ever. So the task that opened the run is
cancelled, again and again until it leaves, once the ordinary way has had its chance. Where a run was opened around an
event loop (`with steplog.run(): asyncio.run(main())`), it is the task that the loop was started for.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any, Final

from steplog._runtime.cancelling import CLEANUP_SECONDS
from steplog._runtime.context import current_task
from steplog.errors import Cancelled, Interrupt

_FIRST_SECONDS: Final = 0.2
_AGAIN_SECONDS: Final = 0.5


class OwnerTask:
    """Cancels the task that a run waits in when the run halts somewhere else.

    Does nothing for a run whose thread waits in no event loop.
    """

    def __init__(self, task: Any) -> None:
        self._task = task
        # Inside a loop but in no task there is nothing that belongs to the run alone.
        self._may_start_loop = task is None and not _in_loop()
        self._thread = threading.get_ident()
        self._left = False
        self._cancelled = 0

    @classmethod
    def of(cls, task: Any) -> OwnerTask:
        """The owner that a run opened in `task` (or in no task) has."""
        return cls(task)

    def halted(self, interrupt: Interrupt) -> None:
        """Make sure that the owner hears of it. Safe to call from any thread.

        One that was cancelled gets as long as it may clean up.
        """
        task = self._waiting_task()
        loop = None if task is None else task.get_loop()
        if loop is None or loop.is_closed() or current_task() is task:
            return
        first = CLEANUP_SECONDS if isinstance(interrupt, Cancelled) else _FIRST_SECONDS
        loop.call_soon_threadsafe(loop.call_later, first, self._nudge, task)

    def left(self) -> None:
        """The owner leaves the run's scope; the cancellations that are still pending on it are ours to take back."""
        self._left = True
        if self._task is not None:
            for _ in range(self._cancelled):
                self._task.uncancel()
        self._cancelled = 0

    def _waiting_task(self) -> Any:
        return _awaited_by(self._thread) if self._may_start_loop else self._task

    def _nudge(self, task: Any) -> None:
        if self._left or task.done():
            return
        task.cancel()
        self._cancelled += 1
        task.get_loop().call_later(_AGAIN_SECONDS, self._nudge, task)


def _in_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001  # the public form raises


def _awaited_by(thread: int) -> Any:
    """The task that a thread has started an event loop for and waits for, or None.

    asyncio has no name for it; it is a local variable of the function that runs the loop. `Runner.run` is there also
    for loops that are not written in Python.
    """
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001  # documented; there is no other
    while frame is not None:
        for function, variable in (("run_until_complete", "future"), ("run", "task")):
            if frame.f_code.co_name == function and frame.f_globals.get("__name__", "").startswith("asyncio."):
                found = frame.f_locals.get(variable)
                return found if hasattr(found, "cancelling") else None
        frame = frame.f_back
    return None
