"""Giving up what stands behind the damage of a log, on an operator's word.

A new file is written beside the log: the verified lines up to the given one, a `log.recovered`, and once more the
intent of every step behind it that must not be repeated by accident. The old file is kept under another name, and only
then does the new one take its place, by a rename: whatever interrupts this leaves the old log whole or the new one.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final, NamedTuple

import orjson

from steplog._kernel.events import LOG_RECOVERED, STEP_STARTED, Event
from steplog._kernel.line import Chain, Damage, Scan, scan
from steplog._kernel.salvage import intact, intents
from steplog.errors import InvalidArgument, UnknownRun
from steplog.stores.explain import failure, home_option, refusal
from steplog.stores.fs import FS, is_unsupported, open_or_create
from steplog.stores.lock import acquire

_BLOCK: Final = 4 << 20


class Examined(NamedTuple):
    """What is the matter with a log.

    Attributes:
        run_id: the run.
        path: its log.
        verdict: `clean`, `unterminated`, `torn`, `conflict`, `corrupt` or `unsupported`, as `Scan`.
        damage: the first bad line, or None.
        error: the error that opening the log raises, as text, or None.
        last_good_seq: the last event that verifies, or None.
        behind: events behind that one whose lines are intact in themselves.
        size: bytes in the file.
    """

    run_id: str
    path: str
    verdict: str
    damage: Damage | None
    error: str | None
    last_good_seq: int | None
    behind: list[Event]
    size: int


class Repaired(NamedTuple):
    """What a repair did.

    Attributes:
        path: the log, which is new.
        kept_as: the file that was the log.
        to_seq: the last event that was kept.
        cut: bytes that were given up.
        intents: the steps whose intents were kept although they stood behind that event; their outcome is open.
    """

    path: str
    kept_as: str
    to_seq: int
    cut: int
    intents: list[Event]


def examine(fs: FS, path: str, run_id: str) -> Examined:
    """Look at a log without changing or locking anything.

    Raises:
        UnknownRun: there is none.
        StoreError: it cannot be read.
    """
    data = _read(fs, path, run_id)
    found = scan(data, run_id)
    return Examined(
        run_id=run_id,
        path=path,
        verdict=found.verdict,
        damage=found.damage,
        error=str(refusal(found, run_id, path)) if found.damage else None,
        last_good_seq=len(found.events) - 1 if found.events else None,
        behind=list(intact(data[found.end :])),
        size=len(data),
    )


def repair(fs: FS, path: str, run_id: str, to_seq: int, *, by: str) -> Repaired:
    """Replace a damaged log by its verified lines up to `to_seq`.

    Args:
        fs: the file system.
        path: the log.
        run_id: the run.
        to_seq: sequence number of the last event to keep.
        by: who decided.

    Raises:
        InvalidArgument: the log is not damaged, or does not verify as far as that.
        RunBusy: somebody writes the run.
        UnknownRun: there is no such log.
        StoreError: the disk failed; the log is the old one, whole.
    """
    data = _read(fs, path, run_id)
    directory = os.path.dirname(path)
    try:
        lock = acquire(fs, os.path.join(directory, "events.lock"), run_id)
    except OSError as error:
        raise failure(error, run_id, "take the run", directory, "Nothing was changed.") from error
    try:
        data = _read(fs, path, run_id)
        found = scan(data, run_id)
        _check(found, run_id, path, to_seq)
        return _replace(fs, path, run_id, data, found.events[: to_seq + 1], by)
    except OSError as error:
        raise failure(error, run_id, "repair the log", path, "The log is the old one, whole.") from error
    finally:
        with suppress(OSError):  # the run is free all the same, and what was written is synced
            lock.release()


def _read(fs: FS, path: str, run_id: str) -> bytes:
    try:
        fd = fs.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnknownRun(
            f"there is no run {run_id!r}: {path} does not exist. List what there is: steplog ls"
        ) from error
    except OSError as error:
        raise failure(error, run_id, "read the log", path) from error
    blocks: list[bytes] = []
    try:
        try:
            while block := fs.read(fd, _BLOCK, sum(map(len, blocks))):
                blocks.append(block)
        finally:
            fs.close(fd)
    except OSError as error:
        raise failure(error, run_id, "read the log", path) from error
    return b"".join(blocks)


def _check(found: Scan, run_id: str, path: str, to_seq: int) -> None:
    last = len(found.events) - 1
    home = home_option(path)
    if found.damage is None:
        message = (
            f"run {run_id!r} is not damaged: every event up to seq {last} verifies, and what a crash may have left "
            f"behind it is cut by whoever resumes the run. Nothing was changed.\nGo on: steplog resume {run_id}{home}"
        )
        raise InvalidArgument(message, run_id=run_id)
    if last < 0 or found.verdict == "unsupported":
        raise InvalidArgument(f"{refusal(found, run_id, path)}\nNothing was changed.", run_id=run_id)
    if not 0 <= to_seq <= last:
        message = (
            f"run {run_id!r} verifies up to seq {last}, so it cannot be kept up to seq {to_seq}. Nothing was changed.\n"
            f"The most that can be kept: steplog repair {run_id} --to-seq {last}{home}"
        )
        raise InvalidArgument(message, run_id=run_id)


def _replace(fs: FS, path: str, run_id: str, data: bytes, kept: Sequence[Event], by: str) -> Repaired:
    end = _end_of(data, len(kept))
    cut = data[end:]
    behind = list(intact(cut))
    open_steps = intents(behind)
    old = _keep(fs, path, data)
    chain = Chain(run_id, kept)
    # Above whoever wrote there: a writer that this machine's lock did not stop finds itself replaced.
    chain.epoch = max([chain.epoch, *(event.epoch for event in behind)]) + 1
    facts = {"offset": end, "size": len(cut), "sha256": sha256(cut).hexdigest(), "saved_as": old}
    told = {"to_seq": kept[-1].seq, "by": by, "intents": [event.step for event in open_steps]}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    lines = [chain.seal(LOG_RECOVERED, None, now, orjson.dumps({**facts, **told}))]
    for event in open_steps:
        again = {**event.data, "recovered": event.seq}
        lines.append(chain.seal(STEP_STARTED, event.step, event.ts, orjson.dumps(again)))
    new = f"{path.removesuffix('.jsonl')}.repair"
    _write(fs, new, data[:end] + b"".join(lines))
    fs.rename(new, path)
    fs.sync_dir(os.path.dirname(path))
    return Repaired(path, old, kept[-1].seq, len(cut), open_steps)


def _end_of(data: bytes, lines: int) -> int:
    end = 0
    for _ in range(lines):
        end = data.index(b"\n", end) + 1
    return end


def _keep(fs: FS, path: str, data: bytes) -> str:
    """Give the old log a second name, durably; where the file system has no links, a copy. Returns that name."""
    number = 0
    while True:
        number += 1
        old = f"{path}.before-repair-{number}"
        try:
            fs.link(path, old)
        except FileExistsError:
            if not _same(fs, path, old):
                continue
            # A repair that was interrupted has got as far as this.
        except OSError as error:
            if not (is_unsupported(error) or isinstance(error, PermissionError)):
                raise
            try:
                _fill(fs, fs.create(old, os.O_RDWR), old, data)
            except FileExistsError:
                continue
        fs.sync_dir(os.path.dirname(path))
        return old


def _same(fs: FS, path: str, other: str) -> bool:
    one, two = fs.stat(path), fs.stat(other)
    return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)


def _write(fs: FS, path: str, data: bytes) -> None:
    """Write a file whole and durably, over what an interrupted attempt may have left."""
    fd, _ = open_or_create(fs, path, os.O_RDWR)
    _fill(fs, fd, path, data)


def _fill(fs: FS, fd: int, path: str, data: bytes) -> None:
    try:
        fs.truncate(fd, 0)
        written = 0
        while written < len(data):
            count = fs.write(fd, data[written:])
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            written += count
        fs.sync(fd)
    finally:
        fs.close(fd)
