"""Threads that run one at a time, in an order drawn from a seed: a schedule that can be run again.

A thread may be stopped before every instruction of the modules that are explored, and goes on when the schedule says
so. Locks are those of the schedule, so that it knows who can go on. Time stands still as long as anybody can, and then
goes to the next moment that somebody waits for: where a wake-up is lost, time passes.

The real interpreter changes threads at fewer places than this, and interrupts a thread (a signal) at fewer still: after
calls and jumps. Interruptions are drawn at those places only, because code may rely on it.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
from collections.abc import Callable, Iterator
from random import Random
from types import CodeType, FrameType, ModuleType, SimpleNamespace
from typing import Any

_PATIENCE = 60.0
# Instructions that no other thread can notice.
_PRIVATE = ("LOAD_FAST", "STORE_FAST", "LOAD_CONST", "LOAD_GLOBAL", "POP_TOP", "PRECALL", "PUSH_NULL", "RESUME", "NOP")
_INTERRUPTIBLE = ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD")


class Stuck(AssertionError):
    """Nobody can go on."""


class Runner:
    """A thread of the schedule.

    Attributes:
        can_go_on: whether what it waits for has come; None while it waits for nothing.
        deadline: when it gives up waiting, or None.
        interruptible: an interruption may be drawn for it.
    """

    def __init__(self, schedule: Schedule, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.done = False
        self.error: BaseException | None = None
        self.can_go_on: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.interruptible = False
        self.go = threading.Semaphore(0)
        self._schedule = schedule
        self._work = work
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def may_run(self, now: float) -> bool:
        """Whether it waits for nothing any more."""
        return self.can_go_on is None or self.can_go_on() or (self.deadline is not None and self.deadline <= now)

    def _run(self) -> None:
        self.go.acquire()
        sys.settrace(self._schedule.trace)
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            sys.settrace(None)
            self.done = True
            self._schedule.leave()


class Schedule:
    """One order in which threads run.

    Attributes:
        now: the time.
        hurt: how many interruptions were made.
    """

    def __init__(self, seed: int, explored: list[ModuleType], *, interruptions: int = 0) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.hurt = 0
        self._seed = seed
        self._files = {module.__file__ for module in explored}
        self._chance = self.random.choice([0.01, 0.03, 0.1, 0.3])
        # Most faults need one thread to stand still at the wrong place while another one goes a long way.
        self._return = self.random.choice([0.02, 0.1, 0.5])
        self._held: Runner | None = None
        self._interruptions = interruptions
        self._runners: list[Runner] = []
        self._over = threading.Semaphore(0)
        self._stuck: str | None = None
        self._opcodes: dict[CodeType, bytes] = {}
        self._last: dict[FrameType, str] = {}
        self.current: Runner | None = None

    def spawn(self, name: str, work: Callable[[], None]) -> Runner:
        """Add a thread; it runs when its turn comes."""
        runner = Runner(self, name, work)
        self._runners.append(runner)
        runner.thread.start()
        return runner

    def run(self, expected: tuple[type[BaseException], ...]) -> None:
        """Run all threads to their end. Raises Stuck, and whatever a thread died of, unless that was expected."""
        self._give(self._choose())
        assert self._over.acquire(timeout=_PATIENCE), f"seed {self._seed}: an explored thread does not come back"
        if self._stuck:
            raise Stuck(f"seed {self._seed}: {self._stuck}")
        for runner in self._runners:
            if runner.error is not None and not isinstance(runner.error, expected):
                raise runner.error

    def pause(self, until: Callable[[], bool] | None = None, deadline: float | None = None) -> bool:
        """Let another thread run; with `until`, do not come back before it holds. False where time was up before."""
        runner = self.current
        assert runner is not None
        runner.can_go_on, runner.deadline = until, deadline
        following = self._choose()
        if following is not runner:
            self._give(following)
            runner.go.acquire()
        runner.can_go_on = runner.deadline = None
        return until is None or until()

    def leave(self) -> None:
        """The current thread has ended."""
        if all(runner.done for runner in self._runners):
            self._over.release()
        else:
            self._give(self._choose())

    def _give(self, runner: Runner | None) -> None:
        self.current = runner
        if runner is None:
            self._over.release()
        else:
            runner.go.release()

    def sleep(self, seconds: float) -> None:
        """Let time pass for the current thread."""
        self.pause(lambda: False, self.now + seconds)

    def _choose(self) -> Runner | None:
        alive = [runner for runner in self._runners if not runner.done]
        able = [runner for runner in alive if runner.may_run(self.now)]
        if not able:
            waiting = [runner.deadline for runner in alive if runner.deadline is not None]
            if not waiting:
                self._stuck = f"{', '.join(runner.name for runner in alive)} wait for one another"
                return None
            self.now = min(waiting)
            able = [runner for runner in alive if runner.may_run(self.now)]
        if self.random.random() < self._return:
            self._held = None
        return self.random.choice([runner for runner in able if runner is not self._held] or able)

    def trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Stop the current thread now and then, before an instruction of what is explored."""
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            operation = self._operation(frame)
            if operation not in _PRIVATE and self.random.random() < self._chance:
                self._held = self.current
                self.pause()
            self._interrupt(frame, operation)
        return self.trace

    def _operation(self, frame: FrameType) -> str:
        instructions = self._opcodes.get(frame.f_code)
        if instructions is None:
            instructions = self._opcodes[frame.f_code] = frame.f_code.co_code
        return dis.opname[instructions[frame.f_lasti]]

    def _interrupt(self, frame: FrameType, operation: str) -> None:
        before, runner = self._last.get(frame, "RESUME"), self.current
        self._last[frame] = operation
        may = self._interruptions and before in _INTERRUPTIBLE and runner is not None and runner.interruptible
        if may and self.random.random() < 0.003:
            self._interruptions -= 1
            self.hurt += 1
            raise KeyboardInterrupt

    def explore_again(self) -> None:
        """Go on exploring the current thread, which an interruption has ended."""
        sys.settrace(self.trace)

    # what the explored modules get instead of the real thing --------------------------------------------------------

    def lock(self) -> Lock:
        """Make a lock."""
        return Lock(self)

    def thread(self, *, target: Callable[[], None], name: str, daemon: bool) -> Any:
        """Make a thread; it belongs to the schedule when it is started."""
        assert daemon
        return SimpleNamespace(start=lambda: self.spawn(name, target))

    def modules(self) -> dict[str, Any]:
        """Stand-ins by the name under which a module knows them."""
        return {
            "threading": SimpleNamespace(
                RLock=lambda: ReentrantLock(self),
                Thread=self.thread,
                current_thread=lambda: self.current,
                get_ident=threading.get_ident,
            ),
            "_thread": SimpleNamespace(
                allocate_lock=self.lock,
                start_new_thread=lambda work, arguments: self.spawn("starter", lambda: work(*arguments)),
            ),
            "time": SimpleNamespace(monotonic=lambda: self.now),
        }


class Lock:
    """A lock whose holders the schedule knows."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._taken = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        deadline = self._schedule.now + timeout if timeout >= 0 else None
        while self._taken:
            if not blocking or not self._schedule.pause(lambda: not self._taken, deadline):
                return False
        self._taken = True
        return True

    def release(self) -> None:
        if not self._taken:
            raise RuntimeError("release unlocked lock")
        self._taken = False

    def locked(self) -> bool:
        return self._taken

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class ReentrantLock(Lock):
    """The same, for a thread that has it already."""

    _owner: Runner | None = None
    _depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner is not self._schedule.current:
            super().acquire(blocking, timeout)
            self._owner = self._schedule.current
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            super().release()


class Future:
    """What a task waits for."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._done = False
        self.then: Callable[[], None] = lambda: None

    def get_loop(self) -> Loop:
        return self._loop

    def done(self) -> bool:
        return self._done

    def set_result(self, _result: None) -> None:
        self._done = True
        self._loop.call_soon(self.then)


class Loop:
    """As much of an event loop as appending needs, in a thread of the schedule."""

    def __init__(self, schedule: Schedule, passes_by: type[BaseException]) -> None:
        self._passes_by = passes_by
        self._ready: list[Callable[[], None]] = []
        self._wake = schedule.lock()
        self._wake.acquire()
        self._alive = 0

    def create_future(self) -> Future:
        return Future(self)

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._ready.append(lambda: callback(*arguments))

    def call_soon_threadsafe(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.call_soon(callback, *arguments)
        if self._wake.locked():
            self._wake.release()

    def run(self, tasks: list[Iterator[Future]]) -> None:
        """Run tasks to their end. A task is an iterator of what it awaits."""
        self._alive = len(tasks)
        for task in tasks:
            self.call_soon(self._step, task)
        while self._alive:
            self._run_ready()
            if self._alive:
                self._wake.acquire()
        self._run_ready()

    def _run_ready(self) -> None:
        while self._ready:
            # What a callback raises goes to the loop's handler, and the loop goes on.
            with contextlib.suppress(self._passes_by):
                self._ready.pop(0)()

    def _step(self, task: Iterator[Future]) -> None:
        future = next(task, None)
        if future is None:
            self._alive -= 1
        elif future.done():
            self.call_soon(self._step, task)
        else:
            future.then = lambda: self._step(task)
