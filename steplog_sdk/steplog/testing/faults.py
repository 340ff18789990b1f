# ruff: noqa: D102  the docstrings of `FS` hold for the methods that override it
"""A file system that fails on demand, and loses power.

Pass a `FaultyFS` to `FileStore(home, fs=...)`. It works on real files, counts each call, and makes chosen calls fail,
write short, or be the last before the power goes. The method is SQLite's and LevelDB's: repeat a scenario with the
first, second, third … call failing until the fault is no longer reached.
"""

from __future__ import annotations

import errno as errors
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from steplog.stores.fs import FS, is_unsupported
from steplog.testing._power import PAGE, Disk

__all__ = ["PAGE", "Call", "FaultyFS", "PowerFailure"]


class Call(NamedTuple):
    """One call that reached the file system.

    Attributes:
        operation: method of `FS`.
        path: the file or directory concerned.
    """

    operation: str
    path: str


class PowerFailure(BaseException):
    """The machine stops here: no code of the program runs any more, so nothing may catch this but the test."""


class _Fault(NamedTuple):
    operation: str
    nth: int
    persistent: bool
    error: OSError | PowerFailure | None
    keep: int

    def hits(self, count: int) -> bool:
        return count >= self.nth if self.persistent else count == self.nth


class FaultyFS(FS):
    """The real file system with faults.

    A sync that fails is the last word on what it should have written: as on Linux, the pages count as clean, are read
    as before, and are not on the medium whatever later syncs report, until somebody writes to them again.

    Attributes:
        calls: every call so far, in order.
        fired: how many faults have struck.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.fired = 0
        self._off = False
        self._faults: list[_Fault] = []
        self._counts: dict[int, int] = {}
        self._paths: dict[int, str] = {}
        self._disk = Disk()

    def fail(self, operation: str = "*", *, nth: int = 1, errno: int = errors.EIO, persistent: bool = False) -> None:
        """Make a call fail.

        Args:
            operation: method of `FS`, or `*` for any.
            nth: which call of that kind, counted from now, from 1.
            errno: what it fails with.
            persistent: fail every later one too.
        """
        self._add(_Fault(operation, nth, persistent, OSError(errno, os.strerror(errno)), 0))

    def shorten(self, keep: int, *, nth: int = 1, persistent: bool = False) -> None:
        """Let a write store only its first `keep` bytes and say so, as a full disk does."""
        self._add(_Fault("write", nth, persistent, None, keep))

    def stop(self, operation: str = "*", *, nth: int = 1) -> None:
        """Cut the power just before a call: it and all later ones raise `PowerFailure`."""
        self._add(_Fault(operation, nth, False, PowerFailure(), 0))  # noqa: FBT003  a field of a private tuple

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()
        self._counts.clear()

    def count(self, operation: str) -> int:
        """How many calls of one kind there were."""
        return sum(call.operation == operation for call in self.calls)

    def lose_power(
        self,
        *,
        keep_page: Callable[[str, int], bool] = lambda _path, _page: False,
        keep_name: Callable[[str], bool] = lambda _path: False,
        grow: bool = False,
    ) -> None:
        """Leave on disk what a loss of power would: what was synced, and of the rest whatever is chosen.

        It may be called again for the same loss of power, with another choice.

        Args:
            keep_page: which pages of unsynced changes happened to be written; asked with path and page number.
            keep_name: which names in unsynced directories happened to be written: new ones, and ones that lead to
                another file since.
            grow: whether file lengths were written although the bytes were not; those read as zeros.
        """
        self._disk.crash(keep_page, keep_name, grow=grow)

    def unsynced(self) -> tuple[list[tuple[str, int]], list[str]]:
        """The pages (path and number) and the names that a loss of power now may keep or lose, each for itself."""
        return self._disk.unsynced_pages(), self._disk.unsynced_names()

    def open(self, path: str, flags: int) -> int:
        self._reach("open", path)
        fd = super().open(path, flags)
        self._paths[fd] = path
        if Path(path).is_file():
            self._disk.found(path)
        return fd

    def create(self, path: str, flags: int) -> int:
        self._reach("create", path)
        fd = super().create(path, flags)
        self._paths[fd] = path
        self._disk.made(path)
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)  # first: a descriptor is gone even when closing it reports an error
        self._reach("close", self._paths.pop(fd, "?"))

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self._reach("read", self._paths[fd])
        return super().read(fd, size, offset)

    def write(self, fd: int, data: bytes) -> int:
        fault = self._reach("write", self._paths[fd])
        written = super().write(fd, data if fault is None else data[: fault.keep])
        end = os.lseek(fd, 0, os.SEEK_CUR)
        self._disk.changed(self._paths[fd], end - written, end)
        return written

    def rewrite(self, fd: int, data: bytes, offset: int) -> int:
        path = self._paths[fd]
        self._reach("rewrite", path)
        same = Path(path).read_bytes()[offset : offset + len(data)] == data
        written = super().rewrite(fd, data, offset)
        self._disk.changed(path, offset, offset + written, same=same)
        return written

    def truncate(self, fd: int, size: int) -> None:
        self._reach("truncate", self._paths[fd])
        super().truncate(fd, size)
        self._disk.cut(self._paths[fd], size)

    def sync(self, fd: int) -> None:
        self._sync(fd, super().sync)

    def sync_whole(self, fd: int) -> None:
        self._sync(fd, super().sync_whole)

    def _sync(self, fd: int, sync: Callable[[int], None]) -> None:
        path = self._paths[fd]
        try:
            self._reach("sync", path)
            sync(fd)
        except OSError as error:
            if not is_unsupported(error) and error.errno != errors.EINTR:
                self._disk.given_up(path)
            raise
        self._disk.synced(path)

    def sync_dir(self, path: str) -> None:
        self._reach("sync_dir", path)
        super().sync_dir(path)
        self._disk.synced_names(path)

    def mkdir(self, path: str) -> None:
        self._reach("mkdir", path)
        super().mkdir(path)
        self._disk.made(path)

    def rename(self, old: str, new: str) -> None:
        self._reach("rename", new)
        super().rename(old, new)
        self._disk.named(new, old, moved=True)

    def link(self, old: str, new: str) -> None:
        self._reach("link", new)
        super().link(old, new)
        self._disk.named(new, old, moved=False)

    def stat(self, path: str) -> os.stat_result:
        self._reach("stat", path)
        return super().stat(path)

    def fstat(self, fd: int) -> os.stat_result:
        self._reach("fstat", self._paths[fd])
        return super().fstat(fd)

    def end(self, fd: int) -> int:
        self._reach("end", self._paths[fd])
        return super().end(fd)

    def listdir(self, path: str) -> list[str]:
        self._reach("listdir", path)
        return super().listdir(path)

    def flock(self, fd: int, *, shared: bool = False) -> bool:
        self._reach("flock", self._paths[fd])
        return super().flock(fd, shared=shared)

    def unlock(self, fd: int) -> None:
        self._reach("unlock", self._paths[fd])
        super().unlock(fd)

    def _add(self, fault: _Fault) -> None:
        self._faults.append(fault)

    def _reach(self, operation: str, path: str) -> _Fault | None:
        """Count a call; raise the fault that strikes it, or return the one that only shortens it."""
        if self._off:
            raise PowerFailure
        self.calls.append(Call(operation, path))
        for number, fault in enumerate(self._faults):
            if fault.operation not in ("*", operation):
                continue
            self._counts[number] = self._counts.get(number, 0) + 1
            if not fault.hits(self._counts[number]):
                continue
            self.fired += 1
            if fault.error is None:
                return fault
            self._off = isinstance(fault.error, PowerFailure)
            raise fault.error
        return None
