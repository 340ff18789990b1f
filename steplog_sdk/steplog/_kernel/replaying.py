"""What a replay may answer: what is recorded, and nothing else.

The same questions as in `decide`, asked of a log that nobody goes on with. There is no `Proceed` among the answers, so
a replay cannot let an effect happen, whatever state the log is in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from steplog._kernel.decide import Effect, Forsaken, Halt, Place, Replay, nearest
from steplog._kernel.fold import DENIED, FAILED, FINISHED, RunState, StepState


def decide_recorded(
    state: RunState,
    seen: Collection[str],
    effect: Effect,
    left: Mapping[Place, Collection[str]] | None = None,
) -> Replay | Forsaken | Halt:
    """Decide on an effect in a replay.

    Args:
        state: the folded log.
        seen: ids of the steps that the program has asked for so far.
        effect: the effect; its id may or may not be in the log.
        left: by place, the steps recorded there of which some may not be in `seen`, as `decide` takes it.

    Returns:
        Halt with reason `drift` where other steps are recorded at this place that the program has not asked for,
        `unreplayable` where the outcome cannot be given back, and `unrecorded` where there is no outcome: with the
        step where it began and the recording ends in the middle of it, without one where it never began.
    """
    step = state.steps.get(effect.id)
    if step is None:
        missed = unplayed_at(state, seen, (effect.scope, effect.after), left)
        return Halt("drift", nearest(state, missed, effect), missed) if missed else Halt("unrecorded")
    if step.given_up is not None and (state.last_start > step.given_up or state.completed_once):
        return Forsaken(step)
    if not has_outcome(step):
        return Halt("unrecorded", step)
    return Halt("unreplayable", step) if step.lost else Replay(step)


def is_denied(state: RunState, step: str) -> bool:
    """Whether a step was denied: it has no effect to be had again, whoever else may run."""
    return step in state.steps and state.steps[step].status == DENIED


def has_outcome(step: StepState) -> bool:
    """Whether a step has an outcome that its program has seen, or would see when it is started again."""
    if step.status not in FINISHED:
        return False
    # A failed attempt that the step's own retry policy was about to repeat is no outcome.
    return step.status != FAILED or step.id not in (step.finished or {}).get("retry", ())


def unplayed_at(
    state: RunState,
    seen: Collection[str],
    place: Place,
    left: Mapping[Place, Collection[str]] | None = None,
) -> tuple[str, ...]:
    """Steps with an outcome that are recorded at a place and that the program has not asked for, in recorded order."""
    followers = left[place] if left and place in left else state.followers.get(place, ())
    left_out = (step for step in followers if step not in seen and step not in state.superseded)
    return tuple(step for step in left_out if has_outcome(state.steps[step]))


def unplayed(state: RunState, seen: Collection[str]) -> list[StepState]:
    """Steps with an outcome at the top of a log that the program has not asked for, in recorded order."""
    return [
        step
        for step in state.steps.values()
        if not step.scope and step.id not in seen and step.id not in state.superseded and has_outcome(step)
    ]
