"""The only door to the log: decide, intent, effect, outcome, in that order.

    begin    decide           pure; a finished step is answered here and goes no further
             intent           on disk before a side effect begins
    ...      the effect       the caller's business
    finish   outcome          on disk before the caller sees it

Each half exists once, as a generator that yields what it has to wait for, and is driven by a thread (`drive.run`)
or by a task (`drive.run_async`). So there is one order to read and to test, not two that could come apart.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog._kernel import events as ev
from steplog._kernel.decide import Decision, Effect, Forsaken, Halt, Replay, decide, unasked
from steplog._kernel.fold import StepState
from steplog._kernel.identity import args_hash, step_id
from steplog._runtime import messages
from steplog._runtime.blame import blame
from steplog._runtime.commit import Entry, reentered
from steplog._runtime.context import Frame, advance, current_task, owner
from steplog._runtime.drive import Steps
from steplog._runtime.evidence import difference_from
from steplog._runtime.pack import Sink
from steplog._runtime.ticket import Call, Recorded, Ticket
from steplog.errors import ForkedWriter, Interrupt, LeaseLost, LogFailed, ReenteredWriter, StoreError

if TYPE_CHECKING:
    from steplog._kernel.redact import Redactor
    from steplog._runtime.journal import Journal

log: Final = logging.getLogger("steplog")

_PAUSE_SECONDS: Final = 0.01

# How much longer than when it was recorded (twice that, and this) a step waits to be cancelled again.
_FORSAKEN_SECONDS: Final = 60.0
UNWRITTEN: Final = (StoreError, LogFailed, LeaseLost)


class Recorder:
    """The recording of one run by this process.

    Attributes:
        journal: the run's log.
        outer: the frame in which the run was opened, or None.
        named: the run as commands name it.
        closed: whether the run's scope was left.
        halted: the interrupt that stopped the run, or None.
        handle: the `Run` that the program holds.
        replayed: how many steps were answered from the log.
        executed: how many attempts were executed.
    """

    def __init__(
        self,
        journal: Journal,
        redactor: Redactor,
        *,
        on_drift: str = "halt",
        drift_grace: float = 5.0,
        outer: Frame | None = None,
        named: messages.Named | None = None,
        on_halt: Callable[[Interrupt], None] = lambda _interrupt: None,
    ) -> None:
        self.journal = journal
        self.redactor = redactor
        self.outer = outer
        self.named = named or messages.Named(journal.run_id)
        self.closed = False
        self.halted: Interrupt | None = None
        self.handle: Any = None
        self.replayed = 0
        self.executed = 0
        self._on_drift = on_drift
        self._drift_grace = drift_grace
        self._on_halt = on_halt
        self._lock = threading.RLock()
        self._inside: set[int] = set()
        self._seen: set[str] = set()
        self._counts: dict[str, dict[tuple[str, str, str], int]] = {}
        self._branched: set[str] = set()
        self._open: dict[str, Ticket] = {}

    # decide ------------------------------------------------------------------------------------------------------

    def begin(self, call: Call, place: Frame) -> Steps[Ticket]:
        """Submit an effect at a place in the run.

        Raises:
            Interrupt: the run is halted, or halts because of this effect.
            EncodeError: the arguments cannot be recorded.
        """
        hashed = args_hash(call.args)
        effect, occurrence, decision = self._submit(call, place, hashed)
        if isinstance(decision, Halt) and decision.missed and place.scope in self._branched:
            decision = yield from self._await_siblings(effect, decision)
        if isinstance(decision, Halt) and decision.reason == "drift" and self._on_drift == "warn":
            log.warning("%s", self._explain(decision, call, effect))
            decision = decide(self.journal.state, self._seen, effect, on_drift="run")
        ticket = Ticket(self, call, effect)
        ticket.hashed = (hashed, occurrence)
        if isinstance(decision, Halt):
            raise self.halt(self._explain(decision, call, effect))
        if isinstance(decision, Forsaken):
            raise (yield from self._wait_to_be_cancelled(decision.step))
        if isinstance(decision, Replay):
            self.replayed += 1
            log.debug("run %s: %s %s (%s) returned from the log", ticket.run_id, call.kind, call.target, ticket.step)
            ticket.attempt = decision.step.attempt
            ticket.recorded = Recorded(self, decision.step)
            return ticket
        ticket.attempt = decision.attempt
        ticket.verify = decision.verify
        if not decision.verify:
            yield from self.proceed(ticket)
        return ticket

    def _submit(self, call: Call, place: Frame, hashed: str) -> tuple[Effect, int, Decision]:
        # Before the call is counted: one that is refused and made again must get the same id. A signal handler that
        # interrupted this thread in here would count its own call under the same number.
        self.journal.check_usable()
        thread = threading.get_ident()
        if thread in self._inside:
            raise reentered(self.journal.run_id)
        self._inside.add(thread)
        try:
            with self._lock:
                self.refuse_if_halted()
                if place.owner != owner():
                    # Branches that make the same call may find each other's, and with it the other's next step. So
                    # from now on a step that is missing in this scope may only be late.
                    self._branched.add(place.scope)
                effect, occurrence = self._identify(call, place, hashed)
                return effect, occurrence, self._decide(effect)
        finally:
            self._inside.discard(thread)

    def _identify(self, call: Call, place: Frame, hashed: str) -> tuple[Effect, int]:
        counts = self._counts.setdefault(place.scope, {})
        same = (call.kind, call.target, hashed)
        occurrence = counts.get(same, 0)
        counts[same] = occurrence + 1
        identity = step_id(place.scope, call.kind, call.target, hashed, occurrence)
        self._seen.add(identity)
        return Effect(identity, call.kind, call.target, place.scope, place.after, call.mode), occurrence

    def _decide(self, effect: Effect) -> Decision:
        on_drift = "run" if self._on_drift == "run" else "halt"
        return decide(self.journal.state, self._seen, effect, on_drift=on_drift)

    def _await_siblings(self, effect: Effect, halt: Halt) -> Steps[Decision]:
        """Give recorded siblings of a concurrent branch time to be submitted, before their absence counts as drift."""
        if self.journal.state.completed_once:
            return halt
        deadline = time.monotonic() + self._drift_grace
        while time.monotonic() < deadline:
            yield _PAUSE_SECONDS
            with self._lock:
                self.refuse_if_halted()
                if not unasked(self.journal.state, self._seen, effect.scope, effect.after):
                    return self._decide(effect)
        return halt

    def _wait_to_be_cancelled(self, step: StepState) -> Steps[Interrupt]:
        waited = (step.finished or {}).get("ms", {}).get("total", 0.0) / 1000
        deadline = time.monotonic() + _FORSAKEN_SECONDS + 2 * waited
        while current_task() is not None and time.monotonic() < deadline:
            yield _PAUSE_SECONDS
            self.refuse_if_halted()
        return self.halt(messages.not_forsaken(self.named, step))

    def _explain(self, halt: Halt, call: Call, effect: Effect) -> Interrupt:
        if halt.reason == "indeterminate" and halt.step is not None:
            return messages.indeterminate(self.named, halt.step)
        if halt.reason == "unreplayable" and halt.step is not None:
            return messages.unreplayable(self.named, halt.step, messages.why_unreplayable(halt.step.finished or {}))
        difference = difference_from(halt.step, call, effect, self.redactor, self.journal.store.bodies)
        asked = f"{call.kind} {call.target}"
        return messages.drift(self.named, self.journal.state, asked, halt.step, len(halt.missed), difference)

    # intent ------------------------------------------------------------------------------------------------------

    def proceed(self, ticket: Ticket) -> Steps[None]:
        """Write the intent of an attempt; the effect may begin when this returns."""
        with self._lock:
            # Inner steps of an attempt count from zero again, so that those which finished before are found.
            self._counts.pop(ticket.step, None)
        try:
            entry = self._intend(ticket)
        except UNWRITTEN as failed:
            raise self._unwritten(ticket, failed, begun=False) from failed
        try:
            yield entry
        except UNWRITTEN as failed:
            raise self._unwritten(ticket, failed, begun=False) from failed
        except BaseException:
            # Cancelled or interrupted between intent and effect. Without this note an unsafe step would look as if
            # it might have happened.
            with contextlib.suppress(*UNWRITTEN):
                self.journal.submit(ev.STEP_SKIPPED, ticket.step, b'{"reason":"interrupted before the effect began"}')
                self.journal.flush_soon()
            raise
        self.executed += 1
        what = "run %s: %s %s (%s) begins, attempt %d"
        log.debug(what, ticket.run_id, ticket.call.kind, ticket.call.target, ticket.step, ticket.attempt)
        ticket.began = time.perf_counter()

    def _intend(self, ticket: Ticket) -> Entry:
        call, effect = ticket.call, ticket.effect
        sink = Sink(self.redactor)
        hashed, occurrence = ticket.hashed
        data: dict[str, Any] = {
            "kind": call.kind,
            "target": call.target,
            "scope": effect.scope,
            "args_hash": hashed,
            "occurrence": occurrence,
            "mode": call.mode,
            "attempt": ticket.attempt,
            "after": effect.after,
            "key": ticket.key,
        }
        if call.request is None:
            data["args"] = sink.value(call.args)
        else:
            data["request"] = sink.detail(call.request)
        line = sink.line(data)
        return self.journal.submit(ev.STEP_STARTED, ticket.step, line, sink.bodies, sync=call.mode != "safe")

    # outcome -----------------------------------------------------------------------------------------------------

    def finish(
        self,
        ticket: Ticket,
        outcome: str,
        detail: dict[str, Any],
        *,
        error: BaseException | None = None,
        waited: float = 0.0,
    ) -> Steps[None]:
        """Write the outcome of an attempt; the caller may see it when this returns."""
        if ticket.finished:
            return
        ticket.finished = True
        self._open.pop(ticket.step, None)
        if self.closed:
            log.debug("run %s: step %s ended after its run was closed", ticket.run_id, ticket.step)
            return
        try:
            yield self._conclude(ticket, outcome, detail, waited)
        except UNWRITTEN as failed:
            raise self._unwritten(ticket, failed, begun=True) from failed
        except BaseException:
            # Cancelled while waiting for the disk: the outcome is in line and must reach it all the same.
            self.journal.flush_soon()
            raise
        if error is not None:
            blame(error, ticket.step)
        if "retry" not in detail:
            advance(self, ticket.effect.scope, ticket.step)

    def _conclude(self, ticket: Ticket, outcome: str, detail: dict[str, Any], waited: float) -> Entry:
        total = time.perf_counter() - ticket.began
        sink = Sink(self.redactor)
        data: dict[str, Any] = {"outcome": outcome, "attempt": ticket.attempt}
        if "result" in detail:
            data["result"] = sink.value(detail.pop("result"))
        data.update(sink.detail(detail))
        data["ms"] = {"total": ms(total), "provider": ms(waited), "own": ms(max(0.0, total - waited))}
        line = sink.line(data)
        if sink.redacted and outcome == "done":
            what = "run %s: a secret was taken out of the recorded result of %s (%s); on resume %s"
            fate = "it runs again" if ticket.call.mode == "safe" else "the run stops there. Return a reference instead"
            log.warning(what, ticket.run_id, ticket.call.target, ticket.step, fate)
        return self.journal.submit(ev.STEP_FINISHED, ticket.step, line, sink.bodies)

    def note_cancelled(self, ticket: Ticket) -> None:
        """Note that the caller stopped waiting for an effect under way. Never waits: its task is being cancelled."""
        if ticket.finished or self.closed:
            return
        ticket.finished = True
        total = time.perf_counter() - ticket.began
        data = {"outcome": "cancelled", "attempt": ticket.attempt, "ms": {"total": ms(total)}}
        # Where it cannot be written the step is an orphan, as if the process had died here: never less safe.
        with contextlib.suppress(*UNWRITTEN):
            self.journal.submit(ev.STEP_FINISHED, ticket.step, orjson.dumps(data))
            self.journal.flush_soon()

    def settled(self, ticket: Ticket, result: Any) -> Steps[None]:
        """Write that the tool's own `verify` found the effect done, with its encoded result."""
        sink = Sink(self.redactor)
        data = {"how": "done", "by": "verify", "result": sink.value(result)}
        try:
            yield self.journal.submit(ev.STEP_RESOLVED, ticket.step, sink.line(data), sink.bodies)
        except UNWRITTEN as failed:
            raise self._unwritten(ticket, failed, begun=True) from failed
        ticket.finished = True
        advance(self, ticket.effect.scope, ticket.step)

    # halt --------------------------------------------------------------------------------------------------------

    def refuse_if_halted(self) -> None:
        """Raise the interrupt that stopped the run, if one has."""
        if self.halted is not None:
            raise messages.again(self.halted)

    def halt(self, interrupt: Interrupt) -> Interrupt:
        """Stop the run; every further effect is refused with this interrupt. Returns it, to be raised."""
        with self._lock:
            if self.halted is not None:
                return messages.again(self.halted)
            self.halted = interrupt
        if not isinstance(interrupt, (LogFailed, LeaseLost)):
            self._suspend(interrupt)
        self._on_halt(interrupt)
        return interrupt

    def _suspend(self, interrupt: Interrupt) -> None:
        data = {
            "reason": interrupt.reason,
            "step": interrupt.step,
            "message": str(interrupt),
            "commands": list(interrupt.commands),
        }
        try:
            self.journal.append(ev.RUN_SUSPENDED, None, data)
        except UNWRITTEN as failed:
            # The run stops all the same, and the interrupt tells the user why; only the note for readers is missing.
            log.error("run %s stopped (%s); recording that failed: %s", self.journal.run_id, interrupt.reason, failed)  # noqa: TRY400  # the interrupt has the traceback

    def _unwritten(self, ticket: Ticket, failed: BaseException, *, begun: bool) -> BaseException:
        if isinstance(failed, (ForkedWriter, ReenteredWriter)):
            # The run goes on; only this child, or this handler, must not write.
            return failed
        if isinstance(failed, LeaseLost):
            return self.halt(failed)
        return self.halt(messages.log_failed(self.named, ticket.step, ticket.call.target, begun=begun, cause=failed))

    # the end -----------------------------------------------------------------------------------------------------

    def watch(self, ticket: Ticket) -> None:
        """Keep a ticket whose step must be concluded when the run closes."""
        self._open[ticket.step] = ticket

    def conclude_open(self) -> None:
        """Record the steps that nobody finished, such as streams that were never read to their end."""
        for ticket in list(self._open.values()):
            ticket.close()

    def unplayed(self) -> list[str]:
        """Ids of finished steps at the top of the log that this dispatch has not asked for."""
        state = self.journal.state
        steps = state.steps.values()
        return [step.id for step in steps if not step.scope and step.finished and step.id not in self._seen]


def ms(seconds: float) -> float:
    """Milliseconds with microsecond precision."""
    return round(seconds * 1000, 3)
