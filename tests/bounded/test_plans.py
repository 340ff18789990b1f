"""Plans are checked before any of them runs, and the end of a task is decided against its plan."""

from __future__ import annotations

import pytest

from steplog.bounded import Limits, problems_of
from tests.bounded.shop import CUSTOMER, GOAL, Clock, Shop, Stage, call

TOOLS = {tool.name: tool for tool in Shop(Clock()).tools()}


def step(name, tool, *needs):
    return {"id": name, "tool": tool, "depends_on": list(needs)}


@pytest.mark.parametrize(
    "steps, problems",
    [
        ([step("s1", "get_order"), step("s2", "issue_refund", "s1")], []),
        ([{"id": "s1", "tool": "get_order"}], []),
        ([step("s1", "delete_order")], ["s1: unknown tool 'delete_order'"]),
        ([step("s1", "issue_refund")], ["s1: write step has no prerequisite"]),
        (
            [step("s1", "get_order", "s2"), step("s2", "get_order")],
            ["s1: depends on 's2', which is not an earlier step"],
        ),
        ([step(f"s{n}", "get_order") for n in range(8)], ["too many steps (8 > 6)"]),
        ([step("s1", "get_order"), step("s1", "get_order")], ["s1: duplicate id"]),
        ([], ["plan must be a non-empty list"]),
        ("s1", ["plan must be a non-empty list"]),
        (["s1"], ["step 1: must be an object with an id"]),
        ([{"tool": "get_order"}], ["step 1: must be an object with an id"]),
        ([{"id": "s1", "tool": ["get_order"]}], ["s1: unknown tool ['get_order']"]),
        ([{"id": "s1", "tool": "get_order", "depends_on": "s0"}], ["s1: depends_on must be a list of ids"]),
        ([step("s1", "get_order", ["s0"])], ["s1: depends on ['s0'], which is not an earlier step"]),
    ],
)
def test_a_plan_is_refused_with_precise_reasons(steps, problems):
    assert problems_of(steps, TOOLS, 6) == problems


def test_the_model_is_told_what_is_wrong_with_its_plan_and_may_mend_it(store):
    shown = []

    def replies(view, asked):
        shown.append(view)
        if asked == 1:
            return {"type": "plan", "steps": [step("s1", "issue_refund")]}
        if asked == 2:
            return {"type": "plan", "steps": [step("s1", "get_order")]}
        if asked == 3:
            return {"type": "plan", "steps": [step("s9", "get_order")]}
        return {"type": "final", "outcome": "cannot_complete", "text": "I cannot."}

    outcome = Stage(replies).agent.run(GOAL, user_id=CUSTOMER)

    problems = ["s1: write step has no prerequisite"]
    assert shown[1]["last_result"] == {"status": "error", "code": "invalid_plan", "detail": problems}
    assert shown[2]["plan"] == [{**step("s1", "get_order"), "status": "pending"}]
    assert shown[3]["last_result"]["detail"] == ["a plan is already set"]
    assert (outcome.stop, outcome.state.outcome) == ("done", "cannot_complete")


def test_a_task_is_not_done_while_its_plan_is_open(store):
    shown = []

    def replies(view, asked):
        shown.append(view)
        if asked == 1:
            return {"type": "plan", "steps": [step("s1", "get_order")]}
        if asked == 3:
            return call("get_order", {"order_id": "ord_1001"}, "s1")
        return {"type": "final", "outcome": "completed", "text": "All done."}

    outcome = Stage(replies).agent.run(GOAL, user_id=CUSTOMER)

    assert shown[2]["last_result"] == {"status": "error", "code": "plan_incomplete", "detail": ["s1"]}
    assert (outcome.stop, outcome.message, outcome.state.step) == ("done", "All done.", 4)


def test_what_cannot_be_mended_fails_its_plan_step_and_what_can_leaves_it_open(store):
    def replies(_view, asked):
        if asked == 1:
            return {"type": "plan", "steps": [step("s1", "get_order"), step("s2", "get_order")]}
        if asked == 2:
            return call("get_order", {"order_id": "ord_9999"}, "s1")
        if asked == 3:
            return {"type": "tool", "name": "get_order", "args": {"user_id": "cu_ben"}, "plan_step": "s2"}
        return {"type": "final", "outcome": "cannot_complete", "text": "There is no such order."}

    outcome = Stage(replies).agent.run(GOAL, user_id=CUSTOMER)

    assert [each["status"] for each in outcome.state.plan] == ["failed", "pending"]
    assert outcome.state.last_result == {
        "status": "error",
        "code": "invalid_arguments",
        "detail": "user_id is not the model's to give",
    }


@pytest.mark.parametrize(
    "reply",
    [None, "refund", [], {}, {"type": "think"}, {"type": "tool", "name": 3}, {"type": "final", "text": "done"}],
)  # fmt: skip
def test_a_reply_that_is_none_is_refused_and_counted(reply, store):
    outcome = Stage(lambda _view, _asked: reply, limits=Limits(max_stalls=2)).agent.run(GOAL, user_id=CUSTOMER)

    assert (outcome.stop, outcome.state.step) == ("no_progress", 2)
    assert outcome.state.last_result["code"] == "invalid_reply"
