"""State is a fold: split anywhere it is the same, nothing is changed on the way, and each event means what it says."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel import events as ev
from steplog._kernel.events import Event
from steplog._kernel.fold import RunState, fold
from tests.kernel.logs import MODES, Log, hostile, logs

EVENTS = logs().map(lambda log: log.events) | hostile()


@given(EVENTS, st.data())
def test_folding_head_then_tail_gives_what_folding_the_whole_gives(events, data):
    cut = data.draw(st.integers(0, len(events)))

    assert fold(events[cut:], fold(events[:cut])) == fold(events)


@given(EVENTS)
def test_folding_one_by_one_gives_what_folding_the_whole_gives(events):
    state = RunState()
    for event in events:
        state = fold([event], state)

    assert state == fold(events)


@given(EVENTS, EVENTS)
def test_neither_the_state_nor_the_events_are_changed(head, tail):
    state = fold(head)
    before = copy.deepcopy((state, head, tail))

    fold(tail, state)

    assert (state, head, tail) == before


@given(EVENTS)
def test_a_copy_goes_its_own_way(events):
    state = fold(events)
    copied = state.copy()
    assert copied == state
    before = copy.deepcopy(copied)

    for step in state.steps.values():
        step.status, step.orphan = "changed", True
        step.progressed.append({})
    state.retry.add("x")
    state.live.add("x")
    state.followers.setdefault(("", None), []).append("x")

    assert copied == before


@given(EVENTS, st.integers(0, 30), st.text(min_size=1))
def test_an_event_of_an_unknown_type_moves_only_the_head(events, at, type_):
    known = fold(events)
    stranger = ev.Event(len(events), f"x.{type_}", "s_a", 9, "later", {"outcome": "done", "mode": "unsafe"}, "", "head")

    state = fold([stranger], known)

    assert (state.seq, state.head, state.last_ts) == (len(events), "head", "later")
    known.seq, known.head, known.last_ts = state.seq, state.head, state.last_ts
    if not events:
        known.first_ts = "later"
    assert state == known


@given(EVENTS)
def test_clocks_decide_nothing(events):
    """A log whose clock stood still, or ran backwards, is the same run."""
    still = [event._replace(ts=f"{9999 - event.seq}") for event in events]
    plain, shifted = fold(events), fold(still)
    for state in (plain, shifted):
        state.first_ts = state.last_ts = state.closed_ts = ""
        state.pauses = [["", ""] for _ in state.pauses]
        for step in state.steps.values():
            step.started_ts, step.finished_ts = "", None

    assert plain == shifted


@given(logs())
def test_every_step_has_one_place_and_is_live_only_while_it_runs(log):
    state = fold(log.events)

    assert state.live == {step.id for step in state.steps.values() if step.status == "running"}
    assert not any(step.orphan for step in state.steps.values() if step.status in {"running", "done", "failed"})
    followers = [step for ids in state.followers.values() for step in ids]
    assert len(followers) == len(set(followers))
    assert set(followers) <= set(state.steps)
    for (scope, after), ids in state.followers.items():
        assert all((state.steps[step].scope, state.steps[step].after) == (scope, after) for step in ids)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_left_running_is_an_orphan_of_the_next_claim(mode):
    log = Log().begin().start("s_a", mode).start("s_b", mode).finish("s_b")
    assert log.state.steps["s_a"].status == "running"
    assert not log.state.steps["s_a"].orphan

    state = fold(log.claim().events)

    assert state.steps["s_a"].orphan
    assert state.steps["s_a"].status == ("indeterminate" if mode == "unsafe" else "pending")
    assert (state.steps["s_b"].orphan, state.steps["s_b"].status) == (False, "done")
    assert state.live == set()


@pytest.mark.parametrize("mode", MODES)
def test_a_job_that_goes_on_elsewhere_is_not_in_doubt(mode):
    log = Log().begin().start("s_a", mode).add(ev.STEP_PROGRESSED, "s_a", attempt=1, job={"id": "job_1"})

    step = log.claim().state.steps["s_a"]

    assert (step.status, step.orphan, step.job) == ("pending", True, {"id": "job_1"})


def test_an_attempt_knows_what_it_has_learned_itself_and_the_job_that_it_was_told():
    log = Log().begin().start("s_a", "safe").add(ev.STEP_PROGRESSED, "s_a", attempt=1, job={"id": "job_1"}, n=1)
    log.add(ev.STEP_PROGRESSED, "s_a", attempt=1, n=2)
    assert [note["n"] for note in log.state.steps["s_a"].progressed] == [1, 2]

    step = log.claim().start("s_a", "safe", job={"id": "job_1"}).state.steps["s_a"]
    assert (step.progressed, step.job) == ([], {"id": "job_1"})

    log.add(ev.STEP_PROGRESSED, "s_a", attempt=1, n=3)  # of the attempt before, too late
    assert log.state.steps["s_a"].progressed == []
    assert log.claim().start("s_a", "safe").state.steps["s_a"].job is None


@pytest.mark.parametrize("said, known", [(2, True), (1, False), (3, False)])
def test_an_outcome_that_builds_on_notes_which_are_not_there_cannot_be_returned(said, known):
    log = Log().begin().start("s_a")
    for _ in range(2):
        log.add(ev.STEP_PROGRESSED, "s_a", attempt=1)

    step = log.finish("s_a", progressed=said).state.steps["s_a"]

    assert ("unreplayable" not in step.finished) is known


@pytest.mark.parametrize("is_open", [False, True])
def test_a_job_is_forgotten_when_its_step_ends_unless_it_goes_on(is_open):
    log = Log().begin().start("s_a").add(ev.STEP_PROGRESSED, "s_a", attempt=1, job={"id": "job_1"})

    assert (log.finish("s_a", "failed", job_open=is_open).state.steps["s_a"].job is not None) is is_open


def test_an_operators_leave_begins_the_job_anew():
    log = Log().begin().start("s_a").add(ev.STEP_PROGRESSED, "s_a", attempt=1, job={"id": "job_1"}).claim()

    step = log.add(ev.STEP_RESOLVED, "s_a", how="retry").state.steps["s_a"]

    assert (step.job, step.progressed) == (None, [])


def test_an_orphan_that_runs_again_and_ends_is_none_any_more():
    log = Log().begin().start("s_a", "safe").claim().start("s_a", "safe")
    assert (log.state.steps["s_a"].orphan, log.state.steps["s_a"].attempt) == (False, 2)

    step = log.finish("s_a").state.steps["s_a"]

    assert (step.orphan, step.status, step.finished_seq) == (False, "done", len(log.events) - 1)


@pytest.mark.parametrize("how, status", [("done", "done"), ("failed", "failed")])
def test_an_operators_word_closes_a_step(how, status):
    log = Log().begin().start("s_a").claim().add(ev.STEP_RESOLVED, "s_a", how=how, result=7)
    step = fold(log.events).steps["s_a"]

    assert (step.status, step.orphan, step.finished) == (status, False, {"how": how, "result": 7})


def test_an_operators_leave_holds_for_one_attempt():
    log = Log().begin().start("s_a").claim().add(ev.STEP_RESOLVED, "s_a", how="retry")
    step = log.state.steps["s_a"]
    assert (step.status, step.allowed, step.orphan, step.finished) == ("pending", True, True, None)

    step = log.start("s_a").claim().state.steps["s_a"]

    assert (step.status, step.allowed, step.orphan) == ("indeterminate", False, True)


def test_leave_for_a_result_that_cannot_be_returned_forgets_it():
    log = Log().begin().start("s_a").finish("s_a", unreplayable={"path": "result"})
    step = log.claim().add(ev.STEP_RESOLVED, "s_a", how="retry").state.steps["s_a"]

    assert (step.status, step.allowed, step.finished, step.finished_seq) == ("pending", True, None, None)


def test_a_skipped_attempt_uses_up_its_number_and_nothing_else():
    log = Log().begin().start("s_a").add(ev.STEP_SKIPPED, "s_a", reason="cancelled")
    step = log.state.steps["s_a"]

    assert (step.status, step.orphan, step.attempt) == ("skipped", False, 1)
    assert log.state.live == set()
    assert not log.claim().state.steps["s_a"].orphan


@pytest.mark.parametrize("mode", MODES)
def test_a_skipped_attempt_leaves_an_earlier_one_in_doubt(mode):
    log = Log().begin().start("s_a", mode).claim()
    orphan = (log.state.steps["s_a"].status, True)
    step = log.start("s_a", mode).add(ev.STEP_SKIPPED, "s_a").state.steps["s_a"]

    assert (step.status, step.orphan) == orphan


def test_a_run_that_failed_names_what_may_be_tried_again():
    log = Log().begin().start("s_a").finish("s_a", "failed").start("s_b", after="s_a").finish("s_b", "failed")
    log.add(ev.RUN_ENDED, outcome="failed", reason="error", retry=["s_b", "s_unknown"])
    assert log.state.retry == {"s_b"}
    assert (log.state.status, log.state.reason, log.state.completed_once) == ("failed", "error", False)

    assert log.claim().start("s_b").state.retry == set()


def test_a_failed_attempt_names_itself_and_what_made_it_fail():
    log = Log().begin().start("s_a", "safe").start("s_b", scope="s_a").finish("s_b", "failed")
    log.finish("s_a", "failed", retry=["s_a", "s_b", "s_unknown"])

    assert log.state.retry == {"s_a", "s_b"}


def test_what_followed_a_failure_is_not_expected_behind_the_next_attempt():
    log = Log().begin().start("s_a").finish("s_a", "failed").start("s_b", after="s_a").finish("s_b")
    assert log.state.followers["", "s_a"] == ["s_b"]
    log.add(ev.RUN_ENDED, outcome="failed", retry=["s_a"]).claim()
    assert log.state.followers["", "s_a"] == ["s_b"]

    log.start("s_a").finish("s_a").start("s_c", after="s_a")

    assert log.state.followers["", "s_a"] == ["s_c"]


@pytest.mark.parametrize(
    "outcome, closed", [("completed", True), ("escalated", True), ("cancelled", True), ("failed", False)]
)
def test_a_run_that_ended_for_good_has_ended_for_good(outcome, closed):
    log = Log().begin().add(ev.RUN_ENDED, outcome=outcome, reason="why")
    assert (log.state.status, log.state.reason, log.state.completed_once) == (outcome, "why", closed)

    state = log.claim().add(ev.RUN_SUSPENDED, reason="drift").claim().state

    # What happens while an ended run is replayed does not unmake its end.
    expected = (outcome, "why", True) if closed else ("running", None, False)
    assert (state.status, state.reason, state.completed_once) == expected
    state = log.add(ev.RUN_ENDED, outcome="failed", reason="error").state
    assert state.status == (outcome if closed else "failed")


def given_up(log):
    return log.start("s_a", mode="safe").add(ev.STEP_FINISHED, "s_a", outcome="cancelled")


def test_a_step_that_the_program_gave_up_and_went_on_from_stays_given_up():
    log = given_up(Log().begin())
    assert (log.state.steps["s_a"].status, log.state.live) == ("pending", set())

    assert given_up(Log().begin()).start("s_b").claim().state.steps["s_a"].given_up is not None
    assert (
        given_up(Log().begin()).add(ev.RUN_ENDED, outcome="completed").claim().state.steps["s_a"].given_up is not None
    )


@pytest.mark.parametrize(
    "later",
    [
        lambda log: log.claim(),
        lambda log: log.add(ev.RUN_ENDED, outcome="failed").claim(),
        lambda log: log.start("s_b").add(ev.RUN_SUSPENDED, reason="interrupted").claim(),
        lambda log: log.start("s_b").claim().start("s_a"),
        lambda log: log.start("s_b").add(ev.STEP_RESOLVED, "s_a", how="retry"),
        lambda log: log.start("s_b").add(ev.STEP_RESOLVED, "s_a", how="done"),
    ],
    ids=["nothing followed", "it failed the run", "interrupted", "tried again", "allowed", "settled"],
)
def test_a_step_whose_cancellation_was_no_choice_of_the_program_is_an_orphan(later):
    assert later(given_up(Log().begin())).state.steps["s_a"].given_up is None


def test_what_a_halt_cancels_was_not_given_up_by_the_program():
    log = Log().begin().start("s_a", mode="safe").add(ev.RUN_SUSPENDED, reason="drift")
    log.add(ev.STEP_FINISHED, "s_a", outcome="cancelled").start("s_b")

    assert log.claim().state.steps["s_a"].given_up is None


def test_a_suspended_run_says_why_until_it_goes_on():
    log = Log().begin().add(ev.RUN_SUSPENDED, reason="indeterminate", message="m")
    assert (log.state.status, log.state.reason) == ("suspended", "indeterminate")
    assert log.state.ended == {"reason": "indeterminate", "message": "m"}

    assert log.claim().state.status == "running"


def test_events_of_unknown_steps_change_no_step():
    log = Log().begin().start("s_a")
    before = fold(log.events).steps
    for type_ in (ev.STEP_FINISHED, ev.STEP_SKIPPED, ev.STEP_RESOLVED):
        log.add(type_, "s_unknown", outcome="done", how="done").add(type_, None)

    assert fold(log.events).steps == before
    assert log.state.live == {"s_a"}


def test_a_module_holds_until_a_line_of_the_same_target_says_another():
    said = [{"module": "shop.sms"}, {}, {"module": None}, {}, {"module": "shop.mail"}, {}]
    log = [
        Event(seq, "step.started", f"s_{seq}", 1, "", {"kind": "tool_call", "target": "notify", **data}, "", "")
        for seq, data in enumerate([*said, {"target": "other"}])
    ]
    modules = [step.module for step in fold(log).steps.values()]
    assert modules == ["shop.sms", "shop.sms", None, None, "shop.mail", "shop.mail", None]
