"""Generated logs: legal ones, as a runtime under crashes and operators writes them, and hostile ones.

Seals are numbers here: what a fold makes of events must not depend on how they are proved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from steplog._kernel import events as ev
from steplog._kernel.decide import Effect, Halt, Proceed, decide
from steplog._kernel.events import Event
from steplog._kernel.fold import FINISHED, RunState, apply

MODES = ("safe", "keyed", "verify", "unsafe")
KINDS = ("llm_call", "tool_call", "local")


class Log:
    """A log that grows by one event at a time, and its state.

    Attributes:
        events: the log.
        state: what it folds to.
        seen: ids that the present process has submitted.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.state = RunState()
        self.seen: set[str] = set()
        self.epoch = 0

    def add(self, type: str, step: str | None = None, **data: Any) -> Log:
        """Append an event."""
        if type == ev.RUN_CLAIMED:
            self.epoch += 1
            self.seen = set()
        seq = len(self.events)
        stamp = f"2026-03-01T10:00:{seq % 60:02d}Z"
        event = Event(seq, type, step, self.epoch, stamp, data, f"h{seq - 1}", f"h{seq}")
        self.events.append(event)
        apply(self.state, event)
        return self

    def begin(self) -> Log:
        """The first two events of every log."""
        return self.add(ev.RUN_CREATED, format="steplog/1", run_id="r").add(ev.RUN_CLAIMED, pid=1)

    def start(self, step: str, mode: str = "unsafe", *, scope: str = "", after: str | None = None, **more: Any) -> Log:
        """A step begins its next attempt."""
        known = self.state.steps.get(step)
        place = {"scope": scope, "after": after, "attempt": known.attempt + 1 if known else 1, **more}
        self.seen.add(step)
        return self.add(ev.STEP_STARTED, step, **{"kind": "tool_call", "target": "t", "mode": mode, **place})

    def finish(self, step: str, outcome: str = "done", **more: Any) -> Log:
        """A step ends."""
        return self.add(ev.STEP_FINISHED, step, outcome=outcome, **more)

    def claim(self) -> Log:
        """The process is dead, and another one takes the run."""
        return self.add(ev.RUN_CLAIMED, pid=2)

    def running(self) -> list[str]:
        """Ids of the steps that are running."""
        return sorted(self.state.live)


Act = Callable[[st.DrawFn, Log], None]


def _submit(draw: st.DrawFn, log: Log) -> None:
    """Ask for a step, as the recorder does: decide, and write the intent where it may run."""
    effect = draw(effects_in(log.state))
    if effect.id in log.seen:
        return
    log.seen.add(effect.id)
    decision = decide(log.state, log.seen, effect, on_drift=draw(st.sampled_from(["halt", "run"])))
    if isinstance(decision, Proceed):
        place = {"kind": effect.kind, "target": effect.target, "args_hash": effect.target}
        orphan = effect.id in log.state.steps and log.state.steps[effect.id].orphan
        judgement = "begin" if orphan else draw(st.sampled_from(["begin"] * 5 + ["deny", "limit", "block"]))
        if judgement == "begin":
            took = {"policy": {"took": {"r": [draw(st.integers(0, 3)), 1000]}}}
            judged = {"judged": took} if draw(st.booleans()) else {}
            log.start(effect.id, effect.mode, scope=effect.scope, after=effect.after, **place, **judged)
            return
        refused = {**place, "mode": effect.mode, "scope": effect.scope, "after": effect.after, "rule": "r"}
        if decision.attempt > 1:
            refused["attempt"] = decision.attempt
        if judgement == "block":
            log.add(ev.STEP_BLOCKED, effect.id, expires=None, **refused)
        else:
            log.add(ev.STEP_DENIED, effect.id, **refused, **({"retry_after": 1} if judgement == "limit" else {}))
    elif isinstance(decision, Halt):
        log.add(ev.RUN_SUSPENDED, reason=decision.reason)
        log.claim()


def _finish(draw: st.DrawFn, log: Log) -> None:
    if not log.running():
        return
    step = draw(st.sampled_from(log.running()))
    outcome = draw(st.sampled_from(["done", "done", "failed", "retry", "unreplayable", "skipped"]))
    if outcome == "skipped":
        log.add(ev.STEP_SKIPPED, step, reason="interrupted before the effect began")
    elif outcome == "retry":
        log.finish(step, "failed", retry=[step])
    elif outcome == "unreplayable":
        log.finish(step, "done", unreplayable={"path": "result"})
    else:
        log.finish(step, outcome, result=1)


def _progress(draw: st.DrawFn, log: Log) -> None:
    if log.running():
        job = {"job": {"id": "job_1"}} if draw(st.booleans()) else {}
        step = draw(st.sampled_from(log.running()))
        log.add(ev.STEP_PROGRESSED, step, attempt=log.state.steps[step].attempt, **job)


def _resolve(draw: st.DrawFn, log: Log) -> None:
    log.claim()
    doubtful = sorted(step.id for step in log.state.steps.values() if step.orphan)
    if doubtful:
        how = draw(st.sampled_from(["done", "retry", "failed"]))
        log.add(ev.STEP_RESOLVED, draw(st.sampled_from(doubtful)), how=how)


def _answer(draw: st.DrawFn, log: Log) -> None:
    """Somebody decides on a step that is blocked, or was, or on one that never was."""
    if log.state.steps:
        step = draw(st.sampled_from(sorted(log.state.steps)))
        log.add(draw(st.sampled_from([ev.STEP_APPROVED, ev.STEP_REJECTED])), step, by="ann", note=None, message="m1")


def _budget(draw: st.DrawFn, log: Log) -> None:
    """The program or a person sets limits, or the program gets on."""
    if draw(st.booleans()):
        who, limits = draw(st.sampled_from(["program", "operator"])), {"max_steps": draw(st.integers(0, 5))}
        log.add(ev.RUN_BUDGETED, by=who, limits=limits, prices="", used={"steps": 2, "reserved": {}})
    else:
        log.add(ev.RUN_PROGRESSED, number=draw(st.integers(1, 5)), digest="d")


def _fail(draw: st.DrawFn, log: Log) -> None:
    failed = sorted(step.id for step in log.state.steps.values() if step.status in {"failed", "denied"})
    retry = draw(st.lists(st.sampled_from(failed), unique=True)) if failed else []
    log.add(ev.RUN_ENDED, outcome="failed", reason="error", retry=retry)
    log.claim()


def _end(draw: st.DrawFn, log: Log) -> None:
    log.add(ev.RUN_ENDED, outcome=draw(st.sampled_from(["completed", "cancelled", "escalated"])), reason="done")
    log.claim()


def _claim(draw: st.DrawFn, log: Log) -> None:
    log.claim()


_ACTS: tuple[Act, ...] = (
    _submit,
    _submit,
    _submit,
    _submit,
    _finish,
    _finish,
    _finish,
    _progress,
    _claim,
    _resolve,
    _answer,
    _budget,
    _fail,
)


@st.composite
def logs(draw: st.DrawFn, *, max_acts: int = 30, may_end: bool = True) -> Log:
    """A legal log: every intent in it was decided by `decide`. It may end for good, and be resumed all the same."""
    log = Log().begin()
    acts = (*_ACTS, _end) if may_end else _ACTS
    for act in draw(st.lists(st.sampled_from(acts), max_size=max_acts)):
        act(draw, log)
    return log


@st.composite
def completed(draw: st.DrawFn) -> Log:
    """A legal log whose every step is finished, and whose run has completed."""
    log = draw(logs())
    log.claim()
    for step in [step.id for step in log.state.steps.values() if step.status not in FINISHED]:
        log.start(step)
        log.finish(step, draw(st.sampled_from(["done", "failed"])), result=1)
    log.add(ev.RUN_ENDED, outcome=draw(st.sampled_from(["completed", "escalated", "cancelled"])), reason="done")
    log.claim()
    return log


STEP_IDS = [f"s_{letter}" for letter in "abcdef"]


def effects_in(state: RunState) -> st.SearchStrategy[Effect]:
    """An effect that the log holds, as it is or in another mode, or one that is new to it."""
    modes = st.sampled_from(MODES)
    known = [
        Effect(step.id, step.kind, step.target, step.scope, step.after, step.mode, step.job is not None)
        for step in state.steps.values()
    ]
    scopes = st.sampled_from(["", *(effect.id for effect in known)])
    afters = st.sampled_from([None, *(effect.id for effect in known)])
    ids, targets = st.sampled_from(STEP_IDS), st.sampled_from("tu")
    new = st.builds(Effect, ids, st.sampled_from(KINDS), targets, scopes, afters, modes)
    new = new.filter(lambda effect: effect.id not in state.steps)
    if not known:
        return new
    again = st.builds(lambda effect, mode: effect._replace(mode=mode), st.sampled_from(known), modes)
    return again | new if len(known) < len(STEP_IDS) else again


_NAMES = st.sampled_from([*STEP_IDS, "s_unknown", "", None])
_TYPES = st.sampled_from(
    [
        ev.RUN_CREATED,
        ev.RUN_CLAIMED,
        ev.RUN_SUSPENDED,
        ev.RUN_ENDED,
        ev.LOG_RECOVERED,
        "drift.accepted",
        ev.STEP_DENIED,
        ev.STEP_BLOCKED,
        ev.STEP_APPROVED,
        ev.STEP_REJECTED,
        ev.RUN_BUDGETED,
        ev.RUN_PROGRESSED,
    ]
    + [ev.STEP_STARTED, ev.STEP_PROGRESSED, ev.STEP_FINISHED, ev.STEP_SKIPPED, ev.STEP_RESOLVED] * 3
)
_DATA = st.fixed_dictionaries(
    {},
    optional={
        "run_id": st.just("r"),
        "kind": st.sampled_from([*KINDS, "other"]),
        "target": st.text(max_size=3),
        "scope": st.sampled_from([*STEP_IDS, ""]),
        "after": st.sampled_from([*STEP_IDS, None]),
        "mode": st.sampled_from([*MODES, "unheard-of"]),
        "attempt": st.integers(1, 9),
        "outcome": st.sampled_from(["done", "failed", "completed", "cancelled", "unheard-of"]),
        "how": st.sampled_from(["done", "retry", "failed", "unheard-of"]),
        "reason": st.text(max_size=3),
        "retry": st.lists(st.sampled_from([*STEP_IDS, "s_unknown"]), max_size=3),
        "job": st.sampled_from([{"id": "job_1"}, None]),
        "judged": st.sampled_from([{"policy": {"took": {"r": [1, 2]}}}, {"policy": {}}, {}, None]),
        "retry_after": st.integers(0, 3),
        "expires": st.integers(0, 3) | st.none(),
        "job_open": st.booleans(),
        "progressed": st.integers(0, 2),
        "unreplayable": st.just({"path": "result"}),
        "from_the_future": st.integers(-(2**63), 2**64 - 1),  # a larger one is read as a float
    },
)


@st.composite
def hostile(draw: st.DrawFn, *, max_events: int = 25) -> list[Event]:
    """Events that no runtime would write like this: unknown, repeated, out of order, with keys missing."""
    drawn = st.lists(st.tuples(_TYPES, _NAMES, st.integers(0, 3), _DATA), max_size=max_events)
    events = [
        Event(seq, type_, step, epoch, "2026-03-01T10:00:00Z", data, f"h{seq - 1}", f"h{seq}")
        for seq, (type_, step, epoch, data) in enumerate(draw(drawn))
    ]
    repeats = draw(st.lists(st.sampled_from(events), max_size=4)) if events else []
    return events + repeats
