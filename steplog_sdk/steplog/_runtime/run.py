"""A run: opened or resumed by `with steplog.run(...)`, sync or async, and ended by leaving the block."""

from __future__ import annotations

import logging
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from steplog._kernel.fold import RunState, StepState
from steplog._runtime import budgeting, ending, forked, messages, naming, origin, settings, steering
from steplog._runtime.budgeting import Budgeted
from steplog._runtime.context import FRAME, Frame, current_task, frame, owner, running_loop
from steplog._runtime.door import PROCESS
from steplog._runtime.drive import Steps, Work
from steplog._runtime.drive import run as drive
from steplog._runtime.drive import run_async as drive_async
from steplog._runtime.journal import Journal
from steplog._runtime.mail import Mail
from steplog._runtime.owner import OwnerTask
from steplog._runtime.recorder import UNWRITTEN, Recorder
from steplog._runtime.redaction import redactor
from steplog._runtime.wait import Waits, check_on_wait
from steplog.errors import Cancelled, Interrupt, InvalidArgument, RunBusy
from steplog.stores.base import check_run_id

if TYPE_CHECKING:
    from steplog._kernel.budget import Budget
    from steplog._runtime.budgeting import Allowance
    from steplog._runtime.policies import Given
    from steplog.stores.base import Store

log: Final = logging.getLogger("steplog")


class Run(Waits, Budgeted):
    """A run of this process, as `with steplog.run(...) as run` gives it.

    Attributes:
        run_id: its id.
        resumed: whether its log held events before this process opened it.
        test: the test in which a cassette recorded or replayed it, or "".
        on_wait: what a wait does that may take long: `block` or `suspend`.
        returned: what its workflow has returned, encoded, or `ending.NOTHING`.
    """

    def __init__(self, run_id: str, store: Store, options: dict[str, Any]) -> None:
        self.run_id = run_id
        self.resumed = False
        self.test = ""
        self.on_wait = options.get("on_wait", "block")
        self._store = store
        self._options = options
        self._recorder: Recorder | None = None
        self._outer: Frame | None = None
        self.returned: Any = ending.NOTHING
        self._outcome = ("completed", "done")
        self._owner: OwnerTask | None = None
        self._mail: Mail | None = None
        self._allowance: Allowance | None = None

    @property
    def state(self) -> RunState:
        """A copy of the folded log as it stands now."""
        return self._open_recorder().journal.snapshot()

    @property
    def replayed(self) -> int:
        """How many steps were returned from the log so far."""
        return self._open_recorder().replayed

    @property
    def executed(self) -> int:
        """How many attempts of steps were executed so far."""
        return self._open_recorder().executed

    @property
    def under_way(self) -> list[StepState]:
        """The steps that have begun and not ended, in the order in which they began.

        Each says its `attempt` (a stream that is read again after a crash is at its second, so what was shown of the
        first is void), its `job` at the provider if it has one, and in `progressed` what is known of it so far.
        """
        state = self.state
        return [step for step in state.steps.values() if step.id in state.live]

    def escalate(self, reason: str) -> None:
        """Say that the run hands its task to a person: it ends as `escalated`, with this text beside the code."""
        self._outcome = ("escalated", reason)

    @property
    def recorder(self) -> Recorder:
        """What records it. Raises InvalidArgument before the run is entered."""
        return self._open_recorder()

    @property
    def entered(self) -> bool:
        """Whether it was opened."""
        return self._recorder is not None

    @property
    def store(self) -> Store:
        """Where it lives."""
        return self._store

    def of_call(self, call: dict[str, Any]) -> Self:
        """Say which call of a workflow it is, for a run that is about to begin. Returns itself."""
        self._options["call"] = call
        return self

    def abandon(self) -> None:
        """Close it without an end, as if it had not been opened."""
        self._close(self._open_recorder())

    def _open_recorder(self) -> Recorder:
        if self._recorder is None:
            message = f"run {self.run_id} is not open yet. Use it inside: with steplog.run({self.run_id!r}) as run: ..."
            raise InvalidArgument(message, run_id=self.run_id)
        return self._recorder

    # entering ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._refuse_second_entry()
        journal = self._open_journal()
        self._enter(journal)
        return self

    async def __aenter__(self) -> Self:
        import asyncio

        self._refuse_second_entry()
        # Reading and claiming a long log takes a while; the loop goes on meanwhile.
        opening = asyncio.ensure_future(asyncio.to_thread(self._open_journal))
        try:
            journal = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on and would hold the run for ever.
            opening.add_done_callback(_close_unwanted)
            raise
        self._enter(journal)
        return self

    def _refuse_second_entry(self) -> None:
        self._refuse_another_than_resumed()
        if self._recorder is not None:
            message = f"run {self.run_id} was entered before; call steplog.run({self.run_id!r}) again to resume it."
            raise InvalidArgument(message, run_id=self.run_id)
        if self.run_id in PROCESS.runs:
            message = (
                f"run {self.run_id} is open in this process already; one run has one writer.\n"
                f"Leave the other `with` block first, or give this one an id of its own."
            )
            raise RunBusy(message, run_id=self.run_id, pid=os.getpid())

    def _refuse_another_than_resumed(self) -> None:
        """`steplog resume` starts a program for one run; what it would do in a new one nobody has asked for."""
        resumed = os.environ.get("STEPLOG_RESUME")
        if self._options.get("trigger", {}).get("kind") == "undo":
            return  # it belongs to a run that was asked for
        if resumed and self.run_id != resumed and self.run_id not in self._store.runs():
            message = (
                f"this program was started to resume run {resumed}, but it opens a new run {self.run_id}. Nothing was "
                f"executed.\nStart it the way it was started for {resumed} (same arguments and environment), or let it "
                f"call steplog.run() without an id."
            )
            raise InvalidArgument(message, run_id=self.run_id)

    def _open_journal(self) -> Journal:
        forked.check_opened(self._store, self.run_id, self._options["on_drift"])
        journal = Journal.open(self._store, self.run_id, self._created, self._options["redactor"], self._version)
        try:
            if "key" in journal.state.created:
                _ = journal.fingerprints  # as `Journal.open`, which leaves it where a repair had to be noted first
            steering.check(journal.state, self._options)
            if hasattr(self._store, "inbox"):
                self._mail = Mail(journal, self._store.inbox(self.run_id), self._options["redactor"])
                drive(self._mail.take())
            if "budget" in self._options:
                self._allowance = budgeting.take_up(journal, self._options["budget"])
        except BaseException:
            journal.close()
            raise
        return journal

    def _version(self) -> str | None:
        options = self._options
        return None if options.get("replay") else origin.version_of(options.get("version"), origin.main_script())

    def _created(self) -> dict[str, Any]:
        options = self._options
        created = origin.created_data(
            workflow=options["workflow"],
            version=options["version"],
            trigger=options["trigger"],
            goal=options["goal"],
        )
        if options["nth"] is not None:
            created["entry"]["nth"] = options["nth"]
        # A run that is started again needs what it was recorded with, or it drifts.
        extended = {name: list(options[name]) for name in ("also", "http") if options[name]} | steering.created(options)
        if options.get("call"):
            extended["call"] = options["call"]
        return {**created, "durability": options["durability"], **extended, **forked.inherited()}

    def _enter(self, journal: Journal) -> None:
        self.resumed = journal.resumed
        origin.warn_of_less(self.run_id, journal.state.created, self._options)
        from steplog._runtime import threads

        self._outer = frame()
        self._owner = OwnerTask.of(current_task())
        recorder = Recorder(
            journal,
            self._options["redactor"],
            on_drift=self._options["on_drift"],
            drift_grace=self._options["drift_grace"],
            outer=self._outer,
            named=messages.Named(self.run_id, settings.home_option(self._store)),
            on_halt=self._owner.halted,
        )
        if self._options.get("replay") and PROCESS.replay is not None:
            recorder.dispatch.replay_only(paced=PROCESS.replay.paced)
            PROCESS.replay.entered(recorder, running_loop())
        recorder.dispatch.live_tools = self._options.get("live_tools", False)
        recorder.handle, recorder.mail, recorder.allowance = self, self._mail, self._allowance
        steering.attach(recorder, self._options)
        self._recorder = recorder
        PROCESS.opened_run(self.run_id, recorder)
        # Also without install(): a worker that lost its run would do its work unrecorded.
        threads.install()
        FRAME.set(Frame(recorder, "", None, owner()))

    # leaving -----------------------------------------------------------------------------------------------------

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stop = drive(self._leave(error))
        if stop is not None:
            raise stop from stop.__cause__

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stop = await drive_async(self._leave(error))
        if stop is not None:
            raise stop from stop.__cause__

    def _leave(self, error: BaseException | None) -> Steps[BaseException | None]:
        """End the run; returns what is to be raised instead of `error`, or None."""
        recorder = self._open_recorder()
        try:
            stop = yield from self._conclude(recorder, error)
            if recorder.journal.is_long:
                yield Work(recorder.journal.save)
        finally:
            self._close(recorder)
            if self._options.get("replay") and (replay := PROCESS.replay) is not None:
                replay.left(self)
        if stop is None:
            return None
        # An outer run is around this one: the interrupt goes on through it and becomes ordinary where that ends. What
        # a cassette holds around the runs of a test is no run to the program. A cancellation is this run's alone.
        passes = self._outer is not None and not self.test and not isinstance(stop, Cancelled)
        return stop if passes else ending.stopped(recorder.named, stop)

    def _close(self, recorder: Recorder) -> None:
        recorder.closed = True
        PROCESS.closed_run(self.run_id)
        current = FRAME.get()
        if current is None or current.recorder is recorder:
            # Another run may have been opened in this context since, when this one lives in a generator.
            FRAME.set(self._outer)
        if self._owner is not None:
            self._owner.left()
        recorder.journal.close()

    def _conclude(self, recorder: Recorder, error: BaseException | None) -> Steps[Interrupt | None]:
        try:
            recorder.conclude_open()
        except Interrupt as raised:
            error = raised
        if recorder.halted is not None and not isinstance(recorder.halted, Cancelled):
            return messages.again(recorder.halted)
        undone = None
        if recorder.unwinding is not None and self._options.get("undo_on_cancel"):
            from steplog._runtime import undoing

            undone = yield from undoing.after_cancel(recorder, self._owner)
        try:
            yield ending.record(recorder, error, self._outcome, self.returned, undone)
        except UNWRITTEN as failed:
            return messages.end_not_recorded(recorder.named, failed)
        if recorder.unwinding is not None:
            return ending.with_undone(recorder.named, recorder.unwinding.interrupt, undone)
        return error if isinstance(error, Interrupt) else None


def _close_unwanted(opening: Any) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def run(
    run_id: str | None = None,
    *,
    goal: str | None = None,
    workflow: str | None = None,
    version: str | None = None,
    trigger: str | dict[str, Any] | None = None,
    on_drift: str | None = None,
    on_wait: str | None = None,
    durability: str | None = None,
    store: Store | None = None,
    policy: Given | Literal[False] = None,
    on_block: str | None = None,
    budget: Budget | None = None,
    undo_on_cancel: bool = False,
) -> Run:
    """Open a run, or resume it where its log ends. Use with `with` or `async with`.

    Args:
        run_id: 1 to 128 of the characters `A-Z a-z 0-9 . _ -`, beginning with a letter or digit; without one,
            `STEPLOG_RUN_ID` names the first run of the process, else it gets a ULID.
        goal: what the run is for, for people.
        workflow: which workflow this is; the name of the main script by default.
        version: its code revision; the git commit or the digest of the main script by default.
        trigger: what or who started it, as text or as `{"kind": ..., "by": ...}`.
        on_drift: what to do when the program no longer does what the log says: `halt` (default), or `warn` or `run` to
            go on, returning what matches and running the rest; `STEPLOG_ON_DRIFT`.
        on_wait: what becomes of the process while the run waits for a signal or a time: `block` (default) keeps it
            waiting, `suspend` stops the run and leaves it to `steplog resume --due`; `STEPLOG_ON_WAIT`.
        durability: level for this run (docs/durability.md); as installed by default.
        store: where the run lives; as installed by default.
        policy: which steps may begin, as a `Policy`, the path of its file or a list of rules (docs/control.md); as
            installed, or `STEPLOG_POLICY`, by default. False for none, which a run that began under one has to say.
        on_block: what happens where a step has to be approved: `suspend` the run (default), or `wait` with that branch
            alone; `STEPLOG_ON_BLOCK`.
        budget: what the run may use up (docs/budgets.md); as installed by default. None leaves what the log says.
        undo_on_cancel: when the run is cancelled and the program has unwound, undo its finished steps, as `undo` does.

    Raises:
        InvalidArgument: an argument is not accepted.
        RunBusy: another writer holds the run (on entering).
        KeyMissing: the run began with a key that `STEPLOG_KEY` does not hold (on entering).
        Corrupt, UnsupportedFormat, StoreError: the log cannot be opened (on entering).
        RunStopped: the run stopped, waits or was cancelled (on leaving).
    """
    if PROCESS.replay is not None:
        said: dict[str, Any] = {"goal": goal, "workflow": workflow, "version": version, "on_drift": on_drift}
        said |= {"policy": policy, "on_block": on_block}
        instead: Run = PROCESS.replay.run(run_id, said)
        return instead
    installed = PROCESS.settings or settings.resolve()
    if PROCESS.settings is None:
        PROCESS.warn_once(
            "not installed",
            "steplog.run() without steplog.install(): tools and local values are recorded, model calls are not. "
            "Call steplog.install() once, before the first model call.",
        )
    level = settings.check_durability(durability) if durability else installed.durability
    chosen = store or settings.open_store(installed, level)
    options = {
        "goal": goal,
        "workflow": workflow,
        "version": version,
        "trigger": {"kind": trigger} if isinstance(trigger, str) else trigger or {"kind": "program"},
        "on_drift": settings.check_on_drift(on_drift or os.environ.get("STEPLOG_ON_DRIFT") or "halt"),
        "on_wait": check_on_wait(on_wait or os.environ.get("STEPLOG_ON_WAIT") or "block"),
        "drift_grace": installed.drift_grace,
        "durability": getattr(chosen, "durability", level),
        "also": installed.also,
        "http": installed.http,
        "redactor": redactor(installed.redact),
        **steering.options(policy, on_block, installed.policy),
        "budget": settings.check_budget(budget) or installed.budget,
        "undo_on_cancel": undo_on_cancel,
    }
    options["nth"] = naming.nth() if run_id is None else None
    return Run(forked.standing_in(check_run_id(naming.default() if run_id is None else run_id)), chosen, options)


def current_run() -> Run | None:
    """The open run that the executing code belongs to, or None."""
    found = frame()
    handle: Run | None = None if found is None else found.recorder.handle
    return handle
