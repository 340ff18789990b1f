"""`steplog approve` and `reject`: what they say, and how they leave."""

from __future__ import annotations

import pytest

import steplog
from steplog import Rule
from steplog.errors import RunStopped

RULES = [Rule(id="ask", action="require_approval", kind="tool_call", reason="Money goes out.")]


@steplog.step
def refund(order):
    return order


@pytest.fixture
def held(home):
    steplog.install(home=home, interceptors=[])
    with pytest.raises(RunStopped) as stopped, steplog.run("r1", policy=RULES):
        steplog.step("now", lambda: 1)
        refund("a")
    yield stopped.value.step
    steplog.uninstall()


def test_approving_says_how_to_go_on(held, invoke, ask):
    shown = invoke("show", "r1").stdout
    assert "rule ask asks for approval" in shown
    assert f"steplog approve r1 {held}" in shown
    done = invoke("approve", "r1", held[:6], "--by", "ann")
    assert done.exit_code == 0
    assert f"tool_call refund ({held}) is approved by ann. Go on: steplog resume r1" in done.stdout

    again = ask("reject", "r1", "2", "--by", "bob")
    assert (again["counted"], again["standing"], again["by"]) == (False, "approved", "ann")
    assert invoke("reject", "r1").exit_code == 1
    assert invoke("approve", "r1").exit_code == 0

    with steplog.run("r1", policy=RULES):
        steplog.step("now", lambda: 1)
        assert refund("a") == "a"
    late = invoke("approve", "r1", held)
    assert "was approved by ann before" in late.stdout


def test_rejecting_is_read_by_the_agent(held, invoke):
    assert invoke("reject", "last", "--note", "not our order", "--by", "ann").exit_code == 0
    with steplog.run("r1", policy=RULES):
        steplog.step("now", lambda: 1)
        with pytest.raises(steplog.StepRejected, match="rejected by ann: not our order"):
            refund("a")
    shown = invoke("show", "r1", held).stdout
    assert "denied" in shown
    assert "not our order" in shown


def test_a_step_has_to_be_named_where_none_waits(held, invoke):
    invoke("reject", "r1")
    with steplog.run("r1", policy=RULES):
        steplog.step("now", lambda: 1)
        with pytest.raises(steplog.StepRejected):
            refund("a")
    done = invoke("approve", "r1")
    assert done.exit_code == 2
    assert "say which step" in done.stderr
    assert "does not wait for approval, it is done" not in invoke("approve", "r1", "1").stdout
    assert invoke("approve", "r1", "s_none").exit_code == 1


def test_a_run_that_a_rejection_has_ended_is_not_to_be_resumed_as_it_is(held, invoke, ask):
    invoke("reject", "r1", "--by", "ann")
    with pytest.raises(steplog.StepRejected), steplog.run("r1", policy=RULES):
        steplog.step("now", lambda: 1)
        refund("a")
    told = "steplog show r1 2    (denied on every resume, until the program catches StepDenied)"
    assert ask("show", "r1")["next"] == [told]
    why = ask("why", "r1")
    assert why["next"] == [told]
    assert why["do"].startswith("nothing by resuming alone: #2 refund was denied")
    assert "steplog resume" not in invoke("why", "r1").stdout
    with steplog.run("r1", policy=RULES):
        steplog.step("now", lambda: 1)
        with pytest.raises(steplog.StepRejected):
            refund("a")
    assert ask("show", "r1")["status"] == "completed"
