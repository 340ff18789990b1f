"""The thread that writes for those who must not wait for the disk: tasks of an event loop, and readers of streams.

It is started when it is first needed, and ends when nothing has come for a while: a quiet run holds no thread.
"""

from __future__ import annotations

import _thread
import contextlib
import heapq
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from steplog._runtime.context import STARTING

# How long an idle committer stays before it ends; a burst of tasks finds it running.
_IDLE_SECONDS: Final = 5.0


def release(lock: Any) -> None:
    """Wake whoever sleeps on a lock, or is about to; once is enough."""
    try:
        lock.release()
    except RuntimeError:
        # It was woken before and has not noticed yet, so it is going to look anyway.
        return


def _start_beside(thread: threading.Thread) -> None:
    """Start a thread that is none of the program's.

    A resumed run writes at other moments, so its committer starts elsewhere. Were it counted among the branches that
    are forked off there, theirs would have other names than in the log, and each would wait for one that never comes.
    """
    starter = threading.get_ident()
    STARTING.add(starter)
    try:
        thread.start()
    finally:
        STARTING.discard(starter)


class Committer:
    """Leads when it is woken and something is pending; calls back when the time has come."""

    def __init__(self, run_id: str, pending: list[Any], write: Callable[[], bool]) -> None:
        """Begin without a thread.

        Args:
            run_id: the run, for the thread's name.
            pending: what is to be written; empty when there is nothing to do.
            write: writes it and returns True; or returns False because another thread is writing, which then wakes
                this one if need be.
        """
        self._run_id = run_id
        self._pending = pending
        self._write = write
        # Re-entrant, because a signal handler may come here while its thread is inside.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._sleep = _thread.allocate_lock()
        self._sleep.acquire()
        self._asleep = False
        self._closed = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_number = 0

    @property
    def running(self) -> bool:
        """Whether the thread exists."""
        return self._thread is not None

    def wake(self) -> None:
        """Have what is pending written, without waiting for it. Starts the thread where there is none.

        Raises:
            RuntimeError: no thread can be started.
        """
        if self._thread is None:
            self._start()
        # It looks for work after it has said that it sleeps; so either it sees what is pending, or this sees it asleep.
        if self._asleep:
            self._asleep = False
            release(self._sleep)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name=f"steplog-commit-{self._run_id}", daemon=True)
                # Only what has started is remembered: a thread that could not start would be waited for for ever.
                _start_beside(thread)
                self._thread = thread

    def close(self) -> None:
        """End the thread when it has nothing left to write."""
        self._closed = True
        release(self._sleep)

    def call_later(self, callback: Callable[[], None], seconds: float) -> None:
        """Call back in so many seconds and then write what is pending. Never waits.

        A callback may submit; it is called once, or never where the run is closed before.
        """
        with self._lock:
            self._timer_number += 1
            deadline = time.monotonic() + seconds
            heapq.heappush(self._timers, (deadline, self._timer_number, callback))
            soonest = self._timers[0][0] == deadline
        if self._thread is None and not self._closed:
            # Starting a thread means waiting until it runs, which takes milliseconds where others are busy; so that is
            # done by one that nobody waits for. Where none can be started, the end of the step writes everything.
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(self._start_quietly, ())
        elif soonest:
            release(self._sleep)

    def _start_quietly(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._start()

    def _run(self) -> None:
        while True:
            try:
                self._call_due()
                # Said before it looks for work, so that whoever brings some from here on wakes it.
                self._asleep = True
                worked = bool(self._pending) and self._write()
            except BaseException:
                # The log is closed, and everyone who was in the batch knows. Who came later saw a thread that was still
                # alive, and would wait for it for ever.
                self._thread = None
                self._write()
                raise
            if not worked and not self._rest() and self._ends():
                return
            self._asleep = False

    def _call_due(self) -> None:
        while True:
            with self._lock:
                if not self._timers or self._timers[0][0] > time.monotonic():
                    return
                callback = heapq.heappop(self._timers)[2]
            callback()

    def _rest(self) -> bool:
        """Sleep until there is something to do; False where there was nothing for a while, or the run is closed."""
        with self._lock:
            due = self._timers[0][0] - time.monotonic() if self._timers else None
        if self._closed:
            return False
        if due is None:
            return self._sleep.acquire(timeout=_IDLE_SECONDS)
        if due > 0:
            self._sleep.acquire(timeout=due)
        return True

    def _ends(self) -> bool:
        with self._lock:
            self._thread = None
            if self._pending and not self._closed:
                # Whoever put it in line saw a thread, so this one has to stay.
                self._thread = threading.current_thread()
            return self._thread is None
