"""Signals and waits: taken once, in order, the same after every resume, whatever dies in between."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

import steplog
from steplog._kernel.fold import fold
from steplog._runtime import wait as waiting
from steplog._runtime.wait import ON_WAIT
from steplog.errors import InvalidArgument, RunStopped, Suspended, UnknownRun, WaitTimeout
from steplog.stores.memory import MemoryStore


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def quick(monkeypatch):
    """Suspends without a long look around."""
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.02)


class Clock:
    ahead = 0

    def advance(self, seconds):
        self.ahead += seconds * 1000


@pytest.fixture
def clock(monkeypatch):
    made, now = Clock(), waiting._now
    monkeypatch.setattr(waiting, "_now", lambda: now() + made.ahead)
    return made


def types_of(store, run_id="r"):
    return [event.type for event in store.read(run_id).events]


def new_run(store, run_id="r"):
    with steplog.run(run_id, store=store):
        pass


def test_a_signal_that_was_sent_before_is_returned_and_replayed(store):
    with steplog.run("r", store=store) as run:
        steplog.signal("r", "approved", {"amount": 7}, by="ann", note="fine", store=store)
        assert run.wait("approved") == {"amount": 7}

    steplog.signal("r", "approved", "too late", store=store)
    with steplog.run("r", store=store) as run:
        assert run.wait("approved") == {"amount": 7}
        assert (run.replayed, run.executed) == (1, 0)
    received = next(e for e in store.read("r").events if e.type == "signal.received")
    assert (received.data["name"], received.data["by"], received.data["note"]) == ("approved", "ann", "fine")


def test_signals_of_one_name_come_in_order_and_each_once(store):
    with steplog.run("r", store=store) as run:
        for number in range(3):
            steplog.signal("r", "go", number, store=store)
            steplog.signal("r", "other", -number, store=store)
        assert [run.wait("go"), run.wait("go"), run.wait("other"), run.wait("go")] == [0, 1, 0, 2]
        with pytest.raises(WaitTimeout):
            run.wait("go", timeout=0)


def test_values_come_back_as_what_they_were(store):
    value = {"when": datetime(2026, 1, 1, tzinfo=UTC), "what": (1, b"x"), "long": "y" * 10_000}
    with steplog.run("r", store=store) as run:
        steplog.signal("r", "go", value, store=store)
        assert run.wait("go") == value


def test_a_wait_that_blocks_hears_what_another_thread_sends(store):
    with steplog.run("r", store=store) as run:
        threading.Timer(0.1, steplog.signal, ("r", "go", 1), {"store": store}).start()
        assert run.wait("go", timeout=10) == 1


def test_a_timeout_is_a_recorded_failure(store):
    for _ in range(2):
        with steplog.run("r", store=store) as run:
            with pytest.raises(TimeoutError, match=r"no signal 'go' came in 0.01 seconds") as caught:
                run.wait("go", timeout=0.01)
            assert isinstance(caught.value, WaitTimeout)
            assert caught.value.signal == "go"
            steplog.step("after", lambda: 1)
        steplog.signal("r", "go", 1, store=store)
    assert run.executed == 0


def test_a_timeout_that_ended_the_run_waits_once_more(store):
    with pytest.raises(WaitTimeout), steplog.run("r", store=store) as run:
        run.wait("go", timeout=0.01)
    began = time.monotonic()
    with pytest.raises(WaitTimeout), steplog.run("r", store=store) as run:
        run.wait("go", timeout=0.05)
    assert time.monotonic() - began >= 0.05
    steplog.signal("r", "go", 1, store=store)
    with steplog.run("r", store=store) as run:
        assert run.wait("go", timeout=0.01) == 1


def test_threads_that_wait_for_one_name_get_one_signal_each(store):
    def program():
        with steplog.run("r", store=store) as run, ThreadPoolExecutor(8) as pool:
            return sorted(pool.map(lambda _: run.wait("go", timeout=10), range(8)))

    new = MemoryStore.open(store, "r")
    new.close()
    with steplog.run("r", store=store) as run:
        for number in range(8):
            steplog.signal("r", "go", number, store=store)
        with ThreadPoolExecutor(8) as pool:
            first = list(pool.map(lambda _: run.wait("go", timeout=10), range(8)))
        assert sorted(first) == list(range(8))
    with steplog.run("r", store=store) as run, ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(lambda _: run.wait("go", timeout=10), range(8))) == list(range(8))
        assert run.executed == 0


def test_tasks_wait_side_by_side_and_the_loop_goes_on(store):
    async def program():
        async with steplog.run("r", store=store) as run:

            async def tell():
                await asyncio.sleep(0.05)
                steplog.signal("r", "b", "second", store=store)
                steplog.signal("r", "a", "first", store=store)

            teller = asyncio.create_task(tell())
            got = await asyncio.gather(run.wait_async("a"), run.wait_async("b"), steplog.sleep_async(0.01))
            await teller
            return got

    assert asyncio.run(program()) == ["first", "second", None]
    assert asyncio.run(program()) == ["first", "second", None]


def test_a_plain_wait_in_an_event_loop_is_refused(store):
    async def program():
        async with steplog.run("r", store=store) as run:
            with pytest.raises(InvalidArgument, match=r"await run.wait_async"):
                run.wait("go")
            with pytest.raises(InvalidArgument, match=r"steplog.sleep_async"):
                steplog.sleep(1)

    asyncio.run(program())


def test_a_sleep_ends_when_it_first_said_whatever_the_program_says_on_a_resume(store, quick, clock):
    def program(seconds):
        with steplog.run("r", store=store, on_wait="suspend"):
            steplog.step("before", lambda: 1)
            steplog.sleep(seconds)
            return steplog.step("after", lambda: 2)

    with pytest.raises(RunStopped) as stopped:
        program(100)
    assert isinstance(stopped.value.__cause__, Suspended)
    clock.advance(50)
    for seconds in (100, 70):  # the same request, and another one at its place
        with pytest.raises(RunStopped):
            program(seconds)
    clock.advance(50)
    assert program(60) == 2
    ends = {event.data["until"] for event in store.read("r").events if event.type == "wait.began"}
    assert len(ends) == 1
    assert program(60) == 2


def test_a_clock_that_is_set_back_does_not_lengthen_a_sleep(store, clock):
    def sleeper():
        with steplog.run("r", store=store):
            steplog.sleep(0.3)

    thread = threading.Thread(target=sleeper, daemon=True)
    thread.start()
    deadline = time.monotonic() + 5
    while "r" not in store.runs() or "wait.began" not in types_of(store):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    clock.advance(-60)
    thread.join(5)
    assert not thread.is_alive()


def test_sleep_until_wants_a_time_zone_and_a_time_that_has_passed_ends_at_once(store):
    with steplog.run("r", store=store):
        with pytest.raises(InvalidArgument, match="time zone"):
            steplog.sleep_until(datetime(2026, 1, 1))  # noqa: DTZ001  # what is refused
        steplog.sleep_until(datetime(2026, 1, 1, tzinfo=UTC))
        steplog.sleep_until(datetime.now(UTC) + timedelta(seconds=0.02))
    steplog.sleep(0)
    asyncio.run(steplog.sleep_async(0))


def test_a_run_that_waits_is_suspended_and_says_for_what(store, quick):
    def program():
        with steplog.run("r", store=store, on_wait="suspend") as run:
            return run.wait("go", timeout=3600)

    with pytest.raises(RunStopped) as stopped:
        program()
    assert stopped.value.reason == "waiting"
    assert "steplog signal r go JSON" in stopped.value.commands
    assert "steplog resume --due" in stopped.value.commands
    state = fold(store.read("r").events)
    assert (state.status, state.reason) == ("suspended", "waiting")
    steplog.signal("r", "go", 5, store=store)
    assert program() == 5


def test_a_run_is_not_suspended_while_another_branch_is_at_work(store, quick):
    async def slow():
        await asyncio.sleep(0.15)
        return "done"

    async def program():
        async with steplog.run("r", store=store, on_wait="suspend") as run:
            return await asyncio.gather(run.wait_async("go"), steplog.step("slow", slow))

    with pytest.raises(RunStopped):
        asyncio.run(program())
    state = fold(store.read("r").events)
    assert [step.status for step in state.steps.values() if step.target == "slow"] == ["done"]
    steplog.signal("r", "go", 5, store=store)
    assert asyncio.run(program()) == [5, "done"]


def test_a_wait_inside_a_tool_that_may_not_be_repeated_blocks(store, quick, caplog):
    with steplog.run("r", store=store, on_wait="suspend") as run:

        @steplog.step
        def tool():
            return run.wait("go", timeout=1.3)

        threading.Timer(0.3, steplog.signal, ("r", "go", 1), {"store": store}).start()
        assert tool() == 1
    assert "Wait outside of tools" in caplog.text


def test_a_signal_to_nobody_is_refused(store):
    with pytest.raises(UnknownRun, match="there is no run 'r'"):
        steplog.signal("r", "go", store=store)
    new_run(store)
    for name in ("", "a\nb", 7, "x" * 200):
        with pytest.raises(InvalidArgument, match="no name of a signal"):
            steplog.signal("r", name, store=store)
    with pytest.raises(InvalidArgument, match="looks like a secret"):
        steplog.signal("r", "go", "sk-proj-" + "aB3" * 20, store=store)
    with pytest.raises(InvalidArgument, match="too long"):
        steplog.signal("r", "go", "x" * 70_000, store=store)
    assert store.inbox("r").size() == 0


@pytest.mark.parametrize("on_wait", ON_WAIT)
def test_a_wait_given_up_by_its_task_is_given_up_again(store, on_wait):
    async def program():
        async with steplog.run("r", store=store, on_wait=on_wait) as run:
            try:
                await asyncio.wait_for(run.wait_async("go"), 0.05)
            except TimeoutError:
                return steplog.step("went on", lambda: "without")

    assert asyncio.run(program()) == "without"
    steplog.signal("r", "go", 1, store=store)
    assert asyncio.run(program()) == "without"


def test_the_fold_of_two_halves_is_the_fold_of_the_whole(store, quick):
    with pytest.raises(RunStopped), steplog.run("r", store=store, on_wait="suspend") as run:
        steplog.signal("r", "go", 1, store=store)
        run.wait("go")
        steplog.sleep(0)
        run.wait("never")
    events = list(store.read("r").events)
    whole = fold(events)
    for cut in range(len(events)):
        assert fold(events[cut:], fold(events[:cut])) == whole
    assert list(whole.controls.waits.values())[-1]["signal"] == "never"
