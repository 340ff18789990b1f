"""How a half of the recorder, written once as a generator, is driven by a thread or by a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import TypeVar

from steplog._runtime import realtime
from steplog._runtime.context import current_task
from steplog._runtime.group import Entry
from steplog._runtime.turns import Turn

T = TypeVar("T")


class Pause:
    """Something to wait for: a number of seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Work:
    """Something that takes a while and waits for nobody, such as reading a long file."""

    __slots__ = ("do",)

    def __init__(self, do: Callable[[], None]) -> None:
        self.do = do


Wait = Entry | Pause | Turn | Work
Steps = Generator[Wait, None, T]
"""Yields what it waits for: an entry until it is in the log, a turn in the recorded order, a pause, or work."""


def run(steps: Steps[T]) -> T:
    """Drive one half from a thread; it blocks where the half waits."""
    try:
        wait = next(steps)
        while True:
            try:
                if isinstance(wait, Entry):
                    wait.in_line.wait(wait)
                else:
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
                if isinstance(wait, Entry):
                    future = wait.in_line.wait_in_loop(wait)
                    if future is not None:
                        await future
                        wait.check()
                else:
                    await _pause(wait)
            except BaseException as error:  # noqa: BLE001  # thrown into the half, which decides and re-raises
                wait = steps.throw(error)
            else:
                wait = next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result


def _block(wait: Turn | Pause | Work) -> None:
    if isinstance(wait, Turn):
        wait.wait()
    elif isinstance(wait, Work):
        wait.do()
    else:
        time.sleep(wait.seconds)


async def _pause(wait: Turn | Pause | Work) -> None:
    if isinstance(wait, Turn):
        await wait.wait_async()
    elif isinstance(wait, Work) and current_task() is None:
        wait.do()  # another async library's loop
    elif not isinstance(wait, Work):
        await realtime.sleep(wait.seconds)
    else:
        import asyncio

        try:
            await asyncio.to_thread(wait.do)
        except RuntimeError:  # the loop is about to end and starts no thread any more
            wait.do()
