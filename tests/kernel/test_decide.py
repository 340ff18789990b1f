"""What may happen to a submitted effect: finished steps return, doubtful ones never repeat, strangers stop."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel import events as ev
from steplog._kernel.decide import Effect, Forsaken, Halt, Proceed, Replay, decide, owed_by, unasked
from steplog._kernel.fold import FINISHED, fold
from tests.kernel.logs import MODES, STEP_IDS, Log, completed, effects_in, hostile, logs

ON_DRIFT = st.sampled_from(["halt", "warn", "run"])
SEEN = st.sets(st.sampled_from(STEP_IDS))


def effect_of(log, step, mode=None):
    """A step of a log, submitted again."""
    found = log.state.steps[step]
    return Effect(step, found.kind, found.target, found.scope, found.after, mode or found.mode)


def new(step="s_new", mode="unsafe", *, kind="tool_call", target="t", scope="", after=None):
    return Effect(step, kind, target, scope, after, mode)


# what holds of every log ----------------------------------------------------------------------------------------------


@given(logs().map(lambda log: log.events) | hostile(), SEEN, ON_DRIFT, st.data())
def test_deciding_changes_nothing_and_gives_the_same_answer_twice(events, seen, on_drift, data):
    state = fold(events)
    effect = data.draw(effects_in(state))
    before = copy.deepcopy((state, seen))

    first = decide(state, seen, effect, on_drift=on_drift)

    assert decide(state, seen, effect, on_drift=on_drift) == first
    assert (state, seen) == before


@given(completed(), SEEN, st.data())
def test_a_run_that_has_ended_only_replays(log, seen, data):
    effect = data.draw(effects_in(log.state))
    step = log.state.steps.get(effect.id)

    decision = decide(log.state, seen, effect)

    if step is None:
        assert isinstance(decision, Halt)
        assert decision.reason == "drift"
    elif "unreplayable" not in step.finished:
        assert decision == Replay(step)


@given(completed(), st.sampled_from(MODES), st.sampled_from(["left running", "skipped"]), SEEN)
def test_what_a_run_ended_without_does_not_happen_after_its_end(log, mode, how, seen):
    log.start("s_late", mode)
    if how == "skipped":
        log.add(ev.STEP_SKIPPED, "s_late")
    log.claim()

    assert isinstance(decide(log.state, seen, effect_of(log, "s_late")), (Halt, Forsaken))


@given(logs(), SEEN, ON_DRIFT, st.data())
def test_a_finished_step_is_returned_for_ever(log, seen, on_drift, data):
    log.start("s_z").finish("s_z")
    finished = [step for step in log.state.steps.values() if step.status in FINISHED]
    step = data.draw(st.sampled_from(finished))

    decision = decide(log.state, seen, effect_of(log, step.id, data.draw(st.sampled_from(MODES))), on_drift=on_drift)

    tried_again = step.id in log.state.retry and step.status == "failed"
    if not tried_again and "unreplayable" not in step.finished:
        assert decision == Replay(step)


@given(logs(), SEEN, ON_DRIFT, st.data())
def test_a_doubtful_step_is_never_simply_repeated(log, seen, on_drift, data):
    """Unless an operator allowed it, the code says it is harmless, or each attempt carried its key."""
    log.start("s_z", data.draw(st.sampled_from(MODES))).claim()
    orphans = [step for step in log.state.steps.values() if step.orphan and not step.allowed]
    step = data.draw(st.sampled_from(orphans))
    effect = effect_of(log, step.id, data.draw(st.sampled_from(MODES)))

    decision = decide(log.state, seen, effect, on_drift=on_drift)

    assert not isinstance(decision, Replay)
    if isinstance(decision, Proceed):
        harmless = effect.mode == "safe"
        keyed = effect.mode == "keyed" and step.mode in ("safe", "keyed")
        assert decision.verify or harmless or keyed
        assert decision.attempt == step.attempt + 1


@given(logs(may_end=False), SEEN, st.data())
def test_a_skipped_attempt_decides_nothing(log, seen, data):
    """Cancelled between intent and effect, a step is where it was: what was in doubt still is."""
    log.start("s_z", "safe").claim()
    decisions = {step: decide(log.state, seen, effect_of(log, step), on_drift="run") for step in log.state.steps}
    step = data.draw(st.sampled_from([step for step, found in decisions.items() if isinstance(found, Proceed)]))
    first = decisions[step]

    log.start(step, log.state.steps[step].mode).add(ev.STEP_SKIPPED, step).claim()

    assert decide(log.state, seen, effect_of(log, step), on_drift="run") == first._replace(attempt=first.attempt + 1)


@given(logs(), SEEN, st.data())
def test_a_new_step_runs_only_where_nothing_recorded_is_left_out(log, seen, data):
    effect = data.draw(effects_in(log.state))._replace(id="s_new")
    missed = unasked(log.state, seen, effect.scope, effect.after)

    decision = decide(log.state, seen, effect)

    if missed or log.state.completed_once:
        assert isinstance(decision, Halt)
        assert (decision.reason, decision.missed) == ("drift", missed)
        assert decision.step == (None if not missed else log.state.steps[decision.step.id])
    else:
        assert decision == Proceed(1)
    assert decide(log.state, seen, effect, on_drift="warn") == Proceed(1)
    assert decide(log.state, seen, effect, on_drift="run") == Proceed(1)


@given(logs(), SEEN, st.data())
def test_places_whose_unasked_steps_are_kept_apart_change_no_decision(log, seen, data):
    places = data.draw(st.sets(st.sampled_from([*log.state.followers, ("", "s_elsewhere")])))
    left = {place: [step for step in log.state.followers.get(place, ()) if step not in seen] for place in places}
    effect = data.draw(effects_in(log.state))

    for on_drift in ("halt", "run"):
        plain = decide(log.state, seen, effect, owed=owed_by(log.state), on_drift=on_drift)
        assert decide(log.state, seen, effect, owed=owed_by(log.state), left=left, on_drift=on_drift) == plain


@given(logs(), SEEN)
def test_what_was_asked_for_or_may_be_tried_again_is_not_left_out(log, seen):
    for scope, after in log.state.followers:
        missed = unasked(log.state, seen, scope, after)
        assert not {*missed} & (seen | log.state.retry)
        for step in (log.state.steps[step_id] for step_id in missed):
            assert (step.scope, step.after) == (scope, after)
            assert step.status in FINISHED or (step.orphan and step.mode != "safe")


# case by case ---------------------------------------------------------------------------------------------------------

RUN_IT, ASK, REFUSE = Proceed(2), Proceed(2, verify=True), "refuse"
ORPHANS = {
    # recorded: what happens when the code now declares safe, keyed, verify, unsafe
    "safe": (RUN_IT, RUN_IT, ASK, REFUSE),
    "keyed": (RUN_IT, RUN_IT, ASK, REFUSE),
    "verify": (RUN_IT, REFUSE, ASK, REFUSE),
    "unsafe": (RUN_IT, REFUSE, ASK, REFUSE),
    "of a later release": (RUN_IT, REFUSE, ASK, REFUSE),
}


@pytest.mark.parametrize(
    "recorded, declared, expected",
    [(recorded, *pair) for recorded, row in ORPHANS.items() for pair in zip(MODES, row, strict=True)],
)
def test_an_orphan_by_recorded_and_declared_mode(recorded, declared, expected):
    log = Log().begin().start("s_a", recorded).claim()

    decision = decide(log.state, set(), effect_of(log, "s_a", declared))

    assert decision == (Halt("indeterminate", log.state.steps["s_a"]) if expected == REFUSE else expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_job_that_goes_on_elsewhere_is_taken_up_whatever_the_mode(mode):
    log = Log().begin().start("s_a", mode).add(ev.STEP_PROGRESSED, "s_a", attempt=1, job={"id": "job_1"}).claim()
    effect = effect_of(log, "s_a")

    assert decide(log.state, set(), effect._replace(attaches=True)) == Proceed(2, attach=True)
    # Without a way to take it up, it is an orphan like any other.
    assert isinstance(decide(log.state, set(), effect), Halt) is (mode == "unsafe")


def test_a_job_that_went_on_when_its_step_failed_is_taken_up():
    log = Log().begin().start("s_a").add(ev.STEP_PROGRESSED, "s_a", attempt=1, job={"id": "job_1"})
    log.finish("s_a", "failed", job_open=True).add(
        ev.RUN_ENDED, outcome="failed", reason="error", retry=["s_a"]
    ).claim()

    assert decide(log.state, set(), effect_of(log, "s_a")._replace(attaches=True)) == Proceed(2, attach=True)


@pytest.mark.parametrize("mode", MODES)
def test_an_operators_leave_overrules_the_mode_once(mode):
    log = Log().begin().start("s_a").claim().add(ev.STEP_RESOLVED, "s_a", how="retry").claim()
    assert decide(log.state, set(), effect_of(log, "s_a", mode)) == Proceed(2)

    log.start("s_a").claim()

    assert decide(log.state, set(), effect_of(log, "s_a", "unsafe")) == Halt("indeterminate", log.state.steps["s_a"])


@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_still_runs_elsewhere_is_not_run_as_well(mode):
    log = Log().begin().start("s_a", mode)

    assert decide(log.state, set(), effect_of(log, "s_a")) == Halt("indeterminate", log.state.steps["s_a"])


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_is_returned_unless_it_ended_the_run(mode):
    log = Log().begin().start("s_a", mode).finish("s_a", "failed")
    assert decide(log.state, set(), effect_of(log, "s_a")) == Replay(log.state.steps["s_a"])

    log.add(ev.RUN_ENDED, outcome="failed", retry=["s_a"]).claim()
    assert decide(log.state, set(), effect_of(log, "s_a")) == Proceed(2)

    log.start("s_a", mode).finish("s_a")
    assert decide(log.state, set(), effect_of(log, "s_a")) == Replay(log.state.steps["s_a"])


@pytest.mark.parametrize("recorded", MODES)
@pytest.mark.parametrize("declared", MODES)
@pytest.mark.parametrize("fault", ["unreplayable", "redacted"])
def test_a_result_that_cannot_be_returned_is_made_again_only_where_both_say_it_is_safe(recorded, declared, fault):
    log = Log().begin().start("s_a", recorded).finish("s_a", **{fault: ["result"]})

    decision = decide(log.state, set(), effect_of(log, "s_a", declared))

    harmless = (recorded, declared) == ("safe", "safe")
    assert decision == (Proceed(2) if harmless else Halt("unreplayable", log.state.steps["s_a"]))


def test_the_step_that_drift_is_compared_with_is_the_most_similar_one():
    log = Log().begin()
    for step, kind, target in (("s_a", "local", "t"), ("s_b", "tool_call", "u"), ("s_c", "tool_call", "t")):
        log.start(step, kind=kind, target=target).finish(step)
    log.claim()

    def nearest(kind, target):
        decision = decide(log.state, set(), new(kind=kind, target=target))
        assert decision.missed == ("s_a", "s_b", "s_c")
        return decision.step.id

    assert nearest("tool_call", "t") == "s_c"
    assert nearest("tool_call", "x") == "s_b"
    assert nearest("llm_call", "x") == "s_a"


@pytest.mark.parametrize("mode, left_out", [("safe", False), ("keyed", True), ("verify", True), ("unsafe", True)])
def test_leaving_out_a_step_in_doubt_is_drift_unless_it_was_harmless(mode, left_out):
    log = Log().begin().start("s_a", mode).claim()

    assert unasked(log.state, set(), "", None) == (("s_a",) if left_out else ())
    assert unasked(log.state, {"s_a"}, "", None) == ()


def test_another_place_is_no_drift():
    log = Log().begin().start("s_a").finish("s_a").claim()

    assert decide(log.state, {"s_a"}, new(after="s_a")) == Proceed(1)
    assert decide(log.state, set(), new(scope="s_x")) == Proceed(1)
    assert isinstance(decide(log.state, set(), new()), Halt)


@given(st.sampled_from(MODES), st.sampled_from(MODES))
def test_a_side_effect_waits_until_every_recorded_one_was_asked_for(recorded, asked):
    log = Log().begin().start("s_first", recorded).finish("s_first").claim()
    state = log.state
    # Somewhere else in the run, so that its place tells nothing.
    effect = Effect("s_new", "tool_call", "t", "", "s_elsewhere", asked)

    decision = decide(state, set(), effect, owed=owed_by(state))

    if recorded == "safe" or asked == "safe":
        assert decision == Proceed(1)
    else:
        assert isinstance(decision, Halt)
        assert decision.missed == ("s_first",)
    assert decide(state, set(), effect, owed=owed_by(state), on_drift="run") == Proceed(1)


def test_what_a_log_owes():
    log = Log().begin()
    log.start("s_safe", "safe").finish("s_safe")
    log.start("s_done", "unsafe").finish("s_done")
    log.start("s_failed", "keyed").finish("s_failed", "failed")
    log.start("s_inner", "unsafe").finish("s_inner")
    log.start("s_doubt", "unsafe")
    log.start("s_ended_the_run", "unsafe").finish("s_ended_the_run", "failed")
    log.add(ev.RUN_ENDED, outcome="failed", retry=["s_ended_the_run"]).claim()

    assert list(owed_by(log.state)) == ["s_done", "s_failed", "s_inner", "s_doubt"]


def test_an_identical_request_is_not_waited_for():
    """Two branches were in the middle of the same call; on resume one of them may make both calls, one by one."""
    log = Log().begin()
    for step, hashed in (("s_a", "1"), ("s_b", "1"), ("s_c", "2")):
        log.start(step, "keyed", args_hash=hashed)
    state = log.claim().state

    assert decide(state, set(), effect_of(log, "s_a"), owed=["s_a", "s_b"]) == Proceed(2)
    assert decide(state, set(), effect_of(log, "s_a"), owed=["s_b", "s_c"]).missed == ("s_c",)
    assert decide(state, set(), new(after="s_x"), owed=["s_b"]).missed == ("s_b",)
