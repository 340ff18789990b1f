"""One writer per run: an advisory lock that the kernel frees when its holder dies.

`flock` on a file that is never unlinked (whoever opens a new file of the same name would hold another lock). There
are no stale locks, no timeouts and no heuristics: a dead holder's run is free at once. What the file contains serves
messages, and says how much of the log has been synced (see `proof.py`). Correctness against writers that the lock
cannot see (network file systems, copied directories) comes from the chain and from the size check before each append.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

from steplog.errors import RunBusy
from steplog.stores.fs import FS, open_or_create
from steplog.stores.proof import Synced, as_synced

_PROBE_PATIENCE: Final = (0.0, 0.001, 0.002, 0.004, 0.008)
"""Seconds between attempts: `holder` takes the lock for some microseconds, which must not look like a writer."""


_SIZE: Final = 512  # the file's: one sector, so that it is written whole or not at all


class Holder(NamedTuple):
    """Who holds a run, as far as its lock file says.

    Attributes:
        pid: process id, or None where the file does not say.
        host: host name, or None.
        boot_id: which start of that host, or None.
        since: ISO 8601, or None.
    """

    pid: int | None
    host: str | None
    boot_id: str | None
    since: str | None


_UNKNOWN: Final = Holder(None, None, None, None)


class RunLock:
    """The lock of one run, held until `release` or the death of this process.

    Attributes:
        path: the lock file.
        foreign: true in a forked child; the lock is still its parent's.
        synced: how much of the log is on the medium, as far as the file says.
    """

    def __init__(self, fs: FS, path: str, fd: int) -> None:
        self.path = path
        self.identity = identify(fs.fstat(fd))
        self.foreign = False
        self.synced: Synced | None = None
        self._fs = fs
        self._fds = [fd]
        self._holder = _UNKNOWN

    def take(self) -> None:
        """Write into the file who holds it from now on; what it says of the log is kept.

        Raises:
            OSError: the file cannot be written.
        """
        fd = self._fds[-1]
        self.synced = as_synced(_read(self._fs, fd).get("synced"))
        self._holder = this_process()
        self._fs.truncate(fd, 0)
        self._fs.write(fd, self._content())

    def note(self, synced: Synced) -> None:
        """Write into the file how much of the log is on the medium.

        Raises:
            OSError: the file cannot be written; what it said before still holds.
        """
        self.synced = synced
        self._fs.rewrite(self._fds[-1], self._content(), 0)

    def _content(self) -> bytes:
        facts = self._holder._asdict()
        if self.synced is not None:
            facts["synced"] = self.synced._asdict()
        return orjson.dumps(facts).ljust(_SIZE - 1) + b"\n"

    def own(self, fd: int) -> None:
        """Close `fd` together with the lock, in a forked child too: inherited, it would outlive this process."""
        self._fds.insert(0, fd)

    def is_in_place(self) -> bool:
        """Tell whether the path still names the locked file; if not, somebody else may hold its successor."""
        try:
            return identify(self._fs.stat(self.path)) == self.identity
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Free the run. Idempotent, and without effect on the parent's lock in a forked child.

        Raises:
            OSError: closing failed, as network file systems report late write errors; the run is free all the same.
        """
        with _registry.guard:
            fds, self._fds = self._fds, []
            if not fds:
                return
            _registry.held.pop(self.identity, None)
            with ExitStack() as stack:  # runs all of it, last first, whatever fails
                stack.callback(self._fs.close, fds[-1])
                # Closing would do, but for a child that is being forked now and has not closed its copy yet.
                stack.callback(self._fs.unlock, fds[-1])
                for fd in fds[:-1]:
                    stack.callback(self._fs.close, fd)

    def abandon(self) -> None:
        """In a forked child: close, but never unlock, because the lock belongs to the open file of the parent."""
        self.foreign = True
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)


class _Registry:
    """Locks of this process by file identity, so that a fork finds them and a second open is refused at once."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.held: dict[tuple[int, int], RunLock] = {}

    def before_fork(self) -> None:
        self.guard.acquire()

    def after_fork_in_parent(self) -> None:
        self.guard.release()

    def after_fork_in_child(self) -> None:
        self.guard = threading.RLock()
        held, self.held = self.held, {}
        for lock in held.values():
            lock.abandon()


_registry = _Registry()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_registry.before_fork,
        after_in_parent=_registry.after_fork_in_parent,
        after_in_child=_registry.after_fork_in_child,
    )


def identify(status: os.stat_result) -> tuple[int, int]:
    """Return what tells one file from another, whatever its name."""
    return status.st_dev, status.st_ino


def acquire(fs: FS, path: str, run_id: str) -> RunLock:
    """Take the lock of a run.

    Raises:
        RunBusy: another writer, in this process or another, holds it.
        OSError: the lock file cannot be opened or written.
    """
    for pause in _PROBE_PATIENCE:
        if (lock := _try(fs, path)) is not None:
            return lock
        time.sleep(pause)
    raise _busy(holder(path, fs) or _UNKNOWN, run_id)


def _try(fs: FS, path: str) -> RunLock | None:
    # Under the guard, because a child forked between lock and registration would keep the lock as long as it lives.
    with _registry.guard:
        fd, _ = open_or_create(fs, path, os.O_RDWR)
        try:
            lock = RunLock(fs, path, fd)
            taken = lock.identity not in _registry.held and fs.flock(fd)
            if taken:
                lock.take()
                _registry.held[lock.identity] = lock
        except BaseException:
            fs.close(fd)
            raise
        if not taken:
            fs.close(fd)
        return lock if taken else None


def holder(path: str, fs: FS | None = None) -> Holder | None:
    """Tell who holds the lock file at `path`, or None if nobody does or there is none.

    A shared lock is tried for some microseconds: it never keeps a writer out, and two who ask do not meet.
    """
    fs = fs or FS()
    with _registry.guard:
        try:
            fd = fs.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            held_here = identify(fs.fstat(fd)) in _registry.held
            return _read_holder(fs, fd) if held_here or not fs.flock(fd, shared=True) else None
        finally:
            fs.close(fd)


def this_process() -> Holder:
    """Describe the running process the way lock files do."""
    since = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Holder(os.getpid(), socket.gethostname(), boot_id(), since)


def boot_id() -> str | None:
    """Name this start of the machine, or None where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def _read_holder(fs: FS, fd: int) -> Holder:
    facts = _read(fs, fd)
    return Holder(*(facts.get(name) for name in Holder._fields))


def _read(fs: FS, fd: int) -> dict[str, Any]:
    try:
        facts = orjson.loads(fs.read(fd, 4096, 0))
    except orjson.JSONDecodeError:
        return {}  # its holder has not written yet, or it was cut short
    return facts if isinstance(facts, dict) else {}


def _busy(who: Holder, run_id: str) -> RunBusy:
    name = f"process {who.pid} on {who.host}, since {who.since}," if who.pid else "another process"
    here = who.pid == os.getpid() and who.host == socket.gethostname()
    if here:
        text = f"run {run_id!r} is already open in this process (pid {who.pid}). A run has one writer: close it first."
    else:
        text = (
            f"run {run_id!r} is busy: {name} holds it. A run has one writer. Wait for it to end, or stop it"
            f"{f' (kill {who.pid})' if who.pid else ''}; its run is free the moment it is gone."
        )
    return RunBusy(text, run_id=run_id, pid=who.pid, host=who.host, since=who.since)
