"""A step that waits for a person: approved or rejected from outside, exactly once, whatever dies in between."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from dataclasses import replace

import pytest

import steplog
from steplog import Policy, Rule
from steplog._kernel.fold import fold
from steplog._runtime import approvals, post
from steplog.errors import Cancelled, RunStopped, StepRejected, UnknownRun, UnknownStep
from steplog.stores.files import FileStore
from steplog.testing import MemoryStore

DONE: list[tuple[str, str]] = []
BIG = Rule(id="big", action="require_approval", target="refund", args={"cents": 500}, reason="Above one dollar.")
RULES = Policy([BIG])


@pytest.fixture(autouse=True)
def _nothing_done():
    DONE.clear()


@steplog.step(mode="keyed")
def refund(order, cents, *, idempotency_key):
    DONE.append((order, idempotency_key))
    return f"refunded {order}"


@steplog.step(mode="safe")
async def pay(order):
    DONE.append((order, ""))
    return f"paid {order}"


def agent(cents=500):
    try:
        return [refund("a", 50), refund("b", cents), refund("c", 50)]
    except StepRejected as rejected:
        return [rejected.by, rejected.note, str(rejected)]


def held_by(run):
    """The steps that a run holds, when it holds one."""
    deadline = time.monotonic() + 20
    while not (run.state.controls and run.state.controls.held):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return list(run.state.controls.held)


def play(cents=500, **options):
    """What the agent says, or the step that its run waits for."""
    try:
        with steplog.run("r1", **{"policy": RULES, **options}):
            return agent(cents)
    except RunStopped as stopped:
        return stopped.step


def test_an_approved_step_runs_under_its_own_key_when_the_run_is_resumed(state_of):
    held = play()
    assert [order for order, _ in DONE] == ["a"]
    made = steplog.approve("r1", held, by="ann", note="checked")
    assert (made.counted, made.standing, made.by) == (True, "approved", "ann")
    assert "steplog resume r1" in made.message

    assert play() == ["refunded a", "refunded b", "refunded c"]
    assert DONE[1] == ("b", f"r1:{held}")
    step = state_of("r1").steps[held]
    assert (step.status, step.attempt) == ("done", 1)
    approval = step.started["judged"]["approval"]
    assert (approval["by"], approval["note"], len(approval["message"])) == ("ann", "checked", 26)
    assert play() == ["refunded a", "refunded b", "refunded c"]
    assert len(DONE) == 3


def test_a_rejected_step_never_runs_and_the_agent_reads_why():
    held = play()
    assert steplog.reject("r1", held, by="ann", note="not our order").standing == "rejected"
    expected = ["ann", "not our order", "This step was rejected by ann: not our order"]
    assert play() == expected
    assert play() == expected
    assert play(policy=False) == expected
    assert [order for order, _ in DONE] == ["a"]


def test_without_a_decision_it_waits_on_whoever_asks():
    held = play()
    assert play() == held
    assert play(policy=[]) == held
    assert play(policy=False) == held
    assert [order for order, _ in DONE] == ["a"]


def test_an_approval_covers_nothing_but_its_arguments():
    held = play()
    steplog.approve("r1", held)
    other = Policy([Rule(id="big", action="require_approval", target="refund", when="args.cents > 100")])
    edited = play(501, policy=other)
    assert edited not in (None, held)
    assert [order for order, _ in DONE] == ["a"]
    # The one that was approved is still good for exactly what it was.
    assert play(policy=other) == ["refunded a", "refunded b", "refunded c"]


def test_the_first_decision_counts_and_the_second_is_told():
    held = play()
    assert steplog.approve("r1", held, by="ann").counted
    for again in (steplog.approve("r1", held, by="bob"), steplog.reject("r1", held, by="bob")):
        assert (again.counted, again.standing, again.by) == (False, "approved", "ann")
        assert "approved by ann before" in again.message
    assert play() == ["refunded a", "refunded b", "refunded c"]


def test_two_at_once_one_counts(home, monkeypatch):
    held = play()
    together = threading.Barrier(6)
    send = approvals.post.send

    def all_at_once(*args, **kwargs):
        together.wait()
        return send(*args, **kwargs)

    monkeypatch.setattr(approvals.post, "send", all_at_once)
    made = []

    def decide(number):
        how = steplog.approve if number % 2 else steplog.reject
        made.append(how("r1", held, by=str(number)))

    threads = [threading.Thread(target=decide, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first,) = [one for one in made if one.counted]
    assert {one.by for one in made} == {first.by}
    approved = ["refunded a", "refunded b", "refunded c"]
    rejected = [first.by, None, f"This step was rejected by {first.by}."]
    assert play() == (approved if int(first.by) % 2 else rejected)
    events = [event.type for event in FileStore(str(home)).read("r1").events]
    assert events.count("step.approved") + events.count("step.rejected") == 6


def test_a_decision_where_there_is_nothing_to_decide_changes_nothing(state_of):
    held = play()
    done = next(step.id for step in state_of("r1").steps.values() if step.status == "done")
    assert steplog.approve("r1", done).standing == "else"
    with pytest.raises(UnknownStep, match=held):
        steplog.approve("r1", "s_zzz")
    with pytest.raises(UnknownRun):
        steplog.approve("none", held)
    steplog.approve("r1", held)
    play()
    late = steplog.reject("r1", held)
    assert (late.counted, late.standing) == (False, "approved")
    other = steplog.approve("r1", done)
    assert (other.counted, other.standing) == (False, "ended")
    with steplog.run("r2"):
        refund("x", 5)
    assert steplog.approve("r2", "1").standing == "ended"


def test_a_decision_in_time_counts_and_a_late_one_does_not(monkeypatch):
    rules = Policy([Rule(id="big", action="require_approval", args={"cents": 500}, expires="1h")])
    held = play(policy=rules)
    began = time.time()
    monkeypatch.setattr(approvals.time, "time", lambda: began + 1800)
    assert steplog.approve("r1", held).counted
    monkeypatch.setattr(approvals.time, "time", lambda: began + 360_000)
    assert play(policy=rules) == ["refunded a", "refunded b", "refunded c"]

    shutil.rmtree(FileStore(steplog.run("x").__dict__["_store"].home).home)
    DONE.clear()
    monkeypatch.setattr(approvals.time, "time", lambda: began)
    held = play(policy=rules)
    monkeypatch.setattr(approvals.time, "time", lambda: began + 7200)
    late = steplog.approve("r1", held)
    assert (late.counted, late.standing) == (False, "expired")
    assert play(policy=rules)[:2] == [None, None]
    assert [order for order, _ in DONE] == ["a"]


@pytest.mark.parametrize("kind", ["approve", "reject"])
def test_a_message_that_comes_too_late_or_to_the_wrong_step_changes_nothing(kind, home):
    """The commands do not send such a message; a slow one, or another program, may."""
    held = play(policy=[replace(BIG, expires="1h")])
    store = FileStore(str(home))
    for step in (held, "s_none", next(iter(fold(store.read("r1").events).steps))):
        post.send(store, "r1", kind, {"step": step, "at": int(time.time() * 1000) + 4_000_000}, by="ann")
    assert play() == held
    assert steplog.approve("r1", held, by="bob").counted
    assert play() == ["refunded a", "refunded b", "refunded c"]
    assert len(DONE) == 3


def test_with_on_block_wait_only_that_branch_waits():
    async def main():
        async with steplog.run(
            "r1", policy=[Rule(id="a", action="require_approval", args={"order": "a"})], on_block="wait"
        ) as run:
            held = asyncio.create_task(pay("a"))
            assert await pay("b") == "paid b"
            (step,) = await asyncio.to_thread(held_by, run)
            made = await asyncio.to_thread(steplog.approve, "r1", step, by="ann")
            assert made.message.endswith("is approved by ann. The process that holds the run goes on by itself.")
            return await held

    assert asyncio.run(asyncio.wait_for(main(), 20)) == "paid a"
    assert [order for order, _ in DONE] == ["b", "a"]


def test_a_thread_that_waits_is_told_of_a_rejection_and_a_cancellation():
    def decide(how):
        def later():
            (step,) = held_by(run)
            how(step)

        deciding = threading.Thread(target=later)
        deciding.start()
        return deciding

    with steplog.run("r1", policy=RULES, on_block="wait") as run:
        deciding = decide(lambda step: steplog.reject("r1", step, by="ann"))
        assert agent()[0] == "ann"
        deciding.join()
    with pytest.raises(RunStopped) as stopped, steplog.run("r2", policy=RULES, on_block="wait") as run:
        deciding = decide(lambda step: steplog.cancel("r2"))
        agent()
    deciding.join()
    assert isinstance(stopped.value.__cause__, Cancelled)


def test_the_memory_store_has_approvals_too():
    store = MemoryStore()
    held = play(store=store)
    assert steplog.approve("r1", held, store=store).counted
    assert play(store=store) == ["refunded a", "refunded b", "refunded c"]


def test_a_replay_plays_what_was_decided():
    held = play()
    steplog.approve("r1", held)
    said = play()
    with steplog.replay("r1"):
        assert play(policy=[]) == said
    assert len(DONE) == 3


def statuses(home):
    state = fold(FileStore(str(home)).read("r1").events)
    return {step.id: step.status for step in state.steps.values()}


@pytest.mark.parametrize("decide", [steplog.approve, steplog.reject])
@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_behind_any_event_leads_to_the_same_end(home, decide, torn):
    """The log is cut off behind each event, whole or in the middle of the next one: resuming gives what it gave."""
    rules = Policy(
        [
            Rule(id="none", action="deny", target="refund", args={"order": "d"}),
            Rule(id="slow", action="rate_limit", target="refund", args={"order": "c"}, rate="1/1h"),
            *RULES.rules,
        ]
    )

    def whole():
        denied = None
        try:
            with steplog.run("r1", policy=rules):
                try:
                    refund("d", 1)
                except steplog.StepDenied as error:
                    denied = str(error)
                return [denied, *agent()]
        except RunStopped as stopped:
            decide("r1", stopped.step, by="ann")
            return whole()

    expected, done = whole(), list(DONE)
    log = home / "runs/r1/events.jsonl"
    inbox = (home / "runs/r1/inbox.jsonl").read_bytes()
    lines = log.read_bytes().splitlines(keepends=True)
    ended = statuses(home)
    for cut in range(1, len(lines)):
        shutil.rmtree(home / "runs/r1")
        log.parent.mkdir()
        log.write_bytes(b"".join(lines[:cut]) + (lines[cut][: len(lines[cut]) // 2] if torn else b""))
        if any(b'"step.blocked"' in line for line in lines[:cut]):
            (home / "runs/r1/inbox.jsonl").write_bytes(inbox)
        DONE.clear()
        assert whole() == expected, cut
        assert set(DONE) <= set(done)
        assert statuses(home) == ended


def test_a_call_inside_a_tool_that_may_not_be_repeated_does_not_suspend_the_run(caplog):
    @steplog.step
    def outer():
        DONE.append(("outer", ""))
        return refund("b", 500)

    def decide():
        (step,) = held_by(run)
        steplog.approve("r1", step)

    with steplog.run("r1", policy=RULES) as run:
        deciding = threading.Thread(target=decide)
        deciding.start()
        assert outer() == "refunded b"
        deciding.join()
    assert [order for order, _ in DONE] == ["outer", "b"]
    assert "steplog approve r1" in caplog.text
    assert "may not be repeated" in caplog.text


def test_a_branch_that_may_not_be_repeated_ends_before_the_run_is_suspended(state_of):
    began = threading.Event()

    @steplog.step
    def slow():
        began.set()
        (_held,) = held_by(run)
        time.sleep(0.2)
        return "slow"

    with pytest.raises(RunStopped), steplog.run("r1", policy=RULES) as run:
        other = threading.Thread(target=slow)
        other.start()
        began.wait(10)
        try:
            refund("b", 500)
        finally:
            other.join()
    assert sorted(step.status for step in state_of("r1").steps.values()) == ["blocked", "done"]


def test_live_tools_of_a_replay_run_nothing_that_was_denied():
    held = play()
    steplog.reject("r1", held, by="ann")
    said = play()
    DONE.clear()
    with steplog.replay("r1"), steplog.run("r1") as run:
        run.recorder.dispatch.live_tools = True
        assert agent() == said
    assert [order for order, _ in DONE] == ["a"]
