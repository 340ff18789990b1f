"""Methods of an SDK as steps, given nothing but a function that says what a call asks for."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final

from steplog._runtime.door import PROCESS, active
from steplog._runtime.patches import Patch, Wrapper
from steplog._runtime.record import record, record_async, record_items, record_items_async
from steplog._runtime.ticket import Call, Ticket
from steplog.errors import InvalidArgument

log: Final = logging.getLogger("steplog")

Describe = Callable[..., Call | None]


def recording(describe: Describe, *, key: str | None = None) -> Wrapper:
    """A wrapper for `Patches.apply`: every call of the method, plain or async, is a step.

    Args:
        describe: called with the arguments of the method (`self` first), says what the call asks for; None lets it
            pass unrecorded. It must not use arguments up, such as a generator.
        key: name of a keyword parameter through which the SDK takes an idempotency key. It gets the step's key, the
            same for every attempt, unless the caller passes one. Needed for mode `keyed`.
    """
    calls = _Calls(describe, key)

    def wrap(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(original):

            async def replaced_async(*args: Any, **kwargs: Any) -> Any:
                call = calls.of(original, args, kwargs) if patch.on else None
                if call is None:
                    return await original(*args, **kwargs)
                return await record_async(call, lambda ticket: original(*args, **calls.keyed(ticket, kwargs)))

            return replaced_async

        def replaced(*args: Any, **kwargs: Any) -> Any:
            call = calls.of(original, args, kwargs) if patch.on else None
            if call is None:
                return original(*args, **kwargs)
            return record(call, lambda ticket: original(*args, **calls.keyed(ticket, kwargs)))

        return replaced

    return wrap


def recording_items(
    describe: Describe, *, last: Callable[[Any], bool] | None = None, key: str | None = None
) -> Wrapper:
    """The same for a method that gives an iterator: a generator, plain or async, or a function that returns one.

    The iterator that the caller gets is one of steplog's, with `close` or `aclose` and usable in a `with` statement. So
    patch the method below the SDK's own stream class, where lines or events are still a plain iterator.

    Args:
        describe: as for `recording`.
        last: whether an item completes the stream, such as an end mark; the step is on disk before that item is handed
            on. Without it, a reader that stops at its end mark and reads no further has left the stream early.
        key: as for `recording`.
    """
    calls = _Calls(describe, key)

    def wrap(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        def open_now(args: Any, kwargs: Any) -> Iterator[Any]:
            call = calls.of(original, args, kwargs) if patch.on else None
            if call is None:
                found: Iterator[Any] = original(*args, **kwargs)
                return found
            return record_items(call, lambda ticket: original(*args, **calls.keyed(ticket, kwargs)), last)

        async def open_now_async(args: Any, kwargs: Any) -> AsyncIterator[Any]:
            async def effect(ticket: Ticket | None) -> Any:
                opened = original(*args, **calls.keyed(ticket, kwargs))
                return await opened if inspect.isawaitable(opened) else opened

            call = calls.of(original, args, kwargs) if patch.on else None
            found: AsyncIterator[Any] = await (effect(None) if call is None else record_items_async(call, effect, last))
            return found

        return _like(original, open_now, open_now_async)

    return wrap


def _like(original: Callable[..., Any], open_now: Any, open_now_async: Any) -> Callable[..., Any]:
    """A function of the same kind as the original, so that a generator still begins with its first item."""
    if inspect.isasyncgenfunction(original):

        async def generated_async(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async with aclosing(await open_now_async(args, kwargs)) as items:
                async for item in items:
                    yield item

        return generated_async
    if inspect.iscoroutinefunction(original):

        async def opened_async(*args: Any, **kwargs: Any) -> Any:
            return await open_now_async(args, kwargs)

        return opened_async
    if inspect.isgeneratorfunction(original):

        def generated(*args: Any, **kwargs: Any) -> Iterator[Any]:
            yield from _each(open_now(args, kwargs))

        return generated

    def opened(*args: Any, **kwargs: Any) -> Any:
        return open_now(args, kwargs)

    return opened


def _each(items: Iterator[Any]) -> Iterator[Any]:
    """The items, from a generator that knows why it is closed when it closes them; `yield from` alone does not."""
    try:
        for item in items:  # noqa: UP028  # see above
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


class _Calls:
    """What calls of one method ask for."""

    def __init__(self, describe: Describe, key: str | None) -> None:
        self._describe = describe
        self._key = key

    def of(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """The effect, or None where the call is to pass."""
        try:
            call = self._describe(*args, **kwargs)
        except Exception:
            if not _fits(original, args, kwargs):
                return None  # the SDK itself complains, in its own words
            if active() or (PROCESS.settings is not None and PROCESS.settings.strict):
                raise
            log.debug("%s could not be described; no run is open", original, exc_info=True)
            return None
        if call is not None and call.mode == "keyed" and self._key is None:
            message = (
                f"{call.target}: mode 'keyed' repeats a call under its idempotency key, and nothing passes that on."
                f'\nName the parameter that takes it: recording(describe, key="idempotency_key")'
            )
            raise InvalidArgument(message)
        return call

    def keyed(self, ticket: Ticket | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The call's keyword arguments, with the step's key where the SDK takes one."""
        if ticket is None or self._key is None or kwargs.get(self._key) is not None:
            return kwargs
        return {**kwargs, self._key: ticket.key}


def _fits(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        inspect.signature(original).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True
