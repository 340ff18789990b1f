"""Replayed results come back in the order in which they came back when they were recorded.

A program that takes results as they arrive (`as_completed`, `wait`, a queue) does different things when they arrive in
another order, and its next request would no longer match its log. A replayed call takes no time, so without this the
order would be that of submission.

A step waits for those that finished while it was under way, and for no others: in the recording their results cannot
have depended on its own, so they are on their way. Should one not come all the same (the program has changed, or the
thread that would submit it is the one that waits), it is given up after a moment: order is never worth a deadlock.

A stream takes no turn. Its reader acts on the first chunks long before the step is finished.

A task whose recorded steps end with a result may come to something new before other tasks have come to what they had
done: a replayed call takes no time, and what they do between two calls does. A plain tool in an event loop cannot wait
for them there. So the task waits here, before it gets its last result, as long as that lets others go on.
"""

from __future__ import annotations

import threading
import time
from _thread import allocate_lock, get_ident
from bisect import bisect_right
from collections.abc import Callable, Generator
from typing import Any, Final

from steplog._kernel.fold import FINISHED, RunState, StepState
from steplog._runtime import realtime
from steplog._runtime.committer import release
from steplog._runtime.context import current_task

# Without any step coming or going for this long, the one that is waited for is given up.
_PATIENCE_SECONDS: Final = 0.25

# Which of two threads that have their results puts its own into a queue first is up to the scheduler. So a thread that
# got its own waits until the one before it has used its result: it makes its next call, or ends. Nobody tells when a
# thread puts a result away and then waits for more work, so it is waited for this long at most, and then a little more.
# In slices, because on a busy machine each of them takes longer: whoever waits has to get its share of the processor
# again, and the other thread gets its own meanwhile.
_USE_SECONDS: Final = 0.02
_SLICES: Final = 10

# A process that has let tasks wait in vain this often does so no more: a program that joins its tasks before it goes on
# to what is recorded pays for it once.
_IN_VAIN: Final = 4
_HOLD_SECONDS: Final = 0.005
_STAGGER_SECONDS: Final = 0.001


class Turn:
    """A replayed step that has to wait.

    Attributes:
        position: its place in the order of completion.
        blocker: position of the step that it waits for now; None where its turn has come.
        ends: the step with which what is recorded of its branch may end, or None.
        behind: the thread that got the result before this one, and the position of that; None where none will use it.
    """

    __slots__ = ("_future", "_sleep", "_turns", "behind", "blocker", "ends", "position")

    def __init__(self, turns: Turns, position: int, blocker: int | None) -> None:
        self._turns = turns
        self.position = position
        self.blocker = blocker
        self.behind: tuple[int, int] | None = None
        self.ends: StepState | None = None
        self._sleep: Any = None
        self._future: Any = None

    def await_and_pass(self, *, may_wait: bool) -> Generator[Turn, None, None]:
        """Wait for this step's turn, where the caller may wait, and pass it on."""
        try:
            if may_wait:
                yield self
        finally:
            # Also when the caller was cancelled meanwhile: the others must not wait for it.
            self._turns.pass_on(self.position)

    def wait(self) -> None:
        """Block until it is this step's turn."""
        # No `threading.Event`: a signal handler that asks for a step may wake the very turn in whose wait it came, and
        # an event has a lock of its own that this thread would then hold already.
        sleep = allocate_lock()
        sleep.acquire()
        self._sleep = sleep
        while self._turns.must_wait(self):
            if not sleep.acquire(timeout=self._turns.patience()):
                self._turns.give_up(self)
        for _ in range(_SLICES):
            used = self._turns.event_of(self)
            if used is None or used.wait(_USE_SECONDS / _SLICES):
                break
        time.sleep(_STAGGER_SECONDS)

    async def wait_async(self) -> None:
        """The same for a task."""
        if current_task() is None:
            # Another async library's loop: it waits in its thread, at most until the others are given up.
            self.wait()
            return
        import asyncio

        loop = asyncio.get_running_loop()
        while True:
            self._future = loop.create_future()
            if not self._turns.must_wait(self):
                break
            if not await realtime.wait(self._future, self._turns.patience()):
                self._turns.give_up(self)
        for _ in range(_SLICES):
            # Another thread's; tasks of one loop use what they got in the order in which they are woken.
            if self._turns.event_of(self) is None:
                break
            await realtime.sleep(_USE_SECONDS / _SLICES)
        while self.ends is not None and self._turns.holds_back(self.ends, self.position):
            await realtime.sleep(_HOLD_SECONDS)

    def wake(self) -> None:
        """Look again whether it is this step's turn. Safe to call from any thread."""
        if self._sleep is not None:
            release(self._sleep)
        future = self._future
        if future is not None and not future.get_loop().is_closed():
            future.get_loop().call_soon_threadsafe(_resolve, future)


def _resolve(future: Any) -> None:
    if not future.done():
        future.set_result(None)


class Turns:
    """The order of completion of one run's recorded steps, and how far this dispatch has come in it.

    Attributes:
        runs_ahead: whether what follows a recorded step (None: one that is executed now) is new, while other branches
            have something to ask for.
    """

    def __init__(self, state: RunState, runs_ahead: Callable[[StepState | None], bool] = lambda _step: False) -> None:
        self.runs_ahead = runs_ahead
        self._in_vain = 0
        self._let_go = 0.0
        finished = [step for step in state.steps.values() if step.status in FINISHED and step.finished_seq is not None]
        finished.sort(key=_finished_seq)
        self._seqs = [_finished_seq(step) for step in finished]
        self._positions = {step.id: position for position, step in enumerate(finished)}
        self._over = [_is_stream(step) for step in finished]
        self._inner: dict[str, list[str]] = {}
        for step in finished:
            if step.scope:
                self._inner.setdefault(step.scope, []).append(step.id)
        self._blocked: dict[int, list[Turn]] = {}
        self._waiting: set[int] = set()
        # By thread: the position of the result that it got last and has not used, and what to set when it has.
        self._using: dict[int, int] = {}
        self._events: dict[int, threading.Event] = {}
        # Re-entrant, because a signal handler may ask for a step while its thread is inside.
        self._lock = threading.RLock()
        self._moved = time.monotonic()

    def take(self, step: StepState) -> Turn | None:
        """Submit a replayed step; returns what to wait for before its result may be handed over.

        None where it may be handed over at once; it is `passed` then. The steps inside it will not be asked for, since
        its result comes from the log.
        """
        position = self._positions.get(step.id)
        if position is None:
            return None
        with self._lock:
            if self._waiting:
                self._moved = time.monotonic()
            if self._inner:
                self._skip_inside(step.id)
            if self._over[position]:
                return None
            late = position and self._seqs[position - 1] > step.started_seq
            if late or self._using or self.runs_ahead(step):
                turn = self._turn(position, step)
                if turn is not None:
                    self._waiting.add(position)
                    self._moved = time.monotonic()
                    return turn
            if self._blocked:
                self._finish(position, user=get_ident())
            else:
                self._over[position] = True
                self._using[get_ident()] = position
            return None

    def _turn(self, position: int, step: StepState) -> Turn | None:
        """What a step has to wait for, of those that finished while it was under way; None for nothing."""
        first = bisect_right(self._seqs, step.started_seq)
        blocker = self._first_open(first, position)
        turn = Turn(self, position, blocker)
        turn.ends = step
        if blocker is not None:
            self._blocked.setdefault(blocker, []).append(turn)
            return turn
        turn.behind = self._used_before(first, position)
        if turn.behind is None and (self._in_vain >= _IN_VAIN or not self.runs_ahead(step)):
            return None
        return turn

    def passed(self, step_id: str) -> None:
        """The result of a step is being handed over, or it runs again: nobody needs to wait for it any more."""
        position = self._positions.get(step_id)
        if position is not None:
            self.pass_on(position)

    def pass_on(self, position: int) -> None:
        """The same for the step at a position."""
        if self._over[position]:
            return
        with self._lock:
            self._moved = time.monotonic()
            self._waiting.discard(position)
            self._finish(position, user=get_ident())

    def used(self) -> None:
        """This thread has used what it got last: it makes its next call, or ends."""
        # Without the lock: whoever finds that out too late looks again in a moment.
        if self._using and self._using.pop(get_ident(), None) is not None and self._events:
            event = self._events.pop(get_ident(), None)
            if event is not None:
                event.set()

    def event_of(self, turn: Turn) -> threading.Event | None:
        """What will be set when the thread that a turn comes after has used its result; None where it has."""
        if turn.behind is None or turn.behind[0] == get_ident():
            return None
        thread, position = turn.behind
        with self._lock:
            if self._using.get(thread) != position:
                return None
            return self._events.setdefault(thread, threading.Event())

    def must_wait(self, turn: Turn) -> bool:
        """Whether the step that a turn waits for is still to come."""
        return turn.blocker is not None and not self._over[turn.blocker]

    def holds_back(self, step: StepState | None = None, position: int = -1) -> bool:
        """Whether a task waits with a result, or with a new step, because others may have to ask for what is theirs."""
        if self._in_vain >= _IN_VAIN or not self.runs_ahead(step):
            return False
        with self._lock:
            # Who waits for this very step cannot go on before it.
            if position in self._blocked:
                return False
            now = time.monotonic()
            if now - self._moved < _PATIENCE_SECONDS:
                return True
            if now - self._let_go > _PATIENCE_SECONDS:
                self._in_vain += 1
            self._let_go = now
            return False

    def patience(self) -> float:
        """Seconds until the step that is waited for may be given up, when nothing moves until then."""
        return max(0.001, self._moved + _PATIENCE_SECONDS - time.monotonic())

    def give_up(self, turn: Turn) -> None:
        """Stop waiting for a step that nobody has submitted, when nothing has moved for a while."""
        with self._lock:
            quiet = time.monotonic() - self._moved >= _PATIENCE_SECONDS
            blocker = turn.blocker
            if quiet and blocker is not None and not self._over[blocker] and blocker not in self._waiting:
                self._finish(blocker)

    def _skip_inside(self, scope: str) -> None:
        for inner in self._inner.pop(scope, ()):
            self._skip_inside(inner)
            self._finish(self._positions[inner])

    def _first_open(self, first: int, last: int) -> int | None:
        over = self._over
        for position in range(first, last):
            if not over[position]:
                return position
        return None

    def _used_before(self, first: int, position: int) -> tuple[int, int] | None:
        """The thread that got the last result before a position and has not used it yet, and where that stands."""
        using = [(theirs, thread) for thread, theirs in self._using.items() if first <= theirs < position]
        return max(using)[::-1] if using else None

    def _finish(self, position: int, user: int | None = None) -> None:
        self._over[position] = True
        if user is not None:
            self._using[user] = position
        for turn in self._blocked.pop(position, ()):
            blocker = self._first_open(position + 1, turn.position)
            if blocker is None:
                turn.behind = None if user is None else (user, position)
                turn.wake()
            else:
                turn.blocker = blocker
                self._blocked.setdefault(blocker, []).append(turn)


def _finished_seq(step: StepState) -> int:
    assert step.finished_seq is not None
    return step.finished_seq


def _is_stream(step: StepState) -> bool:
    return step.streamed
