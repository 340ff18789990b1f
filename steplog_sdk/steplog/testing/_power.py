"""What is left on a disk when the power goes: the bytes and names that were synced, and any part of the others.

The page cache writes what was not synced whenever it likes and in any order, so each page of each file and each name in
a directory survives or does not, independent of all others (Pillai et al., "All File Systems Are Not Created Equal",
OSDI 2014). A length may be on the medium without the bytes that it promises; those read as zeros. What a failed sync
should have written the system takes for written (Rebello et al., "Can Applications Recover from fsync Failures?",
USENIX ATC 2020).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = 4096

_Key = tuple[int, int]


class _Crashed(NamedTuple):
    """The moment at which the power went.

    Attributes:
        contents: bytes of every file, as the page cache had them.
        names: what each name led to.
    """

    contents: dict[_Key, bytes]
    names: dict[str, _Key]


class Disk:
    """Knows of every file that a `FaultyFS` has touched what of it is on the medium.

    A file is known by device and inode, so that it stays the same one under a new name. A file that nothing was written
    to through the seam (a database that its library writes) keeps its bytes.
    """

    def __init__(self) -> None:
        self._synced: dict[_Key, bytes] = {}
        self._changed: set[_Key] = set()
        self._given_up: dict[_Key, set[int]] = {}
        self._names: dict[str, _Key] = {}
        self._durable_names: dict[str, _Key] = {}
        self._directories: set[str] = set()
        self._crashed: _Crashed | None = None

    def found(self, path: str) -> None:
        """A file that was there before anybody looked: it counts as synced, like its name."""
        key = _key(path)
        self._names.setdefault(path, key)
        if key not in self._synced:
            self._synced[key] = Path(path).read_bytes()
            self._durable_names[path] = key

    def made(self, path: str) -> None:
        """A new file or directory."""
        self._names[path] = _key(path)
        self._synced[self._names[path]] = b""
        if os.path.isdir(path):
            self._directories.add(path)

    def changed(self, path: str, start: int, stop: int, *, same: bool = False) -> None:
        """Bytes of a file were written; with `same`, those that had been there."""
        key = self._names[path]
        if not same:
            self._changed.add(key)
        if start < stop:
            self._given_up.get(key, set()).difference_update(range(start // PAGE, (stop - 1) // PAGE + 1))

    def cut(self, path: str, size: int) -> None:
        """A file has another length."""
        key = self._names[path]
        self._changed.add(key)
        self._given_up[key] = {page for page in self._given_up.get(key, ()) if page * PAGE < size}

    def synced(self, path: str) -> None:
        """The bytes of a file are on the medium, but for what an earlier sync has given up."""
        key, cached = self._names[path], Path(path).read_bytes()
        before = self._synced[key]
        written = set(_differing(before, cached)) - self._given_up.get(key, set())
        self._synced[key] = _mixed(before, cached, written, grow=True)

    def given_up(self, path: str) -> None:
        """A sync has failed: what it should have written counts as written, and is not."""
        key = self._names[path]
        self._given_up.setdefault(key, set()).update(_differing(self._synced[key], Path(path).read_bytes()))

    def synced_names(self, directory: str) -> None:
        """The names in a directory are on the medium."""
        for path in {*self._names, *self._durable_names}:
            if os.path.dirname(path) == directory:
                _set(self._durable_names, path, self._names.get(path))

    def named(self, new: str, old: str, *, moved: bool) -> None:
        """A file got another name; with `moved` it lost its old one."""
        self._names[new] = self._names[old]
        if moved:
            del self._names[old]

    def unsynced_names(self) -> list[str]:
        """Names that lead elsewhere, or nowhere, on the medium."""
        names, durable = self._crash().names, self._durable_names
        return sorted(path for path in {*names, *durable} if names.get(path) != durable.get(path))

    def unsynced_pages(self) -> list[tuple[str, int]]:
        """Pages whose bytes on the medium differ from those in the cache, as path and number."""
        contents = self._crash().contents
        return [
            (path, number)
            for path, key in self._paths().items()
            if key in self._changed
            for number in _differing(self._synced[key], contents[key])
        ]

    def crash(self, keep_page: Callable[[str, int], bool], keep_name: Callable[[str], bool], *, grow: bool) -> None:
        """Make the files what a crash may leave. May be called again, with another choice, for the same crash."""
        crashed = self._crash()
        names = dict(self._durable_names)
        for path in self.unsynced_names():
            if keep_name(path):
                _set(names, path, crashed.names.get(path))
        left = dict(crashed.contents)
        for path, key in self._paths().items():
            if key in self._changed:
                kept = {number for number in _differing(self._synced[key], left[key]) if keep_page(path, number)}
                left[key] = _mixed(self._synced[key], left[key], kept, grow=grow)
        self._materialise(names, left, {*crashed.names, *self._durable_names})

    def _crash(self) -> _Crashed:
        """What the cache holds when the power goes; later calls are about the same moment."""
        if self._crashed is None:
            files = {path: key for path, key in self._names.items() if path not in self._directories}
            contents = {key: Path(path).read_bytes() for path, key in files.items() if os.path.exists(path)}
            self._crashed = _Crashed(contents, {p: k for p, k in self._names.items() if os.path.exists(p)})
        return self._crashed

    def _paths(self) -> dict[str, _Key]:
        """One name of each file."""
        assert self._crashed is not None
        by_key = {key: path for path, key in self._crashed.names.items() if key in self._crashed.contents}
        return {path: key for key, path in by_key.items()}

    def _materialise(self, names: dict[str, _Key], left: dict[_Key, bytes], known: set[str]) -> None:
        """Give the surviving names to the surviving bytes; everything else goes."""
        reached = {path for path in names if _is_reached(path, names, known)}
        for path in sorted(known, reverse=True):
            if path not in self._directories:
                Path(path).unlink(missing_ok=True)
            elif path not in reached:
                shutil.rmtree(path, ignore_errors=True)
        first: dict[_Key, str] = {}
        for path in sorted(reached):
            key = names[path]
            if path in self._directories:
                Path(path).mkdir(mode=0o700, exist_ok=True)
            elif key in first:
                os.link(first[key], path)
            else:
                first[key] = path
                Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                Path(path).write_bytes(left.get(key, self._synced[key]))


def _key(path: str) -> _Key:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _set(names: dict[str, _Key], path: str, key: _Key | None) -> None:
    if key is None:
        names.pop(path, None)
    else:
        names[path] = key


def _is_reached(path: str, names: dict[str, _Key], known: set[str]) -> bool:
    """Tell whether every directory above a name, as far as it is known, still has its own name."""
    parent = os.path.dirname(path)
    return (parent not in known) or (parent in names and _is_reached(parent, names, known))


def _differing(synced: bytes, cached: bytes) -> list[int]:
    size = max(len(synced), len(cached))
    return [at // PAGE for at in range(0, size, PAGE) if synced[at : at + PAGE] != cached[at : at + PAGE]]


def _mixed(synced: bytes, cached: bytes, kept: set[int], *, grow: bool) -> bytes:
    """Return the synced bytes with the kept pages of the cache; with `grow` at the length that the cache had."""
    left = bytearray(synced)
    if grow:
        left = left[: len(cached)].ljust(len(cached), b"\0")
    for number in kept:
        page = cached[number * PAGE : (number + 1) * PAGE]
        if page:
            # Where the file has become shorter and its length was not written, the rest of the page is zeros.
            page = page.ljust(min(PAGE, max(0, len(left) - number * PAGE)), b"\0")
            left.extend(bytes(max(0, number * PAGE + len(page) - len(left))))
            left[number * PAGE : number * PAGE + len(page)] = page
    return bytes(left)
