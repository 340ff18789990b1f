"""`sleep` and `sleep_until`: pauses that outlive the process."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from steplog._runtime.door import place_of
from steplog._runtime.wait import Wanted, for_seconds, until, wait_here, wait_here_async


def sleep(seconds: float) -> None:
    """Pause the run, durably: when it goes on is recorded, and a run that is resumed waits for the rest.

    Outside every run it is `time.sleep`. A run opened with `on_wait="suspend"` stops meanwhile (docs/waiting.md).

    Args:
        seconds: for how long, by the wall clock.

    Raises:
        InvalidArgument: no number of seconds from 0, or called in an event loop, which it would stop.
        Interrupt: the run is halted or cancelled, or is suspended meanwhile.
    """
    _pause(for_seconds(seconds), seconds)


def sleep_until(moment: datetime) -> None:
    """Pause the run until a moment, durably. As `sleep`.

    Args:
        moment: with a time zone. One that has passed ends the pause at once.
    """
    _pause(until(moment), (moment - datetime.now(UTC)).total_seconds())


async def sleep_async(seconds: float) -> None:
    """As `sleep`, for a task; other tasks go on meanwhile."""
    await _pause_async(for_seconds(seconds), seconds)


async def sleep_until_async(moment: datetime) -> None:
    """As `sleep_until`, for a task; other tasks go on meanwhile."""
    await _pause_async(until(moment), (moment - datetime.now(UTC)).total_seconds())


def _pause(wanted: Wanted, seconds: float) -> None:
    place = place_of("local", wanted.target)
    if place is None:
        time.sleep(max(0.0, seconds))
    else:
        wait_here(wanted, place)


async def _pause_async(wanted: Wanted, seconds: float) -> None:
    place = place_of("local", wanted.target)
    if place is None:
        import asyncio

        await asyncio.sleep(max(0.0, seconds))
    else:
        await wait_here_async(wanted, place)
