"""How much of a log is known to be on the medium, and what is done about the rest when the log is opened.

When a sync fails, Linux marks the pages clean and goes on serving them from memory: the next process reads them as if
they were stored, and its own sync succeeds without writing them (Rebello et al., "Can Applications Recover from fsync
Failures?", USENIX ATC 2020). Which pages that were cannot be asked. So a writer notes in the lock file how far a sync
has succeeded, and whoever opens the log writes what lies behind that again, byte for byte the same, before it syncs.

The note is about the past and stays true: the bytes before `end` were on the medium once, in this file. An outdated
note therefore costs only a longer rewrite, and so does one that is missing, torn or of another file. No sync waits for
it. Since nothing changes but what the system believes about its pages, an interruption at any point leaves the file as
it was.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from typing import Any, Final, NamedTuple

from steplog._kernel.index import Index
from steplog.stores.fs import FS

NOTE_EVERY: Final = 1 << 20
"""Bytes that are synced between two notes: what a killed run has written again, beside what it had not synced."""

_BLOCK: Final = 4 << 20


class Synced(NamedTuple):
    """The beginning of a log that a sync has covered.

    Attributes:
        device: of the file.
        inode: of the file.
        end: byte offset behind the last line that was covered.
        seal: the seal of that line, in hex.
    """

    device: int
    inode: int
    end: int
    seal: str


def as_synced(value: Any) -> Synced | None:
    """The note in a lock file, or None where it is none."""
    if not isinstance(value, dict) or set(value) != set(Synced._fields):
        return None
    note = Synced(**value)
    numbers = all(type(number) is int for number in note[:3])
    return note if numbers and type(note.seal) is str else None


def proven(note: Synced | None, index: Index, status: os.stat_result) -> int:
    """How many bytes of a verified log are on the medium for certain."""
    if note is None or note[:2] != (status.st_dev, status.st_ino) or note.end <= 0:
        return 0
    seq = bisect_left(index.ends, note.end)
    known = seq < len(index) and index.ends[seq] == note.end and index.seal(seq).hex() == note.seal
    return note.end if known else 0


def write_again(fs: FS, path: str, fd: int, start: int, stop: int) -> None:
    """Write a part of an open log over itself, so that the next sync has to store it.

    Raises:
        OSError: it could not be written; nothing has changed.
    """
    again = fs.open(path, os.O_RDWR)  # `fd` is open for appending, and would append whatever the offset
    try:
        if not os.path.samestat(fs.fstat(again), fs.fstat(fd)):
            raise OSError(errno.ESTALE, "another file has taken the place of the log")
        if over_itself(fs, again, start, stop) < stop:
            raise OSError(errno.ESTALE, "the log was cut off by somebody else")
    finally:
        fs.close(again)


def over_itself(fs: FS, fd: int, start: int, stop: int) -> int:
    """Write a part of an open file over itself; return how far it went, which is less where the file ends before.

    Raises:
        OSError: it could not be written; nothing has changed.
    """
    while start < stop and (block := fs.read(fd, min(_BLOCK, stop - start), start)):
        start += fs.rewrite(fd, block, start)
    return start
