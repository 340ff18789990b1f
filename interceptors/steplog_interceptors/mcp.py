"""The client side of the Model Context Protocol: `call_tool`, `read_resource` and `get_prompt` of a `ClientSession`.

All of them end in the session's `send_request`, whoever calls them (the SDK's own `Client`, a framework's adapter).
There a request becomes a step; the connection and its handshake are the program's own and happen on every start.

    tool      kind tool_call, target its name; `safe` where its server says that it only reads (`readOnlyHint`), `keyed`
              where it says that a repeat changes nothing more (`idempotentHint`), else `unsafe`: by the list of tools
              that the session has seen last; a keyed call carries the step's key in `_meta`
    resource  target `resources/read URI`, safe
    prompt    target `prompts/get NAME`, safe

Identity is the server's name, the tool and its arguments. A result is kept as the JSON of the protocol, and the
session's own class is made of it again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from steplog import plugins
from steplog.errors import StepFailed
from steplog.plugins import Patch, Patches
from steplog_interceptors import _mcp_account

KEY: Final = "steplog/idempotency-key"

_RECORDED: Final = frozenset({"tools/call", "resources/read", "prompts/get"})

# Answers that say that nothing has been done: parse error, invalid request, no such method, invalid parameters, and a
# question to the user that comes first.
_REFUSED: Final = frozenset({-32700, -32600, -32601, -32602, -32042})
# Failures to write to the server.
_UNSENT: Final = frozenset({"ClosedResourceError", "BrokenResourceError"})

_PROGRESS_KEPT: Final = 1000


class _Known:
    """What a session has been told about its server."""

    def __init__(self) -> None:
        self.server = ""
        self.annotations: dict[str, Any] = {}


_sessions: Final[WeakKeyDictionary[Any, _Known]] = WeakKeyDictionary()


def _known(session: Any) -> _Known:
    return _sessions.setdefault(session, _Known())


class McpInterceptor:
    """Records what a program asks of its MCP servers.

    Attributes:
        name: `mcp`.
    """

    name = "mcp"

    def __init__(self) -> None:
        self._patches = Patches()
        self._transports = _mcp_account.Transports()

    def install(self) -> None:
        """Patch the session's class, now or when it is imported. Idempotent."""
        self._patches.install({"mcp.client.session": self._apply, **self._transports.hooks()})

    def uninstall(self) -> None:
        """Take back what is still ours. Idempotent."""
        self._patches.uninstall()
        self._transports.restore()

    def _apply(self, module: ModuleType) -> None:
        session = module.ClientSession
        # In 1.x it is inherited from a class that servers use as well.
        owner = next(cls for cls in session.__mro__ if "send_request" in vars(cls))
        self._patches.apply(owner, "send_request", _sending(session))
        if "_absorb_tool_listing" in vars(session):
            # In 2.x a list of tools may come out of a cache.
            self._patches.apply(session, "_absorb_tool_listing", _absorbing)


def _absorbing(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    def _absorb_tool_listing(self: Any, result: Any, **kwargs: Any) -> Any:
        if patch.on:
            _note_tools(self, result)
        return original(self, result, **kwargs)

    return _absorb_tool_listing


def _sending(kind: type) -> Any:
    def wrap(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        async def send_request(self: Any, request: Any, result_type: Any, *args: Any, **kwargs: Any) -> Any:
            method = getattr(getattr(request, "root", request), "method", "") if patch.on else ""
            if method in _RECORDED and isinstance(self, kind):
                return await _Request(self, method, request, result_type).perform(original, args, kwargs)
            result = await original(self, request, result_type, *args, **kwargs)
            if method == "tools/list":
                _note_tools(self, result)
            elif method == "initialize":
                _known(self).server = _json(result).get("serverInfo", {}).get("name", "")
            return result

        return send_request

    return wrap


def _note_tools(session: Any, result: Any) -> None:
    for tool in getattr(result, "tools", ()):
        _known(session).annotations[tool.name] = tool.annotations


def _json(model: Any) -> dict[str, Any]:
    # What was not set stays unset, so that the restored object equals the first one in this as well.
    tree: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_unset=True)
    return tree


def _server(session: Any) -> str:
    info = getattr(session, "server_info", None)
    return getattr(info, "name", "") or _known(session).server


class _Request:
    """One request of a session that is a step."""

    def __init__(self, session: Any, method: str, request: Any, result_type: Any) -> None:
        self.session = session
        self.method = method
        self.request = request
        self.result_type = result_type
        inner = getattr(request, "root", request)
        self.params = inner.params.model_dump(by_alias=True, mode="json", exclude_none=True)
        self.progress: list[list[Any]] = []

    def mode(self) -> str:
        if self.method != "tools/call":
            return "safe"
        told = _known(self.session).annotations.get(self.params["name"])
        hints = {} if told is None else told.model_dump(by_alias=True)
        if hints.get("readOnlyHint"):
            return "safe"
        return "keyed" if hints.get("idempotentHint") else "unsafe"

    def call(self) -> plugins.Call:
        params = {name: value for name, value in self.params.items() if name != "_meta"}
        named = str(params.get("name") or params.get("uri"))
        target = named if self.method == "tools/call" else f"{self.method} {named}"
        args = {"server": _server(self.session), "method": self.method, **params}
        call = plugins.Call("tool_call", target, args, self.mode())
        call.amends = True
        call.account = _mcp_account.account(self.session)
        return call

    async def perform(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ticket = await plugins.begin_async(self.call())
        if ticket is None:
            return await original(self.session, self.request, self.result_type, *args, **kwargs)
        if ticket.recorded is not None:
            return await self._returned(ticket, kwargs.get("progress_callback"))
        if ticket.changes:
            self.params = json.loads(plugins.changed(json.dumps(self.params).encode(), ticket.changes))
        keyed = {KEY: ticket.key} if ticket.call.mode == "keyed" else {}
        request = self._asking(keyed) if keyed or ticket.changes else self.request
        try:
            result = await original(self.session, request, self.result_type, *args, **self._watched(kwargs))
        except Exception as error:
            blamed = error if ticket.call.mode != "unsafe" or _has_not_happened(error) else None
            final = {"final": True} if blamed is None else {}
            await ticket.finish_async("failed", {"error": _told(error), **self._seen(), **final}, error=blamed)
            raise
        except BaseException as interruption:
            if type(interruption).__name__ == "CancelledError":
                ticket.cancelled()
            raise
        await ticket.finish_async("done", {"result": _json(result), **self._seen()})
        return result

    def _seen(self) -> dict[str, Any]:
        return {"progress": self.progress} if self.progress else {}

    def _watched(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        callback = kwargs.get("progress_callback")
        if callback is None:
            return kwargs

        async def noted(progress: float, total: float | None, message: str | None) -> None:
            if len(self.progress) < _PROGRESS_KEPT:
                self.progress.append([progress, total, message])
            await callback(progress, total, message)

        return {**kwargs, "progress_callback": noted}

    def _asking(self, meta: dict[str, Any]) -> Any:
        """The request with its parameters as they are now, and more in its `_meta`, such as the key of a keyed call."""
        wrapped = hasattr(self.request, "root")
        inner = self.request.root if wrapped else self.request
        params = {**self.params, "_meta": {**self.params.get("_meta", {}), **meta}} if meta else self.params
        inner = inner.model_copy(update={"params": type(inner.params).model_validate(params)})
        return type(self.request)(inner) if wrapped else inner

    async def _returned(self, ticket: plugins.Ticket, callback: Any) -> Any:
        recorded = ticket.recorded
        assert recorded is not None
        for seen in recorded.data.get("progress", ()) if callback is not None else ():
            await callback(*seen)
        if recorded.outcome == "failed":
            told = recorded.data.get("error") or {}
            error = _rebuilt(told)
            ticket.replayed(error if ticket.call.mode != "unsafe" or told.get("refused") else None)
            raise error
        raw = recorded.value("result")
        if recorded.data.get("how") == "done":
            raw = self._given_by_hand(raw)
        # A TypeAdapter where a tool may answer in several ways, else a class.
        validate = getattr(self.result_type, "validate_python", None) or self.result_type.model_validate
        result = validate(raw)
        ticket.replayed()
        return result

    def _given_by_hand(self, value: Any) -> Any:
        """What an operator said that a tool gave: a result of the protocol, or just its text or value."""
        if self.method != "tools/call" or (isinstance(value, dict) and "content" in value):
            return value
        text = value if isinstance(value, str) else json.dumps(value)
        # Servers wrap what is no object in one, for the schema of their output.
        structured = value if isinstance(value, dict) else {"result": value}
        return {"content": [{"type": "text", "text": text}], "structuredContent": structured}


def _has_not_happened(error: Exception) -> bool:
    """Whether a failure says that the tool has done nothing; a lost connection or a timeout leaves that open."""
    code = getattr(getattr(error, "error", None), "code", None)
    return code in _REFUSED or type(error).__name__ in _UNSENT


def _told(error: Exception) -> dict[str, Any]:
    told: dict[str, Any] = {
        "type": type(error).__qualname__,
        "module": type(error).__module__,
        "message": str(error),
        "refused": _has_not_happened(error),
    }
    detail = getattr(error, "error", None)
    if hasattr(detail, "model_dump"):
        told["rpc"] = _json(detail)
    return told


def _rebuilt(told: dict[str, Any]) -> Exception:
    # Only what the program has already imported: a log must not be able to name a module to load.
    module = sys.modules.get(told.get("module", ""))
    cls = getattr(module, told.get("type", ""), None)
    message = told.get("message") or "an operator recorded this call as failed"
    if isinstance(cls, type) and issubclass(cls, Exception):
        if "rpc" in told:
            return _protocol_error(cls, sys.modules["mcp.types"].ErrorData.model_validate(told["rpc"]))
        try:
            return cls(message)
        except TypeError:
            pass  # a class that wants more than a message: the substitute below names it
    return StepFailed(message, type_name=f"{told.get('module')}:{told.get('type')}")


def _protocol_error(cls: Any, detail: Any) -> Exception:
    build = getattr(cls, "from_error_data", None) or getattr(cls, "from_error", None) or cls
    error: Exception = build(detail)
    return error


interceptor: Final = McpInterceptor()
