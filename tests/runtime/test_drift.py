"""P5: a resumed run whose calls no longer match its log halts before any further effect, and says where it differs."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import steplog
from steplog._runtime import turns
from steplog._runtime.door import PROCESS

effects: list[object] = []


@steplog.step
def pay(order: str, cents: int, note: str = "") -> int:
    effects.append((order, cents))
    return cents


@steplog.step(mode="safe")
async def look(x: object, delay: float = 0.0) -> object:
    await asyncio.sleep(delay)
    effects.append(x)
    return x


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    effects.clear()


class Crash(BaseException):
    """Leaves a run the way a dead process does: open steps stay open, finished ones stay finished."""


def crashed(run_id, agent):
    with pytest.raises(Crash), steplog.run(run_id):
        agent()
        raise Crash


def test_a_changed_argument_halts_with_the_field_and_both_values():
    crashed("r", lambda: pay("ord_1", 100, note="n" * 5000 + "tail one"))

    with pytest.raises(steplog.RunStopped) as caught, steplog.run("r"):
        pay("ord_1", 101, note="n" * 5000 + "tail one")

    drift = caught.value.__cause__
    assert isinstance(drift, steplog.DriftDetected)
    assert (drift.field, drift.recorded, drift.found) == ("cents", 100, 101)
    assert effects == [("ord_1", 100)]
    text = str(drift)
    assert "First difference, at cents" in text
    assert "  - 100\n  + 101" in text
    assert drift.nearest in text
    assert len(text.splitlines()) <= 25


def test_a_difference_deep_in_a_long_text_is_shown_through_a_window():
    crashed("r", lambda: pay("ord_1", 1, note="n" * 200_000 + "total 41,200" + "m" * 50_000))

    with pytest.raises(steplog.RunStopped) as caught, steplog.run("r"):
        pay("ord_1", 1, note="n" * 200_000 + "total 41,900" + "m" * 50_000)

    text = str(caught.value.__cause__)
    assert "total 41,200" in text
    assert "total 41,900" in text
    assert len(text) < 2_000


def test_another_tool_at_the_same_place_is_drift():
    crashed("r", lambda: steplog.step("now", lambda: 1))

    with pytest.raises(steplog.RunStopped) as caught, steplog.run("r"):
        pay("a", 1)

    drift = caught.value.__cause__
    assert (drift.field, drift.recorded, drift.found) == ("kind", "local", "tool_call")
    assert effects == []


def test_going_further_than_the_log_is_not_drift():
    crashed("r", lambda: pay("a", 1))
    with steplog.run("r"):
        pay("a", 1)
        pay("b", 2)

    assert effects == [("a", 1), ("b", 2)]


def test_a_step_that_moves_finds_its_own_record():
    def agent():
        pay("a", 1)
        pay("b", 2)

    crashed("r", agent)
    with steplog.run("r") as run:
        pay("b", 2)
        pay("a", 1)
        assert run.executed == 0


@pytest.mark.parametrize("on_drift", ["warn", "run"])
def test_on_drift_lets_the_rest_run(on_drift):
    def agent():
        pay("a", 1)
        pay("b", 2)

    crashed("r", agent)
    with steplog.run("r", on_drift=on_drift) as run:
        pay("a", 1)
        pay("c", 3)
        assert (run.replayed, run.executed) == (1, 1)


def test_an_effect_in_doubt_that_is_no_longer_asked_for_is_drift():
    @steplog.step
    def mail(to):
        raise Crash

    with pytest.raises(Crash), steplog.run("r"):
        mail("ada")
    with pytest.raises(steplog.RunStopped) as caught, steplog.run("r"):
        mail("bob")

    assert caught.value.reason == "drift"
    assert (caught.value.__cause__.recorded, caught.value.__cause__.found) == ("ada", "bob")


async def test_concurrent_branches_that_arrive_in_another_order_are_not_drift():
    async def agent(order):
        async with steplog.run("r") as run:
            results = await asyncio.gather(*(branch(x, order) for x in "abc"))
            return results, run.executed

    async def branch(x, order):
        await asyncio.sleep(0.05 * order.index(x))
        if x == crash:
            raise Crash
        return await look(x)

    crash = "c"
    with pytest.raises(Crash):
        await agent("abc")
    crash = ""

    assert await agent("cba") == (["a", "b", "c"], 1)
    assert sorted(effects) == ["a", "b", "c"]


async def test_a_plain_tool_in_a_task_that_cannot_wait_for_another_task_says_so_and_goes_on_when_it_need_not():
    @steplog.step
    def pay(x):
        effects.append(x)
        return x

    async def branch(x, order):
        for _ in range(order.index(x)):
            await asyncio.sleep(0.02)
        if x == crash:
            raise Crash
        return pay(x)

    async def agent(order):
        async with steplog.run("r"):
            return await asyncio.gather(*(branch(x, order) for x in "ab"))

    crash = "b"
    with pytest.raises(Crash):
        await agent("ab")
    crash = ""
    with pytest.raises(steplog.RunStopped, match=r"could not wait until the other tasks (.|\n)*asyncio.to_thread"):
        await agent("ba")
    assert effects == ["a"]
    assert await agent("ab") == ["a", "b"]
    assert effects == ["a", "b"]


@pytest.mark.parametrize("has_looked", [True, False])
async def test_a_task_does_not_overtake_others_because_its_recorded_results_come_at_once(has_looked, monkeypatch):
    """Recorded, b came to its payment last; resumed, nothing of what kept it takes time, and what kept a does."""
    monkeypatch.setattr(turns, "_PATIENCE_SECONDS", 5)

    @steplog.step(mode="safe", name="look")
    async def look_up(x):
        if crash and not has_looked and x == "b":
            await paid.wait()
            raise Crash
        return x

    @steplog.step
    def pay(x):
        effects.append(x)
        paid.set()
        return x

    async def branch(x):
        await look_up(x)
        if x == "a":
            await asyncio.sleep(0.2)
        elif crash:
            await paid.wait()
            raise Crash
        return pay(x)

    async def agent():
        async with steplog.run("r"):
            return await asyncio.gather(*(branch(x) for x in "ab"))

    crash, paid = True, asyncio.Event()
    with pytest.raises(Crash):
        await agent()
    crash = False

    assert await agent() == ["a", "b"]
    assert effects == ["a", "b"]


async def test_tasks_wait_in_vain_for_what_follows_them_a_few_times_and_no_more():
    """What a program does behind its tasks cannot be asked for before they have ended."""

    @steplog.step
    def commit(turn):
        effects.append(turn)

    async def agent():
        async with steplog.run("r"):
            for turn in range(30):
                await asyncio.gather(*(look(f"{turn} {x}") for x in "ab"))
                commit(turn)
            raise Crash

    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(Crash):
            await agent()

    assert len([each for each in effects if isinstance(each, int)]) == 30
    assert time.monotonic() - began < 30 * 0.25


def test_threads_that_arrive_in_another_order_are_not_drift():
    @steplog.step
    def tool(x):
        effects.append(x)
        return x

    def work(x, delay):
        time.sleep(delay)
        return tool(x)

    def agent():
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(work, [1, 2], [0, 0])) == [1, 2]

    crashed("r", agent)
    with steplog.run("r"), ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, [1, 2, 3], [0.2, 0.3, 0])) == [1, 2, 3]

    assert sorted(effects) == [1, 2, 3]


async def test_a_branch_whose_sibling_never_comes_halts_in_the_end(monkeypatch):
    from dataclasses import replace

    monkeypatch.setattr(PROCESS, "settings", replace(PROCESS.settings, drift_grace=0.1))

    async def agent(things):
        async with steplog.run("r"):
            await asyncio.gather(*(asyncio.create_task(look(x)) for x in things))
            raise Crash

    with pytest.raises(Crash):
        await agent("ab")
    effects.clear()
    with pytest.raises(steplog.RunStopped) as caught:
        await agent("ax")

    assert caught.value.reason == "drift"
    assert effects == []


def test_a_thread_that_waits_for_siblings_stops_when_the_run_halts():
    """Waiting must not outlive the run."""

    def in_thread(*call):
        thread = threading.Thread(target=worker, args=call)
        thread.start()
        return thread

    def worker(*call):
        try:
            pay(*call)
        except BaseException as error:
            seen.append(type(error).__name__)

    def agent():
        thread = in_thread("b", 1)
        pay("a", 1)
        thread.join(10)

    seen = []
    crashed("r", agent)
    started = time.monotonic()
    with pytest.raises(steplog.RunStopped) as caught, steplog.run("r"):
        thread = in_thread("other", 1)
        time.sleep(0.1)
        pay("a", 1)
        steplog.step("cannot be recorded", object)
    thread.join(10)

    assert caught.value.reason == "unreplayable"
    assert seen == ["Unreplayable"]
    assert effects == [("b", 1), ("a", 1)] or effects == [("a", 1), ("b", 1)]
    assert time.monotonic() - started < 4


def test_lineage_is_recorded(state_of):
    with steplog.run("r"):
        pay("a", 1)
        pay("b", 2)

    first, second = state_of("r").steps.values()
    assert (first.after, second.after) == (None, first.id)


def test_the_failed_step_that_ended_a_run_may_be_asked_differently():
    """Mending the request is the ordinary way to go on after a failure."""

    @steplog.step
    def ask(prompt):
        if prompt == "bad":
            raise ValueError(prompt)
        return prompt

    with pytest.raises(ValueError, match="bad"), steplog.run("r"):
        ask("bad")
    with steplog.run("r"):
        assert ask("good") == "good"
