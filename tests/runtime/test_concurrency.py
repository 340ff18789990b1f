"""P8: threads, tasks, gather, pools and executors record completely, each call once, and replay to the same answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest

import steplog
from steplog import plugins

calls: list[object] = []


@steplog.step
def tool(x: int) -> int:
    calls.append(x)
    time.sleep(random.random() / 500)
    return x * x


@steplog.step
async def aio(x: int) -> int:
    calls.append(x)
    await asyncio.sleep(random.random() / 500)
    return x * x


@pytest.fixture(autouse=True)
def _fresh():
    calls.clear()


def both(agent):
    """Record, then resume; the answers must agree and nothing may run twice."""
    with steplog.run("r") as run:
        first = agent()
        assert run.replayed == 0
    executed = len(calls)
    with steplog.run("r") as run:
        assert agent() == first
        assert run.executed == 0
    assert len(calls) == executed
    return first


def test_a_thread_pool():
    def agent():
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(tool, range(200)))

    assert both(agent) == [x * x for x in range(200)]


def test_a_pool_that_is_older_than_the_run_and_serves_several():
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(time.sleep, [0.01] * 4))
        assert both(lambda: sorted(f.result() for f in as_completed([pool.submit(tool, x) for x in range(20)]))) == [
            x * x for x in range(20)
        ]
        with steplog.run("other") as run:
            assert pool.submit(tool, 3).result() == 9
            assert run.executed == 1


def test_plain_threads_and_their_subclasses():
    class Worker(threading.Thread):
        def __init__(self, x):
            super().__init__()
            self.x = x

        def run(self):
            self.result = tool(self.x)

    def agent():
        workers = [Worker(x) for x in range(8)]
        results = []
        plain = [threading.Thread(target=lambda x=x: results.append(tool(x))) for x in range(8, 12)]
        for thread in (*workers, *plain):
            thread.start()
        for thread in (*workers, *plain):
            thread.join()
        return [worker.result for worker in workers] + sorted(results)

    assert both(agent) == [x * x for x in range(12)]


def test_gather_and_tasks_of_several_loops():
    async def main():
        return await asyncio.gather(*(aio(x) for x in range(100)), asyncio.to_thread(tool, 500))

    assert both(lambda: asyncio.run(main())) == [*(x * x for x in range(100)), 250_000]


def test_run_in_executor():
    async def main():
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(None, tool, x) for x in range(20)))

    assert both(lambda: asyncio.run(main())) == [x * x for x in range(20)]


def test_identical_concurrent_calls_are_each_a_step(state_of):
    async def main():
        return await asyncio.gather(*(aio(7) for _ in range(10)))

    assert both(lambda: asyncio.run(main())) == [49] * 10
    assert len(state_of("r").steps) == 10
    assert sorted(step.occurrence for step in state_of("r").steps.values()) == list(range(10))


async def test_identical_calls_of_branches_stay_with_their_branch():
    """Each branch draws a number and acts on it; on a resume the branches come in another order."""
    drawn = itertools.count()

    async def branch(name):
        await aio(ord(name))
        number = steplog.step("draw", lambda: next(drawn))
        return name, number, await aio(100 + number)

    async def agent(*names):
        turns = asyncio.Semaphore(1)

        async def in_turn(name):
            async with turns:
                return await branch(name)

        return sorted(await asyncio.gather(*map(in_turn, names)))

    async with steplog.run("r"):
        first = await agent("a", "b", "c")
    async with steplog.run("r") as run:
        assert await agent("c", "a", "b") == first
        assert run.executed == 0
    assert [number for _, number, _ in first] == [0, 1, 2]


def test_nested_sub_agents_in_branches():
    @steplog.step(mode="safe")
    async def sub_agent(name):
        return [name, await aio(1), await aio(2)]

    async def main():
        return await asyncio.gather(*(sub_agent(name) for name in "abcd"))

    assert both(lambda: asyncio.run(main())) == [[name, 1, 4] for name in "abcd"]


async def test_two_runs_at_once_in_one_loop():
    async def agent(run_id, base):
        async with steplog.run(run_id) as run:
            result = await asyncio.gather(*(aio(base + x) for x in range(20)))
            return result, run.executed

    first = await asyncio.gather(agent("a", 0), agent("b", 100))
    second = await asyncio.gather(agent("a", 0), agent("b", 100))

    assert [result for result, _ in first] == [result for result, _ in second]
    assert [executed for _, executed in (*first, *second)] == [20, 20, 0, 0]


async def test_the_event_loop_goes_on_while_the_log_is_synced(monkeypatch):
    """A disk that takes long must delay the step, not the other tasks."""
    from steplog.stores.writer import FileWriter

    real = FileWriter.append

    def slow(self, lines, first_seq, *, sync):
        if sync:
            time.sleep(0.2)
        return real(self, lines, first_seq, sync=sync)

    ticks = []

    async def clock():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.005)

    async with steplog.run("r"):
        monkeypatch.setattr(FileWriter, "append", slow)
        ticking = asyncio.create_task(clock())
        await asyncio.gather(aio(1), aio(2), aio(3))
        monkeypatch.setattr(FileWriter, "append", real)
        ticking.cancel()

    assert max(later - earlier for earlier, later in itertools.pairwise(ticks)) < 0.15


async def test_a_safe_step_whose_intent_is_still_in_line_is_under_way_and_can_be_doubted():
    with pytest.raises(steplog.RunStopped, match="nobody knows"):
        async with steplog.run("r") as run:
            ticket = await plugins.begin_async(plugins.Call("llm_call", "m", {"ask": 1}, "safe"))
            assert [step.id for step in run.under_way] == [ticket.step]
            other = await plugins.begin_async(plugins.Call("llm_call", "m", {"ask": 2}, "safe"))
            raise other.doubt("nobody knows")


async def test_cancelled_while_its_intent_is_written_a_step_has_not_begun(monkeypatch, state_of):
    from steplog.stores.writer import FileWriter

    real, entered = FileWriter.append, threading.Event()

    def slow(self, lines, first_seq, *, sync):
        entered.set()
        time.sleep(0.2)
        return real(self, lines, first_seq, sync=sync)

    async with steplog.run("r"):
        monkeypatch.setattr(FileWriter, "append", slow)
        task = asyncio.create_task(aio(1))
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.setattr(FileWriter, "append", real)
        assert calls == []

    (step,) = state_of("r").steps.values()
    assert step.status == "skipped"


async def test_a_cancelled_effect_is_in_doubt():
    @steplog.step
    async def slow():
        limit.reschedule(asyncio.get_running_loop().time())
        await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        async with steplog.run("r"), asyncio.timeout(None) as limit:
            await slow()
    with pytest.raises(steplog.RunStopped) as caught:
        async with steplog.run("r"):
            await slow()

    assert caught.value.reason == "indeterminate"


async def test_what_the_program_gave_up_is_given_up_again():
    begun = []

    @steplog.step
    async def slow(seconds):
        begun.append(seconds)
        await asyncio.sleep(seconds)

    async def agent():
        async with steplog.run("r") as run:
            try:
                await asyncio.wait_for(slow(0.4), 0.05)
            except TimeoutError:
                return await tool_after(), run.executed

    @steplog.step
    async def tool_after():
        return "fallback"

    assert await agent() == ("fallback", 2)
    assert await agent() == ("fallback", 0)
    assert begun == [0.4]


async def test_a_step_that_was_given_up_and_is_waited_for_now_halts(monkeypatch):
    monkeypatch.setattr("steplog._runtime.settle._FORSAKEN_SECONDS", 0.1)

    @steplog.step
    async def slow():
        await asyncio.sleep(0.3)

    async def agent(patience):
        async with steplog.run("r"):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(slow(), patience)
            steplog.step("on", lambda: 1)

    await agent(0.05)
    with pytest.raises(steplog.RunStopped, match="keeps waiting"):
        await agent(None)


def test_a_signal_handler_that_records_in_the_middle_of_an_append_is_refused_not_deadlocked():
    refused, recorded, inside = [], [], []

    def handler(*_):
        if inside:
            return
        inside.append(1)
        try:
            recorded.append(steplog.step("from handler", lambda: 1))
        except steplog.StoreError as error:
            refused.append(error)
        finally:
            inside.clear()

    previous = signal.signal(signal.SIGALRM, handler)
    try:
        with steplog.run("r") as run:
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            for x in range(20_000):
                steplog.step(f"s{x}", lambda: 1)
                if refused and recorded and x > 100:
                    break
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert run.executed == x + 1 + len(recorded)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

    assert refused
    assert recorded
    assert all("signal handler" in str(error) for error in refused)
