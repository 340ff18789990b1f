"""What is easily lost: calls that keep to no timeout, the last call that is held, the run's own end, changed views."""

from __future__ import annotations

import pytest

import steplog
from steplog.bounded import Agent, Limits, Tool
from steplog.errors import RunStopped
from tests.bounded.shop import CUSTOMER, GOAL, Clock, Stage, call, refunding


def test_what_does_not_keep_to_its_timeout_is_counted_with_what_it_was_given(store):
    clock = Clock()

    def model(_view, *, timeout, **_limits):
        return call("look", {})

    def look():
        clock.now += 50.0
        return {"seen": True}

    outcome = Agent(model, [Tool(look, writes=False)], clock=clock).run(GOAL, user_id=CUSTOMER)

    assert (outcome.stop, outcome.state.elapsed, outcome.state.step) == ("deadline", 30.0, 1)


def test_a_reply_that_comes_after_the_deadline_is_not_acted_on(store):
    clock = Clock()
    looked = []

    def model(_view, **_limits):
        clock.now += 31.0
        return call("look", {})

    agent = Agent(model, [Tool(lambda: looked.append(1), name="look", writes=False)], clock=clock)

    outcome = agent.run(GOAL, user_id=CUSTOMER)

    assert (outcome.stop, outcome.state.elapsed, looked) == ("deadline", 30.0, [])


def test_a_held_call_is_not_made_beyond_the_limit_of_calls(store):
    stage = Stage(refunding("ord_1004", 8000), limits=Limits(max_tool_calls=2))
    held = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")
    stage.shop.approved.add(("ord_1004", 8000))
    steplog.signal("t1", f"approval.{held.state.pending['digest']}", {"approved": True})

    outcome = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    assert (outcome.stop, outcome.state.tool_calls, stage.shop.effects) == ("max_tool_calls", 2, [])


@pytest.mark.parametrize(
    "limits, outcome, reason",
    [(Limits(), "completed", "done"), (Limits(max_steps=3), "escalated", "escalated")],
)
def test_the_run_ends_as_the_task_did(limits, outcome, reason, store):
    Stage(refunding(), limits=limits).agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    (ended,) = [event.data for event in store.read("t1").events if event.type == "run.ended"]
    assert (ended["outcome"], ended["reason"]) == (outcome, reason)
    assert ended.get("message") == (None if outcome == "completed" else "max_steps")


def test_a_changed_view_never_gets_an_old_reply(store):
    Stage(refunding("ord_1004", 8000)).agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    with pytest.raises(RunStopped) as stopped:
        Stage(refunding("ord_1004", 8000), limits=Limits(max_steps=9)).agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    assert stopped.value.reason == "drift"


def test_in_an_open_run_it_is_a_part_of_that_run(store):
    stage = Stage(refunding())
    with steplog.run("outer") as run:
        outcome = stage.agent.run(GOAL, user_id=CUSTOMER)

    assert (outcome.stop, outcome.state.task_id[:8], run.executed) == ("done", "outer:s_", 9)
