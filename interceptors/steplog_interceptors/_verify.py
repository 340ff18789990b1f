"""A recorded model call, made once more to see whether its answer still has the form that was recorded.

The program gets the recorded answer all the same, so that whatever follows from it is what was recorded too. Only calls
that may be repeated are made, and only those that were answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from steplog import plugins
from steplog_interceptors._call import CURRENT, PASSING
from steplog_interceptors._exchange import Exchange
from steplog_interceptors._pieces import body_of

if TYPE_CHECKING:
    from steplog_interceptors._wire import Attempt


def _wanted(attempt: Attempt) -> Exchange | None:
    """The recorded exchange that is to be compared, or None."""
    call = attempt.call
    if plugins.checking() is None or call.kind != "llm_call" or call.ticket is None or call.ticket.call.mode != "safe":
        return None
    exchange = call.expected(attempt.name)
    return exchange if exchange is not None and exchange.get("status", 599) < 400 else None


def verify(attempt: Attempt, original: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Make the call of an attempt that is about to be answered from the log, where that is wanted."""
    exchange = _wanted(attempt)
    if exchange is None:
        return
    attempt.make_ready()
    token = CURRENT.set(PASSING)
    try:
        response = original(attempt.client, attempt.request, *args, **kwargs)
        response.read()
    finally:
        CURRENT.reset(token)
    _compare(attempt, exchange, response)


async def verify_async(attempt: Attempt, original: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """The same from a task."""
    exchange = _wanted(attempt)
    if exchange is None:
        return
    await attempt.make_ready_async()
    token = CURRENT.set(PASSING)
    try:
        response = await original(attempt.client, attempt.request, *args, **kwargs)
        await response.aread()
    finally:
        CURRENT.reset(token)
    _compare(attempt, exchange, response)


def _compare(attempt: Attempt, exchange: Exchange, response: Any) -> None:
    check = plugins.checking()
    ticket = attempt.call.ticket
    if check is None or ticket is None:
        return
    kind = next((value for name, value in exchange.get("headers", ()) if name.lower() == "content-type"), "")
    check(
        ticket.call.target,
        plugins.Answer(exchange["status"], kind, body_of(attempt.call.recorded, exchange)),
        plugins.Answer(response.status_code, response.headers.get("content-type", ""), response.content),
    )
