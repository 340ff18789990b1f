"""What the events of a step have in common, whichever of them comes first."""

from __future__ import annotations

from typing import Any, Final

from steplog._kernel.events import Event
from steplog._kernel.identity import step_id as identify
from steplog._kernel.state import INDETERMINATE, PENDING, RUNNING, UNNAMED, Kept, RunState, StepState

# An orphan in any other mode, also in one that a later release has added, is in doubt.
REPEATABLE: Final = frozenset({"safe", "keyed", "verify"})


def add(state: RunState, event: Event, step_id: str) -> StepState:
    """The state of a step that the log had not named, as its first event describes it, at its place in the run."""
    step = state.steps[step_id] = _new(state, event, step_id)
    state.followers.setdefault((step.scope, step.after), []).append(step_id)
    if step.scope:
        state.inner.setdefault(step.scope, []).append(step_id)
    return step


def _new(state: RunState, event: Event, step_id: str) -> StepState:
    get = event.data.get
    after, scope = get("after"), get("scope", "")
    before = state.steps.get(after) if after else None
    return StepState(
        step_id,
        once(state, get("kind", "")),
        once(state, get("target", "")),
        once(state, scope) if scope else scope,
        after if before is None else before.id,
        once(state, get("mode", "unsafe")),
        RUNNING,
        get("attempt", 1),
        kept(state, event),
        event.seq,
        event.ts,
        source=state.source,
        job=get("job"),
    )


def describe(state: RunState, known: StepState, data: dict[str, Any]) -> None:
    """Take over what an event says of what a step asks for, and for whom."""
    known.occurrence = data.get("occurrence", 0)
    known.account = once(state, data.get("account", ""))
    known.request = _request(known, data)
    branch = data.get("branch", "")
    known.branch = once(state, branch) if isinstance(branch, str) else UNNAMED
    if "module" in data:
        state.modules[known.target] = once(state, data["module"])
    known.module = state.modules.get(known.target)
    request = data.get("request")
    known.streamed = isinstance(request, dict) and bool(request.get("stream"))


def _request(step: StepState, data: dict[str, Any]) -> str:
    """The id of the first of the identical submissions that a step belongs to.

    A first submission is its own, and says no hash; logs of 0.1 say it always.
    """
    hashed = data.get("args_hash")
    return identify(step.scope, step.kind, step.target, hashed, 0) if hashed else step.id


def kept(state: RunState, event: Event) -> Kept:
    return event.data if state.source is None else event.seq


def once(state: RunState, name: Any) -> Any:
    """One object for all equal names: a long log says the same few in every line, and each line is parsed by itself."""
    return state.names.setdefault(name, name) if isinstance(name, str) else name


def forget_outcome(step: StepState) -> None:
    step.end = None
    step.finished_seq = None
    step.finished_ts = None
    step.incomplete = False
    step.lost = False
    step.settled = False
    step.notes = []


def supersede(state: RunState, known: StepState) -> None:
    """What the program did next, it did because this step had failed. It may take another way now."""
    state.superseded.update(behind(state, known))
    state.followers.pop((known.scope, known.id), None)


def behind(state: RunState, failed: StepState) -> list[str]:
    """Ids of the steps that may have been asked for because a step had failed.

    Those that followed it in its own context, and those that began after it at a place where its branch was forked off:
    an exception leaves its branch and is handled where that was opened, by a `finally` around a `gather`, say.
    """
    end = failed.finished_seq if failed.finished_seq is not None else state.seq
    found = dict.fromkeys(state.followers.get((failed.scope, failed.id), ()))
    place, places = failed.after, {failed.after}
    while place is not None and place in state.steps:
        place = state.steps[place].after
        if place in places:
            break  # no runtime writes steps that follow each other in a circle; a damaged log must not hang its reader
        places.add(place)
    for before in places:
        siblings = state.followers.get((failed.scope, before), ())
        found.update((step, None) for step in siblings if state.steps[step].started_seq > end)
    queue = list(found)
    while queue:
        for step in state.followers.get((failed.scope, queue.pop()), ()):
            if step not in found:
                found[step] = None
                queue.append(step)
    return list(found)


def orphaned(step: StepState) -> None:
    step.orphan = True
    # Work that goes on at the provider is taken up again, which repeats nothing, whatever the mode.
    step.status = PENDING if step.mode in REPEATABLE or step.job is not None else INDETERMINATE


def is_settled(step: StepState) -> bool:
    """Whether a failure is returned for ever: an operator's word, or that of a call that may have had its effect."""
    return step.settled


def close(state: RunState, step: StepState, event: Event, status: str) -> None:
    step.status = status
    step.orphan = False
    step.allowed = False
    step.given_up = None
    data = event.data
    step.end = kept(state, event)
    # Its outcome may refer to pieces that never reached the log.
    step.incomplete = data.get("progressed", len(step.notes)) != len(step.notes)
    step.lost = step.incomplete or "unreplayable" in data or "redacted" in data
    step.settled = "how" in data or "final" in data
    if not data.get("job_open"):
        step.job = None
    step.finished_seq = event.seq
    step.finished_ts = event.ts
    state.live.discard(step.id)
