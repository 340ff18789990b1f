"""For whom an MCP server works: what a program has started it with, or where and as whom it has reached it.

A session knows nothing of that, but it reads from a stream that a transport has made. So the transports are watched:
what one was opened with is kept under its stream for as long as it is open.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import CellType, ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from steplog import plugins
from steplog_interceptors._account import account_of, digest, of_key, without_password

_TRANSPORTS: Final = {
    "mcp.client.stdio": ("stdio_client",),
    "mcp.client.sse": ("sse_client",),
    "mcp.client.streamable_http": ("streamable_http_client", "streamablehttp_client"),
}
_PASSWORD: Final = re.compile(r"passw|pwd|passphrase", re.IGNORECASE)
_SECRET: Final = re.compile(r"key|token|secret|auth|cred", re.IGNORECASE)

# By identity of the stream, which need not be hashable.
_open: Final[dict[int, str]] = {}


class Transports:
    """The transports of the SDK, watched.

    Programs take these functions out of their modules (`from mcp.client.stdio import stdio_client`) before steplog is
    installed, so the generator inside is what is replaced: the function itself stays who it is, wherever it is held.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[CellType, Any]] = []

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        """What to do when the SDK's modules are imported."""
        return dict.fromkeys(_TRANSPORTS, self._apply)

    def _apply(self, module: ModuleType) -> None:
        for name in _TRANSPORTS[module.__name__]:
            cell = _generator_in(vars(module).get(name))
            if cell is not None:
                original = cell.cell_contents
                self._replaced.append((cell, original))
                cell.cell_contents = _watching(original)

    def restore(self) -> None:
        """Put the originals back. Idempotent."""
        while self._replaced:
            cell, original = self._replaced.pop()
            cell.cell_contents = original


def _generator_in(function: Any) -> CellType | None:
    """Where `asynccontextmanager` keeps what it was given, or None where this is not made by it."""
    if getattr(getattr(function, "__code__", None), "co_freevars", ()) != ("func",):
        return None
    cell: CellType = function.__closure__[0]
    return cell if inspect.isasyncgenfunction(cell.cell_contents) else None


def account(session: Any) -> str:
    """For whom the server of a session works, as the hex digits of a digest; "" where that is not known."""
    # In 1.x the session reads its stream itself.
    reader = getattr(session, "_dispatcher", session)
    return _open.get(id(getattr(reader, "_read_stream", None)), "")


def _watching(original: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
    opened = asynccontextmanager(original)

    @functools.wraps(original)
    async def transport(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        told = ""
        with plugins.guard("tell for whom an MCP server works"):
            told = _told_by(args, kwargs)
        async with opened(*args, **kwargs) as streams:
            _open[id(streams[0])] = told
            try:
                yield streams
            finally:
                _open.pop(id(streams[0]), None)

    return transport


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
