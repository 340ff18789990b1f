"""No sequence of replies breaks a bound, whatever a model says."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import steplog
from steplog.bounded import Answered, AwaitDecision, Limits, Loop, TaskState
from steplog.errors import InvalidArgument
from tests.bounded.shop import CUSTOMER, GOAL, Stage, call

MODELS = 2000


def erratic(seed: int) -> Stage:
    """A model that says anything: unknown tools, bad plans, early ends, the same again, quickly or slowly."""
    draw = random.Random(seed)
    tools = ["get_order", "issue_refund", "send_status_email", "search_policy", "delete_order"]

    def next_reply(_view: dict[str, Any], _asked: int) -> dict[str, Any]:
        kind = draw.random()
        if kind < 0.10:
            return {"type": "final", "outcome": draw.choice(["completed", "cannot_complete"]), "text": "done"}
        if kind < 0.20:
            tool = draw.choice(["get_order", "nope"])
            return {"type": "plan", "steps": [{"id": "s1", "tool": tool, "depends_on": []}]}
        tool, order = draw.choice(tools), draw.choice(["ord_1001", "ord_1004", "ord_9999"])
        args = {"order_id": order, "amount_cents": draw.choice([100, 3000, 8000, 99999])}
        return {**call(tool, args), "plan_step": draw.choice([None, "s1"])}

    return Stage(next_reply, model_seconds=draw.choice([0.5, 1.5, 4.0]))


def play(stage: Stage, limits: Limits) -> TaskState:
    """Drive the loop without a run, until it ends or waits for a person."""
    state = TaskState("t1", CUSTOMER, GOAL)
    loop = Loop(state, stage.agent.tools, limits).turns()
    answer = None
    while True:
        try:
            asked = loop.send(answer)
        except StopIteration:
            return state
        if isinstance(asked, AwaitDecision):
            return state
        found = stage.agent._perform(asked, state)
        answer = Answered(found["value"], found["seconds"], found["timed_out"])


def test_two_thousand_erratic_models_break_no_bound():
    limits, stops = Limits(), Counter[str]()
    largest = {"step": 0, "tool_calls": 0, "tokens": 0, "elapsed": 0.0}
    for seed in range(MODELS):
        stage = erratic(seed)

        state = play(stage, limits)

        stops[str(state.stop)] += 1
        largest = {name: max(most, getattr(state, name)) for name, most in largest.items()}
        assert all(order["refunded"] <= order["total"] for order in stage.shop.orders.values()), seed

    assert largest == {"step": 8, "tool_calls": 6, "tokens": 3725, "elapsed": 30.0}
    assert (limits.max_steps, limits.max_tool_calls, limits.max_tokens, limits.deadline) == (8, 6, 4000, 30.0)
    assert stops == {
        "no_progress": 810,
        "done": 758,
        "needs_approval": 116,
        "max_tool_calls": 102,
        "deadline": 95,
        "max_steps": 80,
        "max_tokens": 31,
        "unknown_outcome": 4,
        "repeated_call": 4,
    }


def test_erratic_models_in_runs_come_to_the_same_and_so_do_their_replays(store):
    for seed in range(40):
        expected = play(erratic(seed), Limits())
        if expected.stop == "needs_approval":
            continue
        run_id = f"t1-{seed}"

        found = erratic(seed).agent.run(GOAL, user_id=CUSTOMER, run_id=run_id).state
        with steplog.replay(run_id) as replay:
            again = erratic(seed).agent.run(GOAL, user_id=CUSTOMER, run_id=run_id).state

        assert replay.verdict == "identical"
        assert again.to_json() == found.to_json()
        assert (found.stop, found.step, found.tokens, found.elapsed) == (
            *(expected.stop, expected.step, expected.tokens),
            expected.elapsed,
        )


@pytest.mark.parametrize(
    "name, value", [("max_steps", 0), ("deadline", -1.0), ("max_tokens", 1.5), ("max_repeat", True)]
)
def test_a_limit_is_a_number_above_zero(name, value):
    with pytest.raises(InvalidArgument, match=name):
        Limits(**{name: value})
