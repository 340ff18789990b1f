"""A submitted effect: what was asked, and what may be done with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel.decide import Effect
from steplog._kernel.fold import DENIED, FAILED, StepState
from steplog._runtime import collector, messages, straight
from steplog._runtime.blame import blame
from steplog._runtime.context import advance
from steplog._runtime.drive import run, run_async
from steplog._runtime.pack import form_bytes, value_tree, whole_data
from steplog._runtime.progress import Notes
from steplog.errors import BodyMissing, Corrupt, DecodeError, Interrupt, KeyMissing, StoreError

if TYPE_CHECKING:
    from steplog._runtime.recorder import Recorder
    from steplog.stores.base import BodyStore

# Few steps have notes; the rest should not pay for a lock each.
_making_notes: Final = threading.Lock()

Conclusion = tuple[str, dict[str, Any], BaseException | None, float]
"""Outcome, detail, the exception that the caller sees, seconds spent waiting: as `Ticket.finish` takes them."""


class Call:
    """An effect as an interceptor or a decorator submits it.

    Attributes:
        kind: llm_call, tool_call or local.
        target: model id, tool name or local name.
        args: what identifies the call within its target: a JSON tree, or, where there is no `request`, any value that
            steplog can record.
        mode: idempotency mode.
        request: what to record instead of `args`, for model calls; may hold `Body` values.
        attaches: the code knows how to take up work that goes on at the provider, given its name there.
        lookup: how a person finds out whether the call has happened, in a sentence or two; "" where nothing is known.
        account: for whom the call is made, as far as equal calls for different accounts are different: any text that
            tells the program's accounts apart, such as a host with a key; "" where nothing does. It is no part of the
            step's identity, and not recorded: of a digest of it, 16 bits are.
        receiver: the object that a method is called on, or None.
        module: where a tool without a name of its own is defined, or None.
        plain: `args` are known to be a tree that needs no encoding.
        amends: whoever executes the call does it with the ticket's `changes`, where a fork makes some.
        hashed: their `args_hash`, where it is known already.
    """

    module: str | None = None
    receiver: Any = None
    attaches = False
    lookup = ""
    plain = False
    amends = False
    hashed: str | None = None

    def __init__(
        self,
        kind: str,
        target: str,
        args: Any,
        mode: str = "unsafe",
        request: dict[str, Any] | None = None,
        *,
        account: str = "",
    ) -> None:
        self.kind = kind
        self.target = target
        self.args = args
        self.mode = mode
        self.request = request
        self.account = account


class Recorded:
    """The recorded outcome of a finished step.

    Attributes:
        step: the step.
        outcome: `done` or `failed`; also `failed` where it was denied.
        denied: it was denied, and has not run.
        data: data of the event that ended it, body forms not yet resolved.
        progressed: data of its `step.progressed` events, in order, body forms not yet resolved.

    Raises:
        Interrupt: the log gives it back no more. The run halts.
    """

    __slots__ = ("_recorder", "data", "denied", "outcome", "progressed", "step")

    def __init__(self, recorder: Recorder, step: StepState, data: dict[str, Any] | None = None) -> None:
        self._recorder = recorder
        self.step = step
        self.denied = step.status == DENIED
        self.outcome = FAILED if self.denied else step.status
        self.data: dict[str, Any] = recorder.read(step)[0] if data is None else data
        if "exact" in self.data:
            self.data = self._fetch(whole_data, self.data)
        self.progressed: list[dict[str, Any]] = self._progressed() if step.notes else []

    def _progressed(self) -> list[dict[str, Any]]:
        try:
            return [self._fetch(whole_data, note) for note in self.step.progressed]
        except StoreError as error:
            raise self._recorder.halt(messages.unreadable(self._recorder.named, self.step, error)) from error

    def body(self, form: dict[str, Any]) -> bytes:
        """The exact bytes of a body form. Halts the run with `Unreplayable` where they are gone."""
        data: bytes = self._fetch(form_bytes, form)
        return data

    def value(self, key: str) -> Any:
        """The encoded value under `key`, wherever it is kept. Halts the run with `Unreplayable` where it is gone."""
        return self._fetch(value_tree, self.data.get(key))

    def error(self) -> Any:
        """The encoded exception of a failed step. Halts the run with `Unreplayable` where it is gone."""
        return self._fetch(value_tree, (self.data.get("error") or {}).get("value"))

    def _fetch(self, fetch: Callable[[Any, BodyStore], Any], recorded: Any) -> Any:
        try:
            return fetch(recorded, self._recorder.journal.store.bodies)
        except KeyMissing as locked:
            raise self._recorder.halt(messages.locked(self._recorder.named, self.step, str(locked))) from locked
        except (BodyMissing, Corrupt) as gone:
            raise self._recorder.halt(messages.unreplayable(self._recorder.named, self.step, str(gone))) from gone

    def undecodable(self, error: DecodeError) -> Interrupt:
        """Halt the run because this program cannot restore the result. Returns the interrupt, to be raised."""
        return self._recorder.halt(messages.undecodable(self._recorder.named, self.step, error))

    def unreturnable(self, why: str) -> Interrupt:
        """Halt the run: the result cannot be given in the form asked for. Returns the interrupt, to be raised."""
        return self._recorder.halt(messages.unreplayable(self._recorder.named, self.step, why))


class Earlier(Recorded):
    """What an earlier attempt learned of a job that goes on at the provider.

    Attributes:
        job: what was noted of it.
    """

    __slots__ = ("job",)

    def __init__(self, recorder: Recorder, step: StepState) -> None:
        super().__init__(recorder, step)
        self.job: dict[str, Any] = step.job or {}


class Ticket:
    """A submitted effect that may run, or whose recorded outcome is here.

    Attributes:
        step: its step id.
        attempt: number of this attempt, from 1.
        recorded: the recorded outcome, or None when the effect is to run.
        earlier: the job that is to be taken up instead of being begun anew, or None.
        noted: what is known of this attempt before it has ended; None where nothing was.
        verify: ask the tool first whether the effect has happened; `proceed` writes the intent when it has not.
        judged: what the gates that were asked say of it, by gate, for its `step.started`; None where there are none.
        charged: something is set aside for it in the run's budget.
        changes: what a fork changes in the request, as paths and values; the effect is to be executed with them.
    """

    recorded: Recorded | None = None
    earlier: Earlier | None = None
    noted: Notes | None = None
    attempt = 1
    verify = False
    judged: dict[str, Any] | None = None
    charged = False
    changes: Sequence[tuple[str, Any]] = ()
    finished = False
    began = 0.0
    hashed: tuple[str, int] = ("", 0)
    given = b""
    branch = ""
    account = ""
    _key = ""
    _closing: Callable[[], dict[str, Any] | None] | None = None

    def __init__(self, recorder: Recorder, call: Call, effect: Effect) -> None:
        self.recorder = recorder
        self.call = call
        self.effect = effect
        self.step = effect.id

    @property
    def run_id(self) -> str:
        """The run."""
        return self.recorder.journal.run_id

    @property
    def key(self) -> str:
        """Idempotency key, the same for every attempt of the step."""
        if not self._key:
            # Kept, because whether an argument is the key is asked by identity.
            self._key = f"{self.run_id}:{self.step}"
        return self._key

    def remaining(self) -> float | None:
        """Seconds of active time that the run's budget leaves; None where it has no deadline."""
        allowance = self.recorder.allowance
        return None if allowance is None else allowance.remaining()

    def check_deadline(self) -> None:
        """Halt the run when its time is up, instead of recording a failure that only came of that.

        Raises:
            BudgetExceeded: it is up.
        """
        allowance = self.recorder.allowance
        interrupt = None if allowance is None else allowance.overdue(self)
        if interrupt is not None:
            self.cancelled()
            raise interrupt

    @property
    def notes(self) -> Notes:
        """What is known of this attempt before it has ended; made when it is first asked for."""
        found = self.noted
        return self._make_notes() if found is None else found

    def _make_notes(self) -> Notes:
        with _making_notes:
            if self.noted is None:
                self.noted = Notes(self)
            return self.noted

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
        straight.finish(self, outcome, detail, error=error, waited=waited)

    async def finish_async(
        self, outcome: str, detail: dict[str, Any], *, error: BaseException | None = None, waited: float = 0.0
    ) -> None:
        """The same for a task; the event loop never waits for the disk."""
        await straight.finish_async(self, outcome, detail, error=error, waited=waited)

    def progress(self, data: dict[str, Any]) -> None:
        """Write down what is known of the step before it has ended, and return when it is on disk.

        Args:
            data: fields of a `step.progressed`; may hold `Body` values. `job` names work that goes on at the provider:
                after a crash the step is not begun anew, but submitted with what is known (`earlier`).
        """
        run(self.notes.write(data, sync=True))

    async def progress_async(self, data: dict[str, Any]) -> None:
        """The same for a task; the event loop never waits for the disk."""
        await run_async(self.notes.write(data, sync=True))

    def doubt(self, detail: str) -> Interrupt:
        """Halt the run: whether the effect happened, or what became of it, only a person can find out.

        Returns the interrupt, to be raised.
        """
        recorder = self.recorder
        step = recorder.journal.step(self.step)
        return recorder.halt(messages.indeterminate(recorder.named, step, f"\n{detail}"))

    def on_close(self, callback: Callable[[], dict[str, Any] | None]) -> None:
        """Name what to record when the run closes while this step is open; None leaves it open."""
        collector.watch()
        self._closing = callback
        self.recorder.watch(self)

    def leave(self, conclude: Callable[[], Conclusion | None]) -> None:
        """Name what to record when the program goes on to another effect: the reader of a stream is gone.

        For where nothing may be written (in the garbage collector), or where it is not known whether the reader has had
        enough or was interrupted. A run that an exception ends leaves the step open.

        Args:
            conclude: gives what to record, or None where that has happened.
        """
        self.recorder.leave(self, conclude)

    def close(self) -> None:
        """Record what `on_close` gives, because the run is closing."""
        detail = None if self._closing is None else self._closing()
        if detail is not None:
            self.finish("done", detail)

    def cancelled(self) -> None:
        """Note that the caller stopped waiting (its task was cancelled) while the effect was under way. Never waits."""
        self.recorder.note_cancelled(self)

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
            messages.inner_drift(self.recorder.named, self.step, message, field=field, recorded=recorded, found=found)
        )
