"""Carry the run into worker threads.

`ThreadPoolExecutor.submit` and `threading.Thread` do not copy context variables before Python 3.14, so a model call in
a worker would not know its run and would escape the log. Only steplog's own variable travels: copying the whole
context would change what other libraries see.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from steplog._runtime.context import FRAME, Frame, Owner

# A worker is a branch of its own even where the pool runs it in the submitting thread's identity later on.
_BRANCH: Owner = (0, 0)

_installed: dict[str, Any] = {}


def install() -> None:
    """Patch the two places where the standard library starts work on a thread. Idempotent."""
    if _installed:
        return
    submit: Any = ThreadPoolExecutor.submit
    start = threading.Thread.start
    _installed.update(submit=submit, start=start)

    @functools.wraps(submit)
    def submit_in_run(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        found = FRAME.get()
        # Also when no run is open: the worker may have been started inside one that is long closed.
        future: Future[Any] = submit(self, _Carried(found, fn), *args, **kwargs)
        if found is not None:
            # Called when the result can be seen, which is after `fn` has returned.
            future.add_done_callback(lambda _future: found.recorder.branch_ended())
        return future

    @functools.wraps(start)
    def start_in_run(self: threading.Thread) -> None:
        found = FRAME.get()
        if found is not None:
            carried = _Carried(found, self.run, ends=True)
            # A bound method, as `run` is without us: other tools take it apart into function and thread.
            self.run = types.MethodType(lambda _thread: carried(), self)  # type: ignore[method-assign]
        start(self)

    _installed.update(patched_submit=submit_in_run, patched_start=start_in_run)
    ThreadPoolExecutor.submit = submit_in_run  # type: ignore[method-assign, assignment]
    threading.Thread.start = start_in_run  # type: ignore[method-assign]


def uninstall() -> None:
    """Take the patches back where they are still ours; another library may have wrapped them since."""
    if not _installed:
        return
    if ThreadPoolExecutor.submit is _installed["patched_submit"]:
        ThreadPoolExecutor.submit = _installed["submit"]  # type: ignore[method-assign]
    if threading.Thread.start is _installed["patched_start"]:
        threading.Thread.start = _installed["start"]  # type: ignore[method-assign]
    _installed.clear()


class _Carried:
    """A callable that runs in the frame in which it was handed over; `ends`: it is all that its thread does."""

    def __init__(self, found: Frame | None, fn: Callable[..., Any], *, ends: bool = False) -> None:
        self._ends = ends
        self._frame = None if found is None else found._replace(owner=_BRANCH)
        self._fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = FRAME.set(self._frame)
        try:
            return self._fn(*args, **kwargs)
        finally:
            FRAME.reset(token)
            if self._ends and self._frame is not None:
                self._frame.recorder.branch_ended()
