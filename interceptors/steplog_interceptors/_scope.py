"""The logical call: everything that one `client.something.create(...)` sends, whatever the SDK retries.

`request` of the generated base clients is the funnel of every HTTP call that the SDKs make. Each call of it is one
step; the requests in it are its exchanges. The SDK does the parsing, raising and retrying, live and replayed.

While a call is replayed, the pauses between its attempts and between the polls of a poller are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType, TracebackType
from typing import Any, Final

from steplog import plugins
from steplog.errors import NotInRun
from steplog.plugins import Patch, Patches, Wrapper
from steplog_interceptors._call import CURRENT, PASSING, LogicalCall, Refused, current
from steplog_interceptors._recording import StreamRecord
from steplog_interceptors._sdk import Sdk

# Whether the call that last ended in this context came from the log: a poller sleeps between calls, not in one.
_replayed: Final[ContextVar[bool]] = ContextVar("steplog_interceptors_replayed", default=False)


def hooks(patches: Patches, sdk: Sdk) -> dict[str, Callable[[ModuleType], None]]:
    """What to do when an SDK's modules are imported."""

    def base_clients(module: ModuleType) -> None:
        _apply(patches, module.SyncAPIClient, "request", sync_scope(sdk))
        _apply(patches, module.SyncAPIClient, "_sleep_for_retry", _sleep)
        _apply(patches, module.AsyncAPIClient, "request", async_scope(sdk))
        _apply(patches, module.AsyncAPIClient, "_sleep_for_retry", _sleep_async)

    def clients(module: ModuleType) -> None:
        _apply(patches, module.SyncAPIClient, "_validate_headers", _validate)
        _apply(patches, module.AsyncAPIClient, "_validate_headers", _validate)

    def resources(module: ModuleType) -> None:
        patches.apply(module.SyncAPIResource, "_sleep", _sleep)
        patches.apply(module.AsyncAPIResource, "_sleep", _sleep_async)

    return {sdk.base_module: base_clients, f"{sdk.name}._client": clients, f"{sdk.name}._resource": resources}


def _apply(patches: Patches, base: type, name: str, wrapper: Wrapper) -> None:
    """Replace a method in a base class and wherever it is overridden: a tool that came first may have put one there."""
    for cls in _family(base):
        if name in vars(cls):
            patches.apply(cls, name, wrapper)


def _family(cls: type) -> list[type]:
    """A class and all that derive from it now."""
    found: list[type] = [cls]
    children: list[type] = cls.__subclasses__()
    for child in children:
        found += [each for each in _family(child) if each not in found]
    return found


def sync_scope(sdk: Sdk) -> Wrapper:
    """Make a method of a client one logical call."""

    def wrap(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        def request(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not patch.on or _is_part(self, args, kwargs):
                return original(self, *args, **kwargs)
            scope = _Scope(LogicalCall(sdk, (self, _options(args, kwargs))))
            try:
                with scope:
                    result = original(self, *args, **kwargs)
            except Exception as error:
                _finish(scope.call, error)
                raise
            _require_exchange(scope.call, self)
            _finish(scope.call, None)
            return result

        return request

    return wrap


def _know_platform(client: Any, sdk: Sdk) -> None:
    """Find out on which platform this is, which the SDK does in a thread at the first calls of an async client.

    Equal calls that wait for such threads overtake each other, differently in every process, and their order is all
    that tells which of the recorded answers is whose.
    """
    if plugins.active() and getattr(client, "_platform", client) is None:
        find = getattr(sys.modules.get(sdk.base_module), "get_platform", None)
        if find is not None:
            client._platform = find()  # noqa: SLF001  # the SDK's own place for it


def async_scope(sdk: Sdk) -> Wrapper:
    """The same for a method that is awaited."""

    def wrap(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        async def request(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not patch.on or _is_part(self, args, kwargs):
                return await original(self, *args, **kwargs)
            _know_platform(self, sdk)
            scope = _Scope(LogicalCall(sdk, (self, _options(args, kwargs))))
            try:
                with scope:
                    result = await original(self, *args, **kwargs)
            except Exception as error:
                await _finish_async(scope.call, error)
                raise
            _require_exchange(scope.call, self)
            await _finish_async(scope.call, None)
            return result

        return request

    return wrap


def _options(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kwargs["options"] if "options" in kwargs else args[1] if len(args) > 1 else None


def _is_part(client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this is the call that is open already, on its way from a subclass's `request` to the one it overrides.

    Another call that is made meanwhile, such as one that fetches a key, is a step of its own.
    """
    outer = current()
    if outer is None or outer is PASSING:
        return outer is PASSING
    return outer.origin[0] is client and outer.origin[1] is _options(args, kwargs)


class _Scope:
    """Makes a call the current one. Set and reset in one frame, so no context of another task is ever touched."""

    __slots__ = ("_token", "call")

    def __init__(self, call: LogicalCall) -> None:
        self.call = call

    def __enter__(self) -> None:
        self._token = CURRENT.set(self.call)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CURRENT.reset(self._token)
        self.call.closed = True
        _replayed.set(self.call.replaying)
        if isinstance(error, Refused):
            raise error.error from error.error.__cause__
        if error is not None and not isinstance(error, Exception) and isinstance(self.call.stream, StreamRecord):
            self.call.stream.leave_open()


def _finish(call: LogicalCall, error: Exception | None) -> None:
    conclusion = _conclude(call, error)
    if conclusion is not None and call.ticket is not None:
        call.ticket.finish(*conclusion, error=error, waited=call.waited)


async def _finish_async(call: LogicalCall, error: Exception | None) -> None:
    conclusion = _conclude(call, error)
    if conclusion is not None and call.ticket is not None:
        await call.ticket.finish_async(*conclusion, error=error, waited=call.waited)


def _conclude(call: LogicalCall, error: Exception | None) -> tuple[str, dict[str, Any]] | None:
    """Outcome and detail to record, or None where there is nothing to record, or not yet."""
    if call.ticket is None:
        return None
    if call.replaying:
        if call.stream is None or error is not None:
            call.check_served()
            call.ticket.replayed(error)
        return None
    if isinstance(call.stream, StreamRecord):
        # The stream finishes the step, unless the SDK failed to make something of the response that carries it.
        concluded = None if error is None else call.stream.conclude("closed_early")
        return None if concluded is None else ("failed", concluded[1])
    return "done" if error is None else "failed", call.detail(error)


def _require_exchange(call: LogicalCall, client: Any) -> None:
    """A call that returned although nothing was sent cannot be returned again."""
    if not call.undecided or not plugins.active() or getattr(client, "_middleware", None):
        # A middleware may answer by itself; then nothing happened that would have to be recorded.
        return
    http_client = type(getattr(client, "_client", client))
    message = (
        f"A call of the {call.sdk.name} SDK inside a run was answered by {http_client.__module__}."
        f"{http_client.__qualname__} without passing through `send` of httpx or httpx2, so it cannot be recorded, and "
        f"a resumed run would make it again.\n"
        f"Let its `send` end in `return super().send(request, **kwargs)`, or put what it does into a transport: "
        f"httpx2.Client(transport=...)."
    )
    plugins.log.error("%s", message)
    raise NotInRun(message)


def _validate(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    """Hold a complaint about missing credentials back until it is known whether the call is replayed."""

    def _validate_headers(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            call = current() if patch.on else None
            if call is None or call.passing or not plugins.active():
                raise
            call.deferred = error
            return None

    return _validate_headers


def _sleep(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    def sleep(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if patch.on and is_replay() else original(self, *args, **kwargs)

    return sleep


def _sleep_async(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    async def sleep(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if patch.on and is_replay() else await original(self, *args, **kwargs)

    return sleep


def is_replay() -> bool:
    """Whether the call that is open, or else the one that ended last, comes from the log, so that no pause is made."""
    call = current()
    # Between two calls a poller sleeps; the pauses inside a call are part of the time that it took.
    return _replayed.get() and not plugins.paced() if call is None else call.replaying
