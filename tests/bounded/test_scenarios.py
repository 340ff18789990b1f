"""The eight ways in which a task ends, with what each has done and used."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import steplog
from steplog.bounded import Limits
from tests.bounded.shop import CUSTOMER, GOAL, Stage, call, refunding

REFUND, EMAIL = ("refund", "ord_1001", 3000), ("email", "ord_1001")


class Expected(NamedTuple):
    stop: str
    steps: int
    tools: int
    tokens: int
    seconds: float
    effects: list[tuple[Any, ...]]


def same_call(_view, _asked):
    return call("get_order", {"order_id": "ord_9999"})


def new_ids(_view, asked):
    return call("get_order", {"order_id": f"ord_{9000 + asked}"})


def searching(_view, asked):
    return call("search_policy", {"order_id": "x", "q": f"returns policy {asked}"})


SCENARIOS = {
    "as asked": (lambda: Stage(refunding()), Expected("done", 5, 3, 708, 10.0, [REFUND, EMAIL])),
    "same call": (lambda: Stage(same_call), Expected("repeated_call", 3, 2, 192, 5.3, [])),
    "new ids": (lambda: Stage(new_ids), Expected("no_progress", 3, 3, 192, 5.7, [])),
    "large results": (
        lambda: Stage(searching, limits=Limits(max_stalls=10, max_tool_calls=20, max_steps=20)),
        Expected("max_tokens", 4, 4, 3584, 9.2, []),
    ),
    "slow model": (
        lambda: Stage(refunding(), model_seconds=6.0),
        Expected("deadline", 5, 3, 550, 30.0, [REFUND, EMAIL]),
    ),
    "few steps": (
        lambda: Stage(refunding(), limits=Limits(max_steps=3)),
        Expected("max_steps", 3, 2, 393, 6.1, [REFUND]),
    ),
    "large refund": (lambda: Stage(refunding("ord_1004", 8000)), Expected("needs_approval", 3, 2, 393, 6.1, [])),
    "slow write": (
        lambda: Stage(refunding(), tool_seconds={"issue_refund": 40.0}),
        Expected("unknown_outcome", 3, 2, 393, 30.0, [REFUND]),
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_task_ends_as_it_must(name, store):
    make, expected = SCENARIOS[name]
    stage = make()

    outcome = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    state = outcome.state
    found = Expected(outcome.stop, state.step, state.tool_calls, state.tokens, state.elapsed, stage.shop.effects)
    assert found == expected
    assert state.status == ("suspended" if expected.stop == "needs_approval" else "stopped")


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_task_that_is_replayed_has_the_same_state_to_the_byte_and_no_effect(name, store):
    make, expected = SCENARIOS[name]
    live = make()
    outcome = live.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")
    again = make()

    if expected.stop == "needs_approval":
        replayed = again.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")
    else:
        with steplog.replay("t1") as replay:
            replayed = again.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")
        assert replay.verdict == "identical"

    assert replayed.state.to_json() == outcome.state.to_json()
    assert (again.model.asked, again.shop.effects) == (0, [])
