"""P8: replayed results of concurrent steps come back in the order in which they came back when they were recorded."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest

import steplog
from steplog._runtime import turns

DELAYS = {"slow": 0.12, "middle": 0.06, "fast": 0.0}


@steplog.step(mode="safe")
async def ask(name: str) -> str:
    await asyncio.sleep(DELAYS[name])
    return name


@steplog.step(mode="safe")
def ask_plainly(name: str) -> str:
    time.sleep(DELAYS[name])
    return name


def twice(agent):
    first = agent()
    started = time.monotonic()
    again = agent()
    return first, again, time.monotonic() - started


def test_tasks_as_they_are_completed():
    async def main():
        async with steplog.run("r"):
            return [await each for each in asyncio.as_completed([ask(name) for name in DELAYS])]

    first, again, _ = twice(lambda: asyncio.run(main()))

    assert first == again == ["fast", "middle", "slow"]


def test_the_first_of_several_tasks():
    async def main():
        async with steplog.run("r"):
            tasks = {asyncio.create_task(ask(name)) for name in DELAYS}
            order = []
            while tasks:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                order.append(sorted(task.result() for task in done))
            return order

    first, again, _ = twice(lambda: asyncio.run(main()))

    assert first == again == [["fast"], ["middle"], ["slow"]]


@pytest.mark.parametrize("times", range(5))
def test_futures_of_a_pool_as_they_are_completed(times):
    def agent():
        with steplog.run("r"), ThreadPoolExecutor(3) as pool:
            return [future.result() for future in as_completed([pool.submit(ask_plainly, name) for name in DELAYS])]

    first, again, _ = twice(agent)

    assert first == again == ["fast", "middle", "slow"]


def test_results_in_a_queue():
    def agent():
        results = queue.Queue()
        with steplog.run("r"):
            threads = [threading.Thread(target=lambda name=name: results.put(ask_plainly(name))) for name in DELAYS]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return [results.get() for _ in DELAYS]

    first, again, _ = twice(agent)

    assert first == again == ["fast", "middle", "slow"]


def late(order, *, resumed):
    """A step and the one around it that it ends, in two branches; the first takes a while to use what it got."""
    begun, ended, has_result = threading.Event(), threading.Event(), threading.Event()

    @steplog.step(mode="safe")
    def around():
        begun.set()
        ended.wait(10)
        return "around"

    def one():
        if not resumed:
            begun.wait(10)
        name = ask_plainly("fast")
        ended.set()
        has_result.set()
        if resumed:
            time.sleep(0.2)
        order.append(name)

    def other():
        if resumed:
            has_result.wait(10)
        order.append(around())

    return one, other


def test_who_asks_late_waits_until_the_result_before_its_own_is_used(monkeypatch):
    """It asks when the other thread has its result already, and has not put it into the queue."""
    monkeypatch.setattr(turns, "_USE_SECONDS", 30)

    def agent(*, resumed):
        order = []
        with steplog.run("r") as run:
            threads = [threading.Thread(target=each) for each in late(order, resumed=resumed)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert run.replayed == (2 if resumed else 0)
        return order

    assert agent(resumed=False) == agent(resumed=True) == ["fast", "around"]


def test_a_task_waits_until_a_worker_has_used_the_result_before_its_own(monkeypatch):
    monkeypatch.setattr(turns, "_USE_SECONDS", 2)

    async def main(*, resumed):
        order = []

        def work():
            name = ask_plainly("fast")
            if resumed:
                time.sleep(0.05)
            order.append(name)

        async def task():
            order.append(await ask("slow"))

        async with steplog.run("r"):
            await asyncio.gather(task(), asyncio.to_thread(work))
        return order

    assert asyncio.run(main(resumed=False)) == asyncio.run(main(resumed=True)) == ["fast", "slow"]


def test_a_long_branch_beside_a_sequence():
    async def main():
        order = []

        async def branch(*names):
            for name in names:
                order.append(await ask(name))

        async with steplog.run("r"):
            await asyncio.gather(branch("slow"), branch("fast", "middle"))
        return order

    first, again, _ = twice(lambda: asyncio.run(main()))

    assert first == again == ["fast", "middle", "slow"]


def test_inner_steps_of_a_returned_step_are_waited_for_by_nobody():
    @steplog.step(mode="safe")
    async def sub_agent():
        return [await ask("fast"), await ask("middle")]

    async def main():
        async with steplog.run("r"):
            return [await each for each in asyncio.as_completed([ask("slow"), sub_agent()])]

    first, again, seconds = twice(lambda: asyncio.run(main()))

    assert first == again == [["fast", "middle"], "slow"]
    assert seconds < 2


def test_order_is_never_worth_a_deadlock(caplog):
    """A plain call in an event loop cannot wait for a task of that loop; a branch may be gone altogether."""

    async def main(*, changed):
        async with steplog.run("r", on_drift="run"):
            fast = asyncio.create_task(ask("fast"))
            if changed:
                fast.cancel()
                return ask_plainly("slow"), await ask("middle")
            middle = asyncio.create_task(ask("middle"))
            slow = await asyncio.to_thread(ask_plainly, "slow")
            await fast
            return slow, await middle

    assert asyncio.run(main(changed=False)) == ("slow", "middle")
    started = time.monotonic()
    assert asyncio.run(main(changed=True)) == ("slow", "middle")
    assert time.monotonic() - started < 5


def test_many_results_in_reverse():
    @steplog.step(mode="safe")
    async def ask_number(number):
        await asyncio.sleep((300 - number) / 2000)
        return number

    async def main():
        async with steplog.run("r"):
            return [await each for each in asyncio.as_completed([ask_number(number) for number in range(300)])]

    first, again, seconds = twice(lambda: asyncio.run(main()))

    assert first == again
    assert seconds < 10


def test_a_handler_that_asks_for_a_step_while_its_thread_takes_a_turn_is_not_deadlocked(monkeypatch):
    """It comes at every line of taking a turn, waiting and waking, and asks for the very step that is waited for."""
    monkeypatch.setattr(turns, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(turns, "_USE_SECONDS", 0.001)
    begun, ended = threading.Event(), threading.Event()

    @steplog.step(mode="safe")
    def around():
        begun.set()
        ended.wait()

    def beside():
        begun.wait()
        ask_plainly("fast")
        ended.set()

    def interrupted_at(line):
        lines = 0

        def trace(frame, event, _arg):
            nonlocal lines
            if frame.f_code.co_filename not in (turns.__file__, threading.__file__):
                return None
            lines += event == "line"
            if event == "line" and lines == line:
                ask_plainly("fast")
            return trace

        with steplog.run("r", durability="process") as run:
            sys.settrace(trace)
            try:
                around()
            finally:
                sys.settrace(None)
            assert run.replayed == (2 if lines >= line else 1)
        return lines

    def everywhere():
        line = 1
        while interrupted_at(line) >= line:
            line += 1
        tried.append(line)

    with steplog.run("r"):
        other = threading.Thread(target=beside)
        other.start()
        around()
        other.join()
    tried = []
    worker = threading.Thread(target=everywhere, daemon=True)
    worker.start()
    worker.join(30)
    assert tried
    assert tried[0] > 20
