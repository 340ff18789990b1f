"""A recorded model call, made once more to see whether its answer still has the form that was recorded.

The program gets the recorded answer all the same, so that whatever follows from it is what was recorded too. Only calls
that may be repeated are made, and only those that were answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from steplog import plugins
from steplog_interceptors._call import CURRENT, PASSING, LogicalCall, Refused
from steplog_interceptors._exchange import Exchange
from steplog_interceptors._pieces import body_of

if TYPE_CHECKING:
    from steplog_interceptors._wire import Attempt

# How a stream ended of which everything was read; any other was left, or broke.
_WHOLE: Final = ("terminal", "length", "eof", None)


def wanted(call: LogicalCall, name: str | None) -> Exchange | None:
    """The recorded exchange of a call that is to be compared with a new one, or None."""
    if plugins.checking() is None or call.kind != "llm_call" or call.ticket is None or call.ticket.call.mode != "safe":
        return None
    exchange = call.expected(name)
    return exchange if exchange is not None and exchange.get("status", 599) < 400 else None


def verify(attempt: Attempt, original: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Make the call of an attempt that is about to be answered from the log, where that is wanted."""
    exchange = wanted(attempt.call, attempt.name)
    if exchange is None:
        return
    token = CURRENT.set(PASSING)
    try:
        attempt.make_ready()
        response = original(attempt.client, attempt.request, *args, **kwargs)
        response.read()
    except (Exception, Refused) as error:  # noqa: BLE001  # the program gets the recorded answer, the test is told
        found = unanswered(error)
    else:
        found = _answer(response)
    finally:
        CURRENT.reset(token)
    compare(attempt.call, exchange, found)


async def verify_async(attempt: Attempt, original: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """The same from a task."""
    exchange = wanted(attempt.call, attempt.name)
    if exchange is None:
        return
    token = CURRENT.set(PASSING)
    try:
        await attempt.make_ready_async()
        response = await original(attempt.client, attempt.request, *args, **kwargs)
        await response.aread()
    except (Exception, Refused) as error:  # noqa: BLE001  # the program gets the recorded answer, the test is told
        found = unanswered(error)
    else:
        found = _answer(response)
    finally:
        CURRENT.reset(token)
    compare(attempt.call, exchange, found)


def _answer(response: Any) -> plugins.Answer:
    return plugins.Answer(response.status_code, response.headers.get("content-type", ""), response.content)


def unanswered(error: BaseException) -> plugins.Answer:
    """What stands for the answer to a call that has failed."""
    error = error.error if isinstance(error, Refused) else error
    return plugins.Answer(0, "", f"{type(error).__name__}: {error}".encode())


def compare(call: LogicalCall, exchange: Exchange, found: plugins.Answer) -> None:
    """Hand both answers to whoever compares them."""
    check = plugins.checking()
    if check is None or call.ticket is None:
        return
    kind = next((value for name, value in exchange.get("headers", ()) if name.lower() == "content-type"), "")
    whole = exchange.get("end") in _WHOLE
    recorded = plugins.Answer(exchange["status"], kind, body_of(call.recorded, exchange), whole)
    check(call.ticket.call.target, recorded, found)
