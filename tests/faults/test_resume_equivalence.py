"""P2 to P5, P8: whatever the program, crashes change neither its result nor what it did to the world.

Generated programs are played without faults, then again with a crash at random events, dropping all that is in memory,
and resumed. A step in doubt is settled as an operator does who looks into the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import steplog
from steplog._kernel.fold import DONE, RunState, fold
from steplog._runtime.resolve import resolve
from steplog.stores.base import LogView
from steplog.stores.memory import MemoryStore, MemoryWriter
from tests.faults.programs import small
from tests.faults.programs.small import Act, Finally, Gather, Loop, Nest, Outage, Refuse, Report, Seq, Threads, Try, Value

RUN = "small"

# A crash that hits the committer thread ends it; that is what it is for.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(autouse=True, scope="module")
def _installed() -> Iterator[None]:
    steplog.install(interceptors=[], strict=True)
    yield
    steplog.uninstall()


class Crash(BaseException):
    """The process is dead: whoever sees this may unwind, and must not be able to do anything else."""


class MortalStore(MemoryStore):
    """A memory store whose next process dies at an append: before it when `before`, else right after it.

    Attributes:
        appends: how many this process has made.
        dead: whether it has died.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live()

    def live(self, at: int = 0, *, before: bool = False) -> None:
        """Begin a process that dies at its append number `at`, from 1, or never."""
        self.appends, self.dead = 0, False
        self._at, self._before = at, before

    def open(self, run_id: str) -> MemoryWriter:
        writer = super().open(run_id)
        mortal = MortalWriter(self, writer.view)
        self._writers[run_id] = mortal
        return mortal

    def moment(self, *, before: bool) -> None:
        """Die here, if this is the moment; a process that is dead stays dead."""
        self.appends += before
        if (self.appends, before) == (self._at, self._before):
            self.dead = True
        if self.dead:
            raise Crash


class MortalWriter(MemoryWriter):
    _store: MortalStore

    def append(self, lines: Sequence[bytes], first_seq: int, *, sync: bool) -> None:
        self._store.moment(before=True)
        super().append(lines, first_seq, sync=sync)
        self._store.moment(before=False)


class Play:
    """A program, played to its end over as many processes as it takes."""

    def __init__(self, program: Any, haste: Any = lambda _count: 0.0) -> None:
        self.program = program
        self.store = MortalStore()
        self.world = small.World(haste)
        self.crashes = 0
        self._frozen: dict[str, int] = {}

    def to_the_end(self, crashes: Iterator[tuple[int, bool]]) -> Any:
        """The final result."""
        for at, before in chain(crashes, repeat((0, False), 30)):
            self.store.live(at, before=before)
            ended, value = self._dispatch()
            self._look_at_the_log()
            if ended == "done":
                return value
            if ended == "doubt":
                self._settle(value)
        raise AssertionError("no end after 30 processes without a crash")

    def _dispatch(self) -> tuple[str, Any]:
        small.world = self.world
        try:
            with steplog.run(RUN, store=self.store):
                result = small.play(self.program)
        except BaseException as error:
            return self._ended_by(error)
        return "done", result

    def _ended_by(self, error: BaseException) -> tuple[str, Any]:
        if self.store.dead:
            self.crashes += 1
            return "crashed", None
        if isinstance(error, small.Down):
            self.world.repair()
            return "failed", None
        if isinstance(error, steplog.RunStopped) and error.reason == "indeterminate":
            return "doubt", error.step
        raise error

    def _settle(self, step: str) -> None:
        found = self.state().steps[step]
        assert found.mode == "unsafe"
        label = dict(self.world.ledger).get(step)
        how = "retry" if label is None else "failed" if found.target == "refuse" else "done"
        self.store.live()
        resolve(self.store, RUN, step, how=how, result=label, message=str(label))

    def _look_at_the_log(self) -> None:
        """Nothing that is finished is executed ever again, unless its failure ended the run."""
        state = self.state()
        for step in state.steps.values():
            if step.status == DONE or (step.status == "failed" and step.id not in state.retry):
                count = self.world.executed[step.id]
                assert self._frozen.setdefault(step.id, count) == count, f"{step.target} {step.id} was executed again"
            else:
                self._frozen.pop(step.id, None)

    def state(self) -> RunState:
        view: LogView | None = self.store.read(RUN) if RUN in self.store.runs() else None
        return fold(view.events) if view else RunState()

    def effects(self, *modes: str) -> Counter[tuple[str, str]]:
        """Effects on the world by step, of the steps in these modes."""
        steps = self.state().steps
        return Counter((step, label) for step, label in self.world.ledger if steps[step].mode in modes)


LABELS = st.sampled_from("ab")
LEAVES = st.one_of(
    st.builds(Act, st.sampled_from(["unsafe", "unsafe", "keyed", "safe"]), LABELS),
    st.builds(Value, LABELS),
)


def _compounds(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Seq, parts),
        st.builds(Loop, st.integers(2, 3), inner),
        st.builds(Gather, parts),
        st.builds(Threads, parts),
        st.builds(Nest, LABELS, inner),
        st.builds(Try, st.builds(lambda first, label: Seq((first, Refuse(label))), inner, LABELS), inner),
        st.builds(lambda first, label: Seq((first, Outage(label))), inner, LABELS),
        st.builds(lambda label, note, then: Seq((Report(Outage(label), note), then)), LABELS, LEAVES, inner),
        st.builds(Finally, inner, LEAVES),
    )


PROGRAMS = st.recursive(LEAVES, _compounds, max_leaves=7)
CRASHES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=3)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(program=PROGRAMS, moments=CRASHES)
def test_crashes_change_nothing(program, moments):
    note(f"{program!r}")
    calm = Play(program)
    result = calm.to_the_end(iter(()))
    length = calm.state().seq + 1
    note(f"{length} events, crashes at {[(1 + int(at * length), before) for at, before in moments]}")

    stormy = Play(program)
    answer = stormy.to_the_end((1 + int(at * length), before) for at, before in moments)

    assert answer == result
    assert stormy.effects("unsafe") == calm.effects("unsafe")
    assert set(stormy.effects("keyed")) == set(calm.effects("keyed"))
    assert set(stormy.effects("unsafe").values()) <= {1}
