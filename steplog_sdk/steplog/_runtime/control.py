"""The gates of a run: who is asked before an effect may begin, and what becomes of the answer.

A run without gates has no `Control`, and pays for none. One with gates asks them where `settle` is about to let an
effect begin, one effect after the other: two branches cannot both be given the last of something.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from steplog._kernel import events as ev
from steplog._kernel.approval import may_suspend
from steplog._kernel.control import ALLOW, Allow, Asked, Block, Decided, Deny, Later, Stop, Verdict
from steplog._kernel.plain import body_of, plain
from steplog._kernel.state import BLOCKED
from steplog._runtime import lines, messages
from steplog._runtime.blame import blame
from steplog._runtime.budgeting import waiting
from steplog._runtime.cancelling import unwind_if_cancelled
from steplog._runtime.drive import Pause, Steps
from steplog._runtime.group import Entry
from steplog._runtime.outcome import failure
from steplog._runtime.pack import Sink
from steplog._runtime.ticket import Recorded
from steplog.errors import LeaseLost, LogFailed, StepDenied, StepRateLimited, StepRejected, StoreError

if TYPE_CHECKING:
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Ticket

# How often a branch that waits for a decision, or for its turn, looks whether it may go on.
POLL_SECONDS: Final = 0.1

log: Final = logging.getLogger("steplog")

_UNWRITTEN: Final = (StoreError, LogFailed, LeaseLost)


class Gate:
    """One of those who are asked. Subclasses say `judge`, and what else concerns them.

    Attributes:
        name: under which its notes stand in `judged` of a `step.started`.
        order: gates are asked in this order: 10 cancellation, 20 approvals, 30 policy, 40 budget.
    """

    name = ""
    order = 0

    def heed(self, ticket: Ticket) -> Steps[None]:  # noqa: ARG002  # subclasses need it
        """Take in what has happened outside the run, such as messages; may append to the log. Under no lock."""
        yield from ()

    def judge(self, asked: Asked) -> Verdict:
        """Whether an effect may run. Changes nothing; under the lock of all judgements."""
        raise NotImplementedError

    def admitted(self, asked: Asked, note: dict[str, Any] | None) -> None:
        """Count an effect that every gate has allowed; `note` is this gate's own. Under the same lock."""


class Refusal(NamedTuple):
    """How a refused effect is recorded.

    Attributes:
        type: of the event.
        detail: its fields beside those that say what was asked for.
        error: what the agent gets.
    """

    type: str
    detail: dict[str, Any]
    error: StepDenied


class Control:
    """All gates of one run, as this process asks them.

    Attributes:
        gates: in the order in which they are asked.
        waits: a branch whose step is blocked waits for the decision, instead of suspending the run.
    """

    def __init__(self, recorder: Recorder, *, waits: bool = False) -> None:
        self.gates: list[Gate] = []
        self.waits = waits
        self._recorder = recorder
        # Steps of which it was said that their branch waits.
        self._told: set[str] = set()
        self._lock = threading.RLock()

    def add(self, gate: Gate) -> None:
        """Have one more gate asked."""
        with self._lock:
            bisect.insort(self.gates, gate, key=_order)

    def judge(self, ticket: Ticket, *, may_wait: bool) -> Steps[None]:
        """Ask whether an effect may begin, and return when it may, or when it is recorded that it may not.

        In the latter case the ticket has its recorded outcome. See `Gate` for who is asked.

        Args:
            ticket: the effect, whose intent is not written yet.
            may_wait: whether other branches go on while this one waits.

        Raises:
            Interrupt: the run is halted, or halts because of this effect.
        """
        asked, since = self._asked(ticket), time.monotonic()
        while True:
            for gate in tuple(self.gates):
                yield from gate.heed(ticket)
            verdict = self._ask(asked, ticket)
            if isinstance(verdict, Allow):
                return
            if isinstance(verdict, Stop):
                raise self._recorder.halt(verdict.interrupt)
            if isinstance(verdict, Block):
                yield from self._block(ticket, asked, verdict, may_wait=may_wait)
            elif isinstance(verdict, Decided):
                ticket.recorded = Recorded(self._recorder, asked.state.steps[asked.id])
                return
            elif isinstance(verdict, Later) and verdict.seconds + time.monotonic() - since <= verdict.patience:
                yield Pause(min(verdict.seconds, POLL_SECONDS))
            else:
                yield from self._refuse(ticket, _refusal(verdict))
                return

    def _asked(self, ticket: Ticket) -> Asked:
        call, state = ticket.call, self._recorder.journal.state
        step = state.steps.get(ticket.step)
        again = step is not None and step.orphan and not step.allowed
        arguments: Callable[[], Any] = lambda: plain(call.args) if call.request is None else body_of(call)  # noqa: E731
        return Asked(state, ticket.effect, ticket.hashed[0], ticket.attempt, arguments, again=again)

    def _ask(self, asked: Asked, ticket: Ticket) -> Verdict:
        with self._lock:
            self._recorder.refuse_if_halted()
            notes: dict[str, Any] = {}
            for gate in self.gates:
                verdict = gate.judge(asked)
                if not isinstance(verdict, Allow):
                    return verdict
                if verdict.note is not None:
                    notes[gate.name] = verdict.note
            for gate in self.gates:
                gate.admitted(asked, notes.get(gate.name))
            ticket.judged = notes
            return ALLOW

    def _block(self, ticket: Ticket, asked: Asked, verdict: Block, *, may_wait: bool) -> Steps[None]:
        step = asked.state.steps.get(asked.id)
        if step is None or step.status != BLOCKED:
            detail: dict[str, Any] = {"rule": verdict.rule, "why": verdict.reason}
            if verdict.expires is not None:
                detail["expires"] = verdict.expires
            yield from self._write(ticket, ev.STEP_BLOCKED, detail)
        interrupt = messages.blocked(self._recorder.named, asked.state.steps[asked.id], verdict.rule, verdict.reason)
        if not may_wait or (not self.waits and may_suspend(asked.state)):
            raise self._recorder.halt(interrupt)
        if asked.id not in self._told:
            self._told.add(asked.id)
            why = "" if self.waits else "The run is not suspended while a step is under way that may not be repeated.\n"
            log.warning("%s\n%sThis branch of it waits meanwhile.", interrupt, why)
        with waiting(ticket):
            yield Pause(POLL_SECONDS)
        yield from unwind_if_cancelled(self._recorder, ticket, begins=False)

    def _refuse(self, ticket: Ticket, refusal: Refusal) -> Steps[None]:
        """Write that an effect must not run, and give the ticket that outcome."""
        yield from self._write(ticket, refusal.type, {**refusal.detail, "error": failure(refusal.error)})
        ticket.recorded = Recorded(self._recorder, self._recorder.journal.step(ticket.step))
        blame(refusal.error, ticket.step)

    def _write(self, ticket: Ticket, type_: str, detail: dict[str, Any]) -> Steps[None]:
        recorder = self._recorder
        journal = recorder.journal
        ticket.began = time.perf_counter()
        sink = Sink(recorder.redactor, journal.store.bodies.name)
        line = lines.refused(ticket, detail, sink)
        try:
            yield journal.put(Entry(type_, ticket.step, line, sink.bodies, sync=True))
        except _UNWRITTEN as failed:
            raise recorder.unwritten(ticket, failed, begun=False) from failed
        except BaseException as interruption:
            # The event is in line and must reach the log; a caller that was cancelled does not see what it says.
            with contextlib.suppress(*_UNWRITTEN):
                if type(interruption).__name__ == "CancelledError":
                    recorder.note_given_up(ticket)
                journal.flush_soon()
            raise


def _order(gate: Gate) -> int:
    return gate.order


def _refusal(verdict: Deny | Later) -> Refusal:
    # Not under the name `reason`: what stands there is a word of a closed list, in which no secret is looked for.
    written = {"rule": verdict.rule, "why": verdict.reason}
    told = {"rule": verdict.rule, "reason": verdict.reason}
    if isinstance(verdict, Later):
        after = round(verdict.seconds, 3)
        message = f"{verdict.reason} Try again in {after:g} seconds."
        return Refusal(
            ev.STEP_DENIED, {**written, "retry_after": after}, StepRateLimited(message, **told, retry_after=after)
        )
    if verdict.message is None:
        return Refusal(ev.STEP_DENIED, written, StepDenied(verdict.reason, **told))
    said = {name: verdict.message.get(name) for name in ("by", "note")}
    return Refusal(ev.STEP_REJECTED, {**written, **verdict.message}, StepRejected(verdict.reason, **told, **said))
