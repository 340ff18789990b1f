# ruff: noqa: D102  the docstrings of `FS` hold for the methods that override it
"""A file system that fails on demand, and loses power.

Pass a `FaultyFS` to `FileStore(home, fs=...)`. It works on real files, counts each call, and makes chosen calls fail,
write short, or be the last before the power goes. The method is SQLite's and LevelDB's: repeat a scenario with the
first, second, third … call failing until the fault is no longer reached.
"""

from __future__ import annotations

import errno as errors
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from steplog.stores.fs import FS

PAGE: Final = 4096


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
        self._synced: dict[str, bytes] = {}
        self._new_names: set[str] = set()

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

        Args:
            keep_page: which pages of unsynced changes happened to be written; asked with path and page number.
            keep_name: which new names in unsynced directories happened to be.
            grow: whether file lengths were written although the bytes were not; those read as zeros.
        """
        for path in sorted(self._new_names):
            if not keep_name(path):
                _remove(Path(path))
        for path, synced in self._synced.items():
            if Path(path).exists():
                _rewrite(Path(path), synced, lambda page, path=path: keep_page(path, page), grow=grow)  # type: ignore[misc]

    def open(self, path: str, flags: int) -> int:
        self._reach("open", path)
        fd = super().open(path, flags)
        self._paths[fd] = path
        if path not in self._synced and Path(path).is_file():
            self._synced[path] = Path(path).read_bytes()
        return fd

    def create(self, path: str, flags: int) -> int:
        self._reach("create", path)
        fd = super().create(path, flags)
        self._paths[fd] = path
        self._new_names.add(path)
        self._synced[path] = b""
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)  # first: a descriptor is gone even when closing it reports an error
        self._reach("close", self._paths.pop(fd, "?"))

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self._reach("read", self._paths[fd])
        return super().read(fd, size, offset)

    def write(self, fd: int, data: bytes) -> int:
        fault = self._reach("write", self._paths[fd])
        return super().write(fd, data if fault is None else data[: fault.keep])

    def truncate(self, fd: int, size: int) -> None:
        self._reach("truncate", self._paths[fd])
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        path = self._paths[fd]
        self._reach("sync", path)
        super().sync(fd)
        self._synced[path] = Path(path).read_bytes()

    def sync_dir(self, path: str) -> None:
        self._reach("sync_dir", path)
        super().sync_dir(path)
        self._new_names -= {name for name in self._new_names if str(Path(name).parent) == path}

    def mkdir(self, path: str) -> None:
        self._reach("mkdir", path)
        super().mkdir(path)
        self._new_names.add(path)

    def stat(self, path: str) -> os.stat_result:
        self._reach("stat", path)
        return super().stat(path)

    def fstat(self, fd: int) -> os.stat_result:
        self._reach("fstat", self._paths[fd])
        return super().fstat(fd)

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


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _rewrite(path: Path, synced: bytes, keep_page: Callable[[int], bool], *, grow: bool) -> None:
    current = path.read_bytes()
    left = bytearray(synced)
    if grow and len(current) > len(left):
        left.extend(bytes(len(current) - len(left)))
    for start in range(0, len(current), PAGE):
        page = current[start : start + PAGE]
        if page != synced[start : start + PAGE] and keep_page(start // PAGE):
            left.extend(bytes(max(0, start + len(page) - len(left))))
            left[start : start + len(page)] = page
    path.write_bytes(left)
