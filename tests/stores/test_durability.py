"""The durability ladder: what each level does to the disk, what it survives, and that the log says which it is."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import threading

import pytest

import steplog
from steplog._kernel.line import Chain
from steplog.errors import InvalidArgument, StoreError, UnknownRun
from steplog.stores.base import DURABILITIES
from steplog.stores.files import FileStore
from steplog.testing import FaultyFS
from steplog.testing.contract import fill, named
from tests.faults.scenario import release

FILES = DURABILITIES[1:]


class Watched(FaultyFS):
    """Tells when the log has been synced."""

    def __init__(self):
        super().__init__()
        self.synced = threading.Event()

    def sync(self, fd):
        super().sync(fd)
        if self._paths[fd].endswith("events.jsonl"):
            self.synced.set()


class Noting(FaultyFS):
    """Notes what is synced: the log, or what was last written to the body store."""

    def __init__(self):
        super().__init__()
        self.synced = []

    def sync(self, fd):
        super().sync(fd)
        self.synced.append({"events.jsonl": "log", "bodies.db-wal": "bodies"}[os.path.basename(self._paths[fd])])


@pytest.fixture
def opened(tmp_path):
    """Begin a run at a level, with three events; returns its store, its file layer, its writer and its chain."""

    def begin(level, fs=None):
        fs = fs or FaultyFS()
        store = FileStore(tmp_path / level, durability=level, fs=fs)
        writer = store.open("r")
        chain = Chain("r")
        fill(writer, chain, 3)
        return store, fs, writer, chain

    yield begin
    release(FileStore(tmp_path))


def left(store):
    """How many events are left."""
    try:
        return len(FileStore(store.home).read("r").events)
    except UnknownRun:
        return 0


@pytest.mark.parametrize("level, survives", [("process", 0), ("interval", 0), ("durable", 3), ("durable-full", 3)])
def test_what_a_loss_of_power_at_once_leaves(opened, level, survives):
    store, fs, _, _ = opened(level)
    fs.lose_power()
    assert left(store) == survives


@pytest.mark.parametrize("level", FILES)
def test_every_level_of_files_survives_the_death_of_the_process(opened, level):
    store, _, _, _ = opened(level)
    assert left(store) == 3


def test_an_interval_is_synced_by_flush_and_loses_what_came_later(opened):
    store, fs, writer, chain = opened("interval")
    assert writer.interval == store.sync_interval == 0.1
    assert fs.count("sync") == 0
    writer.flush()
    writer.flush()
    assert fs.count("sync") == 1
    fill(writer, chain)
    fs.lose_power()
    assert left(store) == 3


def test_a_new_interval_log_has_its_names_synced(opened):
    store, fs, writer, _ = opened("interval")
    writer.flush()
    fs.lose_power()
    assert left(store) == 3


@pytest.mark.parametrize("level", ["interval", "durable"])
def test_a_run_that_was_begun_at_a_lower_level_becomes_as_durable_as_it_is_resumed(opened, level):
    store, fs, writer, chain = opened("process")
    writer.close()
    writer = FileStore(store.home, durability=level, fs=fs).open("r")
    fill(writer, chain)
    writer.flush()
    fs.lose_power()
    assert left(store) == 4


@pytest.mark.parametrize("level, syncs", [("process", []), ("interval", ["bodies"]), ("durable", ["bodies", "log"])])
def test_bodies_that_a_killed_process_left_unsynced_are_synced_before_the_log_that_names_them(tmp_path, level, syncs):
    """Its run goes on where it was; what it only wrote must outlive the machine from here on."""
    program = (
        "import os, sys, steplog\n"
        "steplog.install(home=sys.argv[1], interceptors=(), durability='process')\n"
        "with steplog.run('r'):\n"
        "    steplog.step('big', lambda: 'x' * 9000)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], check=False)
    fs = Noting()
    writer = FileStore(tmp_path, durability=level, fs=fs).open("r")
    assert fs.synced == syncs
    writer.close()


def test_durable_full_syncs_everything_of_the_file_and_durable_its_bytes(opened, monkeypatch):
    asked = []
    monkeypatch.setattr("os.fsync", lambda fd: asked.append("whole"))
    monkeypatch.setattr("os.fdatasync", lambda fd: asked.append("bytes"))
    opened("durable")
    assert asked[-1] == "bytes"
    opened("durable-full")
    assert asked[-1] == "whole"


def test_durable_full_takes_nothing_less(opened):
    fs = FaultyFS()
    fs.fail("sync", errno=errno.ENOTSUP, persistent=True)
    with pytest.raises(StoreError, match="durable-full takes nothing less"):
        opened("durable-full", fs)


@pytest.mark.parametrize("level, pragma", [("process", 1), ("interval", 1), ("durable", 2), ("durable-full", 3)])
def test_bodies_are_as_durable_as_their_run(tmp_path, level, pragma):
    bodies = FileStore(tmp_path, durability=level).bodies
    bodies.put([named(b"x" * 5000)], sync=level != "interval")
    assert bodies.database.connect().execute("PRAGMA synchronous").fetchone() == (pragma,)
    bodies.close()
    assert sqlite3.sqlite_version_info > (3, 30)


@pytest.mark.parametrize("level, asked", [("process", 0), ("interval", 1), ("durable", 1), ("durable-full", 1)])
def test_sqlite_is_asked_for_a_full_sync(tmp_path, level, asked):
    bodies = FileStore(tmp_path, durability=level).bodies
    db = bodies.database.connect()
    assert db.execute("PRAGMA fullfsync").fetchone() == db.execute("PRAGMA checkpoint_fullfsync").fetchone() == (asked,)
    bodies.close()


@pytest.mark.parametrize("level", ["memory", "fast", ""])
def test_files_have_no_other_levels(tmp_path, level):
    with pytest.raises(InvalidArgument, match="process, interval, durable, durable-full"):
        FileStore(tmp_path, durability=level)


@pytest.fixture
def installed():
    yield lambda **settings: steplog.install(interceptors=(), **settings)
    steplog.uninstall()


def test_at_level_interval_a_run_is_synced_while_it_goes_on_and_when_it_ends(tmp_path, installed):
    fs = Watched()
    store = FileStore(tmp_path, durability="interval", sync_interval=0.01, fs=fs)
    installed(store=store)
    with steplog.run("r"):
        steplog.step("big", lambda: "x" * 9000)
        assert fs.synced.wait(30), "nobody synced the log"
    fs.lose_power()
    assert store.read("r").events[-1].type == "run.ended"


def test_a_sync_that_fails_between_two_steps_halts_the_run_at_the_second(tmp_path, installed):
    fs = Watched()
    installed(store=FileStore(tmp_path, durability="interval", sync_interval=0.01, fs=fs))
    done = []
    failed = threading.Event()
    sync = fs.sync

    def failing(fd):
        try:
            sync(fd)
        except OSError:
            failed.set()
            raise

    fs.sync = failing
    fs.fail("sync", errno=errno.EIO)
    with pytest.raises(steplog.RunStopped) as stopped, steplog.run("r"):
        steplog.step("one", lambda: done.append(1))
        assert failed.wait(30)
        while True:
            steplog.step("more", lambda: done.append(2))
    assert stopped.value.reason == "log_failed"
    assert fs.count("sync") == 1, "a sync was tried again after one had failed"


@pytest.mark.parametrize("level", FILES)
def test_the_level_in_force_is_in_the_log(tmp_path, installed, level):
    installed(home=tmp_path, durability=level)
    with steplog.run("r"):
        pass
    created, claimed, *_ = FileStore(tmp_path).read("r").events
    assert (created.data["durability"], claimed.data["durability"]) == (level, level)


def test_a_level_that_a_file_system_cannot_keep_is_lowered_in_the_log(tmp_path, installed, caplog):
    fs = FaultyFS()
    fs.fail("sync", errno=errno.EINVAL, persistent=True)
    store = FileStore(tmp_path, fs=fs)
    installed(store=store)
    for _ in range(2):
        with steplog.run("r"):
            steplog.step("one", lambda: 1)
    weakened = [event.data for event in store.read("r").events if event.type == "log.weakened"]
    why = {"asked": "durable", "level": "process", "why": "its file system cannot sync"}
    assert weakened == [why, why], "once for each process that opened it"
    assert "cannot sync" in caplog.text


def test_at_level_memory_nothing_is_written_and_a_run_can_be_resumed_until_the_process_ends(tmp_path, installed):
    home = tmp_path / "none"
    installed(home=home, durability="memory")
    calls = []
    for _ in range(2):
        with steplog.run("r") as run:
            steplog.step("one", lambda: calls.append(1))
    assert calls == [1]
    assert run.state.created["durability"] == "memory"
    assert not home.exists()
    steplog.uninstall()
    installed(home=home, durability="memory")
    with steplog.run("r") as run:
        assert not run.resumed


@pytest.mark.parametrize("wrong", [0, -1, "soon", float("nan"), 1e9])
def test_an_interval_is_a_number_of_seconds(installed, wrong):
    with pytest.raises(InvalidArgument, match="sync_interval"):
        installed(durability="interval", sync_interval=wrong)


def test_the_environment_names_level_and_interval(installed, monkeypatch, tmp_path):
    monkeypatch.setenv("STEPLOG_DURABILITY", "interval")
    monkeypatch.setenv("STEPLOG_SYNC_INTERVAL", "0.5")
    installed(home=tmp_path)
    with steplog.run("r") as run:
        assert run._store.sync_interval == 0.5


def test_a_last_sync_that_fails_is_told_and_the_run_is_free(tmp_path, installed):
    fs = FaultyFS()
    installed(store=FileStore(tmp_path, durability="interval", sync_interval=3600, fs=fs))
    fs.fail("sync", errno=errno.EIO)
    with pytest.raises(StoreError, match="cannot make the log durable"), steplog.run("r"):
        steplog.step("one", lambda: 1)
    assert fs.fired == 1
    assert FileStore(tmp_path).holder("r") is None
    assert FileStore(tmp_path).read("r").events[-1].type == "run.ended"
