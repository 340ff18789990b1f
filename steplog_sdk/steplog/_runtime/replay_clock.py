"""Virtual time: in a replay nobody waits for a pause, and what comes first still comes first.

One number, added to the clocks that a replayed program reads, and moved on instead of waiting. It moves only when all
that belongs to the program waits: then to the earliest moment that anybody waits for. So two tasks that sleep a second
and two wake in that order, a timeout fires when what it guards would have taken longer, and a loop that polls until a
deadline polls as often as it did.

`time.sleep`, the clocks of `time`, `Condition.wait` and `Thread.join` with a timeout, and asyncio's event loop take
part, as far as they are used by code of the replayed run. For everybody else, steplog itself included, time is real.
Whoever holds the C functions themselves (`from time import sleep`, before) sleeps, and a loop that is not written in
Python does.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FrameType
from typing import Any, Final

from steplog._runtime.context import BUSY, FRAME, frame
from steplog._runtime.realtime import RealTimer
from steplog._runtime.standing import standing

_sleep: Final = time.sleep
_monotonic: Final = time.monotonic
_wait: Final = threading.Condition.wait
_join: Final = threading.Thread.join

# The clocks of `time` that move with virtual time, and what a second is in them.
_CLOCKS: Final = {
    "time": 1,
    "monotonic": 1,
    "perf_counter": 1,
    "time_ns": 10**9,
    "monotonic_ns": 10**9,
    "perf_counter_ns": 10**9,
}
# Modules of the standard library that took a clock for themselves when they were imported.
_TAKEN: Final = (("threading", "_time"), ("queue", "time"))

# A thread that has done nothing for this long waits for something.
_QUIET_SECONDS: Final = 0.02
_LOOK_SECONDS: Final = 0.001

_ours: Final = "steplog."


class Clock:
    """The time of one replay.

    Attributes:
        offset: seconds by which virtual time is ahead of real time.
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._lock = threading.RLock()
        # Threads that run the program, besides those that were handed a part of it.
        self._own: set[int] = set()
        self._loops: dict[int, Any] = {}
        # By thread, until when it waits.
        self._waiting: dict[int, float] = {}
        self._undo: list[tuple[Any, str, Any]] = []

    # whose time it is --------------------------------------------------------------------------------------------

    def adopt(self, loop: Any) -> None:
        """Note that this thread runs the program, with its event loop where it has one."""
        thread = threading.get_ident()
        self._own.add(thread)
        if loop is not None:
            self._loops[id(loop)] = loop

    def is_mine(self) -> bool:
        """Whether the calling code belongs to the program that is replayed."""
        if threading.get_ident() in self._own:
            return True
        place = FRAME.get() and frame()
        return place is not None and not place.recorder.dispatch.live

    def now(self) -> float:
        """The monotonic clock, in virtual time."""
        return _monotonic() + self.offset

    # waiting -----------------------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Return when so much virtual time has passed."""
        if seconds <= 0:
            _sleep(seconds)
            return
        until = self.now() + seconds
        with self._waits(until):
            while self.now() < until and not self.advance(until):
                _sleep(_LOOK_SECONDS)

    def until(self, happened: Callable[[float], bool], seconds: float) -> bool:
        """Wait for something that other threads do, for so much virtual time.

        Args:
            happened: waits for it for that many real seconds at most, and tells whether it has happened.
            seconds: after which to give up.
        """
        until = self.now() + seconds
        with self._waits(until):
            while True:
                if happened(min(_LOOK_SECONDS, max(0.0, until - self.now()))):
                    return True
                if self.now() >= until or self.advance(until):
                    return happened(0.0)

    @contextmanager
    def _waits(self, until: float) -> Iterator[None]:
        thread = threading.get_ident()
        before = self._waiting.get(thread)
        self._waiting[thread] = until if before is None else min(before, until)
        try:
            yield
        finally:
            if before is None:
                self._waiting.pop(thread, None)
            else:
                self._waiting[thread] = before

    def advance(self, until: float) -> bool:
        """Move virtual time on to a moment, where it is the earliest that is waited for and nobody is at work."""
        if until > min(self._waiting.values(), default=until) or not self._all_wait():
            return False
        with self._lock:
            if until > min(self._waiting.values(), default=until):
                return False
            self.offset += max(0.0, until - self.now())
        return True

    def _all_wait(self) -> bool:
        others = {*BUSY, *self._own} - self._waiting.keys() - {threading.get_ident()}
        if not others:
            return True
        before = standing(others)
        if any(place.runs for place in before.values()):
            return False
        _sleep(_QUIET_SECONDS)
        return standing(others) == before

    # asyncio -----------------------------------------------------------------------------------------------------

    def pass_idle(self, loop: Any) -> None:
        """Move on to the next timer of a loop that has nothing else to do."""
        if loop._ready or loop._stopping or not loop._scheduled or not self._is_mine(loop):  # noqa: SLF001
            return
        selector = loop._selector  # noqa: SLF001  # there is no public name for any of these
        until = min((handle._when for handle in loop._scheduled if not _is_real(handle)), default=None)  # noqa: SLF001
        if until is None or len(selector.get_map()) > 1:
            return  # it waits for somebody else, who keeps real time
        with self._waits(until):
            while self.now() < until and not loop._ready:  # noqa: SLF001
                # What has arrived stays there to be found.
                if selector.select(0) or self.advance(until):
                    return
                selector.select(_LOOK_SECONDS)

    def _is_mine(self, loop: Any) -> bool:
        return id(loop) in self._loops or self.is_mine()

    # putting in, taking out --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let virtual time begin."""
        for name, unit in _CLOCKS.items():
            if isinstance(getattr(time, name), BuiltinFunctionType):
                # One that is recorded reads as it read, and looks at who calls it.
                self._replace(time, name, _reading(self, getattr(time, name), unit))
        for module, name in _TAKEN:
            if module in sys.modules:
                self._replace(sys.modules[module], name, _reading(self, _monotonic, 1))
        self._replace(time, "sleep", _sleeping(self))
        self._replace(threading.Condition, "wait", _waiting(self))
        self._replace(threading.Thread, "join", _joining(self))
        # Also where the program has not imported it yet: it would miss this.
        from asyncio.base_events import BaseEventLoop

        self._replace(BaseEventLoop, "_run_once", _running(self, vars(BaseEventLoop)["_run_once"]))

    def stop(self) -> None:
        """Let real time go on, where nobody has put something else in its place."""
        for place, name, (ours, theirs) in reversed(self._undo):
            if vars(place).get(name) is ours:
                setattr(place, name, theirs)
        self._undo.clear()
        for loop in self._loops.values():
            # What is left of a timer stays as long as it was.
            for handle in loop._scheduled:  # noqa: SLF001
                handle._when -= self.offset  # noqa: SLF001
        self._loops.clear()
        # Whoever has kept one of the replaced functions reads real time by it.
        self._own.clear()
        self.offset = 0.0

    def _replace(self, place: Any, name: str, ours: Any) -> None:
        self._undo.append((place, name, (ours, vars(place)[name])))
        setattr(place, name, ours)


def _called_by_us() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith(_ours)  # noqa: SLF001


def _reading(clock: Clock, original: Callable[[], Any], unit: int) -> Callable[[], Any]:
    def read() -> Any:
        if _called_by_us() or not clock.is_mine():
            return original()
        ahead = clock.offset * unit
        return original() + (ahead if unit == 1 else int(ahead))

    return read


def _sleeping(clock: Clock) -> Callable[[float], None]:
    def sleep(seconds: float, /) -> None:
        if _called_by_us() or not clock.is_mine():
            _sleep(seconds)
        else:
            clock.sleep(seconds)

    return sleep


def _waiting(clock: Clock) -> Callable[..., bool]:
    def wait(self: threading.Condition, timeout: float | None = None) -> bool:
        if timeout is None or timeout <= 0 or not clock.is_mine() or _is_ours():
            return _wait(self, timeout)
        # Between two looks the lock is held, so no notification is missed.
        return clock.until(lambda seconds: _wait(self, seconds), timeout)

    return wait


def _is_ours() -> bool:
    """Whether steplog itself waits, through an `Event` or a `Future`."""
    found: FrameType = sys._getframe(2)  # noqa: SLF001
    while found.f_globals.get("__name__") in ("threading", "queue", "concurrent.futures._base"):
        if found.f_back is None:
            return False
        found = found.f_back
    return str(found.f_globals.get("__name__", "")).startswith(_ours)


def _joining(clock: Clock) -> Callable[..., None]:
    def join(self: threading.Thread, timeout: float | None = None) -> None:
        if timeout is None or timeout <= 0 or not clock.is_mine():
            _join(self, timeout)
            return

        def ended(seconds: float) -> bool:
            _join(self, seconds)
            return not self.is_alive()

        clock.until(ended, timeout)

    return join


def _running(clock: Clock, original: Callable[[Any], None]) -> Callable[[Any], None]:
    def _run_once(self: Any) -> None:
        with contextlib.suppress(AttributeError):  # a loop that is made otherwise keeps real time
            clock.pass_idle(self)
        original(self)

    return _run_once


def _is_real(handle: Any) -> bool:
    return handle._cancelled or isinstance(handle._callback, RealTimer)  # noqa: SLF001
