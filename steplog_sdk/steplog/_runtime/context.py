"""Which run, and which place in it, the code that is executing belongs to.

A `Frame` travels in a context variable, so asyncio tasks inherit it by themselves and `threads` carries it into worker
threads. It is immutable: moving on means setting a new one, and a child that moves on never disturbs its parent.

`after` is the lineage: the step that last finished in this context. `owner` is the thread and task in which that was
so. A submission from another thread or task than the frame's owner comes from a branch that was forked off here, which
may be racing with its siblings; one from the same owner is the next step of a sequence.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from steplog._runtime.recorder import Recorder

Owner = tuple[int, int]

BUSY: Final[set[int]] = set()
"""Threads that do a part of a run that was handed over to them."""

STARTING: Final[set[int]] = set()
"""Threads that are about to start a thread for steplog itself, which is no branch of the program."""

_modules: Final = sys.modules
_thread: Final = threading.get_ident


class Frame(NamedTuple):
    """A place in a run.

    Attributes:
        recorder: the run's recorder.
        scope: id of the enclosing step, or "".
        after: the step that last finished in this context and scope, or None.
        owner: thread and task in which the frame was set.
        branch: name of the worker thread that was forked off in this scope, or "".
    """

    recorder: Recorder
    scope: str
    after: str | None
    owner: Owner
    branch: str = ""


FRAME: ContextVar[Frame | None] = ContextVar("steplog_frame", default=None)
PASSING: ContextVar[bool] = ContextVar("steplog_passing", default=False)


def current_task() -> Any:
    """The running asyncio task, or None; never imports asyncio, since a program without it has no tasks."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:  # noqa: SLF001  # the public form raises instead
        return None
    return asyncio.current_task()


def running_loop() -> Any:
    """The asyncio event loop that runs in this thread, or None."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()  # noqa: SLF001  # the public form raises instead


def owner() -> Owner:
    """The thread and task that are executing."""
    # Asked several times for each step, so it goes the short way where no loop runs.
    asyncio = _modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:  # noqa: SLF001  # as in `current_task`
        return _thread(), 0
    task = asyncio.current_task()
    return _thread(), 0 if task is None else id(task)


class _Worker(threading.local):
    """The frame in which this thread's work was handed over; `asyncio.to_thread` puts the context of its task above."""

    frame: Frame | None = None


WORKER: Final = _Worker()


def branch_at(place: Frame) -> str:
    """The name of the worker thread that is at a place, or ""."""
    worker = WORKER.frame
    if worker is not None and not place.branch and worker[:3] == place[:3]:
        return worker.branch
    return place.branch


def frame() -> Frame | None:
    """The frame of the open run that the executing code belongs to, or None."""
    found = FRAME.get()
    while found is not None and found.recorder.closed:
        # A worker started inside a run may outlive it; what it does then is outside that run, but it may well be
        # inside the run that was opened around it.
        found = found.recorder.outer
    return found


def advance(recorder: Recorder, scope: str, step: str, who: Owner | None = None) -> None:
    """Note that `step` has finished in the executing context, when that context is at this place of this run.

    `who` is the `owner` that executes, where the caller knows it.
    """
    found = FRAME.get()
    if found is not None and found.recorder is recorder and found.scope == scope:
        FRAME.set(new_frame(Frame, (recorder, scope, step, who or owner(), found.branch)))


new_frame: Final = tuple.__new__
"""Given `Frame` and its fields, what `Frame(...)` does, without a second call."""


class inside:  # noqa: N801  # reads as a verb: `with inside(recorder, step):`
    """The scope of a step, for the code that is the step's effect."""

    __slots__ = ("_frame", "_outer")

    def __init__(self, recorder: Recorder, scope: str, who: Owner | None = None) -> None:
        self._frame = (recorder, scope, None, who or owner(), "")

    def __enter__(self) -> None:
        self._outer = FRAME.get()
        FRAME.set(new_frame(Frame, self._frame))

    def __exit__(self, *_: object) -> None:
        FRAME.set(self._outer)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Code whose effects pass through, although a run is open."""
    token = PASSING.set(True)
    try:
        yield
    finally:
        PASSING.reset(token)
