"""One test's use of its cassette: what it does is recorded, or answered from what was recorded.

A session stands where a `Replay` stands: `steplog.run(...)` asks it for the run that a test opens, and effects outside
every run are refused by it. Around the whole test there is a run of the session's own, for what the test does without
opening one. Which recording an effect meets is decided by the context that it comes from, never by what happens to be
going on in the process.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

from steplog._kernel import events as ev
from steplog._kernel.fold import StepState
from steplog._kernel.replaying import has_outcome, unplayed
from steplog._runtime import egress, install, replay_setup, settings, steering
from steplog._runtime.context import frame
from steplog._runtime.door import PROCESS
from steplog._runtime.recorder import Recorder
from steplog._runtime.redaction import redactor
from steplog._runtime.replay import options as replay_options
from steplog._runtime.replay_store import ReplayStore
from steplog._runtime.run import Run
from steplog.errors import Interrupt, InvalidArgument, NotInRun, RunStopped, Unrecorded
from steplog.stores.base import check_run_id, folded
from steplog.stores.memory import MemoryStore
from steplog.testing._compared import Compared
from steplog.testing._cut import Mismatch, cut
from steplog.testing._fixtures import RUN as FIXTURES
from steplog.testing._taking import taken
from steplog.testing._tapes import run_id_of, without_ends
from steplog.testing.cassettes import Cassette, Tape

RECORD: Final = "record"
REPLAY: Final = "replay"
NEW: Final = "new"
VERIFY: Final = "verify"

# What the message about a difference may take, beside the command that records again.
_LINES: Final = 22


@dataclass(frozen=True)
class Options:
    """What the mark says.

    Attributes:
        tools: `recorded`, or `live`: tools run each time and are not in the cassette.
        clock: the time that a test reads is recorded, and given again.
        max_age: days after which the cassette counts as out of date, or None.
        allow: hosts and programs that a replayed test may reach all the same.
        unplayed: a replay may leave recorded steps out.
    """

    tools: str = "recorded"
    clock: bool = False
    max_age: int | None = None
    allow: tuple[str, ...] = ()
    unplayed: bool = False


@dataclass
class Session:
    """A test with its cassette.

    Attributes:
        test: the test, as `file.py::Class::test[case]`.
        doing: `record`, `replay`, `new` (what is recorded is replayed, the rest is recorded), or `verify` (it is
            replayed, and each model call is made as well).
        options: what its mark says.
        again: the command that records it anew.
        path: its cassette, for messages.
        cassette: what was recorded, or None.
        missing: what to say of a test that has no cassette and may not record one; else "".
        runs: the runs that were opened, the session's own first.
    """

    test: str
    doing: str
    options: Options
    again: str
    path: str
    cassette: Cassette | None = None
    missing: str = ""
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run_id = run_id_of(self.test)
        self.refused: list[Interrupt | NotInRun] = []
        self.interrupted = False
        # What is to be said of what a fixture asks for that is not this test's alone; "{}" is what it asks for.
        self.aside = ""
        self._fixtures: Run | None = None
        self.compared = Compared()
        self.check = self.compared.compare if self.doing == VERIFY else None
        self._times: dict[str, int] = {}
        self._lock = threading.Lock()
        self._undo = ExitStack()
        self._store = MemoryStore()
        if self.doing == NEW and self.cassette is not None:
            self._store = without_ends(self.cassette).store()

    @property
    def replaying(self) -> bool:
        """Whether nothing may happen that is not recorded."""
        return self.doing in (REPLAY, VERIFY)

    # around the test ---------------------------------------------------------------------------------------------

    def engage(self) -> None:
        """From now on runs are opened here, and in a replay nothing leaves the process.

        Raises:
            InvalidArgument: a replay or another test's session is under way in this process.
        """
        if PROCESS.replay is not None:
            under_way = getattr(PROCESS.replay, "test", "") or f"the replay of run {PROCESS.replay.run_id}"
            message = f"{self.test} cannot use its cassette: {under_way} is under way in this process."
            raise InvalidArgument(message)
        if PROCESS.settings is None:
            install.install()
        self._undo.callback(setattr, PROCESS, "replay", None)
        PROCESS.replay = self
        if self.options.clock:
            self._undo.callback(_with_clock())
        if self.replaying and self.cassette is not None:
            store = self.cassette.store()
            for tape in self.cassette.tapes:
                self._undo.enter_context(replay_setup.prepared(folded(store.read(tape.run))))
        if self.doing == REPLAY and self.options.tools != "live":
            self._undo.callback(egress.engage(self.refuse, self.options.allow))

    def release(self) -> None:
        """Take back what `engage` did. Idempotent."""
        self._undo.close()

    def begin_fixtures(self) -> None:
        """From now on, until `end_fixtures`, what is asked for belongs to the test's fixtures."""
        if self.replaying and self._tape(FIXTURES) is None:
            return
        self._fixtures = self._opened(FIXTURES, {})
        self._fixtures.__enter__()

    def end_fixtures(self, *, failed: bool = False) -> None:
        """End what `begin_fixtures` began. Raises Mismatch where a fixture has asked for something else."""
        run, self._fixtures = self._fixtures, None
        if run is None:
            return
        if failed:
            run.abandon()
            return
        try:
            run.__exit__(None, None, None)
        except RunStopped as stopped:
            self._fail(stopped.__cause__ or stopped)

    def __enter__(self) -> Self:
        self._open_own().__enter__()
        return self

    async def __aenter__(self) -> Self:
        await self._open_own().__aenter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.runs[0].__exit__(kind, error, trace)
        except RunStopped as stopped:
            self._fail(stopped.__cause__ or stopped)
        except Interrupt as stopped:
            self._fail(stopped)
        self._check(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.runs[0].__aexit__(kind, error, trace)
        except RunStopped as stopped:
            self._fail(stopped.__cause__ or stopped)
        except Interrupt as stopped:
            self._fail(stopped)
        self._check(error)

    def _open_own(self) -> Run:
        run = self._opened(self.run_id if self.cassette is None else self.cassette.tapes[0].run, {})
        self.runs.remove(run)
        self.runs.insert(0, run)
        return run

    # Recorded steps take no time, and the program's own pauses are its own: a test's timeouts mean something.
    paced = False

    def entered(self, recorder: Recorder, loop: Any) -> None:
        """A run was entered in an event loop; its clock is left alone."""

    def left(self, run: Run) -> None:
        """A run was left; what came of it is asked at the end of the test."""

    def lets_pass(self, target: str) -> bool:  # noqa: ARG002  # a cassette holds what its test draws, or the test fails
        """Whether values of a kind are drawn anew."""
        return False

    # what the test does ------------------------------------------------------------------------------------------

    def run(self, run_id: str | None, said: dict[str, Any] | None = None) -> Run:
        """The run that the test opens by `steplog.run(run_id, ...)`.

        Raises:
            Unrecorded: it opens one that is not recorded.
        """
        if run_id is None:
            place = frame()
            run_id = f"{self.run_id}.{len(self.runs)}" if place is None else _name(place)
        return self._opened(check_run_id(run_id), said or {})

    def _opened(self, run_id: str, said: dict[str, Any]) -> Run:
        more: dict[str, Any] = {"live_tools": self.options.tools == "live"}
        if self.replaying:
            tape = self._tape(run_id)
            if tape is None:
                raise self.refuse(f"run {run_id}")
            assert self.cassette is not None
            self._times[tape.run] = self._times.get(tape.run, 0) + 1
            run = Run(tape.run, ReplayStore(self.cassette.store(sessions=self._times)), more | replay_options())
        else:
            run = Run(run_id, self._store, more | self._recording(said))
        run.test = self.test
        with self._lock:
            self.runs.append(run)
        return run

    def _recording(self, said: dict[str, Any]) -> dict[str, Any]:
        installed = PROCESS.settings or settings.resolve()
        usual = "run" if self.doing == NEW else "halt"
        return {
            "goal": said.get("goal"),
            "workflow": said.get("workflow"),
            "version": said.get("version"),
            "trigger": {"kind": "program"},
            "on_drift": usual if self.doing == NEW else said.get("on_drift") or usual,
            "drift_grace": installed.drift_grace,
            "durability": "memory",
            "also": installed.also,
            "http": installed.http,
            "redactor": redactor(installed.redact),
            **steering.options(said.get("policy"), said.get("on_block"), installed.policy),
            "nth": None,
        }

    def _tape(self, run_id: str) -> Tape | None:
        """The recorded run of an id; where none has it, the next one that nobody has opened: ids may be made up."""
        tapes = [] if self.cassette is None else self.cassette.tapes
        named = [tape for tape in tapes if tape.run == run_id]
        left = [tape for tape in tapes[1:] if tape.run not in self._times]
        return next(iter(named or (left if run_id != FIXTURES else ())), None)

    def refuse(self, what: str) -> Interrupt | NotInRun:
        """The exception for something that is not recorded and was not done."""
        place = frame()
        refusal: Interrupt | NotInRun
        if self.aside:
            told = self.aside.format(what)
            refusal = Unrecorded(told, asked=what) if self.replaying else NotInRun(told)
        elif not self.replaying:
            refusal = NotInRun(_ASIDE.format(what, self.test))
        else:
            refusal = Unrecorded(f"{what} is not in the cassette, and was refused. {_REFUSED}", asked=what)
            if place is not None:
                halted: Interrupt = place.recorder.halt(refusal)
                return halted
        with self._lock:
            self.refused.append(refusal)
        return refusal

    def until_interrupted(self) -> AbstractContextManager[None]:
        """What a run did until it was interrupted, as `steplog export --as-test` writes it.

        The block has to ask for all that is recorded. It ends where it asks for more.

        Raises:
            Mismatch: it has not asked for a recorded step.
        """
        return cut(self)

    # what came of it ---------------------------------------------------------------------------------------------

    def _fail(self, cause: BaseException) -> None:
        if self.interrupted and isinstance(cause, Unrecorded):
            return
        raise Mismatch(self.told(str(cause))) from None

    def _check(self, error: BaseException | None) -> None:
        """Fail a test that went on although something was refused."""
        halted = [run.recorder.halted for run in self.opened]
        stop = next((one for one in halted if one is not None), None) or next(iter(self.refused), None)
        if stop is not None and (error is None or self.replaying):
            self._fail(stop)
        if self.compared.changes and error is None:
            told = "".join(f"\n  {change}" for change in self.compared.changes[:_LINES])
            message = f"{self.test}: answers have another form than those in its cassette {self.path}:{told}"
            raise Mismatch(f"{message}\nSee that the test still means something, and record it again:\n  {self.again}")

    def told(self, what: str) -> str:
        """What to say of something that is not what it was, with the command that records again."""
        kept = [line for line in what.splitlines() if not _COMMANDS.match(line) and not line.startswith(_OF_RUNS)]
        lines = [line[:400] for line in kept[:_LINES]]
        if self.missing:
            return f"{self.missing}\nIt asks for something: {lines[0]}"
        head = f"{self.test} does something else than its cassette {self.path} holds." if self.replaying else self.test
        return "\n".join([head, *lines, f"If that is right, record it again:\n  {self.again}"])

    def left_out(self) -> list[StepState]:
        """Recorded steps that the test has not asked for, in recorded order."""
        if self.cassette is None or self.doing == RECORD:
            return []
        last = {run.run_id: run for run in self.opened}
        store = self.cassette.store()
        found: list[StepState] = []
        for tape in self.cassette.tapes:
            state = folded(store.read(tape.run))
            seen = last[tape.run].recorder.dispatch.seen if tape.run in last else ()
            steps = unplayed(state, seen)
            if self.options.tools == "live":
                steps = [step for step in state.steps.values() if step.id not in seen and has_outcome(step)]
            found += [step for step in steps if tape.run not in last or step.id not in seen]
        return found

    @property
    def opened(self) -> list[Run]:
        """Those of the runs that were entered."""
        return [run for run in self.runs if run.entered]

    @property
    def replayed(self) -> int:
        """How many steps were answered from the cassette."""
        return sum(run.replayed for run in self.opened)

    @property
    def executed(self) -> int:
        """How many steps have happened."""
        return sum(run.executed for run in self.opened)

    def recorded(self, day: dt.date) -> Cassette:
        """What the test has recorded."""
        runs = list(dict.fromkeys(run.run_id for run in self.runs))
        cassette = taken(self._store, runs, self.test, day.isoformat())
        # Most tests have no fixture that asks for anything.
        cassette.tapes = [
            tape for tape in cassette.tapes if tape.run != FIXTURES or any(one.step for one in tape.lines)
        ]
        if self.options.tools == "live":
            for tape in cassette.tapes:
                tools = {
                    line.step
                    for line in tape.lines
                    if line.type == ev.STEP_STARTED and line.data.get("kind") == "tool_call"
                }
                tape.lines = [line for line in tape.lines if line.step not in tools]
        return without_ends(cassette, but_last=True) if self.doing == NEW else cassette


# What the message of a replay says to people who have a run.
_COMMANDS: Final = re.compile(r"\s*steplog (?:resolve|resume|show|replay)\b")
_OF_RUNS: Final = ("What was recorded", "What is to be done now belongs")
_REFUSED: Final = (
    "Nothing new happens while a cassette is played. What reaches other systems belongs in a step (@steplog.step), so "
    "that it is recorded; what is harmless can be allowed: @pytest.mark.steplog(allow=[...])"
)
_ASIDE: Final = (
    "{0}, while the cassette of {1} is recorded: it would not be in it, so it was refused. Do it in the test itself, "
    "or in a fixture before it yields; in a thread, start that inside the test."
)


def _name(place: Any) -> str:
    name: str = place.recorder.dispatch.name_of_inner_run(place.scope)
    return name


def _with_clock() -> Callable[[], None]:
    before, had = PROCESS.settings, set(install.installed())
    assert before is not None
    install.put_in(["clock"], replace(before, also=tuple(dict.fromkeys([*before.also, "clock"]))))
    return lambda: install.take_out([name for name in install.installed() if name not in had], before)
