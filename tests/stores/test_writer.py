"""Appending: one write, nothing half done, and certainty about every batch whatever interrupts it."""

from __future__ import annotations

import errno
import logging
import signal
import threading
from pathlib import Path

import pytest

from steplog._kernel.line import MAX_BATCH, Chain
from steplog.errors import LeaseLost, StoreError
from steplog.stores.files import FileStore
from steplog.stores.fs import FS
from steplog.testing import FaultyFS
from steplog.testing.contract import fill, sealed


@pytest.fixture
def fs():
    return FaultyFS()


@pytest.fixture
def store(tmp_path, fs):
    return FileStore(tmp_path / "home", fs=fs)


@pytest.fixture
def writer(store):
    writer = store.open("r")
    yield writer
    writer.close()


def content(store):
    return Path(store.path_of("r")).read_bytes()


def test_a_batch_is_one_write_and_at_most_one_sync(writer, fs):
    chain = Chain("r")
    writes, syncs = fs.count("write"), fs.count("sync")
    writer.append(sealed(chain, 50), 0, sync=False)
    assert (fs.count("write") - writes, fs.count("sync") - syncs) == (1, 0)
    writer.append(sealed(chain, 50), 50, sync=True)
    assert (fs.count("write") - writes, fs.count("sync") - syncs) == (2, 1)


def test_an_empty_batch_syncs_what_was_appended_before(writer, fs):
    syncs = fs.count("sync")
    writer.append(sealed(Chain("r")), 0, sync=False)
    writer.append([], 1, sync=True)
    writer.append([], 1, sync=True)
    assert fs.count("sync") - syncs == 1


def test_level_process_never_syncs(tmp_path, fs):
    store = FileStore(tmp_path / "home", durability="process", fs=fs)
    writer = store.open("r")
    fill(writer, Chain("r"), 3)
    writer.close()
    store.open("r").close()
    assert (fs.count("sync"), fs.count("sync_dir")) == (0, 0)


def test_a_new_log_and_its_directories_are_synced_by_name(store, fs, tmp_path):
    store.open("r").close()
    synced = {call.path for call in fs.calls if call.operation == "sync_dir"}
    home = tmp_path / "home"
    assert {str(path) for path in (tmp_path, home, home / "runs", home / "runs/r")} <= synced


def test_what_a_killed_process_left_unsynced_is_synced_at_open(store, fs):
    writer = store.open("r")
    writer.append(sealed(Chain("r")), 0, sync=False)
    writer.close()
    syncs = fs.count("sync")
    store.open("r").close()
    assert fs.count("sync") == syncs + 1


def test_the_last_batch_may_be_repeated(writer, store):
    chain = Chain("r")
    fill(writer, chain)
    lines = sealed(chain, 2)
    for _ in range(3):
        writer.append(lines, 1, sync=True)
    assert len(store.read("r").events) == 3
    with pytest.raises(StoreError, match="seq 3"):
        writer.append(sealed(Chain("r"), 1), 0, sync=True)
    fill(writer, chain)
    assert len(store.read("r").events) == 4


def test_a_batch_above_the_limit_is_written_in_parts(store, fs):
    chain = Chain("r")
    writer = store.open("r")
    count = MAX_BATCH // 1_000_000 + 2
    big = b'{"a":"' + b"x" * 1_000_000 + b'"}'
    lines = [chain.seal("t", None, "", big) for _ in range(count)]
    writes = fs.count("write")
    fs.fail("write", nth=2, errno=errno.ENOSPC)
    with pytest.raises(StoreError):
        writer.append(lines, 0, sync=True)
    assert content(store) == b""
    writer.append(lines, 0, sync=True)
    assert fs.count("write") - writes == 4
    assert len(store.read("r").events) == count
    writer.close()


class Interrupted(BaseException):
    """Stands for what a signal handler raises."""


class InterruptingFS(FS):
    """Raises once, just before or just after a call takes effect."""

    def __init__(self):
        self.armed = ""

    def write(self, fd, data):
        return self._around("write", lambda: super(InterruptingFS, self).write(fd, data))

    def sync(self, fd):
        return self._around("sync", lambda: super(InterruptingFS, self).sync(fd))

    def _around(self, name, call):
        armed, self.armed = self.armed, ""
        if armed == f"before {name}":
            raise Interrupted
        result = call()
        if armed == f"after {name}":
            raise Interrupted
        if armed not in ("", f"after {name}"):
            self.armed = armed
        return result


@pytest.mark.parametrize("moment", ["before write", "after write", "before sync", "after sync"])
@pytest.mark.parametrize("then", ["repeats", "writes something else", "goes on", "closes"])
def test_an_interrupted_append_leaves_neither_doubt_nor_duplicate(tmp_path, moment, then):
    fs = InterruptingFS()
    store = FileStore(tmp_path / "home", fs=fs)
    chain = Chain("r")
    writer = store.open("r")
    fill(writer, chain, 2)
    mark = chain.mark()
    lines = sealed(chain, 2)
    fs.armed = moment
    with pytest.raises(Interrupted):
        writer.append(lines, 2, sync=True)
    landed = moment != "before write"
    if then == "repeats":
        writer.append(lines, 2, sync=True)
    elif then == "writes something else":
        chain.rewind(mark)
        writer.append([chain.seal("other", None, "", b"{}")], 2, sync=True)
    elif then == "goes on" and landed:
        fill(writer, chain)
    elif then == "goes on":
        with pytest.raises(StoreError, match="the next event is seq 2"):
            fill(writer, chain)
    writer.close()
    expected = {"repeats": 4, "writes something else": 3, "goes on": 5 if landed else 2, "closes": 4 if landed else 2}
    events = store.read("r").events
    assert len(events) == expected[then]
    assert then != "writes something else" or events[2].type == "other"


@pytest.mark.parametrize("moment", ["before write", "after write"])
@pytest.mark.parametrize("stranger", ["behind it", "in its place"])
def test_a_stranger_during_an_interruption_ends_the_lease(tmp_path, moment, stranger):
    fs = InterruptingFS()
    store = FileStore(tmp_path / "home", fs=fs)
    chain = Chain("r")
    writer = store.open("r")
    fill(writer, chain)
    lines = sealed(chain)
    log = Path(store.path_of("r"))
    before = log.read_bytes()
    fs.armed = moment
    with pytest.raises(Interrupted):
        writer.append(lines, 1, sync=True)
    theirs = log.read_bytes() + b"x" if stranger == "behind it" else before + b"theirs\n"
    log.write_bytes(theirs)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            writer.append(lines, 1, sync=True)
    assert log.read_bytes() == theirs
    writer.close()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timer")
@pytest.mark.parametrize("durability, count", [("durable", 100), ("process", 1500)])
def test_a_storm_of_interrupts_makes_no_gap_and_no_duplicate(tmp_path, durability, count):
    armed = False  # a signal may be delivered late, when the append that it was meant for is over

    def interrupt(_signal, _frame):
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    store = FileStore(tmp_path / "home", durability=durability)
    writer = store.open("r")
    chain = Chain("r")
    interrupts = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for first in range(count):
            lines = sealed(chain)
            delay = 0.000001 * (1 + first % 20)
            while True:
                delay *= 1.5  # a sync may take longer than any fixed delay
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, delay)
                    writer.append(lines, first, sync=True)
                    armed = False
                except Interrupted:
                    interrupts += 1
                else:
                    break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    writer.close()
    assert interrupts > 50
    assert [event.seq for event in store.read("r").events] == list(range(count))


def test_a_storm_of_harmless_signals_loses_nothing(store):
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
    try:
        writer = store.open("r")
        chain = Chain("r")
        for _ in range(300):
            fill(writer, chain)
        writer.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(store.read("r").events) == 300


def test_an_append_inside_an_append_is_refused(tmp_path):
    class Reentrant(FS):
        action = None

        def write(self, fd, data):
            action, self.action = self.action, None
            if action:
                action()
            return super().write(fd, data)

    fs = Reentrant()
    store = FileStore(tmp_path / "home", fs=fs)
    writer = store.open("r")
    chain = Chain("r")
    refused = []

    def again():
        with pytest.raises(StoreError, match="another append") as caught:
            fill(writer, Chain("r"))
        refused.append(caught.value)

    def from_a_thread():
        thread = threading.Thread(target=again)
        thread.start()
        thread.join()

    for action in (again, from_a_thread):
        fs.action = action
        fill(writer, chain)
    assert len(refused) == 2
    assert len(store.read("r").events) == 2
    writer.close()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_sync_lowers_the_level_and_says_so(store, fs, caplog, code):
    writer = store.open("r")
    fs.fail("sync", errno=code, persistent=True)
    chain = Chain("r")
    with caplog.at_level(logging.WARNING):
        fill(writer, chain)
        fill(writer, chain)
    assert not writer.durable
    assert len([record for record in caplog.records if "cannot sync" in record.message]) == 1
    writer.close()
    assert len(store.read("r").events) == 2
