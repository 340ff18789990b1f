"""What a pool of threads is given to do belongs to the run in which it was given, whenever the pool was made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

import steplog
from steplog._runtime import threads
from tests.support.processes import environment


@steplog.step(mode="safe")
def tool(x: int) -> int:
    return x * x


@steplog.step(mode="safe")
def add(x: int, y: int) -> int:
    return x + y


def recorded(items: list[int]) -> Any:
    """Items that are steps themselves, taken by whoever iterates."""
    return (tool(item) for item in items)


GIVEN: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "apply": (lambda pool: pool.apply(tool, (3,)), 9),
    "apply_async": (lambda pool: pool.apply_async(func=tool, kwds={"x": 3}).get(), 9),
    "map": (lambda pool: pool.map(tool, [1, 2, 3]), [1, 4, 9]),
    "map_async": (lambda pool: pool.map_async(tool, [1, 2, 3], chunksize=2).get(), [1, 4, 9]),
    "starmap": (lambda pool: pool.starmap(add, [(1, 2), (3, 4)]), [3, 7]),
    "starmap_async": (lambda pool: pool.starmap_async(add, [(1, 2), (3, 4)]).get(), [3, 7]),
    "imap": (lambda pool: list(pool.imap(tool, [1, 2, 3])), [1, 4, 9]),
    "imap in chunks": (lambda pool: list(pool.imap(tool, [1, 2, 3], 2)), [1, 4, 9]),
    "imap_unordered": (lambda pool: sorted(pool.imap_unordered(tool, [1, 2, 3])), [1, 4, 9]),
    "items that are steps": (lambda pool: list(pool.imap(lambda x: x, recorded([1, 2, 3]))), [1, 4, 9]),
}


@pytest.mark.parametrize("give", GIVEN)
def test_a_pool_that_an_outer_run_has_made(give, state_of):
    work, expected = GIVEN[give]
    with steplog.run("outer"), ThreadPool(2) as pool:
        with steplog.run("inner") as run:
            assert work(pool) == expected
            executed = run.executed
        with steplog.run("inner") as run:
            assert work(pool) == expected
            assert (run.executed, run.replayed) == (0, executed)
    assert len(state_of("inner").steps) == executed > 0
    assert not state_of("outer").steps


@pytest.mark.parametrize("make", [ThreadPool, ThreadPoolExecutor])
def test_a_pool_that_is_older_than_every_run(make, state_of):
    with make(2) as pool:
        give = pool.map
        list(give(str, [1, 2]))
        for name in ("a", "b"):
            with steplog.run(name):
                assert list(give(tool, [1, 2, 3])) == [1, 4, 9]
    assert len(state_of("a").steps) == len(state_of("b").steps) == 3


def test_a_callback_belongs_to_the_run_as_well(state_of):
    with steplog.run("outer"), ThreadPool(1) as pool, steplog.run("inner"):
        pool.apply_async(tool, (3,), callback=tool).wait()
        pool.close()
        pool.join()
    assert len(state_of("inner").steps) == 2
    assert not state_of("outer").steps


def test_wrong_arguments_are_refused_as_ever():
    with ThreadPool(1) as pool:
        with pytest.raises(TypeError, match="func"):
            pool.apply_async()
        with pytest.raises(TypeError):
            list(pool.imap(tool, 3))


def test_the_patches_are_taken_back():
    threads.install()
    assert "map" in vars(ThreadPool)
    threads.uninstall()
    assert not {"map", "imap", "apply_async"} & set(vars(ThreadPool))
    threads.install()


def test_a_pool_whose_module_is_imported_inside_the_run(tmp_path):
    program = """
import sys, steplog
@steplog.step(mode="safe")
def tool(x): return x
steplog.install(home="home", interceptors=[])
with steplog.run("outer") as outer:
    assert "multiprocessing.pool" not in sys.modules
    from multiprocessing.pool import ThreadPool
    with ThreadPool(1) as pool, steplog.run("inner") as inner:
        pool.map(tool, [1, 2])
        print(outer.executed, inner.executed)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "2"]
