"""State is a fold over the log. It is never stored as truth.

1. Everything that changes a run's state is an event, and `_TRANSITIONS` is the whole list of what an event changes.
2. Folding the head of a log and then its tail gives what folding the whole gives. So a saved state plus the events
   behind it is as good as the log, and a wrong or missing saved state costs speed only.

A step that a dead process left running comes back as `pending` with `orphan` set when the next writer claims the run;
one that may not be repeated comes back as `indeterminate`. Nothing here reads `ts`, because clocks step back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from steplog._kernel import events as ev
from steplog._kernel.events import Event

PENDING: Final = "pending"
RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
INDETERMINATE: Final = "indeterminate"

FINISHED: Final = frozenset({DONE, FAILED})

# An orphan in any other mode, also in one that a later release has added, is in doubt.
REPEATABLE: Final = frozenset({"safe", "keyed", "verify"})

# A run in one of these replays whole; anything new in it is drift. A failed or suspended run goes on instead.
CLOSED_OUTCOMES: Final = frozenset({"completed", "escalated", "cancelled"})


@dataclass(slots=True)
class StepState:
    """What the log says of one step.

    Attributes:
        id: the step id.
        kind: llm_call, tool_call or local.
        target: model id, tool name or local name.
        scope: id of the enclosing step, or "".
        after: id of the step that last finished in the same context when this one was submitted, or None.
        mode: idempotency mode of the newest attempt.
        status: pending, running, done, failed, skipped or indeterminate.
        attempt: number of the newest attempt, from 1.
        orphan: a dead process left it running, or an operator allowed it once more.
        allowed: an operator said that the next attempt may run whatever the mode.
        doubt: an attempt before the newest one was an orphan that nobody settled, so it may have happened.
        started: data of its newest `step.started`.
        given_up: sequence number of the note that the caller stopped waiting for it, or None.
        finished: data of its newest `step.finished` or `step.resolved`, or None.
        started_seq: sequence number of its first `step.started`.
        finished_seq: sequence number of the event that finished it, or None.
        progressed: data of the `step.progressed` events of its newest attempt.
        job: what the provider calls the work that it has been given, where it can be taken up again; else None.
        started_ts: timestamp of its newest start, for people.
        finished_ts: timestamp of its end, for people.
    """

    id: str
    kind: str
    target: str
    scope: str
    after: str | None
    mode: str
    status: str
    attempt: int
    started: dict[str, Any]
    started_seq: int
    started_ts: str
    orphan: bool = False
    allowed: bool = False
    doubt: bool = False
    given_up: int | None = None
    finished: dict[str, Any] | None = None
    finished_seq: int | None = None
    finished_ts: str | None = None
    progressed: list[dict[str, Any]] = field(default_factory=list)
    job: dict[str, Any] | None = None


@dataclass(slots=True)
class RunState:
    """What the log says of one run.

    Attributes:
        run_id: the run.
        status: new, running, suspended, completed, escalated, failed or cancelled.
        reason: reason code of a suspended or ended run, or None.
        created: data of `run.created`.
        ended: data of the newest `run.ended` or `run.suspended`, or None while it runs.
        epoch: epoch of the newest claim; 0 in a new log.
        claim: data of the newest claim.
        claim_seq: its sequence number; -1 before the first.
        seq: sequence number of the newest event; -1 in a new log.
        head: seal of the newest event, or None in a new log.
        first_ts: timestamp of the first event, for people.
        last_ts: timestamp of the newest event, for people.
        steps: every step by id, in the order in which they first started.
        retry: ids of failed steps whose failure ended the run; they may be attempted again.
        completed_once: the run has ended for good before; it replays and nothing more.
        last_start: sequence number of the newest `step.started`; -1 when there is none.
        followers: ids of steps by (scope, after), in the order of their first start.
        live: ids of steps under way in this epoch.
        given_up: ids of steps that were given up in this epoch.
        superseded: ids of steps that followed the failure of a step which was then tried again.
    """

    run_id: str = ""
    status: str = "new"
    reason: str | None = None
    created: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, Any] | None = None
    epoch: int = 0
    claim: dict[str, Any] = field(default_factory=dict)
    claim_seq: int = -1
    seq: int = -1
    head: str | None = None
    first_ts: str = ""
    last_ts: str = ""
    steps: dict[str, StepState] = field(default_factory=dict)
    retry: set[str] = field(default_factory=set)
    completed_once: bool = False
    last_start: int = -1
    followers: dict[tuple[str, str | None], list[str]] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    superseded: set[str] = field(default_factory=set)

    def copy(self) -> RunState:
        """A state that shares nothing mutable with this one, except event data, which nobody changes."""
        return replace(
            self,
            steps={key: replace(step, progressed=list(step.progressed)) for key, step in self.steps.items()},
            retry=set(self.retry),
            followers={key: list(ids) for key, ids in self.followers.items()},
            live=set(self.live),
            given_up=set(self.given_up),
            superseded=set(self.superseded),
        )


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
    state.completed_once = state.completed_once or state.status in CLOSED_OUTCOMES
    state.retry.update(_to_retry(state, event))


def _started(state: RunState, event: Event) -> None:
    data = event.data
    state.last_start = event.seq
    step_id = event.step or ""
    known = state.steps.get(step_id)
    if known is None:
        after = data.get("after")
        scope = data.get("scope", "")
        state.steps[step_id] = StepState(
            id=step_id,
            kind=data.get("kind", ""),
            target=data.get("target", ""),
            scope=scope,
            after=after,
            mode=data.get("mode", "unsafe"),
            status=RUNNING,
            attempt=data.get("attempt", 1),
            started=data,
            started_seq=event.seq,
            started_ts=event.ts,
            job=data.get("job"),
        )
        state.followers.setdefault((scope, after), []).append(step_id)
    else:
        if known.finished_seq is not None and known.finished_seq > state.claim_seq:
            # Its own retry policy repeats it, afresh: a call inside that timed out in the last attempt is made again.
            for inner in state.steps.values():
                if inner.scope == step_id:
                    inner.given_up = None
        if step_id in state.retry:
            # What the program did next, it did because this step had failed. It may take another way now.
            state.superseded.update(behind(state, known))
            state.followers.pop((known.scope, step_id), None)
        known.mode = data.get("mode", known.mode)
        known.status = RUNNING
        known.attempt = data.get("attempt", known.attempt + 1)
        known.doubt = known.orphan and not known.allowed
        known.orphan = False
        known.allowed = False
        known.given_up = None
        known.started = data
        known.started_ts = event.ts
        known.finished = None
        known.finished_seq = None
        known.finished_ts = None
        known.progressed = []
        known.job = data.get("job")
    state.live.add(step_id)
    state.retry.discard(step_id)


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
    step.progressed.append(event.data)
    step.job = event.data.get("job", step.job)


def _finished(state: RunState, event: Event) -> None:
    step = state.steps.get(event.step or "")
    if step is None:
        return
    if event.data.get("outcome") == "cancelled":
        _give_up(state, step, event)
        return
    _close(state, step, event, DONE if event.data.get("outcome") == "done" else FAILED)
    # A failed attempt that its step's own retry policy repeats names itself and the inner steps that made it fail.
    state.retry.update(_to_retry(state, event))


def _to_retry(state: RunState, event: Event) -> list[str]:
    """The failed steps that an event names to be tried again, without those that are settled."""
    steps = state.steps
    return [step for step in event.data.get("retry", ()) if step in steps and not is_settled(steps[step])]


def is_settled(step: StepState) -> bool:
    """Whether a failure is returned for ever: an operator's word, or that of a call that may have had its effect."""
    return not {"how", "final"}.isdisjoint(step.finished or ())


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
    step.finished = event.data
    if event.data.get("progressed", len(step.progressed)) != len(step.progressed):
        # Its outcome refers to pieces that never reached the log.
        why = "some of the pieces in which it arrived are not in the log."
        step.finished = {**event.data, "unreplayable": {"why": why}}
    if not event.data.get("job_open"):
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
        step.finished = None
        step.finished_seq = None
        step.progressed = []
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
