"""What concurrent branches draw for themselves: after a crash each branch finds its own again.

Generated programs fork into threads and tasks whose branches make the same call (a random number, say) and go on with
what it returned, into side effects and into branches of their own. A branch that were given what another one drew would
ask for an effect that is not in the log.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import steplog
from steplog._kernel.fold import fold
from steplog._runtime.resolve import resolve
from tests.faults.test_resume_equivalence import MortalStore, crashes_end_threads
from tests.support.examples import examples

RUN = "draws"
NUMBERS = itertools.count()
ledger: list[str] = []


class Draw(NamedTuple):
    """Draw a number and act on it, under a label of this place in the program."""

    times: int


class Seq(NamedTuple):
    """One after the other."""

    parts: tuple[Any, ...]


class Threads(NamedTuple):
    """Workers of a pool."""

    parts: tuple[Any, ...]


class Tasks(NamedTuple):
    """Tasks of an event loop, which draw by plain calls and act by calls that are awaited."""

    parts: tuple[Any, ...]


@steplog.step
def act(what: str) -> str:
    ledger.append(what)
    return what


@steplog.step(name="act")
async def act_in_task(what: str) -> str:
    await asyncio.sleep(0)
    ledger.append(what)
    return what


def play(node: Any, place: str = "") -> Any:
    """Play a program in this thread."""
    match node:
        case Draw(times):
            return [act(f"{place} {steplog.step('draw', NUMBERS.__next__)}") for _ in range(times)]
        case Seq(parts):
            return [play(part, f"{place}{number}") for number, part in enumerate(parts)]
        case Threads(parts):
            with ThreadPoolExecutor(len(parts)) as pool:
                futures = [pool.submit(play, part, f"{place}{number}") for number, part in enumerate(parts)]
            return [future.result() for future in futures]
        case Tasks(parts):
            return asyncio.run(_tasks(parts, place))
    raise TypeError(node)


async def _tasks(parts: tuple[Any, ...], place: str) -> Any:
    async def branch(number: int, part: Any) -> Any:
        if isinstance(part, Threads):
            return await asyncio.to_thread(play, part, f"{place}{number}")
        acted = []
        for _ in range(getattr(part, "times", 1)):
            # A plain call draws: in an event loop it cannot wait for anybody.
            acted.append(await act_in_task(f"{place}{number} {steplog.step('draw', NUMBERS.__next__)}"))
        return acted

    results = await asyncio.gather(*(branch(*one) for one in enumerate(parts)), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _programs(*branches: Any) -> st.SearchStrategy[Any]:
    def compounds(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        parts = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.one_of(*(st.builds(kind, parts) for kind in (Seq, *branches)))

    return st.recursive(st.builds(Draw, st.integers(1, 2)), compounds, max_leaves=8)


CRASHES = st.lists(st.tuples(st.integers(3, 40), st.booleans()), min_size=1, max_size=3)


@pytest.fixture(autouse=True, scope="module")
def _installed() -> Iterator[None]:
    steplog.install(interceptors=[], strict=True, drift_grace=2)
    yield
    steplog.uninstall()


@pytest.fixture(autouse=True)
def _a_crash_ends_its_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from crashes_end_threads(monkeypatch, RUN)


def flat(result: Any) -> Iterator[str]:
    if isinstance(result, str):
        yield result
    else:
        for part in result:
            yield from flat(part)


def dispatch(store: MortalStore, program: Any) -> Any:
    """What a process of this program returns; None when it dies, or is stopped at a step in doubt, which is settled."""
    try:
        with steplog.run(RUN, store=store):
            return play(program)
    except BaseException as error:
        if store.dead:
            return None
        if isinstance(error, steplog.RunStopped) and error.reason == "indeterminate":
            store.live()
            settle(store, error.step)
            return None
        raise


def settle(store: MortalStore, step: str) -> None:
    found = fold(store.read(RUN).events).steps[step]
    what = found.started["args"]["what"]
    resolve(store, RUN, step, how="done" if what in ledger else "retry", result=what)


def played(program: Any, crashes: list[tuple[int, bool]]) -> Any:
    """The result of a program that was killed and started again until it ended."""
    store = MortalStore()
    ledger.clear()
    for at, before in itertools.chain(crashes, [(0, False)] * 20):
        store.live(at, before=before)
        if (result := dispatch(store, program)) is not None:
            return result
    raise AssertionError("no end after 20 processes without a crash")


@pytest.mark.nightly
@settings(max_examples=examples(2), suppress_health_check=[HealthCheck.too_slow])
@given(program=_programs(Threads), crashes=CRASHES)
def test_every_branch_finds_what_it_drew_itself(program, crashes):
    """On a machine that is not busy: which of two threads begins first is up to the scheduler."""
    result = played(program, crashes)

    done = Counter(ledger)
    assert set(done.values()) <= {1}, "an effect happened twice"
    assert Counter(flat(result)) == done, "an effect happened that the result knows nothing of"


@pytest.mark.parametrize("branches", [(Threads,), (Threads, Tasks)], ids=["threads", "tasks"])
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(program=st.data(), crashes=CRASHES)
def test_what_branches_draw_comes_back_or_the_run_stops(branches, program, crashes):
    """Tasks are told apart by the order in which they ask, and a plain call in one cannot wait for its turn."""
    program = program.draw(_programs(*branches))
    try:
        result = played(program, crashes)
    except steplog.RunStopped as stopped:
        result, reason = None, stopped.reason
    else:
        reason = None

    done = Counter(ledger)
    assert set(done.values()) <= {1}, "an effect happened twice"
    assert reason in (None, "drift")
    assert result is None or Counter(flat(result)) == done, "an effect happened that the result knows nothing of"


def test_a_branch_that_draws_once_more_leaves_another_one_what_it_drew():
    """It comes to the end of what it has recorded before the other one has asked for anything."""

    def agent(times: int, *, late: bool) -> list[Any]:
        def other() -> Any:
            time.sleep(0.3 * late)
            return play(Draw(1), "other")

        with steplog.run(RUN, store=store), ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(play, Draw(times), "one"), pool.submit(other)]
            found = [future.result() for future in futures]
            if times == 1:
                raise KeyboardInterrupt
        return found

    store = MortalStore()
    ledger.clear()
    with pytest.raises(KeyboardInterrupt):
        agent(1, late=False)
    recorded = set(ledger)

    found = agent(2, late=True)

    assert sorted(flat(found)) == sorted(ledger)
    assert len(ledger) == 3
    assert recorded < set(ledger)
