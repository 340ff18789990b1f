"""The gates: what they answer is in the log before the effect, and comes back as it was."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import steplog
from steplog._kernel.control import ALLOW, Allow, Block, Deny, Later, Stop
from steplog._runtime.control import Control, Gate
from steplog._runtime.record import begin, record
from steplog._runtime.ticket import Call
from steplog.errors import RunStopped, StepDenied, StepRateLimited, StepRejected, Suspended

DONE: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    DONE.clear()


class Says(Gate):
    """Answers what a function says."""

    name, order = "test", 30

    def __init__(self, say):
        self.say = say
        self.asked = []
        self.counted = []

    def judge(self, asked):
        self.asked.append((asked.target, asked.args, asked.attempt, asked.again))
        return self.say(asked)

    def admitted(self, asked, note):
        self.counted.append((asked.target, note))


def gated(run, say, *, waits=False):
    gate = Says(say)
    run.recorder.control = Control(run.recorder, waits=waits)
    run.recorder.control.add(gate)
    return gate


@steplog.step
def refund(order, cents=100):
    DONE.append(order)
    return f"refunded {order}"


@steplog.step
async def mail(to):
    DONE.append(to)
    return f"mailed {to}"


def no_refund_above(cents):
    def say(asked):
        if asked.target == "refund" and asked.args["cents"] > cents:
            return Deny("cap", f"No refund above {cents} cents.")
        return ALLOW

    return say


def agent():
    with pytest.raises(StepDenied) as denied:
        refund("a", 500)
    assert (
        (denied.value.rule, denied.value.reason) == ("cap", str(denied.value)) == ("cap", "No refund above 100 cents.")
    )
    return refund("a", 50)


def lines(home, run_id):
    return [json.loads(line) for line in (home / f"runs/{run_id}/events.jsonl").read_bytes().splitlines()]


def test_a_denied_step_does_not_run_and_the_agent_goes_on(home, state_of):
    with steplog.run("r1") as run:
        gated(run, no_refund_above(100))
        assert agent() == "refunded a"

    denied, done = state_of("r1").steps.values()
    assert DONE == ["a"]
    assert (denied.status, denied.attempt, done.status, done.after) == ("denied", 0, "done", denied.id)
    line = next(line for line in lines(home, "r1") if line["type"] == "step.denied")
    assert line["data"]["args"] == {"order": "a", "cents": 500}
    assert (line["data"]["rule"], line["data"]["why"]) == ("cap", "No refund above 100 cents.")


def test_a_resumed_run_gets_the_same_denial_and_nobody_is_asked():
    with pytest.raises(ZeroDivisionError), steplog.run("r1") as run:
        gated(run, no_refund_above(100))
        agent()
        raise ZeroDivisionError

    with steplog.run("r1") as run:
        gate = gated(run, lambda asked: pytest.fail("judged again"))
        assert agent() == "refunded a"
        assert run.replayed == 2
    assert gate.asked == []
    with steplog.run("r1"):
        assert agent() == "refunded a"
    assert DONE == ["a"]


def test_a_denial_that_ended_the_run_is_not_judged_again():
    for limit in (100, 1000):
        with pytest.raises(StepDenied), steplog.run("r1") as run:
            gated(run, no_refund_above(limit))
            refund("a", 500)
    assert DONE == []


def test_what_exceeded_a_rate_and_is_denied_then_stays_denied():
    with pytest.raises(StepRateLimited), steplog.run("r1") as run:
        gated(run, lambda asked: Later("rate", "Too many refunds.", 60.0, 1.0))
        refund("a")
    for say in (lambda asked: Deny("cap", "No."), lambda asked: pytest.fail("judged again")):
        with steplog.run("r1") as run:
            gated(run, say)
            with pytest.raises(StepDenied, match=r"No\."):
                refund("a")
    assert DONE == []


def test_what_exceeds_a_rate_is_judged_again_when_it_has_ended_the_run():
    with pytest.raises(StepRateLimited) as limited, steplog.run("r1") as run:
        gated(run, lambda asked: Later("rate", "Too many refunds.", 60.0, 1.0))
        refund("a")
    assert limited.value.retry_after == 60.0
    assert "60 seconds" in str(limited.value)

    with steplog.run("r1") as run:
        gated(run, lambda asked: ALLOW)
        assert refund("a") == "refunded a"
    with steplog.run("r1"):
        assert refund("a") == "refunded a"
    assert DONE == ["a"]


def test_a_rate_that_the_agent_has_handled_stays():
    def careful():
        with pytest.raises(StepRateLimited):
            refund("a")
        return refund("a")

    with steplog.run("r1") as run:
        answers = [Later("rate", "Too many.", 60.0, 1.0), ALLOW]
        gated(run, lambda asked: answers.pop(0))
        assert careful() == "refunded a"
    with steplog.run("r1"):
        assert careful() == "refunded a"
    assert DONE == ["a"]


def test_a_short_wait_is_waited_for():
    answers = [Later("rate", "Too many.", 0.01, 1.0), Later("rate", "Too many.", 0.01, 1.0), ALLOW]
    with steplog.run("r1") as run:
        gated(run, lambda asked: answers.pop(0))
        assert refund("a") == "refunded a"
    assert answers == []


def test_a_blocked_step_suspends_the_run_and_is_asked_for_again(state_of):
    for times in range(2):
        with pytest.raises(RunStopped) as stopped, steplog.run("r1") as run:
            gate = gated(run, lambda asked: ALLOW if asked.target == "mail" else Block("ask", "Money goes out."))
            refund("a")
        assert isinstance(stopped.value.__cause__, Suspended)
        step = state_of("r1").steps[stopped.value.step]
        assert (step.status, step.attempt, step.started["args"]) == ("blocked", 0, {"order": "a", "cents": 100})
        assert any(f"steplog approve r1 {step.id}" in command for command in stopped.value.commands), times
        assert gate.asked == [("refund", {"order": "a", "cents": 100}, 1, False)]
    assert state_of("r1").reason == "approval"
    assert [step.status for step in state_of("r1").steps.values()] == ["blocked"]

    with steplog.run("r1") as run:
        gated(run, lambda asked: Allow({"by": "ann"}))
        assert refund("a") == "refunded a"
    (step,) = state_of("r1").steps.values()
    assert (step.status, step.attempt, step.started["judged"]) == ("done", 1, {"test": {"by": "ann"}})
    assert DONE == ["a"]


def test_a_rejected_step_tells_who_and_why_for_ever():
    def careful():
        with pytest.raises(StepRejected) as rejected:
            refund("a")
        return rejected.value.by, rejected.value.note, rejected.value.rule

    with pytest.raises(RunStopped), steplog.run("r1") as run:
        gated(run, lambda asked: Block("ask", "Money goes out."))
        refund("a")
    with steplog.run("r1") as run:
        gated(run, lambda asked: Deny("ask", "Rejected by ann: no.", {"by": "ann", "note": "no"}))
        assert careful() == ("ann", "no", "ask")
    with steplog.run("r1"):
        assert careful() == ("ann", "no", "ask")
    assert DONE == []


def test_only_the_branch_that_is_blocked_waits():
    async def main():
        async with steplog.run("r1") as run:
            approved = asyncio.Event()
            gated(
                run,
                lambda asked: ALLOW if asked.args["to"] == "b" or approved.is_set() else Block("ask", "?"),
                waits=True,
            )
            held = asyncio.create_task(mail("a"))
            assert await mail("b") == "mailed b"
            approved.set()
            assert await held == "mailed a"

    asyncio.run(main())
    assert DONE == ["b", "a"]


def test_two_branches_cannot_both_take_the_last_one():
    left = [3]

    def say(asked):
        return ALLOW if left[0] else Deny("cap", "No more.")

    with steplog.run("r1") as run:
        gate = gated(run, say)
        gate.admitted = lambda asked, note: left.__setitem__(0, left[0] - 1)
        together = threading.Barrier(8)

        def branch(number):
            together.wait()
            try:
                return refund(f"o{number}")
            except StepDenied:
                return None

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(branch, range(8)))
    assert sum(result is not None for result in results) == len(DONE) == 3


def test_a_gate_may_stop_the_run(state_of):
    with pytest.raises(RunStopped) as stopped, steplog.run("r1") as run:
        gated(run, lambda asked: Stop(Suspended("enough", run_id="r1", step=None)))
        refund("a")
    assert str(stopped.value.__cause__) == "enough"
    assert DONE == []
    assert state_of("r1").status == "suspended"


def test_gates_are_asked_in_order_and_the_first_refusal_decides():
    asked = []

    class Numbered(Gate):
        def __init__(self, order):
            self.order = order

        def judge(self, _asked):
            asked.append(self.order)
            return Deny(str(self.order), "no") if self.order == 20 else ALLOW

    with steplog.run("r1") as run:
        run.recorder.control = Control(run.recorder)
        for order in (40, 10, 20):
            run.recorder.control.add(Numbered(order))
        with pytest.raises(StepDenied):
            refund("a")
    assert asked == [10, 20]


@pytest.mark.parametrize("times", [1, 2])
def test_an_interceptor_gets_the_denial_from_begin(times):
    """A denied call of an SDK raises where the recorder refuses it, now and when the run is played again."""
    for _ in range(times):
        with steplog.run("r1") as run:
            gated(run, lambda asked: Deny("no-models", "No model calls.") if asked.kind == "llm_call" else ALLOW)
            with pytest.raises(StepDenied):
                record(Call("llm_call", "gpt", {"n": 1}, "safe"), lambda ticket: DONE.append("called"))
            with pytest.raises(StepDenied):
                begin(Call("llm_call", "gpt", {"n": 2}, "safe"))
    assert DONE == []


def test_a_denial_is_played_in_a_replay():
    with steplog.run("r1") as run:
        gated(run, no_refund_above(100))
        agent()

    with steplog.replay("r1"), steplog.run("r1"):
        assert agent() == "refunded a"
    assert DONE == ["a"]


def test_secrets_in_what_was_denied_stay_off_the_disk(home):
    token = "sk-proj-" + "Ab3" * 16
    with steplog.run("r1") as run:
        gated(run, lambda asked: Deny("no", f"Not with {asked.args['order']}."))
        with pytest.raises(StepDenied) as denied:
            refund(token)
    assert token not in (home / "runs/r1/events.jsonl").read_text()
    with steplog.run("r1"), pytest.raises(StepDenied) as again:
        refund(token)
    # The agent may hand the text to a model, whose request must then be the recorded one.
    assert str(denied.value) == str(again.value)
