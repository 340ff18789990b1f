"""Carry the run into worker threads.

`ThreadPoolExecutor.submit` and `threading.Thread` do not copy context variables before Python 3.14, so a model call in
a worker would not know its run and would escape the log. Only steplog's own variable travels: copying the whole
context would change what other libraries see.

The workers of a `multiprocessing.pool.ThreadPool` are started once, in the run in which the pool was made; what they
are given to do belongs to the run in which it was given.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from typing import Any, Final

from steplog._runtime.context import BUSY, FRAME, STARTING, WORKER, Frame, Owner

# A worker is a branch of its own even where the pool runs it in the submitting thread's identity later on.
_BRANCH: Owner = (0, 0)

# A branch is called by what is left of a function's name. It stands in the log, so it may be as long as that is worth.
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9]")
_LONGEST: Final = 16

_POOLS: Final = "multiprocessing.pool"
# What gives the workers of a `ThreadPool` something to do, and which of its arguments are called there.
_GIVING: Final = ("apply_async", "map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered")
_CALLED: Final = ("func", "callback", "error_callback")

_installed: dict[str, Any] = {}
_hooked: Final[set[str]] = set()


def install() -> None:
    """Patch the places where the standard library starts work on a thread. Idempotent."""
    if _installed:
        return
    submit: Any = ThreadPoolExecutor.submit
    start = threading.Thread.start
    _installed.update(submit=submit, start=start)

    @functools.wraps(submit)
    def submit_in_run(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        found = FRAME.get()
        # Also when no run is open: the worker may have been started inside one that is long closed.
        future: Future[Any] = submit(self, _Carried(found, fn, _how("p", fn, args)), *args, **kwargs)
        if found is not None:
            # Called when the result can be seen, which is after `fn` has returned.
            future.add_done_callback(lambda _future: found.recorder.branch_ended())
        return future

    @functools.wraps(start)
    def start_in_run(self: threading.Thread) -> None:
        found = FRAME.get()
        if found is not None and threading.get_ident() not in STARTING:
            target = getattr(self, "_target", None)
            carried = _Carried(found, self.run, _how("t", type(self) if target is None else target), ends=True)
            # A bound method, as `run` is without us: other tools take it apart into function and thread.
            self.run = types.MethodType(lambda _thread: carried(), self)  # type: ignore[method-assign]
        start(self)

    _installed.update(patched_submit=submit_in_run, patched_start=start_in_run)
    ThreadPoolExecutor.submit = submit_in_run  # type: ignore[method-assign, assignment]
    threading.Thread.start = start_in_run  # type: ignore[method-assign]
    imported = sys.modules.get(_POOLS)
    # Another thread may be importing it just now.
    if imported is not None and hasattr(imported, "ThreadPool"):
        _patch_pools(imported)
    elif _POOLS not in _hooked:
        import wrapt  # most of the time it is here already

        # A post-import hook cannot be taken back, so it is registered once.
        _hooked.add(_POOLS)
        wrapt.register_post_import_hook(_patch_pools, _POOLS)


def _patch_pools(module: types.ModuleType) -> None:
    if not _installed:
        return
    for name in _GIVING:
        patched = _installed[name] = _giving(getattr(module.ThreadPool, name))
        setattr(module.ThreadPool, name, patched)


def _giving(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def give_in_run(*args: Any, **kwargs: Any) -> Any:
        found = FRAME.get()
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return original(*args, **kwargs)
        for name in _CALLED:
            if given.get(name) is not None:
                given[name] = _Carried(found, given[name], _how("m", given[name]))
        if original.__name__.startswith("imap"):
            # It is the pool that takes the next item, in a thread of its own.
            given["iterable"] = _carried_items(found, given["iterable"])
        return original(**given)

    return give_in_run


def _carried_items(found: Frame | None, items: Iterable[Any]) -> Iterator[Any]:
    step = _Carried(found, iter(items).__next__, "i")
    while True:
        try:
            item = step()
        except StopIteration:
            return
        yield item


def uninstall() -> None:
    """Take the patches back where they are still ours; another library may have wrapped them since."""
    if not _installed:
        return
    if ThreadPoolExecutor.submit is _installed["patched_submit"]:
        ThreadPoolExecutor.submit = _installed["submit"]  # type: ignore[method-assign]
    if threading.Thread.start is _installed["patched_start"]:
        threading.Thread.start = _installed["start"]  # type: ignore[method-assign]
    pools = sys.modules.get(_POOLS)
    for name in _GIVING:
        if name in _installed and vars(pools.ThreadPool).get(name) is _installed[name]:  # type: ignore[union-attr]
            delattr(pools.ThreadPool, name)  # type: ignore[union-attr]
    _installed.clear()


def _how(letter: str, fn: Any, args: tuple[Any, ...] = ()) -> str:
    """How a branch is forked off: by what, and the bare name of what it is to call, in whatever context."""
    while True:
        if isinstance(fn, functools.partial):
            fn, args = fn.func, fn.args + args
        elif isinstance(getattr(fn, "__self__", None), Context) and args:
            fn, args = args[0], args[1:]
        else:
            break
    name = getattr(fn, "__name__", None)
    bare = _NO_NAME.sub("", name if isinstance(name, str) else type(fn).__name__)
    return f"{letter}-{bare[:_LONGEST]}-"


class _Carried:
    """A callable that runs in the frame in which it was handed over; `ends`: it is all that its thread does.

    `how` it was forked off, and with what to do, is counted apart: a pool starts threads of its own when it likes, and
    a framework gives it errands of its own as often as it likes.
    """

    def __init__(self, found: Frame | None, fn: Callable[..., Any], how: str, *, ends: bool = False) -> None:
        self._ends = ends
        self._frame: Frame | None = None
        if found is not None:
            recorder, scope, after, _, _ = found
            self._frame = Frame(recorder, scope, after, _BRANCH, recorder.dispatch.fork(found, how))
        self._fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = FRAME.set(self._frame)
        outer, WORKER.frame = WORKER.frame, self._frame
        thread = threading.get_ident()
        ours = self._frame is not None and thread not in BUSY
        if ours:
            BUSY.add(thread)
        try:
            return self._fn(*args, **kwargs)
        finally:
            if ours:
                BUSY.discard(thread)
            WORKER.frame = outer
            FRAME.reset(token)
            if self._ends and self._frame is not None:
                self._frame.recorder.branch_ended()
