"""What a fork takes over of a log, and what it lets happen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel import events as ev
from steplog._kernel.decide import Effect, Halt, Proceed, Replay, decide
from steplog._kernel.fold import FINISHED, RunState, fold
from steplog._kernel.fork import Prefix, is_simulation, is_whole, lineage, origin_of, prefix
from steplog._kernel.paths import put
from steplog.errors import InvalidArgument
from tests.kernel.logs import Log, effects_in, logs


def forked(cut: Prefix, log: Log, **facts: Any) -> RunState:
    """The state of a fork as it is opened: its prefix under a `run.created` of its own, and claimed."""
    fork = {"run": "r", "line": ["r"], "live_tools": False, **facts}
    new = Log().add(ev.RUN_CREATED, format="steplog/1", run_id="f", fork=fork)
    for event in cut.events:
        new.epoch = event.epoch
        new.add(event.type, event.step, **event.data) if event.type != ev.RUN_CLAIMED else new.claim()
    new.claim()
    del log
    return new.state


def test_what_had_finished_is_shared_and_what_was_under_way_is_asked_for_anew():
    log = Log().begin().start("a").finish("a").start("b").start("c", "safe").finish("c").start("d").finish("b")
    cut = prefix(log.events, log.state.steps["d"])

    assert [step.id for step in cut.shared] == ["a", "c"]
    assert [step.id for step in cut.dropped] == ["b"]
    assert [step.id for step in cut.real] == ["a"]
    assert [step.id for step in cut.doubtful] == ["b"]
    assert [event.step for event in cut.events if event.step] == ["a", "a", "c", "c"]


def test_a_step_is_shared_as_it_was_then_and_not_as_it_became():
    log = (
        Log()
        .begin()
        .start("a")
        .finish("a", "failed")
        .start("b", "safe")
        .add(ev.STEP_RESOLVED, "a", how="done", result=1)
    )
    cut = prefix(log.events, log.state.steps["b"])

    assert [step.status for step in cut.shared] == ["failed"]
    assert [event.type for event in cut.events if event.step] == [ev.STEP_STARTED, ev.STEP_FINISHED]


def test_a_step_that_was_being_tried_again_is_shared_with_its_first_failure():
    log = Log().begin().start("a").finish("a", "failed")
    log.add(ev.RUN_ENDED, outcome="failed", reason="error", retry=["a"]).claim()
    log.start("a").start("b", "safe")
    state = forked(prefix(log.events, log.state.steps["b"]), log)

    assert state.steps["a"].status == "failed"
    # The failure had ended the run, so it is tried again as it would have been there; the mode still counts.
    assert decide(state, {"a"}, Effect("a", "tool_call", "t", "", None, "safe")) == Proceed(2)
    assert isinstance(decide(state, {"a"}, Effect("a", "tool_call", "t", "", None, "unsafe")), Halt)


def test_the_end_of_a_completed_run_is_left_out_so_that_its_fork_goes_on():
    log = Log().begin().start("a", "safe").finish("a").add(ev.RUN_ENDED, outcome="completed", reason="done")
    state = forked(prefix(log.events, None), log)

    assert not state.completed_once
    assert decide(state, {"a", "b"}, Effect("b", "tool_call", "t", "", "a", "safe")) == Proceed(1)


def test_what_the_program_gave_up_and_went_on_from_stays_given_up():
    log = Log().begin().start("a").finish("a", "cancelled").start("b", "safe").finish("b").start("c", "safe")
    cut = prefix(log.events, log.state.steps["c"])

    assert [step.id for step in cut.shared] == ["a", "b"]
    assert [step.id for step in cut.real] == ["a"]


@given(logs(), st.data())
def test_a_fork_of_any_log_shares_outcomes_and_lets_nothing_happen(log: Log, data: st.DataObject):
    at = data.draw(st.sampled_from([None, *log.state.steps.values()]))
    cut = prefix(log.events, at)
    then = fold([event for event in log.events if at is None or event.seq < at.started_seq])
    state = forked(cut, log)

    for step in state.steps.values():
        known = then.steps[step.id]
        assert step.status in FINISHED or step.given_up is not None
        if known.status in FINISHED:
            assert (step.status, step.finished) == (known.status, known.finished)
    done = {step.id for step in then.steps.values() if step.status in FINISHED}
    assert done <= set(state.steps)
    assert at is None or at.id not in state.steps

    effect = data.draw(effects_in(state))
    for on_drift in ("halt", "warn", "run"):
        decision = decide(state, {effect.id}, effect, on_drift=on_drift)
        if isinstance(decision, Proceed):
            assert effect.mode == "safe"


@given(logs(), st.data())
def test_with_live_tools_a_fork_decides_as_any_run(log: Log, data: st.DataObject):
    at = data.draw(st.sampled_from([None, *log.state.steps.values()]))
    state = forked(prefix(log.events, at), log, live_tools=True)
    effect = data.draw(effects_in(state))
    decision = decide(state, {effect.id}, effect)
    del state.created["fork"]

    assert decision == decide(state, {effect.id}, effect)


def test_a_finished_effect_is_returned_in_a_simulation_like_anywhere():
    log = Log().begin().start("a").finish("a")
    state = forked(prefix(log.events, None), log)

    assert isinstance(decide(state, {"a"}, Effect("a", "tool_call", "t", "", None, "unsafe")), Replay)


def test_another_step_at_the_place_of_the_one_to_be_changed_is_refused():
    log = Log().begin().start("a", "safe").finish("a").start("b", "safe", after="a").finish("b")
    place = {"scope": "", "after": "a", "kind": "tool_call"}
    state = forked(prefix(log.events, log.state.steps["b"]), log, at="b", set=[["x", 1]], place=place, open=["c"])

    def decided(step: str, after: str | None = "a", **options: Any) -> Any:
        return decide(state, {"a", step}, Effect(step, "tool_call", "t", "", after, "safe"), **options)

    assert decided("b") == Proceed(1)
    assert decided("other") == Halt("missed")
    assert decided("other", on_drift="run") == Proceed(1)
    # A branch that was under way, and what follows it, are other places.
    assert decided("c") == Proceed(1)
    assert decided("other", after="c") == Proceed(1)


def test_a_fork_goes_back_to_the_first_of_its_line():
    created = {"fork": {"run": "b", "line": ["b", "a"]}}

    assert lineage(created, "c") == ["c", "b", "a"]
    assert (origin_of(created, "c"), origin_of({}, "c")) == ("a", "c")
    assert is_simulation(created)
    assert not is_simulation({})


def test_a_fork_that_was_cut_off_is_not_whole():
    log = Log().add(ev.RUN_CREATED, run_id="f", fork={"run": "r", "events": 3})
    assert not is_whole(log.state)
    assert is_whole(log.add(ev.RUN_CLAIMED).add(ev.RUN_SUSPENDED, reason="forked").state)


@pytest.mark.parametrize(
    "path, value, expected",
    [
        ("a", 1, {"a": 1, "b": [{"c": 2}]}),
        ("new", 1, {"a": 0, "b": [{"c": 2}], "new": 1}),
        ("b[0].c", 3, {"a": 0, "b": [{"c": 3}]}),
        ("b[1]", {"c": 9}, {"a": 0, "b": [{"c": 2}, {"c": 9}]}),
    ],
)
def test_a_value_is_put_at_a_path_and_the_rest_is_shared(path: str, value: Any, expected: Any):
    tree = {"a": 0, "b": [{"c": 2}]}

    assert put(tree, path, value) == expected
    assert tree == {"a": 0, "b": [{"c": 2}]}


@pytest.mark.parametrize("path", ["x.y", "b[2]", "b[*]", "*", "a.b", "a[0]", "b.c"])
def test_a_path_that_leads_nowhere_is_refused(path: str):
    with pytest.raises(InvalidArgument):
        put({"a": 0, "b": [{"c": 2}]}, path, 1)


def test_what_a_fork_refused_is_refused_again_and_is_not_what_the_program_gave_up():
    log = Log().add(ev.RUN_CREATED, run_id="f", fork={"run": "r", "live_tools": False}).add(ev.RUN_CLAIMED)
    log.start("a").add(ev.STEP_SKIPPED, "a", reason="simulated")
    # Another branch had begun a step by then.
    log.start("b", "safe").finish("b").add(ev.RUN_SUSPENDED, reason="simulated").claim()

    decision = decide(log.state, {"a"}, Effect("a", "tool_call", "t", "", None, "unsafe"))
    assert decision == Halt("simulated", log.state.steps["a"])
    log.add(ev.STEP_RESOLVED, "a", how="done", result=1)
    assert decide(log.state, {"a"}, Effect("a", "tool_call", "t", "", None, "unsafe")) == Replay(log.state.steps["a"])
