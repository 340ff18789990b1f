"""The only door to the log: decide, intent, effect, outcome, in that order.

    begin    decide           pure; a finished step is answered here and goes no further
             intent           on disk before a side effect begins
    ...      the effect       the caller's business
    finish   outcome          on disk before the caller sees it

Each half exists once, as a generator that yields what it has to wait for, and is driven by a thread (`run`) or by a
task (`run_async`). So there is one order to read and to test, not a sync and an async one that could come apart.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from steplog._kernel import events as ev
from steplog._kernel.decide import Decision, Effect, Halt, Replay, decide, unasked
from steplog._kernel.fold import StepState
from steplog._kernel.identity import args_hash, step_id
from steplog._runtime import messages
from steplog._runtime.commit import Entry
from steplog._runtime.context import Frame, advance, owner
from steplog._runtime.evidence import difference_from
from steplog._runtime.pack import Sink, form_bytes, value_tree
from steplog.errors import ForkedWriter, Interrupt, LeaseLost, LogFailed, ReenteredWriter, StoreError

if TYPE_CHECKING:
    from steplog._kernel.redact import Redactor
    from steplog._runtime.journal import Journal

log: Final = logging.getLogger("steplog")

T = TypeVar("T")
Wait = Entry | float
Steps = Generator[Wait, None, T]

_PAUSE_SECONDS: Final = 0.01
UNWRITTEN: Final = (StoreError, LogFailed, LeaseLost)


class Call:
    """An effect as an interceptor or a decorator submits it.

    Attributes:
        kind: llm_call, tool_call or local.
        target: model id, tool name or local name.
        args: JSON tree that identifies the call within its target.
        mode: idempotency mode.
        request: what to record instead of `args`, for model calls; may hold `Body` values.
    """

    __slots__ = ("args", "kind", "mode", "request", "target")

    def __init__(
        self, kind: str, target: str, args: Any, mode: str = "unsafe", request: dict[str, Any] | None = None
    ) -> None:
        self.kind = kind
        self.target = target
        self.args = args
        self.mode = mode
        self.request = request


class Recorded:
    """The recorded outcome of a finished step.

    Attributes:
        outcome: `done` or `failed`.
        data: data of its `step.finished` or `step.resolved`, body forms not yet resolved.
    """

    __slots__ = ("_recorder", "data", "outcome")

    def __init__(self, recorder: Recorder, step: StepState) -> None:
        self._recorder = recorder
        self.outcome = step.status
        self.data: dict[str, Any] = step.finished or {}

    def body(self, form: dict[str, Any]) -> bytes:
        """The exact bytes of a body form. Raises `BodyMissing`."""
        return form_bytes(form, self._recorder.journal.store.bodies)

    def value(self, key: str) -> Any:
        """The encoded value under `key`, fetched from the body store when it is large. Raises `BodyMissing`."""
        return value_tree(self.data.get(key), self._recorder.journal.store.bodies)


class Ticket:
    """A submitted effect that may run, or whose recorded outcome is here.

    Attributes:
        step: its step id.
        run_id: the run.
        attempt: number of this attempt, from 1.
        key: idempotency key, the same for every attempt of the step.
        recorded: the recorded outcome, or None when the effect is to run.
        verify: ask the tool first whether the effect has happened; `proceed` writes the intent when it has not.
    """

    def __init__(self, recorder: Recorder, call: Call, effect: Effect) -> None:
        self.recorder = recorder
        self.call = call
        self.effect = effect
        self.step = effect.id
        self.run_id = recorder.journal.run_id
        self.key = f"{self.run_id}:{effect.id}"
        self.attempt = 1
        self.recorded: Recorded | None = None
        self.verify = False
        self.finished = False
        self.began = time.perf_counter()
        self.hashed: tuple[str, int] = ("", 0)
        self._closing: Callable[[], dict[str, Any] | None] | None = None

    def finish(
        self, outcome: str, detail: dict[str, Any], *, error: BaseException | None = None, waited: float = 0.0
    ) -> None:
        """Record the outcome and return when it is on disk. Idempotent.

        Args:
            outcome: `done` or `failed`.
            detail: fields of `step.finished`; may hold `Body` values.
            error: the exception that the caller is about to see, if any.
            waited: seconds spent waiting for somebody else, such as a provider.
        """
        run(self.recorder.finish(self, outcome, detail, error=error, waited=waited))

    async def finish_async(
        self, outcome: str, detail: dict[str, Any], *, error: BaseException | None = None, waited: float = 0.0
    ) -> None:
        """The same for a task; the event loop never waits for the disk."""
        await run_async(self.recorder.finish(self, outcome, detail, error=error, waited=waited))

    def on_close(self, callback: Callable[[], dict[str, Any] | None]) -> None:
        """Name what to record when the run closes while this step is open; None leaves it open."""
        self._closing = callback
        self.recorder.watch(self)

    def close(self) -> None:
        """Record what `on_close` gives, because the run is closing."""
        detail = None if self._closing is None else self._closing()
        if detail is not None:
            self.finish("done", detail)

    def replayed(self, error: BaseException | None = None) -> None:
        """Note that the recorded outcome has been handed over; `error` is the exception that it was."""
        if error is not None:
            blame(error, self.step)
        advance(self.recorder, self.effect.scope, self.step)

    def blame(self, error: BaseException) -> None:
        """Note that an exception comes out of this step's outcome: when it ends the run, the step is tried again."""
        blame(error, self.step)

    def diverged(self, message: str, *, field: str | None = None, recorded: Any = None, found: Any = None) -> Interrupt:
        """Halt the run: what happens inside this step is not what was recorded. Raises DriftDetected."""
        raise self.recorder.halt(
            messages.inner_drift(self.run_id, self.step, message, field=field, recorded=recorded, found=found)
        )


class Recorder:
    """The recording of one run by this process.

    Attributes:
        journal: the run's log.
        outer: the frame in which the run was opened, or None.
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
        on_halt: Callable[[Interrupt], None] = lambda _interrupt: None,
    ) -> None:
        self.journal = journal
        self.redactor = redactor
        self.outer = outer
        self.closed = False
        self.halted: Interrupt | None = None
        self.handle: Any = None
        self.replayed = 0
        self.executed = 0
        self._on_drift = on_drift
        self._drift_grace = drift_grace
        self._on_halt = on_halt
        self._lock = threading.RLock()
        self._seen: set[str] = set()
        self._counts: dict[str, dict[tuple[str, str, str], int]] = {}
        self._open: dict[str, Ticket] = {}

    # decide ------------------------------------------------------------------------------------------------------

    def begin(self, call: Call, place: Frame) -> Steps[Ticket]:
        """Submit an effect at a place in the run.

        Raises:
            Interrupt: the run is halted, or halts because of this effect.
            EncodeError: the arguments cannot be recorded.
        """
        hashed = args_hash(call.args)
        # Before the call is counted: one that is refused and made again must get the same id.
        self.journal.check_usable()
        with self._lock:
            self.refuse_if_halted()
            effect, occurrence = self._identify(call, place, hashed)
            decision = self._decide(effect)
        if isinstance(decision, Halt) and decision.missed and place.owner != owner():
            decision = yield from self._await_siblings(effect, decision)
        ticket = Ticket(self, call, effect)
        ticket.hashed = (hashed, occurrence)
        if isinstance(decision, Halt):
            raise self.halt(self._explain(decision, call, effect))
        if isinstance(decision, Replay):
            self.replayed += 1
            ticket.attempt = decision.step.attempt
            ticket.recorded = Recorded(self, decision.step)
            return ticket
        ticket.attempt = decision.attempt
        ticket.verify = decision.verify
        if not decision.verify:
            yield from self.proceed(ticket)
        return ticket

    def _identify(self, call: Call, place: Frame, hashed: str) -> tuple[Effect, int]:
        counts = self._counts.setdefault(place.scope, {})
        same = (call.kind, call.target, hashed)
        occurrence = counts.get(same, 0)
        counts[same] = occurrence + 1
        identity = step_id(place.scope, call.kind, call.target, hashed, occurrence)
        self._seen.add(identity)
        return Effect(identity, call.kind, call.target, place.scope, place.after, call.mode), occurrence

    def _decide(self, effect: Effect) -> Decision:
        return decide(self.journal.state, self._seen, effect, on_drift=self._on_drift)

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

    def _explain(self, halt: Halt, call: Call, effect: Effect) -> Interrupt:
        run_id = self.journal.run_id
        if halt.reason == "indeterminate" and halt.step is not None:
            return messages.indeterminate(run_id, halt.step)
        if halt.reason == "unreplayable" and halt.step is not None:
            return messages.unreplayable(run_id, halt.step, messages.why_unreplayable(halt.step.finished or {}))
        difference = difference_from(halt.step, call, effect, self.redactor, self.journal.store.bodies)
        asked = f"{call.kind} {call.target}"
        return messages.drift(run_id, self.journal.state, asked, halt.step, len(halt.missed), difference)

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
        return self.journal.submit(ev.STEP_FINISHED, ticket.step, sink.line(data), sink.bodies)

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
        return self.halt(messages.log_failed(ticket.run_id, ticket.step, ticket.call.target, begun=begun, cause=failed))

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


def run(steps: Steps[T]) -> T:
    """Drive one half from a thread; it blocks where the half waits."""
    try:
        wait = next(steps)
        while True:
            try:
                _block(wait)
            except BaseException as error:  # noqa: BLE001  # thrown into the half, which decides and re-raises
                wait = steps.throw(error)
            else:
                wait = next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def run_async(steps: Steps[T]) -> T:
    """Drive one half from a task; the event loop goes on where the half waits."""
    try:
        wait = next(steps)
        while True:
            try:
                await _pause(wait)
            except BaseException as error:  # noqa: BLE001  # thrown into the half, which decides and re-raises
                wait = steps.throw(error)
            else:
                wait = next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result


def _block(wait: Wait) -> None:
    if isinstance(wait, Entry):
        wait.commit.wait(wait)
    else:
        time.sleep(wait)


async def _pause(wait: Wait) -> None:
    if isinstance(wait, Entry):
        await wait.commit.wait_async(wait)
    else:
        import asyncio

        await asyncio.sleep(wait)


def ms(seconds: float) -> float:
    """Milliseconds with microsecond precision."""
    return round(seconds * 1000, 3)


def blame(error: BaseException, step: str) -> None:
    """Note on an exception that it is, or passed through, the failure of a step."""
    trail = error.__dict__.setdefault("__steplog_steps__", [])
    if step not in trail:
        trail.append(step)


def blamed(error: BaseException | None) -> list[str]:
    """Ids of the steps whose failure an exception is, or was caused by."""
    found: list[str] = []
    queue, visited = [error], set()
    while queue:
        current = queue.pop()
        if current is None or id(current) in visited:
            continue
        visited.add(id(current))
        found += [step for step in current.__dict__.get("__steplog_steps__", ()) if step not in found]
        queue += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            queue += current.exceptions
    return found
