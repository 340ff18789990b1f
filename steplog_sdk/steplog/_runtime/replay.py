"""`steplog.replay()`: a program once more, from what was recorded, with nothing happening again.

A replay is a resume with two differences: its log is a copy in memory (`replay_store`), and what is not recorded does
not happen (`_kernel.replaying`). While it is under way the egress guard is on, for the whole process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from steplog._kernel.fold import RunState, StepState
from steplog._kernel.replaying import unplayed
from steplog._kernel.verdict import Divergence, Judgement
from steplog._runtime import egress, messages, reports, settings
from steplog._runtime import replay_verdict as verdict
from steplog._runtime.context import frame
from steplog._runtime.door import PROCESS
from steplog._runtime.ending import stopped
from steplog._runtime.examining import Examination
from steplog._runtime.origin import WRAPPED
from steplog._runtime.redaction import redactor
from steplog._runtime.refusals import Refusals
from steplog._runtime.replay_clock import Clock
from steplog._runtime.replay_setup import prepared
from steplog._runtime.replay_store import ReplayStore
from steplog._runtime.replay_verdict import tell_left
from steplog._runtime.reports import Reports
from steplog._runtime.run import Run
from steplog.errors import Interrupt, InvalidArgument, UnknownRun, Unrecorded
from steplog.stores.base import folded

if TYPE_CHECKING:
    from steplog._runtime.recorder import Recorder
    from steplog.stores.base import Store

# Nothing is slow in a replay, so a branch that has not asked for its recorded step by now will not.
_GRACE_SECONDS: Final = 0.25

VIRTUAL: Final = "virtual"
PACES: Final = (VIRTUAL, "recorded")


class Replay:
    """A replay of one run, as `with steplog.replay(...) as replayed` gives it. One at a time in a process.

    Attributes:
        run_id: the run that is replayed.
        recorded: its folded log.
        examination: what is found where it goes on after a difference, or None where it stops at the first.
        paced: whether steps take the time that they took.
    """

    def __init__(
        self,
        run_id: str | None,
        store: Store,
        allow: Collection[str] = (),
        *,
        pace: str = VIRTUAL,
        ignore: Collection[str] = (),
        for_good: bool = False,
        examine: bool = False,
    ) -> None:
        self.run_id = _newest(store) if run_id is None else run_id
        self.recorded: RunState = folded(store.read(self.run_id))
        # A forked child has this object too; what it does reaches the verdict by way of reports.
        self._process = os.getpid()
        self._reports = Reports.new()
        self._ignore = ignore
        self._refusals = Refusals(ignore, None)
        self.examination = Examination(self.recorded) if examine else None
        self._store = ReplayStore(store)
        self._allow = allow
        self.paced = pace != VIRTUAL
        self._clock = None if self.paced else Clock()
        # What a program leaves to be done at its exit is not recorded either.
        self._for_good = for_good
        # Of a run around an unedited script the program knows nothing; what it opens inside is inside it.
        self._wrapped = (self.recorded.created.get("trigger") or {}).get("kind") == WRAPPED
        self._named = messages.Named(self.run_id, settings.home_option(store))
        self._lock = threading.Lock()
        self._runs: list[Run] = []
        # The block itself is the run, until the program opens one.
        self._block: Run | None = None
        self._outside: Unrecorded | None = None
        self._judgement: Judgement | None = None
        self._undo = ExitStack()

    # what came of it ---------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """`identical` or `different`. Known once the block was left."""
        return self._judged().verdict

    @property
    def identical(self) -> bool:
        """Whether the program did what was recorded, as far as that goes, and nothing else."""
        return self._judged().verdict == "identical"

    @property
    def divergence(self) -> Divergence | None:
        """The first thing that the program did otherwise, or None. Known once the block was left."""
        return self._judged().divergence

    @property
    def note(self) -> str:
        """Where the recording ends before the program does, in a sentence; else "". Known once the block was left."""
        return self._judged().note

    @property
    def judged(self) -> bool:
        """Whether the block was left, so that it is known what came of the replay."""
        return self._judgement is not None

    @property
    def replayed(self) -> int:
        """How many steps were returned from the log so far."""
        return sum(run.replayed for run in self._runs if run.entered)

    @property
    def live_calls(self) -> int:
        """How many steps were executed: 0, since a replay executes none."""
        return sum(run.executed for run in self._runs if run.entered)

    @property
    def unplayed(self) -> list[StepState]:
        """Recorded steps with an outcome that the program has not asked for so far, in recorded order."""
        main = self._main()
        seen = () if main is None else main.recorder.dispatch.seen
        return unplayed(self.recorded, seen)

    @property
    def refused(self) -> list[str]:
        """What was tried outside the run and refused, such as a connection of a background thread."""
        return self._refusals.everything()

    @property
    def guard(self) -> str:
        """What refuses connections: `kernel`, or `interpreter`, which does not see sockets of code in C."""
        return self._refusals.guard

    def _judged(self) -> Judgement:
        if self._judgement is None:
            message = (
                f"the replay of run {self.run_id} is still under way. Ask for what came of it when the block is left."
            )
            raise InvalidArgument(message, run_id=self.run_id)
        return self._judgement

    def _main(self) -> Run | None:
        own = [run for run in self._runs if run.run_id == self.run_id and run.entered]
        return own[-1] if own else None

    # entering and leaving ----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._begin()
        try:
            self._block = self._opened(self.run_id)
            self._block.__enter__()
        except BaseException:
            self._end()
            raise
        return self

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            self._block = self._opened(self.run_id)
            await self._block.__aenter__()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._block is not None:
                self._block.__exit__(kind, error, traceback)
        finally:
            self._judge()
        self._raise_ordinary(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._block is not None:
                await self._block.__aexit__(kind, error, traceback)
        finally:
            self._judge()
        self._raise_ordinary(error)

    def _begin(self) -> None:
        if PROCESS.replay is not None:
            message = (
                f"run {PROCESS.replay.run_id} is being replayed in this process already; one at a time.\n"
                f"Leave its block first, or replay {self.run_id} in a process of its own."
            )
            raise InvalidArgument(message, run_id=self.run_id)
        if self._judgement is not None or self._runs:
            message = f"this replay was entered before; call steplog.replay({self.run_id!r}) again."
            raise InvalidArgument(message, run_id=self.run_id)
        self._undo = prepared(self.recorded)
        self._undo.callback(setattr, PROCESS, "replay", None)
        PROCESS.replay = self
        self._refusals = Refusals.under_guard(self._ignore, self._allow, for_good=self._for_good)
        engaged = egress.engage(
            self.refuse,
            self._allow,
            ignored=self._ignore,
            report=self._reports.path,
            passes=self._refusals.passes,
        )
        self._undo.callback(engaged)
        if self._clock is not None:
            self._clock.start()
            self._undo.callback(self._clock.stop)

    def _end(self) -> None:
        if not self._for_good:
            self._undo.close()

    def _judge(self) -> None:
        self._end()
        self._judgement = self._compare()

    def _raise_ordinary(self, error: BaseException | None) -> None:
        if isinstance(error, Interrupt):
            ordinary = stopped(self._named, error)
            raise ordinary from ordinary.__cause__

    def _compare(self) -> Judgement:
        told = self._reports.take()
        self._refusals.note_told(told)
        judged = verdict.with_children(self._compare_own(), told, self._store)
        return verdict.with_refusals(judged, self._refusals, self._named)

    def _compare_own(self) -> Judgement:
        if self.examination is not None and self.examination.findings:
            count = len(self.examination.findings)
            message = (
                f"{count} request(s) of the program are not what was recorded; they got the nearest recorded answer"
            )
            return verdict.different("drift", message, self.examination.findings[0].step)
        main = self._main()
        if main is None:
            return verdict.never_opened(self.run_id)
        return verdict.judge_all(main, self.recorded, self._runs, self._store, self._outside)

    # what the program does meanwhile -----------------------------------------------------------------------------

    def run(self, run_id: str | None, said: dict[str, Any] | None = None) -> Run:  # noqa: ARG002  # it is recorded
        """The run that the program opens by `steplog.run(run_id)`: the recorded one, whatever id it gives.

        A run of its own that is recorded beside it, such as one inside it, is replayed as well.

        Raises:
            Unrecorded: the program opens a run that is not recorded.
        """
        place = frame()
        in_block = self._block is not None and place is not None and place.recorder is self._block.recorder
        inside = place is not None and (self._wrapped or not in_block)
        if run_id is None and inside and place is not None:
            run_id = place.recorder.dispatch.name_of_inner_run(place.scope)
        if run_id is None or run_id == self.run_id or run_id not in self._store.runs():
            if inside or (run_id != self.run_id and self._taken()):
                raise self.refuse(f"run {run_id or 'without an id'}")
            run_id = self.run_id
        self._take_block(run_id)
        return self._opened(run_id)

    def _taken(self) -> bool:
        """Whether the program has opened the recorded run already."""
        return self._block is None and self._main() is not None

    def _take_block(self, run_id: str) -> None:
        block = self._block
        if block is None or run_id != self.run_id:
            return
        if block.recorder.dispatch.asked:
            message = (
                f"the program opens run {run_id} after it has asked for {block.recorder.dispatch.asked} step(s) of it "
                f"in the replay's own block. Open the run first, or not at all."
            )
            raise InvalidArgument(message, run_id=run_id)
        self._block = None
        self._runs.remove(block)
        block.abandon()

    def _opened(self, run_id: str) -> Run:
        run = Run(run_id, self._store, options())
        self._runs.append(run)
        return run

    def entered(self, recorder: Recorder, loop: Any) -> None:
        """A run was entered in this thread, in this event loop where there is one."""
        if os.getpid() != self._process:
            self._reports.add(reports.OPENED, run=recorder.journal.run_id)
        if self._clock is not None:
            self._clock.adopt(loop)
        if self.examination is not None:
            recorder.dispatch.goes_on = partial(self.examination.goes_on, recorder)

    def left(self, run: Run) -> None:
        """A run that it has opened was left."""
        if os.getpid() != self._process:
            tell_left(self._reports, run, self._store)

    def lets_pass(self, target: str) -> bool:
        """Whether a local value is not part of the replay, and only watched."""
        return self.examination is not None and self.examination.lets_pass(target)

    def refuse(self, what: str) -> Interrupt | OSError:
        """The exception for something that is not recorded and was not done. Inside a run, that run halts."""
        if self._refusals.ignores(what):
            self._refusals.note(what)
            return self._refusals.as_if_down(what)
        place = frame()
        refusal = messages.refused(self._named, what)
        if place is not None:
            halted: Interrupt = place.recorder.halt(refusal)
            return halted
        if os.getpid() != self._process:
            self._reports.add(reports.REFUSED, refused=what)
            return refusal
        self._refusals.note(what)
        with self._lock:
            if "outside the run" in what:
                self._outside = self._outside or refusal
        return refusal


def _newest(store: Store) -> str:
    runs = store.runs()
    if not runs:
        raise UnknownRun("there are no runs in this store yet, so there is nothing to replay.")
    return runs[0]


def options() -> dict[str, Any]:
    """What a run is opened with in a replay."""
    installed = PROCESS.settings or settings.resolve()
    return {
        "replay": True,
        "on_drift": "halt",
        "drift_grace": _GRACE_SECONDS,
        "also": installed.also,
        "http": installed.http,
        "redactor": redactor(installed.redact),
    }


def replay(
    run_id: str | None = None,
    *,
    store: Store | None = None,
    allow: Collection[str] = (),
    ignore: Collection[str] = (),
    pace: str = VIRTUAL,
) -> Replay:
    """Replay a recorded run: the program inside gets what was recorded, and nothing happens again.

        with steplog.replay("refund-1001") as replayed:
            agent("order-1001")
        assert replayed.identical, replayed.divergence.message

    `steplog.run(...)` inside opens the recorded run, whatever id it gives; where nothing inside opens a run, the block
    itself is the run. Nothing is written. What is not recorded is refused, in any thread: model and tool calls,
    connections, child processes.

    Args:
        run_id: the run; by default the one that was written last.
        store: where it is recorded; as installed by default.
        allow: hosts (`127.0.0.1`), hosts with a port (`127.0.0.1:5432`) and names of programs (`git`) that the program
            may reach although that is not recorded.
        ignore: hosts, and hosts with a port, that are as if they were down, which is no difference: of telemetry, say.
        pace: `virtual`, where nobody waits for a pause or a timeout and they still come in their order, or `recorded`,
            where steps take the time that they took and pauses are made.

    Raises:
        UnknownRun, Corrupt, UnsupportedFormat, StoreError: the log cannot be read.
        InvalidArgument: there is no such pace; another replay is under way in this process (on entering).
        RunStopped: the program asked for something else than what is recorded, or the recording ended (on leaving).
    """
    if pace not in PACES:
        raise InvalidArgument(f'unknown pace {pace!r}. Write pace="virtual" or pace="recorded".')
    chosen = store or settings.open_store(PROCESS.settings or settings.resolve())
    return Replay(run_id, chosen, allow, pace=pace, ignore=ignore)
