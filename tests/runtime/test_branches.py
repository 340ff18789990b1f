"""A resume of an unchanged program waits for nobody, whatever threads there are beside those that ask for something.

What a live run starts and a replayed one does not (or at another moment, or as often as it likes) must not change the
names of the program's branches: under another name a branch would wait until somebody comes for what it did itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import steplog

# Longer than the test may take: who waits for a branch that never comes, waits this long.
HOURS = 10_000.0


@steplog.step(mode="safe")
async def ask(x: int) -> int:
    return x + 1


@steplog.step(mode="safe")
def look(x: int) -> int:
    return x * x


def look_up() -> int:
    return look(3)


def errand() -> None:
    """Asks for nothing, like a thread that waits for output or looks up a host."""


def no_errands() -> None:
    """The committer alone, which begins where the first outcome is written."""


def errands_in_threads() -> None:
    for thread in [threading.Thread(target=errand) for _ in range(2)]:
        thread.start()
        thread.join()


def errands_in_a_pool() -> None:
    with ThreadPoolExecutor(2) as pool:
        pool.submit(errand)
        pool.submit(functools.partial(contextvars.copy_context().run, errand)).result()


async def dispatch(errands, begin, *, dies: bool) -> list[int]:
    found: list[int] = []
    async with steplog.run("r"):
        # In a task of its own, as agent frameworks do it: then the place at which threads are started stays the same.
        await asyncio.gather(ask(1))
        errands()
        await begin(found)
        if dies:
            raise ConnectionError
    return found


async def in_a_thread(found: list[int]) -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:  # as what the committer's thread runs is called, too
        found.append(look_up())
        loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run).start()
    await done.wait()


async def in_a_pool(found: list[int]) -> None:
    with ThreadPoolExecutor(1) as pool:
        run = functools.partial(contextvars.copy_context().run, look_up)
        found.append(await asyncio.get_running_loop().run_in_executor(pool, run))


@pytest.mark.parametrize("begin", [in_a_thread, in_a_pool])
@pytest.mark.parametrize("errands", [no_errands, errands_in_threads, errands_in_a_pool])
async def test_threads_that_ask_for_nothing_make_nobody_wait(home, errands, begin):
    steplog.install(home=home, interceptors=[], drift_grace=HOURS)
    with pytest.raises(ConnectionError):
        await dispatch(errands, begin, dies=True)
    assert await asyncio.wait_for(dispatch(lambda: None, begin, dies=False), 8) == [9]
