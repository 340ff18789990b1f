"""`step`, the one public name for decorating tools and recording local values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, TypeVar, overload

from steplog._runtime.door import PROCESS
from steplog._runtime.step import Tool, call_async, call_sync
from steplog.errors import InvalidArgument

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@overload
def step(fn: F, /) -> F: ...


@overload
def step(name: str, fn: Callable[[], Awaitable[T]], /) -> Awaitable[T]: ...


@overload
def step(name: str, fn: Callable[[], T], /) -> T: ...


@overload
def step(
    *,
    mode: str = ...,
    name: str | None = ...,
    verify: Callable[..., Any] | None = ...,
    retries: int = ...,
    backoff: float = ...,
    retry_on: tuple[type[Exception], ...] = ...,
    ignore: Collection[str] = ...,
    undo: Callable[..., Any] | None = ...,
) -> Callable[[F], F]: ...


def step(
    *args: Any,
    mode: str | None = None,
    name: str | None = None,
    verify: Callable[..., Any] | None = None,
    retries: int = 0,
    backoff: float = 0.5,
    retry_on: tuple[type[Exception], ...] = (Exception,),
    ignore: Collection[str] = (),
    undo: Callable[..., Any] | None = None,
) -> Any:
    """Record a tool's calls, or a local value, as steps of the open run.

    As a decorator, `@step` or `@step(mode=..., ...)`, on a sync or async function or method. Its signature and types
    stay. Every call inside a run is recorded once; a resumed run gets the recorded result, or the recorded exception.

    As a call, `step(name, fn)`: records what `fn()` returns, such as the current time or a random choice, and returns
    it; with an async `fn`, `await step(name, fn)`.

    Args:
        *args: a function to decorate, or a name and a function to call.
        mode: what may be done when a process died between beginning and outcome. `unsafe` (default of a tool): the run
            halts with `Indeterminate` until somebody settles it. `safe`: run again. `keyed`: run again under the same
            key, which the function takes as `idempotency_key`. `verify`: ask the `verify` function. A local value is
            always `safe`, and takes none of the other options.
        name: name to record under; the function's qualified name by default.
        verify: for mode `verify`: called with the step's arguments, returns `Happened(result)`, `NOT_HAPPENED` or
            `UNKNOWN`.
        retries: how many further attempts follow a failed one. Each is recorded.
        backoff: seconds before the second attempt, doubled each time.
        retry_on: exceptions that are retried.
        ignore: names of parameters that are not part of what the call asks for, such as a client or a context object.
        undo: takes a finished call back when `steplog.undo` undoes its run: called with the step's result, and by name
            with those of the step's arguments that it takes. May be a step itself, with its own mode.

    Raises:
        InvalidArgument: the function or an option is not accepted.
        EncodeError: an argument cannot be recorded (when the step is called).
    """
    if len(args) == 2 and isinstance(args[0], str):
        if mode not in (None, "safe") or name or verify or retries or ignore or undo:
            raise InvalidArgument(_VALUE_ONLY.format(args[0]))
        return _value(args[0], args[1])

    def decorate(fn: Any) -> Any:
        tool = Tool(
            fn,
            kind="tool_call",
            name=name,
            mode="unsafe" if mode is None else mode,
            verify=verify,
            retries=retries,
            backoff=backoff,
            retry_on=retry_on,
            ignore=ignore,
        )
        if undo is not None:
            from steplog._runtime.undo import register  # few programs need it

            register(tool, undo)
        return _decorate(tool)

    if len(args) > 1 or (args and isinstance(args[0], (str, type(None)))):
        message = 'step takes a function, or a name and a function: @steplog.step, or steplog.step("now", time.time)'
        raise InvalidArgument(message)
    return decorate(args[0]) if args else decorate


_VALUE_ONLY: Final = (
    'steplog.step("{0}", fn) records a value, which may always be computed again (`safe`), so it takes no options. '
    'For an effect make a tool of it: steplog.step(mode="unsafe", name="{0}")(fn)().'
)


def _decorate(tool: Tool) -> Any:
    if _is_async(tool.fn):

        @functools.wraps(tool.fn)
        async def call_step_async(*args: Any, **kwargs: Any) -> Any:
            return await call_async(tool, args, kwargs)

        call_step_async.__dict__["__steplog_step__"] = True
        return call_step_async

    PROCESS.has_plain_tools = PROCESS.has_plain_tools or tool.mode != "safe"

    @functools.wraps(tool.fn)
    def call_step(*args: Any, **kwargs: Any) -> Any:
        return call_sync(tool, args, kwargs)

    call_step.__dict__["__steplog_step__"] = True
    return call_step


def _value(name: str, fn: Any) -> Any:
    if not name:
        message = "a local step needs a name, under which its value is found again."
        raise InvalidArgument(message)
    tool = Tool(fn, kind="local", name=name, mode="safe")
    return call_async(tool, (), {}) if _is_async(fn) else call_sync(tool, (), {})


def _is_async(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__dict__.get("__call__"))
