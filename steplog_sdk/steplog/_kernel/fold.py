"""State is a fold over the log. It is never stored as truth.

1. Everything that changes a run's state is an event, and `_TRANSITIONS` is the whole list of what an event changes.
2. Folding the head of a log and then its tail gives what folding the whole gives. So a saved state plus the events
   behind it is as good as the log, and a wrong or missing saved state costs speed only.

A step that a dead process left running comes back as `pending` with `orphan` set when the next writer claims the run;
one that may not be repeated comes back as `indeterminate`. Nothing here reads `ts`, because clocks step back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from steplog._kernel import events as ev
from steplog._kernel.events import Event
from steplog._kernel.identity import step_id as identify
from steplog._kernel.state import (
    DONE,
    FAILED,
    FINISHED,
    INDETERMINATE,
    PENDING,
    RUNNING,
    UNNAMED,
    Kept,
    RunState,
    StepState,
)

__all__ = [
    "CLOSED_OUTCOMES",
    "DONE",
    "FAILED",
    "FINISHED",
    "INDETERMINATE",
    "PENDING",
    "REPEATABLE",
    "RUNNING",
    "RunState",
    "StepState",
    "apply",
    "begin",
    "behind",
    "end",
    "fold",
    "is_settled",
]

# An orphan in any other mode, also in one that a later release has added, is in doubt.
REPEATABLE: Final = frozenset({"safe", "keyed", "verify"})

# A run in one of these replays whole; anything new in it is drift. A failed or suspended run goes on instead.
CLOSED_OUTCOMES: Final = frozenset({"completed", "escalated", "cancelled"})


def fold(log: Iterable[Event], state: RunState | None = None) -> RunState:
    """State after `log`, starting from `state` (left as it is) or from an empty run."""
    result = RunState() if state is None else state.copy()
    for event in log:
        apply(result, event)
    return result


def apply(state: RunState, event: Event) -> None:
    """Advance `state` in place by one event. Types it does not know move only the head."""
    state.seq = event.seq
    state.head = event.h
    state.last_ts = event.ts
    if event.seq == 0:
        state.first_ts = event.ts
    transition = _TRANSITIONS.get(event.type)
    if transition is not None:
        transition(state, event)


def begin(state: RunState, step: StepState, data: bytes, seq: int, ts: str, seal: str) -> None:
    """What `apply` does with the first `step.started` of a step, for the process that has written it.

    Args:
        state: advanced in place.
        step: the step as `state.begun` makes it; `state` has none of this id.
        data: the event's data.
        seq: the event's number.
        ts: its timestamp.
        seal: its seal.
    """
    state.seq = state.last_start = seq
    state.head, state.last_ts = seal, ts
    source = state.source
    step.start = data if source is None else seq
    step.started_seq, step.started_ts, step.source = seq, ts, source
    step_id, scope = step.id, step.scope
    state.steps[step_id] = step
    if state.modules.get(step.target) != step.module:
        state.modules[step.target] = step.module
    state.followers.setdefault((scope, step.after), []).append(step_id)
    if scope:
        state.inner.setdefault(scope, []).append(step_id)
    state.live.add(step_id)


def end(state: RunState, step_id: str, data: bytes, seq: int, ts: str, seal: str) -> None:
    """What `apply` does with a `step.finished` that says `done` and nothing out of the ordinary. As `begin`."""
    state.seq, state.head, state.last_ts = seq, seal, ts
    step = state.steps.get(step_id)
    if step is None:
        return
    step.status = DONE
    step.orphan = step.allowed = step.incomplete = step.lost = step.settled = False
    step.given_up = step.job = None
    step.end = data if state.source is None else seq
    step.finished_seq, step.finished_ts = seq, ts
    state.live.discard(step_id)


def _created(state: RunState, event: Event) -> None:
    state.run_id = event.data.get("run_id", "")
    state.created = event.data
    state.status = RUNNING


def _claimed(state: RunState, event: Event) -> None:
    state.epoch = event.epoch
    state.claim = event.data
    state.claim_seq = event.seq
    if not state.completed_once:
        state.status = RUNNING
        state.reason = None
        state.ended = None
    for step_id in state.live:
        _orphaned(state.steps[step_id])
    state.live.clear()
    # A cancellation that nothing followed was the end of that process, not a choice of the program.
    _forget_given_up(state, lambda seq: state.last_start < seq and not state.completed_once)
    state.given_up.clear()


def _forget_given_up(state: RunState, applies: Callable[[int], bool]) -> None:
    for step_id in state.given_up:
        step = state.steps[step_id]
        if step.given_up is not None and applies(step.given_up):
            step.given_up = None


def _orphaned(step: StepState) -> None:
    step.orphan = True
    # Work that goes on at the provider is taken up again, which repeats nothing, whatever the mode.
    step.status = PENDING if step.mode in REPEATABLE or step.job is not None else INDETERMINATE


def _suspended(state: RunState, event: Event) -> None:
    if event.data.get("reason") == "interrupted":
        # Somebody stopped the program, and it cancelled what was under way: none of that was its own choice.
        _forget_given_up(state, lambda _seq: True)
    if state.completed_once:
        return
    state.status = "suspended"
    state.reason = event.data.get("reason")
    state.ended = event.data


def _ended(state: RunState, event: Event) -> None:
    if state.completed_once and event.data.get("outcome") not in CLOSED_OUTCOMES:
        # A replay of a run that has ended may fail; that does not unmake its end.
        return
    state.status = event.data.get("outcome", "failed")
    state.reason = event.data.get("reason")
    state.ended = event.data
    if state.status in CLOSED_OUTCOMES and not state.completed_once:
        state.completed_once, state.closed_ts = True, event.ts
    state.retry.update(_to_retry(state, event))


def _started(state: RunState, event: Event) -> None:
    data = event.data
    state.last_start = event.seq
    step_id = event.step or ""
    known = state.steps.get(step_id)
    if known is None:
        known = state.steps[step_id] = _new(state, event, step_id)
        state.followers.setdefault((known.scope, known.after), []).append(step_id)
        if known.scope:
            state.inner.setdefault(known.scope, []).append(step_id)
    else:
        if known.finished_seq is not None and known.finished_seq > state.claim_seq:
            # Its own retry policy repeats it, afresh: a call inside that timed out in the last attempt is made again.
            for inner in state.inner.get(step_id, ()):
                state.steps[inner].given_up = None
        if step_id in state.retry:
            # What the program did next, it did because this step had failed. It may take another way now.
            state.superseded.update(behind(state, known))
            state.followers.pop((known.scope, step_id), None)
        known.mode = _once(state, data.get("mode", known.mode))
        known.status = RUNNING
        known.attempt = data.get("attempt", known.attempt + 1)
        known.doubt = known.orphan and not known.allowed
        known.orphan = False
        known.allowed = False
        known.given_up = None
        known.start = _kept(state, event)
        known.started_ts = event.ts
        _forget_outcome(known)
        known.job = data.get("job")
    known.occurrence = data.get("occurrence", 0)
    known.account = _once(state, data.get("account", ""))
    known.request = _request(known, data)
    branch = data.get("branch", "")
    known.branch = _once(state, branch) if isinstance(branch, str) else UNNAMED
    if "module" in data:
        state.modules[known.target] = _once(state, data["module"])
    known.module = state.modules.get(known.target)
    request = data.get("request")
    known.streamed = isinstance(request, dict) and bool(request.get("stream"))
    state.live.add(step_id)
    state.retry.discard(step_id)


def _request(step: StepState, data: dict[str, Any]) -> str:
    """The id of the first of the identical submissions that a step belongs to.

    A first submission is its own, and says no hash; logs of 0.1 say it always.
    """
    hashed = data.get("args_hash")
    return identify(step.scope, step.kind, step.target, hashed, 0) if hashed else step.id


def _new(state: RunState, event: Event, step_id: str) -> StepState:
    get = event.data.get
    after, scope = get("after"), get("scope", "")
    before = state.steps.get(after) if after else None
    return StepState(
        step_id,
        _once(state, get("kind", "")),
        _once(state, get("target", "")),
        _once(state, scope) if scope else scope,
        after if before is None else before.id,
        _once(state, get("mode", "unsafe")),
        RUNNING,
        get("attempt", 1),
        _kept(state, event),
        event.seq,
        event.ts,
        source=state.source,
        job=get("job"),
    )


def _kept(state: RunState, event: Event) -> Kept:
    return event.data if state.source is None else event.seq


def _once(state: RunState, name: Any) -> Any:
    """One object for all equal names: a long log says the same few in every line, and each line is parsed by itself."""
    return state.names.setdefault(name, name) if isinstance(name, str) else name


def _forget_outcome(step: StepState) -> None:
    step.end = None
    step.finished_seq = None
    step.finished_ts = None
    step.incomplete = False
    step.lost = False
    step.settled = False
    step.notes = []


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


def _progressed(state: RunState, event: Event) -> None:
    step = state.steps.get(event.step or "")
    if step is None or step.status in FINISHED or event.data.get("attempt", step.attempt) != step.attempt:
        return
    step.notes.append(_kept(state, event))
    step.job = event.data.get("job", step.job)


def _finished(state: RunState, event: Event) -> None:
    step = state.steps.get(event.step or "")
    if step is None:
        return
    if event.data.get("outcome") == "cancelled":
        _give_up(state, step, event)
        return
    _close(state, step, event, DONE if event.data.get("outcome") == "done" else FAILED)
    if "retry" not in event.data:
        return
    # A failed attempt that its step's own retry policy repeats names itself and the inner steps that made it fail.
    state.retry.update(_to_retry(state, event))


def _to_retry(state: RunState, event: Event) -> list[str]:
    """The failed steps that an event names to be tried again, without those that are settled."""
    steps = state.steps
    return [step for step in event.data.get("retry", ()) if step in steps and not is_settled(steps[step])]


def is_settled(step: StepState) -> bool:
    """Whether a failure is returned for ever: an operator's word, or that of a call that may have had its effect."""
    return step.settled


def _give_up(state: RunState, step: StepState, event: Event) -> None:
    """The caller stopped waiting: the outcome is as open as after a crash, but the program may have gone on."""
    state.live.discard(step.id)
    if step.status not in FINISHED:
        _orphaned(step)
    if state.status != "suspended":
        # After a halt, whatever is still under way is cancelled; that says nothing about the program.
        step.given_up = event.seq
        state.given_up.add(step.id)


def _close(state: RunState, step: StepState, event: Event, status: str) -> None:
    step.status = status
    step.orphan = False
    step.allowed = False
    step.given_up = None
    data = event.data
    step.end = _kept(state, event)
    # Its outcome may refer to pieces that never reached the log.
    step.incomplete = data.get("progressed", len(step.notes)) != len(step.notes)
    step.lost = step.incomplete or "unreplayable" in data or "redacted" in data
    step.settled = "how" in data or "final" in data
    if not data.get("job_open"):
        step.job = None
    step.finished_seq = event.seq
    step.finished_ts = event.ts
    state.live.discard(step.id)


def _skipped(state: RunState, event: Event) -> None:
    step = state.steps.get(event.step or "")
    if step is None:
        return
    state.live.discard(step.id)
    # The effect did not begin, so the step is where it was before this attempt; only the attempt number is used up.
    if event.data.get("reason") != "simulated":
        # What a fork refused was not the program's choice; it asks for it again.
        step.given_up = event.seq
        state.given_up.add(step.id)
    if step.doubt:
        _orphaned(step)
    else:
        step.status = "skipped"
        step.orphan = False


def _resolved(state: RunState, event: Event) -> None:
    step = state.steps.get(event.step or "")
    if step is None:
        return
    how = event.data.get("how")
    if how == "retry":
        step.status = PENDING
        step.orphan = True
        step.allowed = True
        step.given_up = None
        _forget_outcome(step)
        step.job = None
        state.live.discard(step.id)
    else:
        _close(state, step, event, DONE if how == "done" else FAILED)


_TRANSITIONS: Final[dict[str, Callable[[RunState, Event], None]]] = {
    ev.RUN_CREATED: _created,
    ev.RUN_CLAIMED: _claimed,
    ev.RUN_SUSPENDED: _suspended,
    ev.RUN_ENDED: _ended,
    ev.STEP_STARTED: _started,
    ev.STEP_PROGRESSED: _progressed,
    ev.STEP_FINISHED: _finished,
    ev.STEP_SKIPPED: _skipped,
    ev.STEP_RESOLVED: _resolved,
}
