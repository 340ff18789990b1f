"""Many callers at once, in every colour and from the oddest places: nothing is lost, nothing hangs (rows 32 to 34)."""

from __future__ import annotations

import asyncio
import collections
import json
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

import steplog
from steplog._kernel.events import Event
from steplog._kernel.fold import RunState, fold
from steplog.stores.files import FileStore
from steplog.testing import FaultyFS
from tests.support.processes import environment
from tests.support.recorded import ROOT


def crowd(folder: Path, how: str) -> tuple[dict[str, int], list[Event]]:
    command = [sys.executable, str(ROOT / "tests/faults/programs/crowd.py"), how]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    # Reading verifies seals, numbers and chain.
    return json.loads(done.stdout), FileStore(folder / "home").read("r").events


def steps_of(log: list[Event]) -> dict[str, list[int]]:
    """The numbers of the steps that each caller began, in the order of the log."""
    callers: dict[str, list[int]] = collections.defaultdict(list)
    for event in log:
        if event.type == "step.started" and event.data["kind"] == "tool_call":
            callers[event.data["args"]["caller"]].append(event.data["args"]["number"])
    return callers


def check(counts: dict[str, int], log: list[Event]) -> None:
    assert counts["callers"] == 232
    callers = steps_of(log)
    assert all(numbers == sorted(numbers) for numbers in callers.values())
    assert collections.Counter(map(len, (callers[f"thread {n}"] for n in range(32)))) == {4: 32}
    assert collections.Counter(map(len, (callers[f"task {n}"] for n in range(200)))) == {2: 200}
    assert {step.status for step in fold(log).steps.values()} == {"done"}


def test_threads_tasks_signal_handlers_finalizers_and_log_handlers(tmp_path):
    counts, log = crowd(tmp_path, "signals")

    check(counts, log)
    for kind in ("signal handler", "finalizer", "log handler"):
        recorded = [event for event in log if event.data.get("target") == f"from {kind}"]
        assert len(recorded) == counts[kind] > 0
    assert len(steps_of(log)["main"]) == 40


def test_a_fork_while_others_append(tmp_path):
    counts, log = crowd(tmp_path, "fork")

    check(counts, log)
    assert counts["children refused"] == 8
    assert "child" not in steps_of(log)


@pytest.fixture
def fs() -> FaultyFS:
    return FaultyFS()


@pytest.fixture
def store(tmp_path: Path, fs: FaultyFS) -> FileStore:
    return FileStore(tmp_path / "home", fs=fs)


def test_a_sync_that_fails_fails_everybody_who_shares_it(store, fs, monkeypatch):
    """One thread's sync is held until the outcomes of all others are in line, and then the next sync fails."""
    effects: list[int] = []
    results: list[Any] = []
    holding, syncing, everybody_waits = threading.Event(), threading.Event(), threading.Event()
    real = FaultyFS.sync

    @steplog.step(mode="safe")
    def tool(number: int) -> int:
        effects.append(number)
        return number

    def held(self: FaultyFS, fd: int) -> None:
        if holding.is_set():
            syncing.set()
            everybody_waits.wait(60)
        real(self, fd)

    def work(number: int) -> None:
        try:
            results.append(tool(number))
        except BaseException as stopped:
            results.append(type(stopped).__name__)

    monkeypatch.setattr(FaultyFS, "sync", held)
    with pytest.raises(steplog.RunStopped) as stopped, steplog.run("r", store=store) as run:
        commit = run._open_recorder().journal._commit
        holding.set()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(9)]
        threads[0].start()
        # A leader alone may still be writing the intent, which shares the sync with whatever comes meanwhile.
        assert syncing.wait(60)
        for thread in threads[1:]:
            thread.start()
        while sum(entry.waiter is not None for entry in commit._pending) < 8:
            time.sleep(0.001)
        fs.fail("sync", nth=2)
        everybody_waits.set()
        for thread in threads:
            thread.join()
        syncs = fs.count("sync")
        work(9)
        assert fs.count("sync") == syncs, "nothing is synced after a sync that failed"

    assert stopped.value.reason == "log_failed"
    assert sorted(effects) == list(range(9))
    assert collections.Counter(map(str, results)) == {"0": 1, "LogFailed": 9}


# cancellation at every await ------------------------------------------------------------------------------------------


@types.coroutine
def cancelling(work: Coroutine[Any, Any, Any], at: int, *, late: bool) -> Generator[Any, Any, Any]:
    """Run a coroutine and cancel it at its n-th await: before what it waits for has come, or (`late`) just after."""
    step: Callable[[], Any] = lambda: work.send(None)  # noqa: E731  # the next move, which the last one decides
    for number in range(1_000):
        try:
            awaited = step()
        except StopIteration as stop:
            return stop.value
        if number == at and not late:
            step = lambda: work.throw(asyncio.CancelledError())  # noqa: E731
            continue
        yield awaited
        step = lambda: work.send(None)  # noqa: E731
        if number == at:
            step = lambda: work.throw(asyncio.CancelledError())  # noqa: E731
    raise AssertionError("it does not end")


async def one_step(home: Path, mode: str, at: int, *, late: bool) -> tuple[bool, list[int], RunState]:
    """Record a step that is cancelled at its n-th await; whether it was, the effects that began, and the log."""
    begun: list[int] = []

    @steplog.step(mode=mode)
    async def tool(number: int) -> int:
        begun.append(number)
        await asyncio.sleep(0)
        return number

    cancelled = False
    store = FileStore(home)
    async with steplog.run("r", store=store):
        try:
            assert await cancelling(tool(1), at, late=late) == 1
        except asyncio.CancelledError:
            cancelled = True
        # What was cancelled must not stand in the way of what comes next.
        assert await tool(2) == 2
    return cancelled, begun, fold(store.read("r").events)


@pytest.mark.parametrize("mode", ["safe", "unsafe"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
async def test_cancelled_at_any_await_a_step_is_in_the_log_as_what_became_of_it(mode, late, tmp_path):
    awaits = 0
    for at in range(20):
        cancelled, begun, state = await one_step(tmp_path / str(at), mode, at, late=late)
        first, second = state.steps.values()
        assert (second.status, begun[-1]) == ("done", 2)
        if not cancelled:
            assert (first.status, begun) == ("done", [1, 2])
            break
        awaits += 1
        if first.status == "skipped":
            assert begun == [2], "the log says that the effect has not begun"
        else:
            # Its outcome is open, or known and not seen by the caller; either way a resume knows that it was given up.
            assert begun == [1, 2]
            assert first.given_up is not None or first.status in ("pending", "indeterminate", "done")
            assert first.status != "done" or first.given_up is not None
    assert awaits >= (2 if mode == "safe" else 3)
    assert not cancelled
