"""P4 and P10: no side effect slips past the log, and a program that takes another way does not do both."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import steplog
from steplog._runtime.door import PROCESS
from steplog.errors import NotInRun
from tests.support.processes import environment

effects: list[object] = []


@steplog.step
def pay(what: object) -> object:
    effects.append(what)
    return what


@steplog.step
async def apay(what: object, delay: float = 0.0) -> object:
    await asyncio.sleep(delay)
    effects.append(what)
    return what


@steplog.step(mode="safe")
def look(what: object) -> object:
    effects.append(what)
    return what


@pytest.fixture(autouse=True)
def _fresh():
    effects.clear()


class Crash(BaseException):
    """Leaves a run the way a dead process does."""


# workers that outlive or lose their run


async def test_a_branch_that_outlives_its_failed_run_does_nothing_more():
    refused = []

    async def slow():
        await asyncio.sleep(0.05)
        try:
            await apay("late")
        except NotInRun as error:
            refused.append(str(error))

    async def fails():
        raise OSError("outage")

    tasks = []
    with pytest.raises(OSError, match="outage"):
        async with steplog.run("r"):
            tasks = [asyncio.create_task(slow()), asyncio.create_task(fails())]
            await asyncio.gather(*tasks)
    await asyncio.gather(*tasks, return_exceptions=True)

    assert effects == []
    assert "which is over" in refused[0]


async def test_a_branch_that_outlives_its_halted_run_gets_the_interrupt():
    seen = []

    async def slow():
        await asyncio.sleep(0.3)
        try:
            await apay("late")
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    task = None
    with pytest.raises(steplog.RunStopped):
        async with steplog.run("r"):
            task = asyncio.create_task(slow())
            await asyncio.sleep(0)
            steplog.step("cannot be recorded", object)
    await asyncio.gather(task, return_exceptions=True)

    assert seen == ["Unreplayable"]
    assert effects == []


@pytest.fixture
def old_worker():
    """A thread that is older than every run and takes its work from a queue, past the executor that steplog patches."""
    work, results = queue.Queue(), queue.Queue()

    def serve():
        while (job := work.get()) is not None:
            try:
                results.put(job())
            except BaseException as error:
                results.put(error)

    thread = threading.Thread(target=serve)
    thread.start()
    yield lambda job: (work.put(job), results.get(timeout=10))[1]
    work.put(None)
    thread.join(10)


def test_a_side_effect_in_a_worker_that_lost_its_run_is_refused(old_worker, caplog):
    with steplog.run("r"):
        refused = old_worker(lambda: pay("lost"))
        assert old_worker(lambda: look("read")) == "read"

    assert isinstance(refused, NotInRun)
    assert "open: r" in str(refused)
    assert effects == ["read"]
    assert "lost its run" in caplog.text
    assert old_worker(lambda: pay("no run at all")) == "no run at all"


def test_a_lost_call_while_recorded_results_are_returned_is_refused(old_worker):
    """P6: it may be one of those that were recorded, and then it would be made again."""
    with steplog.run("r"):
        pay("first")
        look("second")
    effects.clear()

    with steplog.run("r"):
        pay("first")
        refused = old_worker(lambda: look("second"))
        assert look("second") == "second"
        assert old_worker(lambda: look("third")) == "third"

    assert isinstance(refused, NotInRun)
    assert "recorded results" in str(refused)
    assert effects == ["third"]


def test_threads_belong_to_the_run_without_install(tmp_path, monkeypatch):
    steplog.uninstall()
    monkeypatch.setenv("STEPLOG_HOME", str(tmp_path / "home"))
    for _ in range(2):
        with steplog.run("r"), ThreadPoolExecutor(2) as pool:
            assert list(pool.map(pay, range(4))) == [0, 1, 2, 3]

    assert sorted(effects) == [0, 1, 2, 3]


def test_a_worker_process_does_no_side_effect_unrecorded(tmp_path):
    program = """
import multiprocessing, steplog

@steplog.step
def pay(x):
    open("effects", "a").write("paid")

if __name__ == "__main__":
    steplog.install(interceptors=[])
    with steplog.run("r"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            try:
                pool.map(pay, [1])
            except steplog.NotInRun as error:
                print("refused:", "process" in str(error))
"""
    (tmp_path / "agent.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "agent.py"],
        cwd=tmp_path,
        env=environment(STEPLOG_HOME=str(tmp_path / "home")),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stdout == "refused: True\n"
    assert not (tmp_path / "effects").exists()


# a program that takes another way


def test_a_side_effect_elsewhere_in_the_run_is_asked_for_before_a_new_one(monkeypatch):
    monkeypatch.setattr(PROCESS, "settings", replace(PROCESS.settings, drift_grace=0.1))

    def agent(*, first):
        look("start")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: (look("branch"), pay("order from the branch") if first else None)).result()
        if first:
            raise Crash
        pay("order from the trunk")

    with pytest.raises(Crash), steplog.run("r"):
        agent(first=True)
    with pytest.raises(steplog.RunStopped, match="order from the branch") as caught, steplog.run("r"):
        agent(first=False)

    assert caught.value.reason == "drift"
    assert "order from the trunk" not in effects


def test_what_a_changed_outer_step_would_do_again_is_drift():
    @steplog.step(mode="safe")
    def sub_agent(day):
        pay("inner")
        if day == 1:
            raise Crash

    with pytest.raises(Crash), steplog.run("r"):
        sub_agent(1)
    with pytest.raises(steplog.RunStopped) as caught, steplog.run("r"):
        sub_agent(2)

    assert caught.value.reason == "drift"
    assert effects == ["inner"]


def test_a_retry_that_does_something_else_inside_is_drift():
    tokens = iter(["first", "second"])

    @steplog.step(mode="safe", retries=1, backoff=0.001)
    def outer():
        pay(next(tokens))
        raise OSError

    with pytest.raises(steplog.RunStopped) as caught, steplog.run("r"):
        outer()

    assert caught.value.reason == "drift"
    assert effects == ["first"]


async def test_a_branch_that_sleeps_on_its_way_is_waited_for(monkeypatch, caplog):
    monkeypatch.setattr(PROCESS, "settings", replace(PROCESS.settings, drift_grace=0.1))

    async def sleeper():
        await asyncio.sleep(0.5)
        await apay("after a sleep")

    async def agent(*, crash):
        async with steplog.run("r"):
            branch = asyncio.create_task(sleeper())
            if crash:
                await branch
                raise Crash
            await apay("new")
            await branch

    with pytest.raises(Crash):
        await agent(crash=True)
    await agent(crash=False)

    assert effects == ["after a sleep", "new"]


async def test_a_step_that_was_given_up_between_two_attempts_is_given_up_again():
    @steplog.step(retries=3, backoff=5)
    async def primary():
        effects.append("primary")
        if not healthy:
            raise ConnectionError

    async def agent():
        async with steplog.run("r"):
            try:
                await asyncio.wait_for(primary(), 0.2)
            except TimeoutError:
                await apay("backup")

    healthy = False
    await agent()
    healthy = True
    await agent()

    assert effects == ["primary", "backup"]


async def test_a_call_that_was_given_up_and_made_again_keeps_its_turn():
    async def agent():
        async with steplog.run("r"):
            seen = []
            for patience in (0.05, 5):
                try:
                    seen.append(await asyncio.wait_for(apay("x", 0.1), patience))
                except TimeoutError:
                    seen.append("gave up")
            return seen

    assert await agent() == ["gave up", "x"]
    assert await agent() == ["gave up", "x"]
    assert effects == ["x"]


async def test_an_outcome_that_the_program_never_saw_is_not_shown_to_it_later(monkeypatch):
    from steplog.stores.writer import FileWriter

    real, done = FileWriter.append, threading.Event()

    def slow(self, lines, first_seq, *, sync):
        if slow_down and any(b'"step.finished"' in line for line in lines):
            done.wait(0.4)
        return real(self, lines, first_seq, sync=sync)

    async def agent():
        async with steplog.run("r"):
            try:
                await asyncio.wait_for(apay("reserve"), 0.2)
                return await apay("ship now")
            except TimeoutError:
                return await apay("ship later")

    monkeypatch.setattr(FileWriter, "append", slow)
    slow_down = True
    assert await agent() == "ship later"
    slow_down = False
    assert await agent() == "ship later"

    assert effects == ["reserve", "ship later"]


def test_a_fallback_that_was_done_is_not_joined_by_what_it_stood_in_for():
    @steplog.step
    def primary():
        effects.append("primary")
        if not healthy:
            raise OSError("down")

    def agent():
        with steplog.run("r"):
            try:
                primary()
            except OSError as problem:
                pay("backup")
                raise RuntimeError("report failed") from problem

    healthy = False
    with pytest.raises(RuntimeError):
        agent()
    healthy = True
    with pytest.raises(RuntimeError):
        agent()

    assert effects == ["primary", "backup"]


def test_a_failed_step_is_tried_again_when_a_person_says_so():
    from steplog._runtime.resolve import resolve
    from steplog._runtime.settings import open_store

    @steplog.step
    def primary():
        effects.append("primary")
        if len(effects) == 1:
            raise OSError("down")
        return "up"

    with steplog.run("r") as run:
        with contextlib.suppress(OSError):
            primary()
        (step,) = run.state.steps
        run.escalate("primary is down")
    resolve(open_store(PROCESS.settings), "r", step, how="retry")
    with steplog.run("r"):
        assert primary() == "up"
    with steplog.run("r"):
        assert primary() == "up"

    assert effects == ["primary", "primary"]


async def test_a_committer_that_cannot_start_fails_the_step_and_hangs_nothing(monkeypatch):
    start = threading.Thread.start

    def refuse(self):
        if self.name.startswith("steplog-commit"):
            raise RuntimeError("can't start new thread")
        start(self)

    async with steplog.run("r"):
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            await asyncio.wait_for(apay("a"), 5)
        monkeypatch.setattr(threading.Thread, "start", start)
        assert await asyncio.wait_for(apay("b"), 5) == "b"
