"""Group commit: many threads and tasks append, one of them writes and syncs for all that are waiting.

A sync of the disk costs as much as 150 writes, so concurrent appends share one. Whoever needs its event on disk becomes
the leader where there is none, and takes everything that is in line with it, in order of submission, as one write and
one sync. The others sleep, each on a lock of its own; when the leader is done it wakes those whose events it has
written, and one of those that came meanwhile, to lead next. What nobody has to wait for (the intent of a step that may
be repeated) goes on while a sync is under way; it is in line, and the next leader takes it along.

Tasks of an event loop do not lead: a sync may take milliseconds, and the loop would stand still. The committer thread
leads for them.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from steplog._kernel.state import StepState
from steplog._runtime.committer import Committer, release
from steplog._runtime.context import running_loop
from steplog.errors import LeaseLost, ReenteredWriter, StoreError

# Whoever waits is woken. Should a signal have torn the waker away in between, it looks by itself after this long.
_HEAL_SECONDS: Final = 0.5


# Sealing more events than this at once would be felt by the other tasks of an event loop.
_MANY: Final = 32


Facts = StepState | dict[str, Any] | Literal[True] | None


class Entry:
    """One event on its way to the log.

    Attributes:
        facts: what a fold reads of the data: the step that begins, True for the ordinary outcome `done`, or fields of
            other data. None where the data is to be parsed.
        sync: whether somebody acts on its being there. Others need only be in line.
        done: it is in the log, or has failed.
        error: why it has failed, or None.
        commit: whose line it is in, or None before it is in one.
        passed: the program has gone on while it was still in line.
        waiter: the lock on which a thread sleeps until it is done, or None.
        future: what a task awaits until it is done, or None.
    """

    commit: Group | None = None
    done = False
    error: BaseException | None = None
    passed = False
    waiter: Any = None
    future: Any = None

    def __init__(
        self,
        type_: str,
        step: str | None,
        data: bytes,
        bodies: Sequence[tuple[str, bytes]],
        *,
        sync: bool,
        facts: Facts = None,
    ) -> None:
        self.type = type_
        self.step = step
        self.data = data
        self.bodies = bodies
        self.sync = sync
        self.facts = facts

    @property
    def in_line(self) -> Group:
        """Whose line it is in."""
        assert self.commit is not None
        return self.commit

    def check(self) -> None:
        """Raise what kept it out of the log, if it has failed."""
        if self.error is not None:
            raise self.error


class Group:
    """Those who append to one run.

    There is no lock around the line: it is a list to which anyone appends and from whose head the leader takes, and
    either is one operation of the interpreter. Where two sides must not miss each other, each says what it does before
    it looks what the other one has done.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._pid = os.getpid()
        self._pending: list[Entry] = []
        self._leading = allocate_lock()
        self._leader = 0
        self._under_way: list[Entry] = []
        self._committer = Committer(run_id, self._pending, self._lead_if_free)
        self._flushing: Any = None
        self._broken: BaseException | None = None
        self._closed = False

    def _write(self, batch: list[Entry]) -> None:
        """Make a batch as durable as its entries ask for. Raises StoreError where nothing of it was written."""
        raise NotImplementedError

    def _syncs(self) -> bool:
        """Whether a sync reaches for the disk at this run's level."""
        raise NotImplementedError

    def wait(self, entry: Entry) -> None:
        """Return when the program may go on: where the entry is to be synced, when it is on disk; else, when in line.

        For the thread that has submitted it.

        Raises:
            StoreError: the entry was not written.
            LeaseLost: somebody else has taken the run.
            LogFailed: the log is closed after an earlier failure.
        """
        if not entry.sync:
            if not entry.done and (self._is_awaited() or not self._lead_if_free()):
                entry.passed = True
        else:
            while not entry.done:
                if not self._lead_if_free():
                    self._sleep(entry)
        if entry.error is not None:
            raise entry.error

    def _is_awaited(self) -> bool:
        """Whether somebody is about to lead who waits for what is in line."""
        pending = self._pending
        return len(pending) > 1 and any(entry.sync for entry in pending[:])

    def _sleep(self, entry: Entry) -> None:
        if entry.waiter is None:
            waiter = allocate_lock()
            waiter.acquire()
            entry.waiter = waiter
            # The leader may have looked for somebody to wake just before; then it does not lead any more.
            return
        try:
            entry.waiter.acquire(timeout=_HEAL_SECONDS)
        except BaseException:
            # It may have been woken to lead.
            self._hand_on()
            raise

    def wait_written(self, entry: Entry) -> None:
        """Return when an entry is in the log, whoever has submitted it. Raises as `wait`."""
        if not entry.done:
            self._lead(entry)
        entry.check()

    def wait_in_loop(self, entry: Entry) -> Any:
        """The same as `wait` for a task: what to await before the program may go on, or None.

        The event loop never waits for the disk. After the future is done, the entry tells whether it has failed.
        """
        loop = running_loop()
        if loop is None:
            # Another async library's loop (trio) is running; it waits for the disk rather than lose the event.
            self.wait(entry)
            return None
        if entry.sync and (self._syncs() or entry.bodies or not self._lead_if_free()):
            entry.future = future = loop.create_future()
            self._committer.wake()
            if self._closed:
                self._lead(entry)
            if not entry.done:
                return future
        elif not entry.sync:
            entry.passed = True
            if self._flushing is not loop:
                # A plain write takes a microsecond; handing it to another thread would take fifty. All that the tasks
                # put in line until the loop turns round are one write, or one transaction of the body store.
                self._flushing = loop
                loop.call_soon(self._flush_in_loop)
        entry.check()
        return None

    def _flush_in_loop(self) -> None:
        self._flushing = None
        if os.getpid() == self._pid:
            pending = self._pending[:]
            if len(pending) > _MANY or any(entry.bodies for entry in pending):
                self._committer.wake()
            else:
                self._write_plain()

    def _write_plain(self) -> None:
        """Write the line now where that takes no longer than a plain write."""
        if not any(entry.sync or entry.bodies for entry in self._pending[:]):
            self._lead_if_free()

    def flush(self) -> None:
        """Write the line, and return when it is written."""
        self._lead()

    def flush_soon(self) -> None:
        """Have the committer thread write what is pending, without waiting for it."""
        self._committer.wake()

    def call_later(self, callback: Callable[[], None], seconds: float) -> None:
        """Have the committer thread call back in so many seconds and then write what is pending. Never waits."""
        self._committer.call_later(callback, seconds)

    def _leads(self) -> bool:
        """Whether this thread is the leader, so that the code that asks has interrupted it: a signal handler, say."""
        return self._leader == get_ident() and self._leading.locked()

    def _lead(self, entry: Entry | None = None) -> None:
        """Write the line, unless another leader has written `entry` meanwhile. Waits for another leader to end."""
        if self._leader == get_ident() and self._leads():
            raise reentered(self._run_id)
        try:
            self._write_as_leader(entry)
        finally:
            if self._pending:
                self._hand_on()

    def _lead_if_free(self) -> bool:
        """Write the line; False where somebody else is leading, who will wake one of those that wait."""
        if self._leading.locked():
            if self._leads():
                raise reentered(self._run_id)
            return False
        try:
            self._write_as_leader()
        finally:
            if self._pending:
                self._hand_on()
        return True

    def _hand_on(self) -> None:
        """Have somebody lead what came in while this thread did."""
        pending = self._pending
        while pending:
            for entry in pending:
                if entry.waiter is not None and not entry.done:
                    release(entry.waiter)
                    return
            if self._committer.running:
                self._committer.wake()
                return
            # Who has submitted an entry that is to be synced has not looked yet whether it must lead, and is about to.
            if self._leading.locked() or any(entry.sync for entry in pending[:]):
                return
            self._write_as_leader()

    def _write_as_leader(self, entry: Entry | None = None) -> None:
        thread = get_ident()
        # No interruption can come between the lock and the note of who has it, nor one that leaves the lock taken: the
        # interpreter looks for signals after calls and jumps only.
        with self._leading:
            self._leader = thread
            try:
                if entry is None or not entry.done:
                    if self._under_way:
                        self._end_interrupted()
                    line = self._pending[:]
                    batch = line if len(line) == 1 and not line[0].done else [each for each in line if not each.done]
                    if batch:
                        self._write_batch(batch)
                    del self._pending[: len(line)]
            finally:
                self._leader = 0

    def _end_interrupted(self) -> None:
        """Settle what the leader before had written when it was interrupted while it told those who had waited.

        Which of them were in the log only those know whom it has reached.
        """
        self._broken = self._broken or self._interrupted("before it could tell those who waited for it")
        self._settle(self._under_way, self._broken)

    def _write_batch(self, batch: list[Entry]) -> None:
        error: BaseException | None = self._broken
        self._under_way = batch
        try:
            if error is None:
                self._write(batch)
        except StoreError as failed:
            error = failed
        except LeaseLost as failed:
            error = self._broken = failed
        except BaseException as failed:
            # The batch may or may not be in the file; no later event can be given a number. The others who wait get
            # an error of their own: this one, a KeyboardInterrupt perhaps, is not theirs.
            error = self._broken = self._interrupted(f"by {type(failed).__name__}")
            raise
        finally:
            self._settle(batch, error)
            self._under_way = []

    def _interrupted(self, how: str) -> StoreError:
        return StoreError(f"run {self._run_id}: an append was interrupted {how}", run_id=self._run_id)

    def _settle(self, batch: list[Entry], error: BaseException | None) -> None:
        tasks: list[Any] = []
        for entry in batch:
            if not entry.done:
                entry.error = error
                entry.done = True
                if error is not None and entry.passed:
                    # The program has gone on, and what follows would have nothing to follow.
                    self._broken = self._broken or error
            if entry.waiter is not None:
                release(entry.waiter)
            if entry.future is not None:
                tasks.append(entry.future)
        if tasks:
            _tell(tasks)


def _tell(futures: list[Any]) -> None:
    by_loop: dict[Any, list[Any]] = {}
    for future in futures:
        by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, theirs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, theirs)
        except RuntimeError:
            # The loop is closed, and its tasks are gone with it.
            continue


def reentered(run_id: str) -> ReenteredWriter:
    """The refusal of a signal handler or finalizer that interrupted the recording of its own thread."""
    message = (
        f"run {run_id}: a signal handler or finalizer tried to record a step while the thread that it interrupted was "
        f"recording one. Nothing was recorded.\nSet a flag in the handler and act on it in the program."
    )
    return ReenteredWriter(message, run_id=run_id)


def _resolve(futures: list[Any]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
