"""What the crash kit makes of the counts that it is given, without a process."""

from __future__ import annotations

from collections import Counter

import pytest

from steplog._kernel.state import RunState, StepState
from steplog.testing._crash_points import Point, Records
from steplog.testing._crash_report import CrashReport, advise, tools_of
from steplog.testing._crash_verdict import OUTSIDE, Case, Finding, World, judge

POINT = Point(3, "before-outcome", "s_pay", "tool_call", "pay", "unsafe", 1, 1)
NOTHING = dict.fromkeys(("doubled", "lost", "stuck", "undecided"), 0)


def note(what, step="s_pay", run="r", **facts):
    return {"what": what, "run": run, "step": step, **facts}


def records(mode="unsafe", *, begun=1, ended=1, status="done", end=None, run="completed", notes=()):
    step = StepState("s_pay", "tool_call", "pay", "", None, mode, status, 1, {}, 1, "", end=end or {"outcome": status})
    state = RunState(run_id="r", status=run, steps={step.id: step})
    happened = [note("begun")] * begun + [note("ended")] * ended
    return Records({"r": state}, [*happened, *notes])


BASELINE = records()


def findings(case, **options):
    return {(one.what, one.tool) for one in judge(POINT, BASELINE, case, **options).findings}


@pytest.mark.parametrize("mode, found", [("unsafe", True), ("verify", True), ("safe", False), ("keyed", False)])
def test_an_effect_that_returned_twice_is_doubled_where_its_mode_does_not_allow_that(mode, found):
    case = records(mode, begun=2, ended=2)

    assert findings(case) == ({("doubled", "pay")} if found else set())
    assert judge(POINT, BASELINE, case).repeated == {"pay": 1}


def test_equal_steps_of_two_runs_are_two():
    one = records()
    both = Records(
        {"r": one.runs["r"], "q": RunState(run_id="q", status="completed", steps=dict(one.runs["r"].steps))},
        [*one.notes, note("begun", run="q"), note("ended", run="q")],
    )

    assert judge(POINT, both, both).findings == ()
    assert judge(POINT, both, both).repeated == {}
    found = judge(POINT, both, one).findings
    assert {(finding.what, finding.tool) for finding in found} == {("lost", "pay")}


def test_an_attempt_that_raised_and_was_retried_is_not_doubled():
    raised = note("ended", failed=True)

    assert findings(records(begun=2, ended=1, notes=[raised])) == set()


def test_a_step_that_is_finished_without_its_effect_is_lost_unless_somebody_has_vouched_for_it():
    assert findings(records(begun=1, ended=0)) == {("lost", "pay")}
    assert findings(records(begun=1, ended=0, end={"how": "done"})) == set()
    assert findings(records(begun=1, ended=0), undecided=[("r", "s_pay")]) == {("undecided", "pay")}


def test_a_program_that_ends_without_a_step_of_the_baseline_has_lost_it():
    case = Records({"r": RunState(run_id="r", status="completed")}, [])

    assert findings(case) == {("lost", "pay")}
    assert findings(case, stuck="drift") == {("stuck", "pay")}


def test_a_run_that_ends_otherwise_is_another_result():
    assert findings(records(run="escalated")) == {("lost", OUTSIDE)}


@pytest.mark.parametrize(
    "case, world, found",
    [
        (records("keyed", begun=2), ["pay", "pay"], {("doubled", "pay")}),
        (records(), ["pay", "note"], {("doubled", OUTSIDE)}),
        (records(), [], {("lost", "pay")}),
        (records(), ["pay"], set()),
    ],
)
def test_the_ledger_has_the_last_word(case, world, found):
    gained = World(Counter(["pay"]), Counter(world))

    assert findings(case, world=gained) == found


@pytest.mark.parametrize(
    "mode, count, options, declare",
    [
        ("safe", {"doubled": 1}, {"acts": True, "key": False}, "unsafe"),
        ("safe", {"doubled": 1}, {"acts": True, "key": True}, "keyed"),
        ("keyed", {"doubled": 1}, {"acts": True, "key": True}, "verify"),
        ("unsafe", {"undecided": 2}, {"acts": False, "key": False}, "safe"),
        ("unsafe", {"undecided": 2}, {"acts": True, "key": True}, "keyed"),
        ("unsafe", {"undecided": 2}, {"acts": True, "key": False}, "verify"),
        ("unsafe", {"undecided": 2}, {"acts": None, "key": False}, "keyed, verify"),
        ("keyed", {}, {"acts": True, "key": True}, "keyed"),
    ],
)
def test_the_mode_that_a_tool_should_declare(mode, count, options, declare):
    advised, change = advise("pay", mode, {**NOTHING, **count}, 2, **options)

    assert advised == declare
    assert bool(change) == bool(count)


def test_a_tool_acts_when_the_ledger_changed_while_nothing_else_was_under_way():
    acted = [
        {"what": "tool", "name": "pay", "mode": "unsafe", "key": False, "file": "/agent.py", "line": 7},
        note("begun"),
        note("ended", acts=True),
    ]
    crowded = [note("begun", "s_other"), *acted, note("ended", "s_other", acts=True)]

    def row(notes):
        (found,) = tools_of(records(begun=0, ended=0, notes=notes), [], ledger=True)
        return found

    assert (row(acted).acts, row(acted).place) == (True, "/agent.py:7")
    assert row(crowded).acts is None


def test_the_report_names_what_is_wrong_and_how_to_see_it_again():
    case = judge(POINT, BASELINE, records(begun=2, ended=2))
    report = CrashReport("agent.py", (POINT,), (case,), tools_of(BASELINE, [case], ledger=False), 1.0)

    assert not report.ok
    assert "1 doubled" in str(report)
    assert "crash_matrix(..., only=['s_pay:before-outcome'])" in str(report)
    typed = report._replace(again=(("steplog", "crash-test", "--live"), ("my agent.py", "a")))
    assert typed.command(POINT) == "steplog crash-test --live --only s_pay:before-outcome 'my agent.py' a"
    assert typed.as_json()["cases"][0]["verdict"] == "doubled"
    assert report.found("doubled") == [(case, Finding("doubled", "pay", case.findings[0].detail))]


def test_a_kill_that_was_not_made_proves_nothing():
    missed = Case(POINT, (), {}, 1, reached=False)

    assert missed.verdict == "not reached"
    assert not CrashReport("agent.py", (POINT,), (missed,), (), 1.0).ok
