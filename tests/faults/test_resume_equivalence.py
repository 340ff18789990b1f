"""P2 to P5, P8: whatever the program, crashes change neither its result nor what it did to the world.

Generated programs are played without faults, then again with a crash at random events, dropping all that is in memory,
and resumed. A step in doubt is settled as an operator does who looks into the ledger.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

import steplog
from steplog._kernel.fold import DONE, RunState, fold
from steplog._kernel.line import Chain
from steplog._runtime.resolve import resolve
from steplog.stores.base import LogView
from steplog.stores.memory import MemoryStore, MemoryWriter
from tests.faults.programs import small
from tests.faults.programs.small import (
    Act,
    Finally,
    Gather,
    Loop,
    Nest,
    Outage,
    Refuse,
    Report,
    Seq,
    Stream,
    Threads,
    Try,
    Value,
)
from tests.support.examples import examples

RUN = "small"


@pytest.fixture(autouse=True, scope="module")
def _installed() -> Iterator[None]:
    steplog.install(interceptors=[], strict=True)
    yield
    steplog.uninstall()


@pytest.fixture(autouse=True)
def _a_crash_ends_its_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from crashes_end_threads(monkeypatch, RUN)


def crashes_end_threads(monkeypatch: pytest.MonkeyPatch, run_id: str) -> Iterator[None]:
    """A crash that hits the committer thread ends it; that is what it is for, and nothing to report."""
    report = threading.excepthook
    monkeypatch.setattr(threading, "excepthook", lambda args: None if args.exc_type is Crash else report(args))
    yield
    for thread in threading.enumerate():
        if thread.name == f"steplog-commit-{run_id}":
            thread.join(10)


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

    def __init__(self, program: Any, pauses: Sequence[float] = (0.0,)) -> None:
        self.program = program
        self.store = MortalStore()
        self.world = small.World(pauses)
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
        # What a stream is settled with are its items.
        result = [label, "of", "three"] if found.target == "stream" else label
        self.store.live()
        resolve(self.store, RUN, step, how=how, result=result, message=str(label))

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
# What is done about an outage is not done again once it is over. It changes nothing: a program that did something else
# instead, and then failed all the same, must not do both. And nothing else in a program looks like it, since the log
# could not tell whose it was.
NOTES = st.just(Value("note")) | st.just(Act("safe", "note"))
LEAVES = st.one_of(
    st.builds(Act, st.sampled_from(["unsafe", "unsafe", "keyed", "safe"]), LABELS),
    st.builds(Value, LABELS),
    st.builds(Stream, st.sampled_from(["unsafe", "safe"]), LABELS),
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
        st.builds(lambda label, told, then: Seq((Report(Outage(label), told), then)), LABELS, NOTES, inner),
        st.builds(Finally, inner, LEAVES),
    )


PROGRAMS = st.recursive(LEAVES, _compounds, max_leaves=7).map(small.apart)
CRASHES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=3)


PAUSES = st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.003]), min_size=1, max_size=3)

HANDLED_THEN_DOWN = Try(Seq((Value("a"), Refuse("b"))), Seq((Value("a"), Outage("a"))))
A_STREAM_IN_DOUBT = Seq((Stream("unsafe", "a"), Act("unsafe", "b")))
REPORTED_THEN_ON = Seq((Report(Outage("a"), Act("safe", "note")), Act("unsafe", "a")))
CLEANED_UP = Seq((Finally(Outage("a"), Act("unsafe", "b")), Value("a")))


@settings(max_examples=examples(250, most=1000), suppress_health_check=[HealthCheck.too_slow])
@given(program=PROGRAMS, moments=CRASHES, pauses=PAUSES)
@example(program=HANDLED_THEN_DOWN, moments=[(0.0, False)], pauses=[0.0])
@example(program=REPORTED_THEN_ON, moments=[(0.0, False)], pauses=[0.0])
@example(program=CLEANED_UP, moments=[(0.5, True), (0.3, False)], pauses=[0.0])
@example(program=A_STREAM_IN_DOUBT, moments=[(0.45, True)], pauses=[0.0])
def test_crashes_change_nothing(program, moments, pauses):
    note(f"{program!r}")
    calm = Play(program)
    result = calm.to_the_end(iter(()))
    length = calm.state().seq + 1
    note(f"{length} events, crashes at {[(1 + int(at * length), before) for at, before in moments]}")

    stormy = Play(program, pauses)
    answer = stormy.to_the_end((1 + int(at * length), before) for at, before in moments)

    assert answer == result
    assert stormy.effects("unsafe") == calm.effects("unsafe")
    assert set(stormy.effects("keyed")) == set(calm.effects("keyed"))
    assert set(stormy.effects("unsafe").values()) <= {1}


def test_every_single_crash_of_one_program_with_everything_in_it():
    inner = Seq((Act("unsafe", "a"), Act("keyed", "a"), Value("a")))
    failing = Try(Seq((Act("safe", "b"), Refuse("a"))), Nest("a", inner))
    program = Seq((Gather((inner, failing)), Loop(2, Act("unsafe", "b")), Threads((inner, Nest("b", failing)))))
    calm = Play(program)
    result = calm.to_the_end(iter(()))
    length = calm.state().seq + 1
    assert length > 40

    crashes = 0
    for at in range(1, length + 1):
        for before in (True, False):
            stormy = Play(program)
            assert stormy.to_the_end(iter([(at, before)])) == result
            assert stormy.effects("unsafe") == calm.effects("unsafe")
            crashes += stormy.crashes

    assert crashes > 60  # concurrent appends share writes, so that the last of the numbers may be without a crash


def test_an_occurrence_that_never_reached_the_log_is_no_gap_to_fall_into():
    """Two branches ask for the same; the one that was counted second is written first, and then the process dies."""
    program = Seq((Act("unsafe", "b"), Act("unsafe", "b")))
    whole = Play(program)
    whole.to_the_end(iter(()))
    first, second = whole.state().steps
    kept = [event for event in whole.store.read(RUN).events if event.step == second]
    play = Play(program)
    play.world = whole.world
    writer, chain = play.store.open(RUN), Chain(RUN)
    head = [("run.created", None, {"run_id": RUN, "format": "steplog/1"}), ("run.claimed", None, {})]
    chain.epoch = 1
    for type_, step, data in [*head, *((event.type, event.step, event.data) for event in kept)]:
        writer.append([chain.seal(type_, step, "", orjson.dumps(data))], chain.seq - 1, sync=True)
    writer.close()
    assert play.world.executed == {first: 1, second: 1}

    assert play.to_the_end(iter(())) == ["b", "b"]

    assert play.world.executed == {first: 2, second: 1}


def test_who_comes_while_the_committer_dies_is_not_left_waiting():
    store = MortalStore()
    stopped = []

    async def submit(value: str) -> None:
        try:
            await small.unsafe_async(value)
        except BaseException as error:
            stopped.append(type(error))

    async def both() -> None:
        await asyncio.wait_for(asyncio.gather(submit("a"), _a_little_later(submit("b"))), 20)

    small.world = small.World()
    with pytest.raises(steplog.RunStopped), steplog.run(RUN, store=store) as run:
        commit = run._open_recorder().journal._commit

        def moment(*, before: bool) -> None:
            # The first task's event is being written; the other one puts its own in line, and sees this thread
            # alive, before that fails.
            while not (commit._pending and commit._pending[0].future):
                time.sleep(0.001)
            time.sleep(0.05)
            raise Crash

        store.moment = moment
        asyncio.run(both())

    assert len(stopped) == 2
    assert asyncio.CancelledError not in stopped


async def _a_little_later(work: Awaitable[None]) -> None:
    await asyncio.sleep(0.05)
    await work


def test_branches_that_swap_the_occurrences_of_one_call_are_not_drift():
    """Two workers look the same thing up before they part; which of them asks first is up to the scheduler."""
    store = MortalStore()
    result = _two_workers(store, first="x", second_is_held=False, die_before="x")
    assert result is None

    store.live()
    # Now y asks first, and x goes on while y is held up between its two steps.
    assert _two_workers(store, first="y", second_is_held=True) == ["x", "y"]


def _two_workers(store: MortalStore, *, first: str, second_is_held: bool, die_before: str = "") -> list[str] | None:
    asked = {"x": threading.Event(), "y": threading.Event()}
    acted = {"x": threading.Event(), "y": threading.Event()}
    other = {"x": "y", "y": "x"}

    @steplog.step(name="look", mode="safe")
    def look() -> str:
        return "same for both"

    @steplog.step(name="act")
    def act(who: str) -> str:
        return who

    def branch(who: str) -> str:
        if who != first:
            asked[first].wait(10)
        look()
        asked[who].set()
        if who == die_before:
            acted[other[who]].wait(10)
            store.dead = True
        elif who == first and second_is_held:
            # Long enough for the other to ask for its own next step, and never for ever.
            acted[other[who]].wait(0.3)
        value = act(who)
        acted[who].set()
        return value

    try:
        with steplog.run(RUN, store=store):
            with ThreadPoolExecutor(2) as pool:
                futures = [pool.submit(branch, who) for who in "xy"]
            return [future.result() for future in futures]
    except BaseException:
        if store.dead:
            return None
        raise
