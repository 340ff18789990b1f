"""Appends to one log file, all or none, and knows at every moment what is acknowledged.

The order of an append: check that the file is still ours and ends where we left it; note the batch as on its way; one
write; sync if asked, and check again that the file ends with our own batch; only then advance. A write that fails is
undone; where that fails too, or a sync fails, the writer is poisoned. A failed sync is never retried: the kernel marks
the pages clean, and the second sync would report success for bytes that are gone (Rebello et al., "Can Applications
Recover from fsync Failures?", USENIX ATC 2020). Whoever opens the log next writes them again (`proof.py`).
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from steplog._kernel.line import MAX_BATCH, blocks
from steplog._kernel.state import RunState
from steplog.errors import ForkedWriter, LeaseLost, StoreError
from steplog.stores import place
from steplog.stores.base import LogView, Recovered, Weakness
from steplog.stores.checkpoint import Covered, save
from steplog.stores.explain import failure
from steplog.stores.fs import END, FS, is_unsupported, shortest
from steplog.stores.lock import RunLock, identify
from steplog.stores.proof import NOTE_EVERY, Synced
from steplog.stores.source import LogFile

_logger = logging.getLogger("steplog.stores")


# Seconds between two looks at a lock file that is in its place.
_LOCK_SECONDS: Final = 0.02
# The same for the log's name where nothing is synced: a look costs more than the append.
_NAME_SECONDS: Final = 0.001

_SEAL: Final = slice(-35, -3)  # of the last line of a batch: what stands before '"}' and the newline


class OpenLog(NamedTuple):
    """An open, locked log file.

    Attributes:
        level: the durability that was asked for.
        interval: at level `interval`, how many seconds may pass until what was appended is synced.
        certain: how many bytes are on the medium, whatever became of earlier syncs.
    """

    fs: FS
    fd: int
    path: str
    run_id: str
    lock: RunLock
    level: str = "durable"
    interval: float | None = None
    certain: int = 0


class _Batch(NamedTuple):
    """Lines and their place.

    Attributes:
        offset: byte offset.
        end: offset behind the last byte.
        seq: sequence number of the first line.
        next_seq: that of the line after the last.
        data: the bytes.
    """

    offset: int
    end: int
    seq: int
    next_seq: int
    data: bytes


# As `_Batch(...)` does it, without a second call.
_batch: Final = tuple.__new__


class FileWriter:
    """The writer of one log file; `steplog.stores.base.Writer` is its contract.

    Attributes:
        view: the log as it was when it was opened, after repair.
        recovered: what the repair did, or None.
        durable: whether `sync` reaches the medium; becomes false where the file system offers no sync.
        level: the durability in force.
        weakness: why that is less than was asked for, or None.
        interval: at level `interval`, how many seconds may pass until `flush`; else None.
    """

    def __init__(
        self,
        log: OpenLog,
        view: LogView,
        recovered: Recovered | None,
        *,
        durable: bool,
        source: LogFile | None = None,
        covered: Covered | None = None,
    ) -> None:
        self.view = view
        self.recovered = recovered
        self.durable = durable
        self.level = log.level
        self.weakness: Weakness | None = None
        self.interval = log.interval if log.level == "interval" else None
        self._log = log
        self._fd, self._path, self._lock = log.fd, log.path, log.lock
        self._source = source
        self._covered = covered or Covered.nothing()
        self._identity = identify(log.fs.fstat(log.fd))
        self._pid = os.getpid()
        self._last = _Batch(view.end, view.end, len(view.events), len(view.events), b"")
        self._pending: _Batch | None = None
        self._unsynced = bool(view.end)
        # How much is on the medium, and how much of that the lock file says.
        self._synced = (0, ((view.state and view.state.head) or "").encode())
        self._noted = view.end if log.certain == view.end else -NOTE_EVERY
        self._looked = view.end
        self._cause: OSError | LeaseLost | None = None
        self._busy = False
        self._closed = False
        self._lock_checked = self._name_checked = 0.0
        self._put, self._stat, self._sync, self._seek = shortest(log.fs)

    def append(self, lines: Sequence[bytes], first_seq: int, *, sync: bool) -> None:
        """Append whole sealed lines, all or none. Without lines, only sync what was appended before.

        Repeating the last batch exactly does nothing, so that a caller who was interrupted may simply try again.
        """
        if self._busy or self._closed or self._cause is not None or self._lock.foreign or os.getpid() != self._pid:
            raise self._refusal()
        self._busy = True
        try:
            data = lines[0] if len(lines) == 1 else b"".join(lines)
            if self._pending is not None:
                self._settle(self._pending, first_seq, data)
            last = self._last
            end = last.end
            if data and not (first_seq == last.seq and data == last.data):
                if first_seq != last.next_seq:
                    raise self._out_of_order(first_seq)
                # Whoever takes the run over appends its claim, so the end alone tells. A log that was moved away whole
                # does not change its end; it is noticed where somebody waits for the log.
                found = self._check_identity() if sync else self._size()
                if found != end:
                    raise self._overtaken(found, end)
                end += len(data)
                self._write(data, lines, _batch(_Batch, (last.end, end, first_seq, first_seq + len(lines), data)))
            if sync:
                if self.durable and self._unsynced:
                    self._sync_now()
                # Nobody may have written between the check and our own write, which then stands behind theirs. The lock
                # does not keep out who has declared this process dead while it was stopped there.
                found = self._size()
                if found != end:
                    raise self._overtaken(found, end)
            # No call may stand between these lines and the return: a signal handler could run there.
            if self._pending is not None:
                self._last = self._pending
                self._pending = None
        finally:
            self._busy = False

    def save(self, state: RunState) -> None:
        """Keep what the log folds to, so that the next opening of a long one is quicker. Nothing depends on it."""
        if self._source is not None and not self._closed and not self._is_foreign():
            self._covered = save(self._log.fs, self._source, state, self._covered)

    def flush(self) -> None:
        """At level `interval`: sync what was appended. At other levels there is nothing left to sync, or no wish to.

        Raises:
            StoreError: as `append`.
        """
        if self._busy or self._closed or self._cause is not None or self._is_foreign():
            raise self._refusal()
        if self.interval is not None and self._unsynced and self._pending is None:
            self._sync_now()

    def close(self) -> None:
        """Release the run. Idempotent; in a forked child it leaves the parent's run alone."""
        if self._closed or self._is_foreign():
            return
        self._closed = True
        if self._synced[0] > max(self._noted, 0) and self._cause is None:
            self._note()
        if self._source is not None:
            self._source.detach()
        try:
            self._log.lock.release()
        except OSError as error:
            raise self._failure(error, "close the log", "What was synced is safe, the rest may not be.") from error

    def _is_foreign(self) -> bool:
        return self._log.lock.foreign or os.getpid() != self._pid

    def _refusal(self) -> StoreError | LeaseLost | ForkedWriter:
        """Why this writer takes nothing now."""
        run_id = self._log.run_id
        if self._is_foreign():
            return ForkedWriter(
                f"run {run_id!r}: a forked child (pid {os.getpid()}) tried to write to the run of its parent "
                f"(pid {self._pid}). Nothing was written. Record in the parent, or open a run of the child's own.",
                run_id=run_id,
                path=self._log.path,
            )
        if self._closed:
            return StoreError(f"run {run_id!r} is closed: open it again to append.", run_id=run_id, path=self._log.path)
        if isinstance(self._cause, LeaseLost):
            lost = LeaseLost(str(self._cause), run_id=run_id)
            lost.__cause__ = self._cause
            return lost
        if self._cause is not None:
            failed = self._failure(self._cause, "append", self._poisoned())
            failed.__cause__ = self._cause
            return failed
        return StoreError(
            f"run {run_id!r}: append was entered while another append of the same writer was under way, from a "
            "signal handler or a second thread. Nothing was written by the second; call from one thread at a time.",
            run_id=run_id,
            path=self._log.path,
        )

    def _settle(self, batch: _Batch, first_seq: int, data: bytes) -> None:
        """Learn what became of a batch whose append was interrupted, and make the file agree with the caller.

        A batch that landed counts, unless the caller now writes something else in its place: it was never
        acknowledged, so it may go.
        """
        log = self._log
        self._check_identity()
        try:
            tail = log.fs.read(log.fd, len(batch.data) + 1, batch.offset)
            if not batch.data.startswith(tail):
                raise self._lose("somebody else wrote to its log")
            replaced = first_seq == batch.seq and data != batch.data and bool(data)
            if tail == batch.data and not replaced:
                self._last, self._unsynced = batch, True
            elif tail:
                log.fs.truncate(log.fd, batch.offset)
        except OSError as error:
            self._cause = error
            raise self._failure(error, "look at its own log after an interruption", self._poisoned()) from error
        self._pending = None

    def _out_of_order(self, first_seq: int) -> StoreError:
        return StoreError(
            f"run {self._log.run_id!r}: the next event is seq {self._last.next_seq}, but seq {first_seq} was "
            "offered. Nothing was written.",
            run_id=self._log.run_id,
            path=self._log.path,
        )

    def _check_identity(self) -> int:
        """Check that the path still names our file and that our lock is in place; return the file's size."""
        now = time.monotonic()
        if not self.durable and now < self._name_checked + _NAME_SECONDS:
            return self._size()
        try:
            status = self._stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            raise self._lose("its log was moved or deleted") from None
        except OSError as error:
            raise self._failure(error, "look at the log", "Nothing was written.") from error
        self._name_checked = now
        if (status.st_dev, status.st_ino) != self._identity:
            raise self._lose("another file has taken the place of its log")
        # Whoever takes a run whose lock file is gone appends a claim, and the log's end tells of it. So this only tells
        # earlier, and is left out where it would cost as much as the append.
        if self.durable and now > self._lock_checked + _LOCK_SECONDS:
            self._check_lock()
            self._lock_checked = now
        return status.st_size

    def _size(self) -> int:
        try:
            return self._seek(self._fd, 0, END)
        except OSError as error:
            raise self._failure(error, "look at the log", "Nothing was written.") from error

    def _check_lock(self) -> None:
        try:
            locked = self._log.lock.is_in_place()
        except OSError as error:
            raise self._failure(error, "look at its lock", "Nothing was written.") from error
        if not locked:
            raise self._lose("its lock file was moved or deleted")

    def _overtaken(self, size: int, end: int) -> LeaseLost:
        change = f"the log has {size} bytes where this writer left {end}"
        return self._lose(f"somebody else wrote to its log ({change})")

    def _lose(self, what: str) -> LeaseLost:
        run_id = self._log.run_id
        self._cause = LeaseLost(
            f"run {run_id!r}: {what} while this process (pid {self._pid}) held it. This process may not write to the "
            f"run any more; {self._acknowledged()}. Look at the log: {self._log.path}",
            run_id=run_id,
        )
        return self._cause

    def _write(self, data: bytes, lines: Sequence[bytes], batch: _Batch) -> None:
        self._pending = batch
        self._unsynced = True
        size = len(data)
        if batch.end > self._looked + place.LOOK_EVERY:
            self._looked = batch.end
            place.check_space(self._log.fs, self._path)
        try:
            written = self._put(self._fd, data) if size <= MAX_BATCH else self._put_blocks(lines)
            if written != size:
                # The rest is not written behind a short write: a signal or a stranger may come between the two.
                self._log.fs.truncate(self._fd, batch.offset)
                written = self._put_blocks(lines)
        except OSError as error:
            raise self._undo(error, batch) from error
        if written != size:
            raise self._undo(OSError(errno.ENOSPC, f"only {written} of {size} bytes were written"), batch)

    def _put_blocks(self, lines: Sequence[bytes]) -> int:
        """Write a batch, of whatever size; return how much of it was written before the first short write."""
        total = 0
        for block in blocks(lines):
            written = self._put(self._log.fd, block)
            total += written
            if written < len(block):
                break
        return total

    def _undo(self, error: OSError, batch: _Batch) -> StoreError:
        """Restore the known end after a failed write; the error to raise."""
        try:
            self._log.fs.truncate(self._log.fd, batch.offset)
        except OSError:
            self._cause = error  # the first error says why; a new open repairs what stays behind
        if error.errno == errno.EIO:
            self._cause = error
        self._pending = None
        last = batch.next_seq - 1
        events = f"event {batch.seq}" if last == batch.seq else f"events {batch.seq} to {last}"
        meaning = self._poisoned() if self._cause is not None else "The log is as it was before."
        return self._failure(error, f"write {events}", meaning)

    def _sync_now(self) -> None:
        log = self._log
        try:
            (log.fs.sync_whole if log.level == "durable-full" else self._sync)(log.fd)
        except OSError as error:
            # First of all: from the next call on a signal handler may raise, and the failure would be forgotten.
            self._cause = error
            if is_unsupported(error) and log.level != "durable-full":
                self._cause = None
                self._weaken("process", "its file system cannot sync")
                return
            meaning = self._poisoned()
            if is_unsupported(error):
                meaning = "Level durable-full takes nothing less: move STEPLOG_HOME to a local disk, or use `durable`."
            raise self._failure(error, "make the log durable", meaning) from error
        self._unsynced = False
        batch = self._pending or self._last
        self._synced = (batch.end, batch.data[_SEAL] or self._synced[1])
        if batch.end - self._noted >= NOTE_EVERY:
            self._note()

    def _note(self) -> None:
        """Tell whoever opens this log next how much of it need not be written again."""
        self._noted = self._synced[0]
        with suppress(OSError):  # what was noted before still holds, and means more to write again
            end, seal = self._synced
            self._log.lock.note(Synced(*self._identity, end, seal.decode()))

    def _weaken(self, level: str, why: str) -> None:
        self.weakness = Weakness(self._log.level, level, why)
        self.level, self.durable, self.interval = level, False, None
        _logger.warning(
            "run %r: %s (%s), so this run survives the death of its process but not the loss of power. "
            "Move STEPLOG_HOME to a local disk.",
            self._log.run_id,
            why,
            self._log.path,
        )

    def _acknowledged(self) -> str:
        last = self._last.next_seq - 1
        return f"events up to seq {last} are acknowledged" if last >= 0 else "no event is acknowledged"

    def _poisoned(self) -> str:
        return (
            f"The state of the file is uncertain, so this process writes no more; {self._acknowledged()}. "
            f"Once the cause is removed, go on in a new process: steplog resume {self._log.run_id}."
        )

    def _failure(self, error: OSError, action: str, meaning: str) -> StoreError:
        return failure(error, self._log.run_id, action, self._log.path, meaning)
