"""The budget of a run in this process: what is set aside before an attempt begins, and what becomes of that.

The log says the same (`_kernel/fold_budget.py`), but only when its lines are written. Two branches that ask at once
must not both be given the last of something, so what was admitted is counted here in the moment in which it is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog._kernel import events as ev
from steplog._kernel.bounds import Bound, cap_name, of_arguments, of_request, of_window
from steplog._kernel.budget import Budget, BudgetState, Charge, Exceeded, Proposed, Usage, judge, nanos, parse
from steplog._kernel.codec import encode
from steplog._kernel.identity import args_hash
from steplog._runtime import budget_message
from steplog._runtime.price_list import named, price, window
from steplog._runtime.spent import provider_of, spent_of
from steplog.errors import Interrupt, InvalidArgument

if TYPE_CHECKING:
    from steplog._kernel.state import RunState
    from steplog._runtime.journal import Journal
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Call, Ticket

VARIABLE: Final = "STEPLOG_BUDGET"
"""Limits that a person sets for the runs of a process, as `max_tokens=5000,deadline=60`."""

_NO_CAP: Final = (
    "The request names no cap of its answer, so {:,} tokens are set aside for it. Set {} in the request, to as many "
    "tokens as its answer needs at most."
)
_ANY_CAP: Final = "max_tokens, max_completion_tokens or max_output_tokens, as its API calls it,"
_UNPRICED: Final = (
    "The price of {} is not known ({}), so its cost cannot be kept below a limit. Take a model that is in the list, or "
    "limit max_tokens instead and lift this limit."
)
_NO_LIST: Final = (
    "run {}: its budget has max_cost, and no price list is installed. Nothing was executed.\n"
    'pip install "steplog[prices]"'
)


class Active:
    """The clock of a run's active time. It stands still while all that the run does is wait for somebody."""

    def __init__(self, milliseconds: int) -> None:
        self._before = milliseconds / 1000
        self._since: float | None = time.perf_counter()
        self._waiting = 0
        self._busy: dict[str, int] = {}
        self._lock = threading.Lock()

    def seconds(self) -> float:
        """How long the run was at work, in all its processes."""
        with self._lock:
            return self._sum()

    def _sum(self) -> float:
        return self._before + (0.0 if self._since is None else time.perf_counter() - self._since)

    @contextmanager
    def waiting(self, steps: Iterable[str] = ()) -> Iterator[None]:
        """A branch waits for a person, a signal or a time; `steps` are those under way that do nothing else."""
        idle = tuple(steps)
        self._note(waiting=1, steps=idle, busy=-1)
        try:
            yield
        finally:
            self._note(waiting=-1, steps=idle, busy=1)

    def busy(self, step: str, by: int) -> None:
        """An effect begins (1) or has ended (-1)."""
        self._note(steps=(step,), busy=by)

    def _note(self, *, waiting: int = 0, steps: Iterable[str] = (), busy: int = 0) -> None:
        with self._lock:
            self._waiting += waiting
            for step in steps:
                count = self._busy.get(step, 0) + busy
                self._busy[step] = count
                if not count:
                    del self._busy[step]
            stands = self._waiting > 0 and not any(count > 0 for count in self._busy.values())
            if stands and self._since is not None:
                self._before, self._since = self._sum(), None
            elif not stands and self._since is None:
                self._since = time.perf_counter()


class Allowance:
    """What a run may use up and has used up, as this process knows it.

    Attributes:
        budget: the limits in force.
        active: the run's active time.
    """

    def __init__(self, state: BudgetState) -> None:
        self.budget = state.budget
        self.active = Active(state.usage.active_ms)
        self._usage = state.usage.copy()
        self._changes = state.changes
        self._told, self._progress = 0, ""
        self._stalls = state.stalls
        self._lock = threading.RLock()

    def remaining(self) -> float | None:
        """Seconds of active time that are left, at least 0; None without a deadline."""
        deadline = self.budget.deadline
        return None if deadline is None else max(0.0, float(deadline) - self.active.seconds())  # type: ignore[arg-type]  # seconds since its making

    def usage(self) -> Usage:
        """A copy of what is used up now."""
        with self._lock:
            self._look_at_clock()
            return self._usage.copy()

    def admit(self, ticket: Ticket) -> None:
        """Set aside what an attempt can use, and note that for its intent. Halts the run where it does not fit."""
        found = self._admit(ticket)
        if isinstance(found, Exceeded):
            raise self._stop(ticket, found)
        ticket.judged = {**(ticket.judged or {}), "budget": found}
        ticket.charged = True

    def overdue(self, ticket: Ticket) -> Interrupt | None:
        """Halts the run whose time is up while an attempt is under way, and returns what to raise; else None."""
        deadline, used = self.budget.deadline, self.active.seconds()
        if deadline is None or used < float(deadline):  # type: ignore[arg-type]  # seconds since its making
            return None
        return self._stop(ticket, Exceeded("deadline", used, 0, deadline), begun=True)

    @staticmethod
    def _stop(ticket: Ticket, found: Exceeded, *, begun: bool = False) -> Interrupt:
        what = f"{ticket.call.kind} {ticket.call.target}"
        recorder = ticket.recorder
        return recorder.halt(budget_message.exceeded(recorder.named, ticket.step, what, found, begun=begun))

    def _admit(self, ticket: Ticket) -> Exceeded | dict[str, Any]:
        call = ticket.call
        bound, assumed = _bound(call)
        with self._lock:
            self._look_at_clock()
            tokens = bound.input + bound.output + (self._usage.largest if bound.continues else 0)
            cost, unpriced = self._price(call, bound, tokens)
            charge = Charge(tokens, cost)
            again = ticket.attempt > 1
            next_ = Proposed(call.kind, call.target, ticket.hashed[1], again, charge, self._stalls, unpriced, assumed)
            exceeded = judge(self.budget, self._usage, next_)
            if exceeded is not None:
                return exceeded
            self._usage.begin(ticket.step, call.kind, charge)
            self._stalls += call.kind == "llm_call" and self._changes > 0
            self.active.busy(ticket.step, 1)
            note = {"active": self._usage.active_ms, **charge.facts()}
            return {**note, "priced": _today()} if cost else note

    def took_back(self, ticket: Ticket) -> None:
        """An attempt that was admitted did not begin."""
        with self._lock:
            ticket.charged = False
            self._usage.take_back(ticket.step, ticket.call.kind)
            self._stalls -= ticket.call.kind == "llm_call" and self._stalls > 0
            self.active.busy(ticket.step, -1)

    def concluded(self, ticket: Ticket, outcome: str, detail: dict[str, Any]) -> dict[str, Any]:
        """Settle what was set aside for an attempt; what the log is to say of that."""
        if not ticket.charged:
            return {}
        with self._lock:
            ticket.charged = False
            self.active.busy(ticket.step, -1)
            self._look_at_clock()
            held = self._usage.reserved.get(ticket.step)
            spent = None if outcome == "cancelled" else spent_of(ticket.call, outcome, detail, held)
            self._usage.end(ticket.step, spent)
            said: dict[str, Any] = {"active": self._usage.active_ms}
            return said if spent is None or not (held or any(spent)) else {**said, "spent": spent.facts()}

    def progress(self, journal: Journal, value: Any) -> None:
        """Note what the program says of its progress, where that has changed and the log does not say so yet."""
        digest = args_hash(encode(value, "progress"))[:32]
        with self._lock:
            if digest == self._progress:
                return
            self._progress = digest
            self._told += 1
            if self._told <= self._changes:
                return  # the log says it: the program tells again what it told before
            self._changes, self._stalls = self._told, 0
            data = {"number": self._changes, "digest": digest}
            # What follows it in the log is written after it; nobody waits for it.
            journal.wait(journal.submit(ev.RUN_PROGRESSED, None, orjson.dumps(data), sync=False))

    def _look_at_clock(self) -> None:
        self._usage.active_ms = max(self._usage.active_ms, int(self.active.seconds() * 1000))

    def _price(self, call: Call, bound: Bound, tokens: int) -> tuple[int, str]:
        """The most that a call can cost, and why that is not known."""
        if not tokens or not named():
            return 0, ""
        counts = {"input": tokens - bound.output, "output": bound.output}
        provider = provider_of(call)
        # Writing a prompt to a provider's cache costs more than reading it; for most models the list has one price.
        asked = (counts, {**counts, "cache_write": counts["input"]})
        found = [price(call.target, provider, each, datetime.now(UTC)) for each in asked]
        dollars = [each for each in found if each is not None]
        if not dollars:
            return 0, _UNPRICED.format(call.target, named()) if self.budget.max_cost is not None else ""
        return nanos(max(dollars)), ""


class Budgeted:
    """The part of a `Run` that is about its budget."""

    @property
    def recorder(self) -> Recorder:
        """What records the run."""
        raise NotImplementedError

    @property
    def remaining(self) -> float | None:
        """Seconds of active time that its budget leaves, at least 0; None where it has no deadline."""
        allowance = self.recorder.allowance
        return None if allowance is None else allowance.remaining()

    def progress(self, value: Any) -> None:
        """Say where the task stands, for the limit `max_stalls` of a budget: a value that changes when it gets on.

        Only changes are recorded, as a digest. Without a budget it does nothing.

        Raises:
            EncodeError: the value is none that steplog can record.
            Interrupt: the run is halted.
        """
        recorder = self.recorder
        if recorder.allowance is not None:
            recorder.refuse_if_halted()
            recorder.allowance.progress(recorder.journal, value)


def waiting(ticket: Ticket) -> AbstractContextManager[None]:
    """Around a wait for a person, a signal or a time, which is no time at work: not of the steps around it either."""
    allowance, steps = ticket.recorder.allowance, ticket.recorder.journal.state.steps
    if allowance is None:
        return nullcontext()
    idle = [ticket.step] if ticket.charged else []
    scope = ticket.effect.scope
    while scope:
        idle.append(scope)
        scope = steps[scope].scope if scope in steps else ""
    return allowance.active.waiting(idle)


def _bound(call: Call) -> tuple[Bound, str]:
    if call.kind != "llm_call":
        return Bound(), ""
    if call.request is None:
        found = of_arguments(call.args, len(orjson.dumps(call.args)))
    else:
        data = getattr(call.request.get("body"), "data", b"")
        found = of_request(
            str(call.request.get("method", "")), str(call.request.get("path", "")), _tree(data), len(data)
        )
    if found.capped:
        return found, ""
    found = of_window(found, window(call.target, provider_of(call)))
    cap = cap_name(str((call.request or {}).get("path", "")))
    return found, _NO_CAP.format(found.output, cap or _ANY_CAP)


def _tree(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None  # a form with files, say


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def spent_so_far(state: RunState) -> Usage:
    """What the steps of a log have used that no budget has counted."""
    usage = Usage()
    for step in state.steps.values():
        usage.steps += step.attempt
        usage.model_calls += step.attempt * (step.kind == "llm_call")
        usage.tool_calls += step.attempt * (step.kind == "tool_call")
        finished = step.finished or {}
        if not step.scope:
            usage.active_ms += int((finished.get("ms") or {}).get("total", 0))
        counts = finished.get("usage") if step.kind == "llm_call" else None
        if not isinstance(counts, dict) or "input" not in counts:
            continue
        request = step.started.get("request")
        provider = request.get("sdk") if isinstance(request, dict) else None
        dollars = price(finished.get("model") or step.target, provider, counts, _moment(step.started_ts))
        tokens = counts["input"] + counts.get("output", 0)
        usage.tokens += tokens
        usage.largest = max(usage.largest, tokens)
        usage.nanos += 0 if dollars is None else nanos(dollars)
    return usage


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None  # times only inform


def take_up(journal: Journal, budget: Budget | None) -> Allowance | None:
    """The allowance of a run that was just opened; None where it has no budget.

    Writes down what the program, or by `STEPLOG_BUDGET` a person, sets anew.

    Args:
        journal: of the run.
        budget: what the program sets; None leaves what was set before.

    Raises:
        InvalidArgument: `STEPLOG_BUDGET` is no budget, or no price list is there for `max_cost`.
    """
    known = _known(journal.state)
    over = _of_operator(journal.run_id)
    if journal.state.completed_once or (known is None and budget is None and not over):
        return None
    plan = BudgetState() if known is None else known.copy()
    if budget is not None:
        plan.set_by_program(budget.limits())
    plan.operator.update(over)
    if plan.budget.max_cost is not None and not named():
        raise InvalidArgument(_NO_LIST.format(journal.run_id), run_id=journal.run_id)
    if known is None or (budget is not None and budget.limits() != known.program) or known.prices != named():
        said = {"by": "program", "limits": plan.program, "prices": named()}
        first = {"used": asdict(spent_so_far(journal.state))} if known is None else {}
        journal.append(ev.RUN_BUDGETED, None, {**said, **first})
    recorded = _known(journal.state)
    if recorded is not None and {**recorded.operator, **over} != recorded.operator:
        journal.append(ev.RUN_BUDGETED, None, {"by": "operator", "limits": over})
    found = _known(journal.state)
    assert found is not None
    return Allowance(found)


def _known(state: RunState) -> BudgetState | None:
    return None if state.controls is None else state.controls.budget


def _of_operator(run_id: str) -> dict[str, Any]:
    words = os.environ.get(VARIABLE, "")
    resumed = os.environ.get("STEPLOG_RESUME")
    return parse(words) if words and resumed in (None, "", run_id) else {}
