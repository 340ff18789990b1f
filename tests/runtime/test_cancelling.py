"""Cancellation: delivered once to every branch, at the same steps in every resume and replay, with room to clean up."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import steplog
from steplog._kernel.fold import fold
from steplog._runtime import cancelling
from steplog._runtime import wait as waiting
from steplog.errors import Cancelled, RunStopped, UnknownRun
from steplog.stores.memory import MemoryStore

DONE = []


@pytest.fixture
def store():
    DONE.clear()
    return MemoryStore()


@steplog.step
def work(name):
    DONE.append(name)
    return name


@steplog.step
async def work_async(name):
    await asyncio.sleep(0)
    DONE.append(name)
    return name


def state_of(store):
    return fold(store.read("r").events)


def run(store, **options):
    return steplog.run("r", store=store, **options)


def stopped_by_cancellation(caught):
    return caught.value.reason == "cancelled" and isinstance(caught.value.__cause__, Cancelled)


def test_it_is_raised_at_the_next_step_and_cleanup_is_recorded(store):
    def program(cancels):
        with run(store):
            try:
                work("one")
                if cancels:
                    assert steplog.cancel("r", by="ann", note="wrong order", store=store) == "sent"
                work("two")
            finally:
                work("clean up")

    with pytest.raises(RunStopped, match="cancelled by ann: wrong order") as caught:
        program(cancels=True)
    assert stopped_by_cancellation(caught)
    assert not any("resume" in command for command in caught.value.commands)
    assert DONE == ["one", "clean up"]
    state = state_of(store)
    assert (state.status, state.reason, state.ended["by"]) == ("cancelled", "cancelled", "ann")

    # It has ended; started again it does the same, and nothing more.
    with pytest.raises(RunStopped) as caught:
        program(cancels=False)
    assert stopped_by_cancellation(caught)
    assert DONE == ["one", "clean up"]
    with steplog.replay("r", store=store) as replayed, pytest.raises(RunStopped):
        program(cancels=False)
    assert replayed.identical, replayed.divergence
    assert DONE == ["one", "clean up"]


def test_what_swallows_it_gets_it_again_at_every_further_step(store):
    refused = 0
    with pytest.raises(RunStopped), run(store):
        steplog.cancel("r", store=store)
        for name in "abc":
            try:
                work(name)
            except BaseException:
                refused += 1
    assert (DONE, refused) == ([], 3)
    assert state_of(store).status == "cancelled"


def test_an_exit_stack_a_with_block_and_an_error_raised_from_it_clean_up(store):
    class Held:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            work("with")

    with pytest.raises(RunStopped), run(store):
        steplog.cancel("r", store=store)
        try:
            with ExitStack() as stack, Held():
                stack.callback(work, "stack")
                try:
                    work("never")
                except Cancelled as stop:
                    raise RuntimeError("cut off") from stop
        except RuntimeError:
            work("error")
    assert DONE == ["with", "stack", "error"]


def test_cleanup_has_its_limit(store, monkeypatch):
    monkeypatch.setattr(cancelling, "CLEANUP_STEPS", 2)
    with pytest.raises(RunStopped), run(store):
        try:
            steplog.cancel("r", store=store)
            work("never")
        finally:
            for name in "abcd":
                work(name)
    assert DONE == ["a", "b"]
    assert state_of(store).status == "cancelled"


def test_a_cleanup_that_fails_is_told_of(store):
    with pytest.raises(RunStopped), run(store):
        try:
            steplog.cancel("r", store=store)
            work("never")
        finally:
            raise ValueError("no way back")
    assert state_of(store).ended["error"]["message"] == "no way back"
    assert state_of(store).status == "cancelled"


def test_every_branch_gets_it_and_the_one_that_gathers_them_cleans_up(store):
    async def branch(name, begun, gate):
        await work_async(f"{name} 1")
        begun.set()
        await gate.wait()
        try:
            await work_async(f"{name} 2")
        finally:
            await work_async(f"{name} cleanup")

    async def program(cancels):
        gate, begun = asyncio.Event(), {name: asyncio.Event() for name in "ab"}
        async with run(store) as opened:
            try:
                branches = [asyncio.create_task(branch(name, begun[name], gate)) for name in "ab"]
                if cancels:
                    await asyncio.gather(*(each.wait() for each in begun.values()))
                    steplog.cancel("r", store=store)
                gate.set()
                await asyncio.gather(*branches)
            finally:
                await asyncio.wait(branches)
                await work_async("all cleanup")
                with opened.cleanup():
                    await asyncio.gather(work_async("x"), work_async("y"))

    expected = ["a 1", "a cleanup", "all cleanup", "b 1", "b cleanup", "x", "y"]
    with pytest.raises(RunStopped):
        asyncio.run(program(cancels=True))
    assert sorted(DONE) == expected
    with pytest.raises(RunStopped):
        asyncio.run(program(cancels=False))
    assert sorted(DONE) == expected
    assert state_of(store).status == "cancelled"


def test_a_task_group_cleans_up_in_the_sibling_that_it_cancels(store):
    async def waits():
        try:
            await asyncio.sleep(60)
        finally:
            await work_async("sibling")

    async def works():
        await asyncio.sleep(0)
        steplog.cancel("r", store=store)
        await work_async("never")

    async def program():
        async with run(store), asyncio.TaskGroup() as group:
            group.create_task(waits())
            group.create_task(works())

    with pytest.raises(RunStopped):
        asyncio.run(program())
    assert DONE == ["sibling"]
    assert state_of(store).status == "cancelled"


def test_threads_get_it_at_their_next_step(store):
    barrier = threading.Barrier(3)

    def branch(name):
        work(f"{name} 1")
        barrier.wait(10)
        barrier.wait(10)
        work(f"{name} 2")

    with pytest.raises(RunStopped), run(store), ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(branch, name) for name in "ab"]
        barrier.wait(10)
        steplog.cancel("r", store=store)
        barrier.wait(10)
        for future in futures:
            future.result(10)
    assert sorted(DONE) == ["a 1", "b 1"]


def test_a_run_that_waits_hears_it(store):
    with pytest.raises(RunStopped) as caught, run(store) as opened:
        threading.Timer(0.05, steplog.cancel, ("r",), {"store": store}).start()
        try:
            opened.wait("never", timeout=20)
        finally:
            work("clean up")
    assert stopped_by_cancellation(caught)
    assert DONE == ["clean up"]


def suspended(store, monkeypatch, *, effect):
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.0)

    def program():
        with run(store, on_wait="suspend") as opened:
            try:
                if effect:
                    work("one")
                opened.wait("go")
                work("two")
            finally:
                if effect:
                    work("clean up")

    with pytest.raises(RunStopped), run(store, on_wait="suspend") as opened:
        if effect:
            work("one")
        opened.wait("go")
    return program


def test_a_suspended_run_that_had_no_effect_ends_at_once(store, monkeypatch):
    suspended(store, monkeypatch, effect=False)
    assert steplog.cancel("r", by="ann", store=store) == "ended"
    assert state_of(store).status == "cancelled"
    assert "cancelled by ann" in state_of(store).ended["message"]
    events = len(store.read("r").events)
    assert steplog.cancel("r", store=store) == "over"
    assert len(store.read("r").events) == events


def test_a_suspended_run_that_had_effects_cleans_up_when_it_is_resumed(store, monkeypatch):
    program = suspended(store, monkeypatch, effect=True)
    assert steplog.cancel("r", store=store) == "pending"
    assert state_of(store).status == "suspended"
    with pytest.raises(RunStopped) as caught:
        program()
    assert stopped_by_cancellation(caught)
    assert DONE == ["one", "clean up"]
    assert state_of(store).status == "cancelled"


def test_now_ends_a_suspended_run_without_its_cleanup(store, monkeypatch):
    suspended(store, monkeypatch, effect=True)
    assert steplog.cancel("r", now=True, store=store) == "ended"
    assert state_of(store).status == "cancelled"
    assert DONE == ["one"]


def test_a_run_that_ends_before_it_hears_of_it_has_completed(store):
    with run(store):
        work("one")
        steplog.cancel("r", store=store)
    assert state_of(store).status == "completed"
    with run(store):
        work("one")
    assert DONE == ["one"]


def test_cancelling_what_is_not_there_is_refused(store):
    with pytest.raises(UnknownRun):
        steplog.cancel("r", store=store)


def test_an_inner_run_is_cancelled_alone(store):
    with run(store):
        with pytest.raises(RunStopped), steplog.run("inner", store=store):
            steplog.cancel("inner", store=store)
            work("never")
        work("outer")
    assert DONE == ["outer"]
    assert state_of(store).status == "completed"


def test_a_step_that_is_tried_again_is_not_after_a_cancellation(store):
    attempts = []

    def program():
        with run(store):

            @steplog.step(retries=5, backoff=0.0)
            def flaky():
                attempts.append(1)
                if len(attempts) == 2:
                    steplog.cancel("r", store=store)
                raise ValueError("again")

            flaky()

    for _ in range(2):
        with pytest.raises(RunStopped) as caught:
            program()
        assert stopped_by_cancellation(caught)
    assert len(attempts) == 2
    with steplog.replay("r", store=store) as replayed, pytest.raises(RunStopped):
        program()
    assert replayed.identical, replayed.divergence
    assert len(attempts) == 2


def test_a_step_that_waits_for_a_person_hears_it(store):
    rule = steplog.Rule(id="ask", action="require_approval", target="work")
    with pytest.raises(RunStopped) as caught, run(store, policy=[rule], on_block="wait"):
        threading.Timer(0.1, steplog.cancel, ("r",), {"store": store}).start()
        work("never")
    assert stopped_by_cancellation(caught)
    assert DONE == []
    assert state_of(store).status == "cancelled"
