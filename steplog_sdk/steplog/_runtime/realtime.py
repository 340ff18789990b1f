"""Waits of steplog's own in an event loop: they keep real time, also where the program's time is virtual."""

from __future__ import annotations

from typing import Any


class RealTimer:
    """The callback of a timer that virtual time is not moved on to."""

    __slots__ = ("_future",)

    def __init__(self, future: Any) -> None:
        self._future = future

    def __call__(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


async def sleep(seconds: float) -> None:
    """As `asyncio.sleep`."""
    import asyncio  # only a program with tasks gets here

    loop = asyncio.get_running_loop()
    future = loop.create_future()
    timer = loop.call_later(seconds, RealTimer(future))
    try:
        await future
    finally:
        timer.cancel()


async def wait(future: Any, seconds: float) -> bool:
    """Wait until a future is done, for so many seconds at most; tells whether it is."""
    import asyncio  # as above

    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, RealTimer(over))
    try:
        await asyncio.wait([future, over], return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
    return bool(future.done())
