"""What to do with a submitted effect: the only place where a step is allowed, returned or refused.

`decide` is pure. It looks at the folded log, at what this dispatch has submitted so far, and at the effect; it never
changes any of them. The recorder carries its answer out.

The order of the questions is the policy:

1. Is the step finished in the log? Then its recorded outcome is the answer, for ever. Two exceptions: its failure ended
   the run (resuming after an outage means trying again), or its result cannot be given back.
2. Did a dead process leave it running? Then its idempotency mode says whether it may run again, unless the work goes on
   at the provider under a name that is recorded: then it is taken up there, and nothing is asked for twice. Did the
   program itself stop waiting for it, and go on? Then it waits again, until it stops waiting again.
3. Is it new, although the log holds another step at this very place that the program has not asked for? Then the
   program no longer does what it did, and stops before any further effect.
4. Otherwise it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from steplog._kernel.fold import DONE, FINISHED, INDETERMINATE, REPEATABLE, RUNNING, RunState, StepState
from steplog._kernel.fork import why_refused

# What a mode permits, from least to most. The stricter of the recorded and the declared mode counts, with one
# exception in `_orphan_mode`: code that newly declares a step safe settles what an older revision left in doubt.
_STRICTNESS: Final = {"safe": 0, "keyed": 1, "verify": 2, "unsafe": 3}


Place = tuple[str, str | None]
"""Where in a run a step is asked for: the enclosing step or "", and the step that last finished there or None."""


class Effect(NamedTuple):
    """An effect as it is submitted, reduced to what a decision needs.

    Attributes:
        id: its step id.
        kind: llm_call, tool_call or local.
        target: model id, tool name or local name.
        scope: id of the enclosing step, or "".
        after: the step that last finished in the same context, or None.
        mode: idempotency mode that the code declares.
        attaches: the code can take up work that goes on at the provider, given its name there.
    """

    id: str
    kind: str
    target: str
    scope: str
    after: str | None
    mode: str
    attaches: bool = False


class Replay(NamedTuple):
    """Return the recorded outcome of this step."""

    step: StepState


class Proceed(NamedTuple):
    """Run the effect as attempt number `attempt`.

    Attributes:
        attempt: from 1.
        verify: ask the tool first whether it has happened.
        attach: do not begin it anew; take up the recorded job where the log ends.
    """

    attempt: int
    verify: bool = False
    attach: bool = False


FIRST: Final = Proceed(1)


class Forsaken(NamedTuple):
    """Wait until the caller stops waiting for this step, as it did when it was recorded.

    The program has gone on from there (it fell back to something else, say), so a result would lead it astray.
    """

    step: StepState


class Halt(NamedTuple):
    """Stop the run.

    Attributes:
        reason: indeterminate, drift, unreplayable, account (it is not known whose recorded request this is); in a
            replay, unrecorded; in a fork, simulated (it would have an effect) or missed (it is not the step that the
            fork is to change).
        step: the recorded step concerned, or None where the run had ended.
        missed: for drift: ids of recorded steps that the program has not asked for, in recorded order.
        elsewhere: for drift: they are not at this place, so another branch may still be on its way to them.
        hurried: for drift: nobody could wait for that, since the caller keeps the event loop of the other branches.
    """

    reason: str
    step: StepState | None = None
    missed: tuple[str, ...] = ()
    elsewhere: bool = False
    hurried: bool = False


Decision = Replay | Proceed | Forsaken | Halt


def decide(
    state: RunState,
    seen: Collection[str],
    effect: Effect,
    *,
    owed: Collection[str] = (),
    left: Mapping[Place, Collection[str]] | None = None,
    on_drift: str = "halt",
) -> Decision:
    """Decide on an effect.

    Args:
        state: the folded log.
        seen: ids of the steps that this dispatch has submitted so far.
        effect: the effect; its id may or may not be in the log.
        owed: recorded side effects, in recorded order, that this dispatch has not asked for yet. What was recorded can
            only have depended on what was recorded, so a program that still does what it did asks for all of them
            before it does anything new. One that does something new first may be about to take another way, and the
            old effect and the new one would both have happened.
        left: by place (scope and step before), the steps recorded there of which some may not be in `seen`; places
            that are not in it have those of the log. It saves looking through the same ones again and again where
            very many steps have one place.
        on_drift: `halt`, `warn` or `run`; with the latter two a new step runs although the log holds another one.
    """
    step = state.steps.get(effect.id)
    if step is not None:
        decision = _recorded(state, step, effect, on_drift)
        if type(decision) is Replay:
            return decision
    elif (
        (effect.scope, effect.after) not in state.followers
        and not owed
        and not state.completed_once
        and "fork" not in state.created
    ):
        # Nothing is recorded that it could be, at its place or anywhere; what every question below comes to then.
        return FIRST
    else:
        decision = _new(state, seen, effect, left or {}, on_drift)
    if isinstance(decision, Proceed) and effect.mode != "safe" and not decision.attach and on_drift == "halt":
        missed = tuple(step for step in owed if step != effect.id and not _ask_the_same(state, step, effect.id))
        if missed and not _comes_first(state, effect.id, missed):
            return Halt("drift", nearest(state, missed, effect), missed, elsewhere=True)
    if isinstance(decision, Proceed) and "fork" in state.created and (why := why_refused(state, effect, on_drift)):
        return Halt(why, state.steps.get(effect.id))
    return decision


def _comes_first(state: RunState, step_id: str, missed: tuple[str, ...]) -> bool:
    """Whether a step that a person has allowed once more was recorded before all that is missed.

    Without branches a program that still does what it did asks for it first. With branches it waits for the others, so
    that it does not run ahead and take what another one has drawn.
    """
    step = state.steps.get(step_id)
    if step is None or not step.allowed or step.branch:
        return False
    behind = [state.steps[each] for each in missed]
    return all(each.started_seq > step.started_seq and not each.branch for each in behind)


def _ask_the_same(state: RunState, one: str, other: str) -> bool:
    """Whether two recorded steps are identical requests: what asks for the one would as soon have got the other."""
    if other not in state.steps:
        # A new occurrence is given out when all recorded ones have been.
        return False
    return state.steps[one].request == state.steps[other].request


def _recorded(state: RunState, step: StepState, effect: Effect, on_drift: str) -> Decision:
    if step.given_up is not None and not step.allowed and (state.last_start > step.given_up or state.completed_once):
        return Forsaken(step)
    if step.status in FINISHED:
        if step.lost or step.status != DONE:
            return _marred(state, step, effect)
        return _replay(Replay, (step,))
    decision = _unfinished(step, effect)
    if isinstance(decision, Proceed) and state.completed_once and on_drift == "halt" and not step.allowed:
        # The run ended without this step, which was left behind or cancelled; it must not happen after the end.
        return Halt("drift")
    return decision


def owed_by(state: RunState) -> dict[str, None]:
    """The side effects of a log that a program which is started again must ask for, in recorded order."""
    owing = (
        step
        for step in state.steps.values()
        if step.mode != "safe" and not step.allowed and step.id not in state.retry and step.id not in state.superseded
        if step.status in FINISHED or step.orphan or step.given_up is not None
    )
    return dict.fromkeys(step.id for step in owing)


def inside(state: RunState, scope: str) -> list[StepState]:
    """All steps inside a step, at any depth."""
    return state.within(scope)


# As `Replay(...)` does it, without a second call.
_replay: Final = tuple.__new__


def _marred(state: RunState, step: StepState, effect: Effect) -> Decision:
    """Decide on a step that has failed, or whose outcome is lost."""
    if step.id in state.retry and not state.completed_once:
        return Proceed(step.attempt + 1, attach=_attaches(step, effect))
    if not step.lost:
        return Replay(step)
    if step.mode == "safe" and effect.mode == "safe" and not state.completed_once:
        return Proceed(step.attempt + 1)
    return Halt("unreplayable", step)


def _unfinished(step: StepState, effect: Effect) -> Decision:
    if step.allowed:
        return Proceed(step.attempt + 1)
    if step.status == RUNNING:
        # The same id cannot be submitted twice in one dispatch, so this one is running under a writer we replaced.
        return Halt("indeterminate", step)
    if _attaches(step, effect):
        return Proceed(step.attempt + 1, attach=True)
    if step.status != INDETERMINATE and not step.orphan:
        return Proceed(step.attempt + 1)
    mode = _orphan_mode(step.mode, effect.mode)
    if mode not in REPEATABLE:
        return Halt("indeterminate", step)
    return Proceed(step.attempt + 1, verify=mode == "verify")


def _attaches(step: StepState, effect: Effect) -> bool:
    return effect.attaches and step.job is not None


def _orphan_mode(recorded: str, declared: str) -> str:
    if declared in ("safe", "verify"):
        # Editing the code is the author's word that a repeat is harmless, or a way to find out.
        return declared if recorded != "safe" else _stricter(recorded, declared)
    return _stricter(recorded, declared)


def _stricter(one: str, other: str) -> str:
    if {one, other} == {"safe", "keyed"}:
        # The first attempt was sent without a key that the receiver could recognise it by, but it was also declared
        # harmless to repeat, so the key may be used from now on.
        return "keyed"
    if "keyed" in (one, other) and one != other:
        # A key only protects when every attempt carried it.
        return "unsafe"
    return one if _STRICTNESS.get(one, 3) >= _STRICTNESS.get(other, 3) else other


def _new(
    state: RunState, seen: Collection[str], effect: Effect, left: Mapping[Place, Collection[str]], on_drift: str
) -> Decision:
    if on_drift != "halt":
        return Proceed(1)
    missed = unasked(state, seen, effect.scope, effect.after, left)
    if missed or state.completed_once:
        return Halt("drift", nearest(state, missed, effect), missed)
    return Proceed(1)


def unasked(
    state: RunState,
    seen: Collection[str],
    scope: str,
    after: str | None,
    left: Mapping[Place, Collection[str]] | None = None,
) -> tuple[str, ...]:
    """Steps that the log holds at a place and that this dispatch has not submitted.

    A step counts when it finished (and is not to be attempted again), or when it is in doubt: a program that silently
    leaves out an effect which may have happened has left its log as well.
    """
    place = (scope, after)
    followers = left[place] if left and place in left else state.followers.get(place, ())
    missed = []
    for step_id in followers:
        if step_id in seen or step_id in state.retry or step_id in state.superseded:
            continue
        step = state.steps[step_id]
        if step.status in FINISHED or (step.orphan and step.mode != "safe" and not step.allowed):
            missed.append(step_id)
    return tuple(missed)


def nearest(state: RunState, missed: tuple[str, ...], effect: Effect) -> StepState | None:
    """The recorded step, of those that were not asked for, that an effect is to be compared with."""
    candidates = [state.steps[step_id] for step_id in missed]
    for same in (
        lambda step: (step.kind, step.target) == (effect.kind, effect.target),
        lambda step: step.kind == effect.kind,
        lambda _step: True,
    ):
        for step in candidates:
            if same(step):
                return step
    return None
