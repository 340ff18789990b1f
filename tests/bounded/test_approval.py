"""A call that is held: suspended with nothing done, decided from outside, made first and once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import steplog
from steplog.bounded import TaskState
from tests.bounded.shop import CUSTOMER, GOAL, Stage, refunding
from tests.support.processes import environment
from tests.support.recorded import ROOT

REFUND, EMAIL = ("refund", "ord_1004", 8000), ("email", "ord_1004")


def held(run_id="t1"):
    stage = Stage(refunding("ord_1004", 8000))
    return stage, stage.agent.run(GOAL, user_id=CUSTOMER, run_id=run_id)


def decide(outcome, value, run_id="t1"):
    steplog.signal(run_id, f"approval.{outcome.state.pending['digest']}", value)


def test_a_held_call_is_made_first_under_its_own_key_and_the_counters_go_on(store):
    stage, first = held()
    assert (first.state.status, first.stop, first.state.step) == ("suspended", "needs_approval", 3)
    assert (first.state.pending["tool"], first.state.pending["arguments"]["amount_cents"]) == ("issue_refund", 8000)
    assert stage.shop.effects == []

    stage.shop.approved.add(("ord_1004", 8000))
    decide(first, {"approved": True})
    again = Stage(refunding("ord_1004", 8000), shop=stage.shop)
    second = again.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    assert (second.state.status, second.stop, second.state.step) == ("stopped", "done", 5)
    assert (second.state.tool_calls, second.state.tokens, second.state.elapsed) == (4, 708, 11.2)
    assert stage.shop.effects == [REFUND, EMAIL]


def test_going_on_twice_changes_nothing(store):
    stage, first = held()
    stage.shop.approved.add(("ord_1004", 8000))
    decide(first, {"approved": True})
    second = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")
    asked = stage.model.asked

    third = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    assert third.state.to_json() == second.state.to_json()
    assert (stage.shop.effects, stage.model.asked) == ([REFUND, EMAIL], asked)


def test_two_decisions_count_as_the_first(store):
    stage, first = held()
    stage.shop.approved.add(("ord_1004", 8000))
    decide(first, {"approved": True})
    decide(first, {"approved": False})

    second = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    assert (second.stop, stage.shop.effects) == ("done", [REFUND, EMAIL])


def test_a_bare_yes_is_an_approval_and_the_outcome_has_the_decision_to_send(store):
    stage, first = held()
    assert """ '{"approved": true}'""" in first.commands[0]
    assert not any(each.endswith("JSON") for each in first.commands)
    stage.shop.approved.add(("ord_1004", 8000))
    decide(first, True)

    second = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    assert (second.stop, stage.shop.effects) == ("done", [REFUND, EMAIL])


@pytest.mark.parametrize("value", [{"approved": False, "note": "too much"}, "yes", {"approved": "yes"}, False])
def test_a_call_that_is_not_approved_is_not_made_and_the_model_is_told(value, store):
    stage, first = held()
    decide(first, value)

    second = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    assert stage.shop.effects == []
    assert [each["status"] for each in second.state.plan] == ["done", "failed", "pending"]
    assert "The refund was not issued." in second.message


def test_a_model_that_claims_what_was_rejected_does_not_have_the_last_word(store):
    plays, claim = refunding("ord_1004", 8000), "Refund issued and confirmation sent."

    def claiming(view, asked):
        if any(step["status"] == "failed" for step in view["plan"]):
            if not any(step["status"] == "pending" for step in view["plan"]):
                return {"type": "final", "outcome": "completed", "text": claim}
            return {
                "type": "tool",
                "name": "send_status_email",
                "args": {"order_id": "ord_1004"},
                "plan_step": "s3",
            }
        reply = plays(view, asked)
        if reply["type"] == "plan":  # the mail does not depend on the refund
            reply["steps"][2]["depends_on"] = ["s1"]
        return reply

    stage = Stage(claiming)
    decide(stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1"), {"approved": False})

    second = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    assert stage.shop.effects == [EMAIL]
    assert second.message == f"{claim} The refund was not issued. The confirmation was sent."


def test_a_saved_state_is_the_same_when_it_is_read_again(store):
    state = held()[1].state

    assert TaskState.from_json(state.to_json()) == state


def test_a_call_that_a_rule_holds_is_told_like_one_that_its_tool_holds(store):
    rules = [steplog.Rule(id="large", action="require_approval", target="issue_refund", args={"amount_cents": 3000})]
    stage = Stage(refunding())
    first = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1", policy=rules)
    (blocked,) = [event.step for event in store.read("t1").events if event.type == "step.blocked"]
    steplog.approve("t1", blocked, by="ben")
    nothing = list(stage.shop.effects)

    second = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1", policy=rules)

    assert (first.stop, first.state.pending["key"], nothing) == ("needs_approval", "t1:s2", [])
    assert first.commands[0].startswith("steplog approve t1 ")
    assert "The refund was not issued. It needs approval." in first.message
    assert (second.stop, second.state.tool_calls) == ("done", 3)
    assert stage.shop.effects == [("refund", "ord_1001", 3000), ("email", "ord_1001")]


def test_a_held_call_that_is_rejected_is_a_result_that_the_model_reads(store):
    rules = [steplog.Rule(id="large", action="require_approval", target="issue_refund")]
    stage = Stage(refunding())
    stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1", policy=rules)
    (blocked,) = [event.step for event in store.read("t1").events if event.type == "step.blocked"]
    steplog.reject("t1", blocked, by="ben", note="not today")

    outcome = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1", policy=rules)

    assert stage.shop.effects == []
    assert outcome.state.plan[1]["status"] == "failed"
    assert "The refund was not issued." in outcome.message


def test_a_call_that_a_rule_denies_is_a_result_that_the_model_reads(store):
    rules = [steplog.Rule(id="never", action="deny", target="issue_refund", reason="Refunds are off today.")]
    shown = []

    def replies(view, asked):
        shown.append(view)
        return (
            refunding()(view, asked) if asked < 4 else {"type": "final", "outcome": "cannot_complete", "text": "Sorry."}
        )

    outcome = Stage(replies).agent.run(GOAL, user_id=CUSTOMER, policy=rules)

    assert shown[3]["last_result"] == {"status": "error", "code": "denied", "detail": "Refunds are off today."}
    assert (outcome.stop, outcome.message) == (
        "done",
        "Sorry. The refund was not issued. The confirmation was not sent.",
    )


def test_a_task_whose_run_reaches_its_budget_has_an_end_too(store):
    stage = Stage(refunding())

    outcome = stage.agent.run(GOAL, user_id=CUSTOMER, budget=steplog.Budget(max_tool_calls=1))

    assert (outcome.stop, stage.shop.effects) == ("budget", [])
    assert "The refund was not issued." in outcome.message


def test_a_task_that_is_cancelled_has_an_end_too(store):
    stage, _first = held()
    steplog.cancel("t1")

    outcome = stage.agent.run(GOAL, user_id=CUSTOMER, run_id="t1")

    assert (outcome.stop, stage.shop.effects) == ("cancelled", [])
    assert outcome.message.startswith("This was cancelled.")


async def test_a_held_call_of_an_async_task(store):
    stage = Stage(refunding("ord_1004", 8000))
    first = await stage.agent.run_async(GOAL, user_id=CUSTOMER, run_id="t1")
    stage.shop.approved.add(("ord_1004", 8000))
    decide(first, {"approved": True})

    second = await stage.agent.run_async(GOAL, user_id=CUSTOMER, run_id="t1")

    assert (first.stop, second.stop, stage.shop.effects) == ("needs_approval", "done", [REFUND, EMAIL])


def test_the_example_waits_for_a_decision_and_goes_on_with_it(tmp_path):
    def run(*command: str) -> str:
        done = subprocess.run(
            [Path(sys.executable).with_name(command[0]), *command[1:]],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    example = str(ROOT / "examples/bounded_agent.py")
    waiting = run("python", example, "8000")
    assert waiting.startswith("needs_approval: This is waiting for somebody's approval. The refund was not issued.")
    assert "touch approved\n" in waiting
    assert not (tmp_path / "ledger.txt").exists()

    (tmp_path / "approved").touch()
    (name,) = set(re.findall(r"\bapproval\.[0-9a-f]{16}\b", waiting))
    program = "import steplog, sys; steplog.signal('refund-8000', sys.argv[1], {'approved': True})"
    run("python", "-c", program, name)

    assert run("python", example, "8000") == "done: Refund issued and confirmation sent.\n"
    assert (tmp_path / "ledger.txt").read_text() == "refund ord_1004 8000 refund-8000:s2\nmail ord_1004\n"
