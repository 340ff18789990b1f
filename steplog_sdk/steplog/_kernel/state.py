"""What a folded log says: the states of a run and of its steps.

A state keeps what decisions are made of. The data of an event (arguments, results, pieces of streams) can be a hundred
times as large and is rarely asked for, so where the log can give it back a state holds the event's number instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Final, Protocol

import orjson

from steplog._kernel.controls import Controls

PENDING: Final = "pending"
RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
DENIED: Final = "denied"
BLOCKED: Final = "blocked"
INDETERMINATE: Final = "indeterminate"

FINISHED: Final = frozenset({DONE, FAILED, DENIED})
"""A step in one of these has an outcome. One that was denied has not run, and will not: that is its outcome."""

UNNAMED: Final = "?"
"""A branch of which the log, of an earlier release, says no more than that it was one."""

Data = dict[str, Any]
Kept = Data | bytes | int
"""Data of an event, parsed or in JSON bytes, or the event's number in the log that `Source` reads."""


class Source(Protocol):
    """A log that gives the data of its events back."""

    def read(self, seq: int) -> tuple[Data, bytes]:
        """The data of an event, and the JSON that it was parsed from; the same again for nobody else.

        Raises:
            StoreError: it cannot be read, or is not what was verified (Corrupt).
        """


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
        status: pending, running, done, failed, skipped, denied, blocked or indeterminate.
        attempt: number of the newest attempt, from 1; 0 where none has begun.
        start: data of the newest event that says what it asks for (`step.started`, or `step.denied` or `step.blocked`),
            or that event's number; `started` gives the data.
        started_seq: sequence number of its first event.
        started_ts: timestamp of its newest start, for people.
        request: what identical submissions of one scope have in common, namely the id of the first of them.
        occurrence: how many identical submissions came before it in its scope.
        branch: name of the thread (`task` of a task) that was forked off inside the run and asked for this first; `?`
            where the log does not name it, "" where it is no branch's first request.
        streamed: the recorded request asks for a stream.
        account: digest of the account for which it was asked, or "".
        module: where a tool without a name of its own is defined, or None.
        source: the log that the numbers refer to, or None where the state holds the data itself.
        orphan: a dead process left it running, or an operator allowed it once more.
        allowed: an operator said that the next attempt may run whatever the mode.
        doubt: an attempt before the newest one was an orphan that nobody settled, so it may have happened.
        given_up: sequence number of the note that the caller stopped waiting for it, or None.
        end: data of its newest `step.finished`, `step.resolved`, `step.denied` or `step.rejected`, or that event's
            number, or None; `finished` gives the data.
        finished_seq: sequence number of the event that finished it, or None.
        finished_ts: timestamp of its end, for people.
        incomplete: its outcome refers to pieces that are not in the log.
        lost: its outcome cannot be given back: it could not be encoded, a secret was taken out, or it is incomplete.
        settled: its outcome stands for ever: an operator's word, a denial, or that of a call that may have had its
            effect.
        notes: data of its newest attempt's `step.progressed` events, or their numbers; `progressed` gives the data.
        job: what the provider calls the work that it has been given, where it can be taken up again; else None.
    """

    id: str
    kind: str
    target: str
    scope: str
    after: str | None
    mode: str
    status: str
    attempt: int
    start: Kept
    started_seq: int
    started_ts: str
    request: str = ""
    occurrence: int = 0
    branch: str = ""
    streamed: bool = False
    account: str = ""
    module: str | None = None
    source: Source | None = field(default=None, compare=False, repr=False)
    orphan: bool = False
    allowed: bool = False
    doubt: bool = False
    given_up: int | None = None
    end: Kept | None = None
    finished_seq: int | None = None
    finished_ts: str | None = None
    incomplete: bool = False
    lost: bool = False
    settled: bool = False
    notes: list[Kept] = field(default_factory=list)
    job: Data | None = None

    @property
    def started(self) -> Data:
        """Data of the newest event that says what it asks for. Raises what `Source.read` raises."""
        return self._read(self.start)[0]

    @property
    def finished(self) -> Data | None:
        """Data of the event that ended it, or None. Raises what `Source.read` raises."""
        return None if self.end is None else self.read_end()[0]

    def read_end(self) -> tuple[Data, bytes | None]:
        """Data of the event that ended it, and the JSON that it was parsed from just now; None where it was before.

        Raises:
            StoreError: as `Source.read`.
        """
        end, source = self.end, self.source
        if end is None:
            return {}, None
        data, text = source.read(end) if type(end) is int and source is not None else self._read(end)
        if self.incomplete:
            why = "some of the pieces in which it arrived are not in the log."
            data = {**data, "unreplayable": {"why": why}}
        return data, text

    @property
    def progressed(self) -> list[Data]:
        """Data of the `step.progressed` events of its newest attempt. Raises what `Source.read` raises."""
        return [self._read(kept)[0] for kept in self.notes] if self.notes else []

    def _read(self, kept: Kept) -> tuple[Data, bytes | None]:
        if isinstance(kept, int):
            source = self.source
            assert source is not None
            return source.read(kept)
        if isinstance(kept, bytes):
            return orjson.loads(kept), kept
        return kept, None

    def copy(self) -> StepState:
        """A state that changes by itself; event data is shared, and nobody changes that."""
        twin = StepState(*_values(self))
        twin.notes = list(self.notes)
        return twin


def begun(
    step_id: str,
    place: tuple[str, str | None, str],
    call: tuple[str, str, str, str | None, str],
    request: str,
    occurrence: int,
) -> StepState:
    """The state of a step whose first attempt is about to be written; `fold.begin` puts in where.

    It does what `StepState(...)` does, in half the time: every recorded step pays for it.

    Args:
        step_id: its id.
        place: scope, the step before, and branch.
        call: kind, target, mode, module and account.
        request: id of the first of the identical submissions that it belongs to.
        occurrence: its number among them.
    """
    step = _new(StepState)
    step.id, step.request, step.occurrence = step_id, request, occurrence
    step.scope, step.after, step.branch = place
    step.kind, step.target, step.mode, step.module, step.account = call
    step.status, step.attempt = RUNNING, 1
    step.streamed = step.orphan = step.allowed = step.doubt = step.incomplete = step.lost = step.settled = False
    step.given_up = step.end = step.finished_seq = step.finished_ts = step.job = None
    step.notes = []
    return step


_new: Final = StepState.__new__
_values: Final = attrgetter(*(attribute.name for attribute in fields(StepState)))


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
        pauses: of each opening but the first, the timestamps of the event before it and of its claim, for people.
        steps: every step by id, in the order in which they first started.
        retry: ids of failed steps whose failure ended the run; they may be attempted again.
        closed_ts: timestamp of the event that ended the run for good, for people; "" before.
        completed_once: the run has ended for good before; it replays and nothing more.
        last_start: sequence number of the newest `step.started`; -1 when there is none.
        followers: ids of steps by (scope, after), in the order of their first start.
        inner: ids of steps by the step that encloses them, in the order of their first start.
        live: ids of steps under way in this epoch.
        given_up: ids of steps that were given up in this epoch.
        superseded: ids of steps that followed the failure of a step which was then tried again.
        modules: by target, the module that its newest line with one names; lines behind it leave it out.
        controls: what was judged of its steps and said to it; None where nothing was.
        source: the log that gives event data back, so that steps keep numbers; None where they keep the data.
        names: kinds, targets, modes and modules, each once.
    """

    run_id: str = ""
    status: str = "new"
    reason: str | None = None
    created: Data = field(default_factory=dict)
    ended: Data | None = None
    epoch: int = 0
    claim: Data = field(default_factory=dict)
    claim_seq: int = -1
    seq: int = -1
    head: str | None = None
    first_ts: str = ""
    last_ts: str = ""
    pauses: list[list[str]] = field(default_factory=list)
    steps: dict[str, StepState] = field(default_factory=dict)
    retry: set[str] = field(default_factory=set)
    closed_ts: str = ""
    completed_once: bool = False
    last_start: int = -1
    followers: dict[tuple[str, str | None], list[str]] = field(default_factory=dict)
    inner: dict[str, list[str]] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    superseded: set[str] = field(default_factory=set)
    modules: dict[str, str | None] = field(default_factory=dict)
    controls: Controls | None = None
    source: Source | None = field(default=None, compare=False, repr=False)
    names: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def copy(self) -> RunState:
        """A state that shares nothing mutable with this one, except event data, which nobody changes."""
        return replace(
            self,
            steps={key: step.copy() for key, step in self.steps.items()},
            pauses=list(self.pauses),
            retry=set(self.retry),
            followers={key: list(ids) for key, ids in self.followers.items()},
            inner={key: list(ids) for key, ids in self.inner.items()},
            live=set(self.live),
            given_up=set(self.given_up),
            superseded=set(self.superseded),
            modules=dict(self.modules),
            controls=None if self.controls is None else self.controls.copy(),
            names=dict(self.names),
        )

    def within(self, scope: str) -> list[StepState]:
        """All steps inside a step, at any depth, in the order of their first start."""
        found: dict[str, StepState] = {}
        queue = [scope]
        while queue:
            for step_id in self.inner.get(queue.pop(), ()):
                if step_id not in found:
                    found[step_id] = self.steps[step_id]
                    queue.append(step_id)
        return sorted(found.values(), key=_by_start)


def _by_start(step: StepState) -> int:
    return step.started_seq
