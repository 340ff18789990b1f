"""What a failed sync has given up: read as if it were stored, until it is written again by whoever opens the log."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from steplog._kernel.line import Chain
from steplog.errors import StoreError
from steplog.stores.files import FileStore
from steplog.stores.proof import NOTE_EVERY
from steplog.testing import FaultyFS
from steplog.testing.contract import fill
from tests.faults.scenario import release

HUNDRED_KB = '{"a":"' + "x" * 100_000 + '"}'


@pytest.fixture
def fs():
    return FaultyFS()


@pytest.fixture
def opened(tmp_path, fs):
    """Open the run in what counts as a process of its own: what holds it dies first, without a word."""

    def begin(level="durable"):
        store = FileStore(tmp_path, durability=level, fs=fs)
        release(store)
        writer = store.open("r")
        return writer, Chain("r", writer.view.events)

    yield begin
    release(FileStore(tmp_path))


def left(home):
    return len(FileStore(home).read("r").events)


def note(home):
    return Path(home, "runs/r/events.lock")


def rewritten(fs, run):
    """How many bytes of the log are written again meanwhile."""
    sizes = []
    plain = fs.rewrite

    def counting(fd, data, offset):
        if fs._paths[fd].endswith(".jsonl"):
            sizes.append(len(data))
        return plain(fd, data, offset)

    fs.rewrite = counting
    try:
        run()
    finally:
        fs.rewrite = plain
    return sum(sizes)


@pytest.mark.parametrize("level", ["interval", "durable", "durable-full"])
@pytest.mark.parametrize("end", ["dies", "closes"])
def test_events_of_a_failed_sync_that_somebody_builds_on_survive_the_loss_of_power(tmp_path, fs, opened, level, end):
    writer, chain = opened()
    fill(writer, chain, 2)
    fs.fail("sync", errno=errno.EIO)
    with pytest.raises(StoreError, match="go on in a new process"):
        fill(writer, chain, 1)
    if end == "closes":
        writer.close()
    writer, chain = opened(level)
    assert chain.seq == 3, "the page cache still has the event"
    fill(writer, chain)
    writer.flush()
    fs.lose_power()
    assert left(tmp_path) == 4


def test_without_the_second_write_they_would_be_lost(tmp_path, fs, opened):
    """The model that the others believe: a sync that succeeds behind one that failed writes nothing of its pages."""
    writer, chain = opened()
    fs.fail("sync", errno=errno.EIO)
    with pytest.raises(StoreError):
        fill(writer, chain)
    log = tmp_path / "runs/r/events.jsonl"
    fd = fs.open(str(log), os.O_RDWR)
    size = len(log.read_bytes())
    fs.sync(fd)
    fs.close(fd)
    fs.lose_power()
    assert log.read_bytes() == bytes(size)


def test_a_sync_at_opening_that_fails_refuses_and_the_next_opening_writes_again(tmp_path, fs, opened):
    writer, chain = opened("process")
    fill(writer, chain, 3)
    fs.fail("sync", errno=errno.EIO)
    with pytest.raises(StoreError, match="make the log durable"):
        opened()
    opened()
    fs.lose_power()
    assert left(tmp_path) == 3


@pytest.mark.parametrize("operation, code", [("rewrite", errno.EIO), ("open", errno.ENFILE), ("fstat", errno.EIO)])
def test_what_cannot_be_written_again_refuses_the_opening(fs, opened, operation, code):
    writer, chain = opened()
    fill(writer, chain, 3)
    before = len(fs.calls)
    opened()
    calls = fs.calls[before:]
    again = next(n for n, call in enumerate(calls) if call.operation == "rewrite")
    nth = sum(call.operation == operation for call in calls[: again + 1])
    note(Path(writer._log.path).parents[2]).write_bytes(b"")
    fs.fail(operation, nth=nth, errno=code)
    with pytest.raises(StoreError, match="No event was written"):
        opened()
    opened()


def test_a_log_that_was_closed_is_not_written_again(fs, opened):
    writer, chain = opened()
    fill(writer, chain, 3)
    writer.close()
    assert rewritten(fs, opened) == 0


def test_a_killed_process_has_little_written_again(fs, opened):
    writer, chain = opened()
    for _ in range(35):
        writer.append([chain.seal("t", None, "", HUNDRED_KB.encode())], chain.seq - 1, sync=True)
    assert 0 < rewritten(fs, opened) <= NOTE_EVERY + 2 * len(HUNDRED_KB)
    assert rewritten(fs, opened) == 0, "it was noted when it was opened"


def test_what_was_never_synced_is_written_again_whoever_opened_the_run_meanwhile(tmp_path, fs, opened):
    writer, chain = opened()
    fill(writer, chain, 2)
    writer.close()
    synced = os.path.getsize(tmp_path / "runs/r/events.jsonl")
    for _ in range(2):
        writer, chain = opened("process")
        fill(writer, chain, 2)
        writer.close()
    assert rewritten(fs, opened) == os.path.getsize(tmp_path / "runs/r/events.jsonl") - synced


WRONG = {
    "missing": lambda note: None,
    "of another disk": lambda note: {**note, "device": note["device"] + 1},
    "of another file": lambda note: {**note, "inode": note["inode"] + 1},
    "of another log": lambda note: {**note, "seal": "0" * 32},
    "inside a line": lambda note: {**note, "end": note["end"] - 1},
    "behind the end": lambda note: {**note, "end": note["end"] * 2},
    "before the beginning": lambda note: {**note, "end": -1},
    "no number": lambda note: {**note, "end": True},
    "more than that": lambda note: {**note, "more": 1},
    "less than that": lambda note: {"end": note["end"]},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_note_that_does_not_fit_the_log_proves_nothing(tmp_path, fs, opened, wrong):
    writer, chain = opened()
    fill(writer, chain, 2)
    writer.close()
    facts = json.loads(note(tmp_path).read_bytes())
    facts["synced"] = WRONG[wrong](facts["synced"])
    note(tmp_path).write_text(json.dumps(facts))
    assert rewritten(fs, opened) == os.path.getsize(tmp_path / "runs/r/events.jsonl")


@pytest.mark.parametrize("left", [b"", b"[]", b"1", b'{"pid":', bytes(512)])
def test_a_lock_file_that_was_cut_short_proves_nothing(tmp_path, fs, opened, left):
    writer, chain = opened()
    fill(writer, chain, 2)
    writer.close()
    note(tmp_path).write_bytes(left)
    assert rewritten(fs, opened) == os.path.getsize(tmp_path / "runs/r/events.jsonl")


def test_a_copy_of_a_run_is_written_again_once(tmp_path, fs, opened):
    """Nothing of a copy has to be on the medium."""
    writer, chain = opened()
    fill(writer, chain, 2)
    writer.close()
    log = tmp_path / "runs/r/events.jsonl"
    (tmp_path / "copy").write_bytes(log.read_bytes())
    os.replace(tmp_path / "copy", log)
    assert rewritten(fs, opened) == os.path.getsize(log)
    assert rewritten(fs, opened) == 0


def test_a_signal_while_a_failed_sync_is_told_does_not_hide_it(fs, opened, monkeypatch):
    """A handler may raise from the first call behind the failure on."""
    writer, chain = opened()
    fs.fail("sync", errno=errno.EIO)

    def interrupted(error):
        raise KeyboardInterrupt

    monkeypatch.setattr("steplog.stores.writer.is_unsupported", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(writer, chain)
    with pytest.raises(StoreError, match="writes no more"):
        writer.append([], 0, sync=True)
