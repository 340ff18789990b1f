"""The only door to the log: decide, intent, effect, outcome, in that order.

    ask      decide           pure; a finished step is answered here and goes no further
    settle   wait, intent     on disk before a side effect begins
    ...      the effect       the caller's business
    finish   outcome          on disk before the caller sees it

What may have to wait exists once, as a generator that yields what it waits for, and is driven by a thread (`drive.run`)
or by a task (`drive.run_async`). So there is one order to read and to test, not two that could come apart. An answer
out of the log mostly waits for nothing, so `ask` is a plain function.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel.decide import Effect, Replay
from steplog._kernel.fold import StepState
from steplog._kernel.identity import args_hash
from steplog._runtime import entries, forked, messages
from steplog._runtime.blame import blame
from steplog._runtime.cancelling import Unwinding
from steplog._runtime.context import Frame, Owner, advance, branch_at
from steplog._runtime.dispatch import Dispatch
from steplog._runtime.drive import Steps
from steplog._runtime.group import Entry
from steplog._runtime.settle import Question
from steplog._runtime.ticket import Call, Conclusion, Ticket
from steplog._runtime.turns import Turn, Turns
from steplog.errors import Cancelled, ForkedWriter, Interrupt, LeaseLost, LogFailed, ReenteredWriter, StoreError

if TYPE_CHECKING:
    from steplog._kernel.redact import Redactor
    from steplog._runtime.budgeting import Allowance
    from steplog._runtime.control import Control
    from steplog._runtime.journal import Journal
    from steplog._runtime.mail import Mail

log: Final = logging.getLogger("steplog")

# As `Question(...)` does it, without a second call.
_question: Final = tuple.__new__

UNWRITTEN: Final = (StoreError, LogFailed, LeaseLost)


class Recorder:
    """The recording of one run by this process.

    Attributes:
        journal: the run's log.
        outer: the frame in which the run was opened, or None.
        named: the run as commands name it.
        closed: whether the run's scope was left.
        dispatch: what this process has asked for so far.
        halted: the interrupt that stopped the run, or None.
        handle: the `Run` that the program holds.
        control: who is asked before an effect may begin; None where nobody is.
        allowance: what the run may use up; None where it has no budget.
        turns: the order in which recorded results are given back.
        on_drift: what to do when the program no longer does what the log says.
        drift_grace: seconds without a new request after which what other branches may ask for counts as missing.
        mail: what others have said to the run; None where nobody can, as in a replay.
        unwinding: how the program unwinds, once the run's cancellation was delivered; else None.
        left: steps that are to be concluded when the program goes on, and how.
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
        self.on_drift = on_drift
        self.drift_grace = drift_grace
        self._on_halt = on_halt
        # Asked once: there may be a hundred thousand of them.
        self._tells = log.isEnabledFor(logging.DEBUG)
        self.dispatch = Dispatch(self, on_drift)
        self.control: Control | None = None
        self.mail: Mail | None = None
        self.unwinding: Unwinding | None = None
        self.allowance: Allowance | None = None
        self.turns = Turns(journal.state, self.dispatch.runs_ahead)
        self._lock = threading.RLock()
        self._open: dict[str, Ticket] = {}
        self.left: deque[tuple[Ticket, Callable[[], Conclusion | None]]] = deque()

    # decide ------------------------------------------------------------------------------------------------------

    def ask(self, call: Call, place: Frame, who: Owner, *, may_wait: bool) -> StepState | Question:
        """Submit an effect at a place in the run.

        What is left of an earlier step (`left`) has to be concluded before.

        Args:
            call: the effect.
            place: where in the run it is submitted.
            who: the thread and task that submit it.
            may_wait: whether other branches can go on while this one waits; not so for a plain call in an event loop.

        Returns:
            The step whose recorded outcome is to be returned now, or the question that is to be settled.

        Raises:
            Interrupt: the run is halted, or halts because of this effect.
            EncodeError: the arguments cannot be recorded.
        """
        self.turns.used()
        # The first request of a branch, or one in a sequence.
        branch = "" if place.owner == who else branch_at(place) or "task"
        hashed = call.hashed or args_hash(call.args)
        submitted = self.dispatch.submit(call, place, hashed, branch, may_wait=may_wait)
        turn = None
        if submitted is not None and type(submitted[2]) is Replay:
            step = submitted[2].step
            turn = self.take_turn(call, step)
            if turn is None and not self.dispatch.paced:
                return step
        return _question(Question, (call, place, hashed, branch, submitted, turn))

    def take_turn(self, call: Call, step: StepState) -> Turn | None:
        """What a recorded outcome has to wait for before it may be handed over, or None."""
        if step.module != call.module:
            self._refuse_namesake(call, step)
        if step.id in self.journal.state.inner:
            self.dispatch.settle_inside(step)
        return self.turns.take(step)

    def read(self, step: StepState) -> tuple[dict[str, Any], bytes | None]:
        """What the log holds of the outcome of a step; see `StepState.read_end`. Halts the run where that is lost."""
        try:
            return step.read_end()
        except StoreError as error:
            raise self.halt(messages.unreadable(self.named, step, error)) from error

    def note_replayed(self, step: StepState) -> None:
        """A step is returned from the log."""
        self.replayed += 1
        if self._tells:
            what = "run %s: %s %s (%s) returned from the log"
            log.debug(what, self.journal.run_id, step.kind, step.target, step.id)

    def begins_again(self, effect: Effect) -> None:
        """A step that has failed, or was left open, is attempted once more."""
        self.dispatch.expect_no_more(effect)
        self.turns.passed(effect.id)

    def branch_ended(self) -> None:
        """What this thread did for the run is done, and whoever waits for it knows."""
        self.turns.used()

    def _refuse_namesake(self, call: Call, step: StepState) -> None:
        """Halt rather than return the result of another module's function of the same name."""
        recorded, found = step.module, call.module
        # A script's own functions are in `__main__` when it is started and in its module when it is imported.
        if recorded and found and recorded != found and not {recorded, found} & {"__main__", "__mp_main__"}:
            raise self.halt(messages.namesake(self.named, step, recorded, found))

    # intent ------------------------------------------------------------------------------------------------------

    def proceed(self, ticket: Ticket) -> Steps[None]:
        """Write the intent of an attempt; the effect may begin when this returns."""
        entry = self.intend(ticket)
        try:
            yield self.journal.put(entry)
        except BaseException as failed:
            self.not_begun(ticket, entry, failed)
            raise
        self.begun(ticket)

    def intend(self, ticket: Ticket) -> Entry:
        """The intent of an attempt, to be written."""
        if "fork" in self.journal.state.created:
            forked.amend(ticket)
        if self.allowance is not None:
            self.allowance.admit(ticket)
        if ticket.attempt > 1:
            self.dispatch.enter(ticket.step)
        try:
            return entries.intent(ticket)
        except UNWRITTEN as failed:
            raise self.unwritten(ticket, failed, begun=False) from failed

    def not_begun(self, ticket: Ticket, entry: Entry, failed: BaseException) -> None:
        """What follows from an intent that was not written, or whose caller was interrupted before the effect began."""
        if isinstance(failed, UNWRITTEN):
            raise self.unwritten(ticket, failed, begun=False) from failed
        if entry.commit is None:
            return  # refused
        # Cancelled or interrupted between intent and effect. Without this note an unsafe step would look as if it might
        # have happened.
        with contextlib.suppress(*UNWRITTEN):
            self.journal.put(entries.skipped(ticket))
            self.journal.flush_soon()

    def begun(self, ticket: Ticket) -> None:
        """Its intent is written, and the effect begins."""
        self.executed += 1
        if self._tells:
            log.debug(
                "run %s: %s (%s) begins, attempt %d", ticket.run_id, ticket.call.target, ticket.step, ticket.attempt
            )
        ticket.began = time.perf_counter()

    # outcome -----------------------------------------------------------------------------------------------------

    def finish(
        self,
        ticket: Ticket,
        outcome: str,
        detail: dict[str, Any],
        *,
        error: BaseException | None = None,
        waited: float = 0.0,
        left: bool = False,
    ) -> Steps[None]:
        """Write the outcome of an attempt; the caller may see it when this returns.

        Of one that was `left`, it is not what the executing code did last.
        """
        entry = self.conclude(ticket, outcome, detail, waited)
        if entry is None:
            return
        try:
            yield self.journal.put(entry)
            if ticket.noted is not None:
                ticket.noted.check()
        except BaseException as failed:
            self.not_ended(ticket, entry, failed)
            raise
        if error is not None:
            blame(error, ticket.step)
        if "retry" not in detail and not left:
            advance(self, ticket.effect.scope, ticket.step)

    def conclude(self, ticket: Ticket, outcome: str, detail: dict[str, Any], waited: float) -> Entry | None:
        """What is to be written; None where that has happened, or cannot happen any more."""
        if ticket.finished:
            return None
        ticket.finished = True
        if self._open:
            self._open.pop(ticket.step, None)
        if self.closed:
            log.debug("run %s: step %s ended after its run was closed", ticket.run_id, ticket.step)
            return None
        try:
            return entries.outcome(ticket, outcome, detail, waited)
        except Exception as failed:
            # Whatever went wrong here, the effect has happened and its outcome is not in the log.
            raise self.unwritten(ticket, failed, begun=True) from failed

    def not_ended(self, ticket: Ticket, entry: Entry, failed: BaseException) -> None:
        """What follows from an outcome that was not written, or whose caller was interrupted meanwhile."""
        if isinstance(failed, UNWRITTEN) or (entry.commit is None and isinstance(failed, Exception)):
            raise self.unwritten(ticket, failed, begun=True) from failed
        # Interrupted while waiting for the disk: the outcome is in line and must reach it all the same. A caller that
        # was cancelled does not see it, and on a resume must not see it either.
        if type(failed).__name__ == "CancelledError":
            self.note_given_up(ticket)
        self.journal.flush_soon()

    def note_cancelled(self, ticket: Ticket) -> None:
        """Note that the caller stopped waiting for an effect under way. Never waits: its task is being cancelled."""
        if not ticket.finished:
            ticket.finished = True
            self.note_given_up(ticket)

    def note_given_up(self, ticket: Ticket) -> None:
        """Note that the caller will not see what becomes, or has become, of a step."""
        if self.closed:
            return
        # Where it cannot be written the step is an orphan, as if the process had died here: never less safe.
        with contextlib.suppress(*UNWRITTEN):
            self.journal.put(entries.given_up(ticket))
            self.journal.flush_soon()

    def settled(self, ticket: Ticket, result: Any) -> Steps[None]:
        """Write that the tool's own `verify` found the effect done, with its encoded result."""
        entry = entries.settled(ticket, result)
        try:
            yield self.journal.put(entry)
        except UNWRITTEN as failed:
            raise self.unwritten(ticket, failed, begun=True) from failed
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
        if not isinstance(interrupt, (LogFailed, LeaseLost, Cancelled)):
            entries.note_suspended(self, interrupt)
        self._on_halt(interrupt)
        return interrupt

    def unwind(self, interrupt: Cancelled) -> None:
        """The run's cancellation has reached the program. Only steps that clean up are allowed from now on."""
        if self.unwinding is None:
            self.unwinding = Unwinding(interrupt)
            self._on_halt(interrupt)

    def unwritten(self, ticket: Ticket, failed: BaseException, *, begun: bool) -> BaseException:
        """What to raise for an event that could not be written; as a rule the run halts."""
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

    def leave(self, ticket: Ticket, conclude: Callable[[], Conclusion | None]) -> None:
        """Keep a step that is to be concluded when the program goes on. Never waits, never writes."""
        if not self.closed:
            self.left.append((ticket, conclude))

    def conclude_left(self) -> Steps[None]:
        """Conclude what the program has left behind, as it goes on."""
        # A run that was stopped will be started again, and reads then what it had not read to its end.
        while self.left and self.halted is None:
            try:
                ticket, conclude = self.left.popleft()
            except IndexError:  # another thread was faster
                break
            concluded = conclude()
            if concluded is not None:
                outcome, detail, error, waited = concluded
                yield from self.finish(ticket, outcome, detail, error=error, waited=waited, left=True)

    def conclude_open(self) -> None:
        """Record the steps that nobody finished, such as streams that were never read to their end."""
        if self.halted is not None:
            return
        for ticket in list(self._open.values()):
            ticket.close()
