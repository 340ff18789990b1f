"""Group commit: many threads and tasks append, one of them writes and syncs for all that are waiting.

A sync of the disk costs as much as 150 writes, so concurrent appends share one. Whoever needs its event on disk first
becomes the leader and takes everything that is pending with it, in order of submission, as one write and one sync.
Tasks of an event loop do not lead: a sync may take milliseconds, and the loop would stand still. A committer thread,
started when the first task needs it, leads for them.

State moves only after the bytes are where the level promises. So what `decide` sees is never more than what a crash
would leave.

After a failure the chain does not advance, and what was in the batch fails for everyone who waits for it. A failure
after which the end of the log is unknown (a signal in the middle of the write) closes the log for good: guessing could
give two events one number.
"""

from __future__ import annotations

import _thread
import contextlib
import heapq
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog._kernel.events import Event
from steplog._kernel.fold import RunState, apply
from steplog._kernel.line import MAX_LINE
from steplog.errors import EncodeError, ForkedWriter, LeaseLost, LogFailed, ReenteredWriter, StoreError

if TYPE_CHECKING:
    from steplog._kernel.line import Chain
    from steplog.stores.base import BodyStore, Writer

# How long an idle committer thread stays before it ends; a burst of tasks finds it running, a quiet run holds none.
_IDLE_SECONDS: Final = 5.0

# Checked on submission, so that one event that is too long cannot fail the batch that it would have been part of. The
# rest of the line (type, step, seals) takes far less than the difference.
_MAX_DATA: Final = MAX_LINE - 4096


class Entry:
    """One event on its way to the log."""

    __slots__ = ("bodies", "commit", "data", "done", "error", "future", "step", "sync", "type")

    def __init__(
        self, type_: str, step: str | None, data: bytes, bodies: list[tuple[str, bytes]], *, sync: bool
    ) -> None:
        self.type = type_
        self.step = step
        self.data = data
        self.bodies = bodies
        self.sync = sync
        self.commit: Commit
        self.done = False
        self.error: BaseException | None = None
        self.future: Any = None


class Commit:
    """The only path to a run's writer; safe to use from any thread or task of the process that opened it."""

    def __init__(self, run_id: str, writer: Writer, chain: Chain, state: RunState, bodies: BodyStore) -> None:
        self.state = state
        self._run_id = run_id
        self._writer = writer
        self._chain = chain
        self._bodies = bodies
        self._pending: list[Entry] = []
        # Re-entrant, because a signal handler may submit while the main thread is inside `submit`.
        self._queue = threading.RLock()
        self._leading = threading.Lock()
        # Threads that lead or are about to; a signal handler that interrupted one of them must not wait for it.
        self._leaders: set[int] = set()
        self._wake = threading.Condition(self._queue)
        self._committer: threading.Thread | None = None
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_number = 0
        # Pieces of streams are stored without a sync; the outcome that builds on them must not be durable before them.
        self._bodies_unsynced = False
        self._broken: BaseException | None = None
        self._closed = False
        self._pid = os.getpid()

    def submit(self, entry: Entry) -> None:
        """Put an entry in line. It is written by whoever leads next."""
        self.check_usable()
        if len(entry.data) > _MAX_DATA:
            message = (
                f"run {self._run_id}: a {entry.type} event of {len(entry.data):,} bytes does not fit in a line of the "
                f"log. Nothing was written. Return less from the step, or return a reference to where it is kept."
            )
            raise EncodeError(message, run_id=self._run_id, step=entry.step, path="data", type_name=entry.type)
        entry.commit = self
        with self._queue:
            self._pending.append(entry)

    def wait(self, entry: Entry) -> None:
        """Return when the entry is on disk as far as it asked for, leading the batch if nobody else does.

        Raises:
            StoreError: the entry was not written.
            LeaseLost: somebody else has taken the run.
            LogFailed: the log is closed after an earlier failure.
        """
        if not entry.done:
            self._lead(entry)
        if entry.error is not None:
            raise entry.error

    async def wait_async(self, entry: Entry) -> None:
        """The same for a task; the event loop never waits for the disk."""
        if not entry.sync and not self._leading.locked():
            # A plain write takes a microsecond; handing it to another thread would take fifty.
            self._lead(entry)
        elif not entry.sync:
            # A sync is under way; the committer writes the entry as soon as it ends. Order in the log is kept.
            self.flush_soon()
            return
        else:
            await self._wait_in_loop(entry)
        if entry.error is not None:
            raise entry.error

    async def _wait_in_loop(self, entry: Entry) -> None:
        asyncio = sys.modules.get("asyncio")
        loop = None if asyncio is None else asyncio._get_running_loop()  # noqa: SLF001  # the public form raises
        if loop is None:
            # Another async library's loop (trio) is running; it waits for the disk rather than lose the event.
            self.wait(entry)
            return
        with self._queue:
            if entry.done:
                return
            entry.future = loop.create_future()
        self.flush_soon()
        await entry.future

    def close(self) -> None:
        """Write what is pending, end the committer and release the writer."""
        with self._queue:
            self._closed = True
            self._wake.notify_all()
        if os.getpid() != self._pid:
            self._writer.close()
            return
        try:
            self._lead()
        finally:
            with self._leading:
                self._writer.close()

    def check_usable(self) -> None:
        """Refuse a caller that must not, or can no longer, write.

        Raises:
            ForkedWriter, ReenteredWriter, LogFailed, StoreError: as their messages say.
        """
        if os.getpid() != self._pid:
            message = (
                f"run {self._run_id}: a forked child tried to write to the log of its parent.\n"
                f"Only process {self._pid} may write. Start the child with the spawn method, or give it its own run."
            )
            raise ForkedWriter(message, run_id=self._run_id)
        if threading.get_ident() in self._leaders:
            raise reentered(self._run_id)
        if self._broken is not None:
            message = (
                f"run {self._run_id}: its log cannot be written any more in this process: {self._broken}\n"
                f"Everything acknowledged before is safe. Mend the cause and run: steplog resume {self._run_id}"
            )
            raise LogFailed(message, run_id=self._run_id) from self._broken
        if self._closed:
            message = f"run {self._run_id} is closed; an effect tried to record itself after the run had ended."
            raise StoreError(message, run_id=self._run_id)

    def _lead(self, entry: Entry | None = None) -> None:
        """Become the leader and write the queue, unless another leader has written `entry` meanwhile."""
        thread = threading.get_ident()
        self._leaders.add(thread)
        try:
            with self._leading:
                if entry is None or not entry.done:
                    self._write_queue()
        finally:
            self._leaders.discard(thread)

    def _write_queue(self) -> None:
        with self._queue:
            batch, self._pending = self._pending, []
        if not batch:
            return
        error: BaseException | None = self._broken
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
            message = f"run {self._run_id}: an append was interrupted by {type(failed).__name__}"
            error = self._broken = StoreError(message, run_id=self._run_id)
            raise
        finally:
            self._settle(batch, error)

    def _write(self, batch: list[Entry]) -> None:
        sync = any(entry.sync for entry in batch)
        bodies = [body for entry in batch for body in entry.bodies]
        if not bodies and not (sync and self._bodies_unsynced):
            self._append(batch, sync=sync)
            return
        with self._bodies.held():
            self._bodies.put(bodies, sync=sync)
            self._bodies_unsynced = not sync
            self._append(batch, sync=sync)

    def _append(self, batch: list[Entry], *, sync: bool) -> None:
        first = self._chain.seq
        ts = timestamp()
        mark = self._chain.mark()
        try:
            lines, events = self._seal(batch, ts)
            self._writer.append(lines, first, sync=sync)
        except StoreError:
            self._chain.rewind(mark)
            raise
        with self._queue:
            for event in events:
                apply(self.state, event)

    def _seal(self, batch: Iterable[Entry], ts: str) -> tuple[list[bytes], list[Event]]:
        lines, events = [], []
        chain = self._chain
        for entry in batch:
            seq, epoch, prev = chain.seq, chain.epoch, chain.prev
            lines.append(chain.seal(entry.type, entry.step, ts, entry.data))
            # Parsed from the bytes, so that the state shares nothing with objects that the program may change.
            data = orjson.loads(entry.data)
            events.append(Event(seq, entry.type, entry.step, epoch, ts, data, prev, chain.prev))
        return lines, events

    def _settle(self, batch: list[Entry], error: BaseException | None) -> None:
        by_loop: dict[Any, list[Any]] = {}
        with self._queue:
            for entry in batch:
                entry.error = error
                entry.done = True
                if entry.future is not None:
                    by_loop.setdefault(entry.future.get_loop(), []).append(entry.future)
        for loop, futures in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, futures)

    def call_later(self, callback: Callable[[], None], seconds: float) -> None:
        """Have the committer thread call back in so many seconds and then write what is pending. Never waits.

        A callback may submit; it is called once, or never where the log is closed before.
        """
        with self._queue:
            self._timer_number += 1
            first = not self._timers
            deadline = time.monotonic() + seconds
            heapq.heappush(self._timers, (deadline, self._timer_number, callback))
            needed = self._committer is None and not self._closed
            if not needed and (first or self._timers[0][0] == deadline):
                self._wake.notify()
        if needed:
            # Starting a thread means waiting until it runs, which takes milliseconds where others are busy; so that is
            # done by one that nobody waits for. Where none can be started, the end of the step writes everything.
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(self._start_quietly, ())

    def _start_quietly(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.flush_soon()

    def _call_due(self) -> None:
        while True:
            with self._queue:
                if not self._timers or self._timers[0][0] > time.monotonic():
                    return
                callback = heapq.heappop(self._timers)[2]
            callback()

    def flush_soon(self) -> None:
        """Have the committer thread write what is pending, without waiting for it."""
        with self._queue:
            if self._committer is None and not self._closed:
                name = f"steplog-commit-{self._run_id}"
                committer = threading.Thread(target=self._run_committer, name=name, daemon=True)
                # Only what has started is remembered: a thread that could not start would be waited for for ever.
                committer.start()
                self._committer = committer
            self._wake.notify()

    def _run_committer(self) -> None:
        while True:
            with self._queue:
                if not self._await_work() or (self._closed and not self._pending):
                    self._committer = None
                    return
            try:
                self._call_due()
                self._lead()
            except BaseException:
                # `_write_queue` has closed the log and failed everyone who was in the batch. Who came later saw a
                # thread that was still alive, and would wait for it for ever.
                with self._queue:
                    self._committer = None
                self._lead()
                raise

    def _await_work(self) -> bool:
        """Wait for something to write or to call; False where there was nothing for a while."""
        idle_until = time.monotonic() + _IDLE_SECONDS
        while not self._pending and not self._closed:
            now = time.monotonic()
            due = self._timers[0][0] if self._timers else idle_until
            if due <= now:
                return bool(self._timers)
            self._wake.wait(due - now)
        return True


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


_second: tuple[int, str] = (0, "")


def timestamp() -> str:
    """The present time as ISO 8601 in UTC with milliseconds, for people."""
    global _second  # noqa: PLW0603  # a one-entry cache: formatting the date costs more than sealing the line
    now = time.time()
    whole = int(now)
    cached, text = _second
    if cached != whole:
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
        _second = (whole, text)
    return f"{text}.{int((now - whole) * 1000):03d}Z"
