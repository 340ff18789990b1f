"""Runs as files: one directory per run, one line per event, nothing that `grep`, `jq` and `tail -f` cannot read.

    <home>/runs/<run_id>/events.jsonl            the log
    <home>/runs/<run_id>/events.lock             who writes it
    <home>/runs/<run_id>/events.torn-<offset>    what a crash left behind the last whole line, kept when it is cut off
    <home>/runs/<run_id>/events.jsonl.before-repair-<n>   the log as it was before `steplog repair`
    <home>/runs/<run_id>/inbox.jsonl             what others have said to the run (see `inbox.py`)
    <home>/runs/<run_id>/events.checkpoint       what a long log folds to, so that opening it is quicker
    <home>/bodies.db                             large values, shared by all runs

Only opening for writing repairs, and only the two traces that a crash leaves; readers never write and never lock.
"""

from __future__ import annotations

import errno
import gc
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from steplog._kernel.events import Event
from steplog._kernel.fold import apply
from steplog._kernel.index import Index
from steplog._kernel.line import Scan, Scanner, parse
from steplog._kernel.state import RunState
from steplog.errors import InvalidArgument, StoreError, UnknownRun
from steplog.stores import place
from steplog.stores.base import DURABILITIES, BodyStore, Durability, LogView, Recovered, check_run_id
from steplog.stores.checkpoint import Covered, load
from steplog.stores.explain import failure, refusal
from steplog.stores.fs import FS, make_dirs, open_or_create
from steplog.stores.inbox import FileInbox
from steplog.stores.lock import Holder, RunLock, acquire, holder
from steplog.stores.proof import proven, write_again
from steplog.stores.repair import Examined, Repaired, examine, repair
from steplog.stores.source import Events, LogFile
from steplog.stores.writer import FileWriter, OpenLog

if TYPE_CHECKING:
    from steplog.stores.base import Cipher

_LOG: Final = "events.jsonl"
_LOCK: Final = "events.lock"


class FileStore:
    """Runs below one home directory.

    Attributes:
        home: absolute path; later changes of the working directory do not move it.
        durability: what survives; docs/durability.md has the levels.
        bodies: the body store of this home.
    """

    bodies: BodyStore

    def __init__(
        self,
        home: str | os.PathLike[str],
        *,
        durability: Durability = "durable",
        sync_interval: float = 0.1,
        fs: FS | None = None,
        cipher: Cipher | None = None,
    ) -> None:
        if durability not in DURABILITIES[1:]:
            levels = ", ".join(DURABILITIES[1:])
            raise InvalidArgument(f"{durability!r} is no durability level of files. Use one of {levels}.")
        from steplog.stores.bodies import SqliteBodies

        self.home = os.path.abspath(home)
        self.durability: Durability = durability
        self.sync_interval = sync_interval
        self._fs = fs or FS()
        self._runs = os.path.join(self.home, "runs")
        path = os.path.join(self.home, "bodies.db")
        bodies = SqliteBodies(path, durability=durability, fs=self._fs, cipher=cipher)
        self.bodies = bodies
        self._sync_bodies = bodies.sync

    def path_of(self, run_id: str) -> str:
        """Return the path of a run's log, whether or not it exists."""
        return os.path.join(self._runs, check_run_id(run_id), _LOG)

    def holder(self, run_id: str) -> Holder | None:
        """Tell which process writes the run now, or None if none does."""
        path = os.path.join(os.path.dirname(self.path_of(run_id)), _LOCK)
        try:
            return holder(path, self._fs)
        except OSError as error:
            raise failure(error, run_id, "ask who holds it", path) from error

    def inbox(self, run_id: str) -> FileInbox:
        """The inbox of a run, to which anybody may append."""
        directory = os.path.dirname(self.path_of(run_id))
        return FileInbox(self._fs, directory, run_id, sync=self.durability != "process")

    def runs(self) -> list[str]:
        """Names of all runs, the one written last first."""
        try:
            names = self._fs.listdir(self._runs)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise failure(error, None, "list the runs", self._runs) from error
        written = ((self._written(name), name) for name in names)
        return [name for when, name in sorted(written, reverse=True) if when]

    def _written(self, name: str) -> int:
        """When a run was written last, in nanoseconds; 0 for what is no run, or died before its first event."""
        try:
            status = self._fs.stat(self.path_of(name))
        except (InvalidArgument, FileNotFoundError, NotADirectoryError):
            return 0
        except OSError as error:
            raise failure(error, name, "look at the run", self._runs) from error
        return status.st_mtime_ns if status.st_size else 0

    def read(self, run_id: str) -> LogView:
        """Read and verify a log without writing or locking anything."""
        path = self.path_of(run_id)
        try:
            fd = self._fs.open(path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UnknownRun(
                f"there is no run {run_id!r} in {self.home}. List what there is: steplog ls", run_id=run_id
            ) from error
        except OSError as error:
            raise failure(error, run_id, "read the log", path) from error
        log = LogFile(self._fs, path, run_id, Index(), fd)
        log.adopt()
        try:
            return _view(*_scan(log, RunState(source=log)), log)
        except OSError as error:
            raise failure(error, run_id, "read the log", path) from error

    def first(self, run_id: str) -> Event | None:
        """The first event of a run, without the rest of its log; None where there is no whole one.

        Raises: UnknownRun, StoreError.
        """
        path = self.path_of(run_id)
        try:
            with io.open(path, "rb") as log:  # noqa: UP020  # `open` is the store's own here
                return parse(log.readline().removesuffix(b"\n"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UnknownRun(f"there is no run {run_id!r} in {self.home}", run_id=run_id) from error
        except OSError as error:
            raise failure(error, run_id, "read the log", path) from error

    def open(self, run_id: str) -> FileWriter:
        """Take the run for writing; create it if it is new; cut off what a crash left behind its last whole line."""
        path = self.path_of(run_id)
        directory = os.path.dirname(path)
        weakness = place.check(self._fs, self.home, run_id, self.durability)
        try:
            make_dirs(self._fs, directory)
            lock = acquire(self._fs, os.path.join(directory, _LOCK), run_id)
        except OSError as error:
            raise failure(error, run_id, "take the run", directory, "Nothing was written.") from error
        try:
            writer = self._open_locked(run_id, path, lock)
            writer.weakness = writer.weakness or weakness
            return writer
        except BaseException as error:
            with suppress(OSError):  # closing may fail too; the first error says why
                lock.release()
            if isinstance(error, OSError):
                raise failure(error, run_id, "open the log", path, "No event was written.") from error
            raise

    def add(self, run_id: str, log: bytes) -> bool:
        """Put the whole log of a new run in place, all or nothing; False where there is one of that name already.

        Raises: StoreError: it could not be written.
        """
        from steplog.stores.intake import place as put_in_place

        directory = os.path.dirname(self.path_of(run_id))
        try:
            if os.path.lexists(directory):
                return False
            put_in_place(self, run_id, log)
        except StoreError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False  # somebody else was faster
            raise
        return True

    def examine(self, run_id: str) -> Examined:
        """Tell what is the matter with a log, changing and locking nothing. Raises UnknownRun and StoreError."""
        return examine(self._fs, self.path_of(run_id), run_id)

    def repair(self, run_id: str, to_seq: int, *, by: str) -> Repaired:
        """Replace a damaged log by its verified events up to `to_seq`; the old file is kept beside it.

        Raises: InvalidArgument (not damaged, or not verified as far as that), RunBusy, UnknownRun, StoreError.
        """
        return repair(self._fs, self.path_of(run_id), run_id, to_seq, by=by)

    def _verified(self, log: LogFile, fd: int) -> tuple[LogView, Scan, Covered]:
        with _uncollected():
            kept = load(self._fs, log, self._fs.fstat(fd).st_size)
        if kept is not None:
            state, covered = kept
            found, _ = _scan(log, state)
            if found.damage is None:
                return _view(found, state, log), found, covered
            # What is wrong with the log is for a look at the whole of it to say.
            log.index = Index()
        found, state = _scan(log, RunState(source=log))
        return _view(found, state, log), found, Covered.nothing()

    def _open_locked(self, run_id: str, path: str, lock: RunLock) -> FileWriter:
        fd, _ = open_or_create(self._fs, path, os.O_RDWR | os.O_APPEND)
        lock.own(fd)
        source = LogFile(self._fs, path, run_id, Index(), fd)
        view, found, covered = self._verified(source, fd)
        end, recovered = _repair(self._fs, fd, found, path)
        certain = proven(lock.synced, source.index, self._fs.fstat(fd))
        durable = self.durability in ("durable", "durable-full")
        if self.durability != "process":
            # Not only where the log is new: whoever began it may have left its name to chance.
            self._sync_names(os.path.dirname(path), new=not view.events)
            if certain < end:
                write_again(self._fs, path, fd, certain, end)
        log = OpenLog(self._fs, fd, path, run_id, lock, self.durability, self.sync_interval, certain)
        writer = FileWriter(
            log, view._replace(end=end, torn=0), recovered, durable=durable, source=source, covered=covered
        )
        # What a dead process left in the page cache counts from here on, so it must outlive the machine as well; the
        # bodies first, since lines name them.
        if view.events:
            self._sync_bodies()
        writer.append((), len(view.events), sync=True)
        return writer

    def _sync_names(self, directory: str, *, new: bool) -> None:
        """Sync the names that lead to a log: those of its home and, where it is new, of what may be new above that."""
        outer = os.path.dirname(self.home)
        for path in (directory, self._runs, self.home):
            self._fs.sync_dir(path)
        device = self._fs.stat(self.home).st_dev
        # Above a mount point nothing is ours, and a directory that this user may not list is none that it has made.
        while self._fs.can_list(outer) and self._fs.stat(outer).st_dev == device:
            self._fs.sync_dir(outer)
            if not new or outer == os.path.dirname(outer):
                break
            outer = os.path.dirname(outer)


def _scan(log: LogFile, state: RunState) -> tuple[Scan, RunState]:
    """Verify a log from where its index ends, and fold it into `state` on the way. Its events are not kept."""
    scanner = Scanner(log.run_id, partial(apply, state), log.index, state.epoch)
    with _uncollected():
        for block in log.blocks(log.index.end):
            scanner.feed(block)
        return scanner.finish(), state


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the cycle collector: it walks a growing heap of trees without cycles again and again, for half the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _view(found: Scan, state: RunState, log: LogFile) -> LogView:
    if found.damage is not None:
        raise refusal(found, log.run_id, log.path)
    return LogView(log.run_id, Events(log, len(log.index)), found.end, found.size - found.end, state)


def _repair(fs: FS, fd: int, found: Scan, path: str) -> tuple[int, Recovered | None]:
    """Remove what a crash left behind the last whole line; return the log's new end and what was done."""
    if found.verdict == "clean":
        return found.end, None
    cut = _read_all(fs, fd, found.end, found.size)
    torn = found.verdict == "torn"
    saved_as = _save(fs, f"{path.removesuffix('.jsonl')}.torn-{found.end}", cut) if torn else None
    if cut:
        fs.truncate(fd, found.end)
    if not torn:
        fs.write(fd, b"\n")
    recovered = Recovered(found.end, len(cut), sha256(cut).hexdigest(), saved_as)
    return found.end if torn else found.end + 1, recovered


def _read_all(fs: FS, fd: int, start: int, stop: int) -> bytes:
    data = b""
    while len(data) < stop - start and (block := fs.read(fd, stop - start - len(data), start + len(data))):
        data += block
    return data


def _save(fs: FS, path: str, data: bytes) -> str:
    """Write a new file durably and return its path; an earlier file of that name is kept."""
    target, number = path, 1
    while (fd := _create(fs, target)) is None:
        number += 1
        target = f"{path}.{number}"
    try:
        written = 0
        while written < len(data):
            written += fs.write(fd, data[written:])
        fs.sync(fd)
    finally:
        fs.close(fd)
    fs.sync_dir(os.path.dirname(target))
    return target


def _create(fs: FS, path: str) -> int | None:
    try:
        return fs.create(path, os.O_WRONLY)
    except FileExistsError:
        return None
