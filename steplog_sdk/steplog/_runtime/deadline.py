"""An awaited effect ends with the time that the run's budget leaves."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from steplog._runtime.ticket import Ticket

T = TypeVar("T")


async def within(ticket: Ticket, effect: Awaitable[T]) -> T:
    """Await an effect, for no longer than the run may still be at work.

    Raises:
        BudgetExceeded: the time is up. The effect was cancelled, and its outcome is not known.
    """
    import asyncio

    seconds = ticket.remaining()
    if seconds is None or asyncio.current_task() is None:
        return await effect
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await effect
    except TimeoutError:
        if limit.expired():
            ticket.check_deadline()
        raise
