"""Budgets: the attempt that would exceed a limit does not begin, in any branch, in any process, after any crash."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import steplog
from steplog._kernel.fold import fold
from steplog._runtime.budgeting import Active
from steplog._runtime.record import record
from steplog._runtime.ticket import Call
from steplog.errors import InvalidArgument, RunStopped
from steplog.stores.files import FileStore
from tests.support.processes import environment

DONE: list[object] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    DONE.clear()


@steplog.step(mode="safe")
def work(number):
    DONE.append(number)
    return number


@steplog.step(mode="safe", retries=5, backoff=0)
def flaky():
    DONE.append("flaky")
    raise ConnectionError("down")


@steplog.step(mode="safe")
async def slow(seconds):
    DONE.append("slow")
    await asyncio.sleep(seconds)
    return "done"


def ask(number, size=10):
    """A model call of the program's own; its bound is its arguments and its cap."""
    return record(Call("llm_call", "m", {"number": number, "max_tokens": size}, "safe"), lambda _ticket: "said")


def stopped(run_id, body, **options):
    """What stops a run; the budget exceeded."""
    with pytest.raises(RunStopped) as caught, steplog.run(run_id, **options) as run:
        body(run)
    assert isinstance(caught.value.__cause__, steplog.BudgetExceeded)
    return caught.value.__cause__


def used(state):
    return state.controls.budget.usage


def test_the_step_that_does_not_fit_does_not_begin_and_a_resumed_run_has_no_more(state_of):
    def body(_run):
        for number in range(9):
            work(number)

    for _ in range(2):
        stop = stopped("r", body, budget=steplog.Budget(max_tool_calls=3))

        assert (stop.limit, stop.used, stop.needs, stop.allowed) == ("max_tool_calls", 3, 1, 3)
        assert stop.commands == ("steplog resume r --budget max_tool_calls=6",)
    assert DONE == [0, 1, 2]
    state = state_of("r")
    assert (state.status, state.reason, state.ended["limit"]) == ("suspended", "budget", "max_tool_calls")
    assert used(state).steps == used(state).tool_calls == 3


def test_a_raised_budget_goes_on_where_it_stopped_and_both_ways_are_recorded(state_of, monkeypatch):
    def body(_run):
        for number in range(6):
            work(number)

    stopped("r", body, budget=steplog.Budget(max_steps=2))
    stopped("r", body, budget=steplog.Budget(max_steps=3))
    monkeypatch.setenv("STEPLOG_BUDGET", "max_steps=5")
    stopped("r", body, budget=steplog.Budget(max_steps=3))
    monkeypatch.delenv("STEPLOG_BUDGET")
    assert stopped("r", body, budget=steplog.Budget(max_steps=3)).allowed == 5  # a person's word stays
    assert stopped("r", body).allowed == 5
    with steplog.run("r", budget=steplog.Budget(max_steps=8)) as run:
        body(run)

    assert DONE == [0, 1, 2, 3, 4, 5]
    assert state_of("r").controls.budget.operator == {}


def test_what_was_used_before_there_was_a_budget_counts(state_of):
    with pytest.raises(KeyboardInterrupt), steplog.run("r"):
        work(0)
        work(1)
        raise KeyboardInterrupt

    def body(_run):
        for number in range(3):
            work(number)

    stopped("r", body, budget=steplog.Budget(max_tool_calls=2))
    assert DONE == [0, 1]


def test_attempts_of_a_retried_step_count(state_of):
    stop = stopped("r", lambda _run: flaky(), budget=steplog.Budget(max_tool_calls=3))

    assert DONE == ["flaky"] * 3
    assert stop.used == 3


def test_the_same_call_may_be_made_so_often_and_others_not(state_of):
    def body(_run):
        for number in range(5):
            work(number)
            work("same")

    stop = stopped("r", body, budget=steplog.Budget(max_repeat=2))

    assert DONE == [0, "same", 1, "same", 2]
    assert stop.limit == "max_repeat"


def test_model_calls_without_progress(state_of):
    def body(run):
        for number in range(9):
            run.progress({"facts": min(number, 2)})
            ask(number)
            DONE.append(number)

    for _ in range(2):
        stop = stopped("r", body, budget=steplog.Budget(max_stalls=3))
        assert (stop.limit, stop.used) == ("max_stalls", 3)
    assert [*range(5), *range(5)] == DONE
    assert state_of("r").controls.budget.changes == 3


def test_threads_and_tasks_share_the_last_unit(state_of):
    def body(_run):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(40)))

    stopped("threads", body, budget=steplog.Budget(max_tool_calls=7))
    assert len(DONE) == used(state_of("threads")).tool_calls == 7
    DONE.clear()

    async def many():
        async with steplog.run("tasks", budget=steplog.Budget(max_tool_calls=7)):
            await asyncio.gather(*(slow(0.001 * number) for number in range(40)))

    with pytest.raises(RunStopped, match="max_tool_calls"):
        asyncio.run(many())
    assert len(DONE) == used(state_of("tasks")).tool_calls == 7


def test_tokens_are_set_aside_before_a_call_and_kept_where_nothing_says_what_it_used(state_of):
    def body(_run):
        for number in range(9):
            ask(number, 1_000)
            DONE.append(number)

    stop = stopped("r", body, budget=steplog.Budget(max_tokens=3_500))

    assert len(DONE) == 3
    assert 3_000 < stop.used <= 3_500 < stop.used + stop.needs
    assert used(state_of("r")).tokens == stop.used


def test_a_call_without_a_cap_says_what_was_assumed_of_it():
    def body(_run):
        record(Call("llm_call", "m", {"prompt": "hi"}, "safe"), lambda _ticket: DONE.append("asked"))

    stop = stopped("r", body, budget=steplog.Budget(max_tokens=5_000))

    assert DONE == []
    assert "names no cap" in str(stop)
    assert "128,000" in str(stop)


# time -----------------------------------------------------------------------------------------------------------------


def test_the_clock_stands_still_only_while_all_that_happens_is_waiting(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    active = Active(5_000)
    now[0] += 2
    active.busy("s_outer", 1)
    with active.waiting(["s_outer"]):
        now[0] += 50
        active.busy("s_other", 1)
        now[0] += 3
        active.busy("s_other", -1)
        now[0] += 50
    now[0] += 1

    assert active.seconds() == pytest.approx(5 + 2 + 3 + 1)


def test_a_wait_for_a_time_is_no_time_at_work_also_inside_a_step(state_of):
    @steplog.step(mode="safe")
    def patient():
        steplog.sleep(0.4)

    with steplog.run("r", budget=steplog.Budget(deadline=0.35)):
        steplog.sleep(0.4)
        patient()
        work(0)
    assert DONE == [0]
    assert used(state_of("r")).active_ms < 350


def test_time_at_work_is_carried_over_and_time_between_processes_is_not(state_of):
    def body(run):
        work(0)
        time.sleep(0.06)
        work(1)
        assert run.remaining < 10
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), steplog.run("r", budget=steplog.Budget(deadline=10)) as run:
        body(run)
    before = used(state_of("r")).active_ms
    time.sleep(0.1)
    with steplog.run("r") as run:
        assert 0.05 <= before / 1000 <= 10 - run.remaining < before / 1000 + 0.1


def test_a_deadline_ends_an_awaited_tool_and_the_run(state_of):
    async def agent():
        async with steplog.run("r", budget=steplog.Budget(deadline=0.15)):
            return await slow(30)

    began = time.monotonic()
    with pytest.raises(RunStopped, match="was under way when the run reached deadline") as caught:
        asyncio.run(agent())
    assert time.monotonic() - began < 5
    assert caught.value.__cause__.limit == "deadline"

    # Its mode allows a repeat, once there is time for it.
    assert [step.status for step in state_of("r").steps.values()] == ["pending"]


def test_after_the_deadline_nothing_begins():
    def body(_run):
        work(0)
        time.sleep(0.05)
        work(1)

    assert stopped("r", body, budget=steplog.Budget(deadline=0.04)).limit == "deadline"
    assert DONE == [0]


# the log --------------------------------------------------------------------------------------------------------------


def test_the_log_folds_to_what_the_process_knew_from_any_place_in_it(home):
    with steplog.run("r", budget=steplog.Budget(max_tokens=10_000, max_stalls=9)) as run:
        for number in range(4):
            run.progress(number // 2)
            ask(number)
            work(number)
        knew = run.recorder.allowance.usage()
        at_end = run.state
    events = list(FileStore(str(home)).read("r").events)
    whole = fold(events)

    assert used(at_end).tokens == used(whole).tokens == knew.tokens
    assert used(whole).steps == knew.steps == 8
    for cut in range(len(events)):
        assert fold(events[cut:], fold(events[:cut])).controls == whole.controls


def test_wherever_the_log_was_cut_off_a_resumed_run_has_no_more_and_stops_at_the_same_limit(home, state_of):
    def body(run):
        for number in range(9):
            run.progress(number)
            ask(number)
            work(number)

    budget = steplog.Budget(max_tool_calls=2, max_stalls=9)
    stopped("r", body, budget=budget)
    log = home / "runs" / "r" / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    kinds = {json.loads(line)["type"] for line in lines}
    assert kinds >= {"run.budgeted", "run.progressed"}
    for cut in range(2, len(lines)):
        torn = lines[cut][: len(lines[cut]) // 2] if cut % 2 else b""
        log.write_bytes(b"".join(lines[:cut]) + torn)
        stop = stopped("r", body, budget=budget)
        assert (stop.limit, stop.used) == ("max_tool_calls", 2), cut
        assert used(state_of("r")).tool_calls == 2


def test_a_killed_process_leaves_what_it_had_set_aside_as_used(home):
    program = (
        "import os, signal, steplog\n"
        "from steplog.plugins import Call, record\n"
        f"steplog.install(home={str(home)!r}, interceptors=[])\n"
        "with steplog.run('r', budget=steplog.Budget(max_tokens=2500)):\n"
        "    steplog.step('now', lambda: 1)\n"
        "    call = Call('llm_call', 'm', {'max_tokens': 1000}, 'safe')\n"
        "    steplog.step('synced', lambda: 1)\n"
        "    record(call, lambda _ticket: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], env=environment(), check=False)
    assert killed.returncode == -signal.SIGKILL

    def body(_run):
        steplog.step("now", lambda: 1)
        steplog.step("synced", lambda: 1)
        for _ in range(3):
            record(Call("llm_call", "m", {"max_tokens": 1_000}, "safe"), lambda _ticket: DONE.append("asked"))

    stop = stopped("r", body)
    assert DONE == ["asked"]  # the attempt that died may have used up its thousand
    assert 2_000 < stop.used <= 2_500


def test_what_is_no_budget_is_refused(monkeypatch):
    with pytest.raises(InvalidArgument, match="budget is a steplog"):
        steplog.run("r", budget={"max_steps": 3})
    monkeypatch.setenv("STEPLOG_BUDGET", "max_stepz=3")
    with pytest.raises(InvalidArgument, match="max_stepz"), steplog.run("r"):
        pass


def test_a_default_for_all_runs(home):
    steplog.install(home=home, interceptors=[], budget=steplog.Budget(max_steps=1))

    stopped("r", lambda _run: [work(number) for number in range(3)])
    assert DONE == [0]
