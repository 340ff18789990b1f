"""A call as a step, whatever it returns: the half of an interceptor that is the same for every SDK.

`record` is for a call that returns its whole result, `recorded_items` for one that returns an iterator. Both keep the
promises that are easy to break by hand: the outcome is on disk before the caller sees it, a failure comes back as the
same exception and is tried again where it ended the run, a caller that was cancelled or interrupted leaves the step as
a crash would, and what cannot be recorded halts the run instead of being lost.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

from steplog._kernel.codec import encode
from steplog._kernel.identity import args_hash, check_mode
from steplog._runtime import settle
from steplog._runtime.context import frame, inside
from steplog._runtime.door import active, place_of
from steplog._runtime.drive import Steps, run, run_async
from steplog._runtime.items import AsyncItems, Items, ReplayedAsyncItems, ReplayedItems
from steplog._runtime.outcome import ARGUMENTS, done, failure, raised, returned
from steplog._runtime.ticket import Call, Ticket
from steplog.errors import InvalidArgument

T = TypeVar("T")

_KINDS: Final = ("llm_call", "tool_call", "local")


def begin(call: Call) -> Ticket | None:
    """Submit an effect from a thread.

    Returns:
        A ticket, or None when no run is open here and the call is to pass through untouched.

    Raises:
        Interrupt: the run is halted, or halts because of this effect.
        StepDenied: the run's policy denies it, or has denied it when it was recorded.
        NotInRun: no run is open here, under `install(strict=True)`.
        InvalidArgument: the call's kind or mode is none that an interceptor may use.
        EncodeError: `args` cannot be recorded.
    """
    _check(call)
    place = place_of(call.kind, call.target, call.mode)
    return None if place is None else _permitted(settle.begin(place.recorder, call, place))


async def begin_async(call: Call) -> Ticket | None:
    """Submit an effect from a task. The event loop never waits for the disk."""
    _check(call)
    place = place_of(call.kind, call.target, call.mode)
    return None if place is None else _permitted(await settle.begin_async(place.recorder, call, place))


def _permitted(ticket: Ticket) -> Ticket:
    """Raise the denial of a step that was denied, now or when it was recorded.

    Here, so that an interceptor treats it like any refusal of the recorder, and need not know what a denial is.
    """
    if ticket.recorded is None or not ticket.recorded.denied:
        return ticket
    error = raised(ticket)
    ticket.replayed(error)
    raise error


def foresee(call: Call) -> dict[str, Any] | None:
    """What the log holds of the outcome that a call would get if it were submitted here now; None where it would run.

    For preparations that a recorded call does not need, such as fetching a token. It is a hint that commits to nothing:
    with identical calls in several branches the answer may be another one when the call is submitted.
    """
    place = frame() if active() else None
    return None if place is None else place.recorder.dispatch.foresee(call, place, args_hash(call.args))


def asked() -> int:
    """How many steps the program has asked for so far in the run that is open here; 0 where none is."""
    place = frame()
    return 0 if place is None else place.recorder.dispatch.asked


def _check(call: Call) -> None:
    if call.kind not in _KINDS:
        raise InvalidArgument(f"{call.target}: unknown kind {call.kind!r}. The kinds are {', '.join(_KINDS)}.")
    if call.mode == "verify":
        message = f"{call.target}: mode 'verify' is for tools, which have a verify function. Use 'keyed' or 'unsafe'."
        raise InvalidArgument(message)
    check_mode(call.mode, call.target)
    if call.request is None:
        call.args = encode(call.args, "args", ARGUMENTS)


def record(call: Call, effect: Callable[[Ticket | None], T]) -> T:
    """Perform an effect as a step, or give back what it gave when it was recorded.

    Args:
        call: what is asked, and what may be done with it after a crash.
        effect: performs it, with the step's ticket (for its `key` and `attempt`), or with None outside every run,
            where nothing is recorded. Not called when the outcome is in the log.

    Raises:
        Exception: what `effect` raises, now or when it was recorded.
        Interrupt, NotInRun, InvalidArgument, EncodeError: as `begin` raises them; Interrupt also where the result
            cannot be recorded, since a resumed run could not return it.
    """
    ticket = begin(call)
    if ticket is None:
        return effect(None)
    if ticket.recorded is not None:
        result: T = returned(ticket)
        return result
    try:
        with inside(ticket.recorder, ticket.step):
            result = effect(ticket)
        _refuse_unfinished(result, call)
    except Exception as error:
        run(_failed(ticket, error))
        raise
    run(done(ticket.recorder, ticket, result))
    return result


async def record_async(call: Call, effect: Callable[[Ticket | None], Awaitable[T]]) -> T:
    """The same from a task."""
    ticket = await begin_async(call)
    if ticket is None:
        return await effect(None)
    if ticket.recorded is not None:
        result: T = returned(ticket)
        return result
    try:
        with inside(ticket.recorder, ticket.step):
            result = await effect(ticket)
    except Exception as error:
        await run_async(_failed(ticket, error))
        raise
    except BaseException as interruption:
        _note_cancelled(ticket, interruption)
        raise
    await run_async(done(ticket.recorder, ticket, result))
    return result


def record_items(
    call: Call, effect: Callable[[Ticket | None], Iterator[T]], last: Callable[[T], bool] | None = None
) -> Iterator[T]:
    """Perform an effect that returns an iterator as a step, or give back the items that it gave.

    An item reaches its reader at once. The step ends with the iterator: when it is exhausted, fails or is closed.

    Args:
        call: what is asked, and what may be done with it after a crash.
        effect: performs it, as for `record`, and returns the iterator of the items.
        last: whether an item completes the stream; the step is on disk before that item is handed on. None where only
            the end of the iterator tells.
    """
    ticket = begin(call)
    if ticket is None:
        return effect(None)
    if ticket.recorded is not None:
        return ReplayedItems(ticket)
    try:
        with inside(ticket.recorder, ticket.step):
            source = iter(effect(ticket))
    except Exception as error:
        run(_failed(ticket, error))
        raise
    return Items(ticket, source, last)


async def record_items_async(
    call: Call, effect: Callable[[Ticket | None], Awaitable[AsyncIterator[T]]], last: Callable[[T], bool] | None = None
) -> AsyncIterator[T]:
    """The same from a task."""
    ticket = await begin_async(call)
    if ticket is None:
        return await effect(None)
    if ticket.recorded is not None:
        return ReplayedAsyncItems(ticket)
    try:
        with inside(ticket.recorder, ticket.step):
            source = aiter(await effect(ticket))
    except Exception as error:
        await run_async(_failed(ticket, error))
        raise
    except BaseException as interruption:
        _note_cancelled(ticket, interruption)
        raise
    return AsyncItems(ticket, source, last)


def _refuse_unfinished(result: Any, call: Call) -> None:
    """Refuse what is still to come: it cannot be recorded before it is seen."""
    if not inspect.isawaitable(result) and not isinstance(result, Iterator):
        return
    kind, instead = ("an awaitable", "record_async") if inspect.isawaitable(result) else ("an iterator", "record_items")
    if inspect.iscoroutine(result):
        result.close()
    message = (
        f"{call.target}: the call gave {kind}, whose outcome cannot be recorded before it is seen. Patch the async "
        f"function that makes it, or use {instead} (recording_items, for a method that gives an iterator)."
    )
    raise InvalidArgument(message)


def _failed(ticket: Ticket, error: Exception) -> Steps[None]:
    return ticket.recorder.finish(ticket, "failed", {"error": failure(error)}, error=error)


def _note_cancelled(ticket: Ticket, interruption: BaseException) -> None:
    import asyncio  # a program without tasks does not pay for it

    if isinstance(interruption, asyncio.CancelledError):
        ticket.cancelled()
