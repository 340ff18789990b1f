"""For whom an MCP server works: what a program has started it with, or where and as whom it has reached it.

A session knows nothing of that, but it reads from a stream that a transport has made. So the transports are watched:
what one was opened with is kept under its stream for as long as it is open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import ModuleType, TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

from steplog import plugins
from steplog.plugins import Patch, Patches
from steplog_interceptors._account import account_of, digest, of_key, without_password

TRANSPORTS: Final = ("stdio_client", "sse_client", "streamablehttp_client", "streamable_http_client")

# Where programs and the SDK itself find them.
MODULES: Final = (
    "mcp.client.stdio",
    "mcp.client.sse",
    "mcp.client.streamable_http",
    "mcp.client.session_group",
    "mcp.client.client",
    "mcp",
)
_PASSWORD: Final = re.compile(r"passw|pwd|passphrase", re.IGNORECASE)
_SECRET: Final = re.compile(r"key|token|secret|auth|cred", re.IGNORECASE)

# By identity of the stream, which need not be hashable.
_open: Final[dict[int, str]] = {}


def hooks(patches: Patches) -> dict[str, Callable[[ModuleType], None]]:
    """What to do when the SDK's modules are imported."""

    def apply(module: ModuleType) -> None:
        for name in TRANSPORTS:
            if name in vars(module):
                patches.apply(module, name, _watching)

    return dict.fromkeys(MODULES, apply)


def account(session: Any) -> str:
    """For whom the server of a session works, as the hex digits of a digest; "" where that is not known."""
    # In 1.x the session reads its stream itself.
    reader = getattr(session, "_dispatcher", session)
    return _open.get(id(getattr(reader, "_read_stream", None)), "")


def _watching(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    def transport(*args: Any, **kwargs: Any) -> Any:
        opened = original(*args, **kwargs)
        if not patch.on:
            return opened
        told = ""
        with plugins.guard("tell for whom an MCP server works"):
            told = _told_by(args, kwargs)
        return _Watched(opened, told)

    return transport


class _Watched(AbstractAsyncContextManager[Any]):
    """A transport whose account is kept for as long as it is open."""

    def __init__(self, opened: Any, told: str) -> None:
        self._opened = opened
        self._told = told
        self._stream: Any = None

    async def __aenter__(self) -> Any:
        streams = await self._opened.__aenter__()
        self._stream = streams[0]
        _open[id(self._stream)] = self._told
        return streams

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        _open.pop(id(self._stream), None)
        swallowed: bool | None = await self._opened.__aexit__(kind, error, trace)
        return swallowed


def _told_by(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    server = args[0] if args else kwargs.get("server", kwargs.get("url"))
    if not isinstance(server, str):
        return digest(_program(server))
    client = kwargs.get("http_client")
    headers = kwargs.get("headers") or getattr(client, "headers", None) or {}
    auth = kwargs.get("auth") or getattr(client, "_auth", None)
    return digest([without_password(server), account_of(_Asked(server, headers), None, auth)])


class _Asked:
    """A request that a transport will make, with the names that it has in httpx."""

    def __init__(self, url: str, headers: Any) -> None:
        self.url = self
        self.query = ""
        self.headers = headers
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port
        self.userinfo = parts.netloc.rpartition("@")[0].encode()


def _program(server: Any) -> list[str]:
    """What a server was started with, and what differs in its environment from this process's own."""
    words = [str(server.command), *(without_password(str(word)) for word in server.args)]
    own = os.environ
    given = (getattr(server, "env", None) or {}).items()
    for name, value in sorted(given):
        # What people think up as a password is no part of it.
        if own.get(name) != value and not _PASSWORD.search(name):
            words.append(f"{name}={of_key(value) if _SECRET.search(name) else without_password(value)}")
    return [*words, str(getattr(server, "cwd", ""))]
