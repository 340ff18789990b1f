"""A fork: a new run that begins with what another one had done when one of its steps began.

Its log holds the events of that prefix, so it is an ordinary run in every other respect: it is resumed, shown, replayed
and forked like any other. What has happened in the prefix has happened in the world, once, for the run that did it;
from there on the fork is a simulation, unless it was said that its effects may happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from steplog._kernel import events as ev
from steplog._kernel.events import Event
from steplog._kernel.fold import CLOSED_OUTCOMES, DENIED, DONE, FINISHED, RunState, StepState, fold

if TYPE_CHECKING:
    from steplog._kernel.decide import Effect

FORKED: Final = "forked"
"""Reason code of a run that was forked off and has not been started."""

_ENDS: Final = frozenset({ev.STEP_FINISHED, ev.STEP_RESOLVED, ev.STEP_DENIED, ev.STEP_REJECTED})
# They tell of the file that the events stood in.
_OF_THE_FILE: Final = frozenset({ev.LOG_RECOVERED, ev.LOG_WEAKENED})


class Prefix(NamedTuple):
    """What a fork begins with.

    Attributes:
        at: the step before which it was cut off, or None where it is the whole log.
        events: the events that it takes over, without `run.created`, in order.
        shared: the steps whose outcome it takes over.
        dropped: the steps that had begun and not ended; the fork asks for them anew.
    """

    at: StepState | None
    events: list[Event]
    shared: list[StepState]
    dropped: list[StepState]

    @property
    def real(self) -> list[StepState]:
        """The steps of the prefix that have had a side effect, or may have had one while nobody waited for it."""
        return [step for step in self.shared if step.mode != "safe" and _may_be_real(step)]

    @property
    def doubtful(self) -> list[StepState]:
        """The steps that may have had their side effect, and are asked for anew."""
        return [step for step in self.dropped if step.mode != "safe"]


def prefix(events: Sequence[Event], at: StepState | None) -> Prefix:
    """What had finished in a log before a step first began, in recorded order; all of it for None."""
    head = [event for event in events if at is None or event.seq < at.started_seq]
    state = fold(head)
    last_end = {event.step: event.seq for event in head if event.type in _ENDS and _is_end(event)}
    kept_until = {step.id: _kept_until(state, step, last_end) for step in state.steps.values()}
    kept = [event for event in head if event.type != ev.RUN_CREATED and _is_kept(event, kept_until)]
    shared = [step for step in state.steps.values() if kept_until[step.id] >= 0]
    dropped = [step for step in state.steps.values() if kept_until[step.id] < 0]
    return Prefix(at, kept, shared, dropped)


def _may_be_real(step: StepState) -> bool:
    return step.status != DENIED and (step.status == DONE or step.settled or step.given_up is not None)


def _is_end(event: Event) -> bool:
    return event.data.get("outcome") != "cancelled" and event.data.get("how") != "retry"


def _kept_until(state: RunState, step: StepState, last_end: Mapping[str | None, int]) -> int:
    """The number of the last event of a step that belongs to the prefix; -1 where none does."""
    went_on = step.given_up is not None and state.last_start > step.given_up
    if step.status in FINISHED or went_on:
        return state.seq
    # It was under way. An attempt of it that had ended has, for what came next; a person's word that it may run once
    # more counts in the run in which it was said.
    return -1 if step.allowed else last_end.get(step.id, -1)


def _is_kept(event: Event, kept_until: Mapping[str, int]) -> bool:
    if event.step is not None:
        return event.seq <= kept_until.get(event.step, -1)
    if event.type == ev.RUN_ENDED:
        # The fork goes on where a run that has ended for good would not.
        return event.data.get("outcome") not in CLOSED_OUTCOMES
    return event.type not in _OF_THE_FILE


def lineage(created: Mapping[str, Any], run_id: str) -> list[str]:
    """The runs that a run descends from: itself, the one that it was forked from, and so on to the first."""
    return [run_id, *((created.get("fork") or {}).get("line") or ())]


def origin_of(created: Mapping[str, Any], run_id: str) -> str:
    """The run that a fork goes back to, or the run itself.

    What is keyed with a run's id (accounts, fingerprints of secret arguments) is keyed with this one, since the steps
    of the prefix were recorded under it and must be found again.
    """
    return lineage(created, run_id)[-1]


def is_simulation(created: Mapping[str, Any]) -> bool:
    """Whether a run may have no side effects: it is a fork, or was opened inside one, and nobody said otherwise."""
    fork = created.get("fork")
    return fork is not None and not fork.get("live_tools")


def is_whole(state: RunState) -> bool:
    """Whether the log of a fork holds all of its prefix. A store that can be cut off in between may hold less."""
    fork = state.created.get("fork") or {}
    return state.seq + 1 >= int(fork.get("events", 0))


def why_refused(state: RunState, effect: Effect, on_drift: str) -> str:
    """Why an effect that is about to run may not run in this fork, as the reason of a halt; "" where it may.

    Returns:
        `simulated`: it is not declared safe, and the fork is a simulation. `missed`: the fork is to change a step, and
        the program asks for something else at its place.
    """
    created = state.created
    if effect.mode != "safe" and is_simulation(created):
        return "simulated"
    fork = created["fork"]
    target = fork.get("at")
    if not fork.get("set") or target is None or on_drift != "halt":
        return ""
    if effect.id == target or target in state.steps or effect.id in state.steps or effect.id in fork.get("open", ()):
        return ""
    place = fork.get("place") or {}
    here = (effect.scope, effect.after, effect.kind)
    return "missed" if here == (place.get("scope"), place.get("after"), place.get("kind")) else ""


def changes_of(created: Mapping[str, Any], step: str) -> list[tuple[str, Any]]:
    """What a fork changes in the request of a step, as paths and values."""
    fork = created.get("fork") or {}
    return [(path, value) for path, value in fork.get("set") or ()] if fork.get("at") == step else []


def steps_named(state: RunState, name: str) -> list[StepState]:
    """The steps that a name can mean: a number in recorded order, from 1, also behind `#`; an id; a prefix of one."""
    number = name.removeprefix("#")
    if number.isdecimal():
        steps = list(state.steps.values())
        return steps[int(number) - 1 : int(number)] if int(number) > 0 else []
    begin = f"s_{name.removeprefix('s_')}"
    return [step for step_id, step in state.steps.items() if step_id.startswith(begin)]


def bodies_of(events: Iterable[Event], names: Any) -> list[str]:
    """Names of the bodies that events name, each once; `names` gives those of one event's data."""
    return list(dict.fromkeys(name for event in events for name in names(event.data)))
