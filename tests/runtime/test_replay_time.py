"""Time in a replay: nobody waits, and what came first still comes first."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import steplog

# Of pauses that a program makes. A test that really made them would not end.
AGE = 1000.0

real = time.monotonic, time.sleep


@steplog.step
def note(text: str) -> str:
    return f"noted {text}"


def seconds(recording: bool) -> float:
    """How long a unit of time is: hardly anything when it is recorded, for ever when it is replayed."""
    return 0.02 if recording else AGE


def both(program: Callable[[float], Any]) -> tuple[Any, Any, steplog.Replay]:
    """What a program gives when it is recorded and replayed, with pauses that matter only there."""
    with steplog.run("r"):
        recorded = program(seconds(recording=True))
    with steplog.replay("r") as replayed, steplog.run("r"):
        again = program(seconds(recording=False))
    return recorded, again, replayed


def test_pauses_are_not_made():
    def program(unit: float) -> float:
        began = time.monotonic()
        note("a")
        time.sleep(unit)
        note("b")
        return (time.monotonic() - began) / unit

    recorded, again, replayed = both(program)

    assert replayed.identical
    assert recorded >= 1
    assert 1 <= again < 2  # the program's own clock has moved on


def test_tasks_wake_in_their_order():
    def program(unit: float) -> list[str]:
        told: list[str] = []

        async def one(name: str, pauses: int) -> None:
            await asyncio.sleep(pauses * unit)
            told.append(note(name))

        async def main() -> None:
            await asyncio.gather(*(one(f"t{n}", n) for n in (3, 1, 2)))

        asyncio.run(main())
        return told

    recorded, again, replayed = both(program)

    assert again == recorded == ["noted t1", "noted t2", "noted t3"]
    assert replayed.identical


def test_threads_wake_in_their_order():
    def program(unit: float) -> list[str]:
        told: list[str] = []

        def one(n: int) -> None:
            time.sleep(n * unit)
            told.append(note(f"t{n}"))

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(one, (3, 1, 2)))
        return told

    recorded, again, replayed = both(program)

    assert again == recorded == ["noted t1", "noted t2", "noted t3"]
    assert replayed.identical


def test_a_timeout_of_a_task_fires_where_it_did():
    def program(unit: float) -> list[str]:
        async def main() -> list[str]:
            told = []
            for pause, limit in ((5, 1), (1, 5)):
                try:
                    await asyncio.wait_for(asyncio.sleep(pause * unit), limit * unit)
                    told.append(note("in time"))
                except TimeoutError:
                    told.append(note("too late"))
            return told

        return asyncio.run(main())

    recorded, again, replayed = both(program)

    assert again == recorded == ["noted too late", "noted in time"]
    assert replayed.identical


@pytest.mark.parametrize("how", ["future", "queue", "event", "join"])
def test_a_timeout_of_a_thread_fires_where_it_did(how):
    def program(unit: float) -> list[str]:
        def wait(pause: float, limit: float) -> str:
            done, items = threading.Event(), queue.Queue()

            def work() -> None:
                time.sleep(pause)
                items.put("x")
                done.set()

            if how == "future":
                with ThreadPoolExecutor(1) as pool:
                    future = pool.submit(work)
                    try:
                        future.result(limit)
                    except TimeoutError:
                        return note("too late")
                return note("in time")
            worker = threading.Thread(target=work)
            worker.start()
            try:
                if how == "queue":
                    items.get(timeout=limit)
                late = how == "event" and not done.wait(limit)
                if how == "join":
                    worker.join(limit)
                    late = worker.is_alive()
            except queue.Empty:
                late = True
            answer = note("too late" if late else "in time")
            worker.join()
            return answer

        return [wait(9 * unit, unit), wait(unit, 9 * unit)]

    recorded, again, replayed = both(program)

    assert again == recorded == ["noted too late", "noted in time"]
    assert replayed.identical


def test_a_loop_that_polls_until_a_deadline_polls_as_often():
    def program(unit: float) -> int:
        deadline, polls = time.monotonic() + 5.5 * unit, 0
        # On a busy machine fewer polls fit in; what is recorded is what an idle one would do.
        while polls < 6 if unit < 1 else time.monotonic() < deadline:
            note(f"poll {polls}")
            polls += 1
            time.sleep(unit)
        return polls

    recorded, again, replayed = both(program)

    assert again == recorded
    assert replayed.identical


def test_work_in_a_thread_is_waited_for_by_a_loop_with_a_timeout():
    def program(unit: float) -> str:
        def work() -> str:
            total = 0
            for number in range(300_000):  # takes real time, and much less than the timeout
                total += number
            return note(str(total))

        async def main() -> str:
            return await asyncio.wait_for(asyncio.to_thread(work), 500 * unit)

        return asyncio.run(main())

    recorded, again, replayed = both(program)

    assert again == recorded
    assert replayed.identical


def test_a_step_that_was_given_up_is_given_up_again():
    @steplog.step
    async def slow(unit: float) -> str:
        await asyncio.sleep(unit * 50)
        return "never"

    async def main(unit: float) -> str:
        try:
            return await asyncio.wait_for(slow(0.02), unit)
        except TimeoutError:
            return note("gave up")

    recorded, again, replayed = both(lambda unit: asyncio.run(main(unit)))

    assert again == recorded == "noted gave up"
    assert replayed.identical


def test_time_is_real_for_everybody_else_and_afterwards():
    with steplog.run("r"):
        note("a")
    told: list[float] = []

    def outside() -> None:
        for _ in range(3):
            told.append(time.monotonic())
            time.sleep(0.01)

    worker = threading.Thread(target=outside)
    with steplog.replay("r"), steplog.run("r"):
        note("a")
        time.sleep(AGE)
        ahead = time.monotonic()
        # Started by code that belongs to no run.
        contextvars.Context().run(worker.start)
        worker.join()

    assert max(told) - real[0]() < 1
    assert ahead - real[0]() > AGE / 2
    assert time.monotonic is real[0]
    assert time.sleep is real[1]
    assert "replay_clock" not in threading.Condition.wait.__code__.co_filename
    assert "replay_clock" not in asyncio.base_events.BaseEventLoop._run_once.__code__.co_filename


def test_timers_of_a_loop_that_goes_on_keep_their_distance():
    with steplog.run("r"):
        note("a")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        rung = loop.create_future()
        with steplog.replay("r"):
            with steplog.run("r"):
                note("a")
                await asyncio.sleep(AGE)
                loop.call_later(0.05, rung.set_result, None)
        began = real[0]()
        await asyncio.wait_for(rung, 10)
        return real[0]() - began

    assert asyncio.run(main()) < 5


def test_at_the_recorded_pace_steps_take_their_time():
    def program() -> list[str]:
        told: list[str] = []

        @steplog.step
        def slow(name: str, pause: float) -> str:
            time.sleep(pause)
            return name

        def one(n: int) -> None:
            told.append(slow(f"t{n}", n / 10))

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(one, (3, 1, 2)))
        return told

    with steplog.run("r"):
        recorded = program()

    began = real[0]()
    with steplog.replay("r", pace="recorded") as replayed, steplog.run("r"):
        again = program()

    assert replayed.identical
    assert again == recorded
    assert real[0]() - began >= 0.3
    with pytest.raises(steplog.InvalidArgument, match="pace"):
        steplog.replay("r", pace="fast")
