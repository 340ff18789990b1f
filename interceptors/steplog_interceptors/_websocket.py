"""Websocket sessions: steps whose content is not recorded, and which say so.

What passes over a websocket goes both ways at any time, so it cannot be given back to a program that starts again. The
connection is a step all the same. A resumed run that comes to it stops and asks (`Unreplayable`), instead of talking to
the provider a second time unseen; `steplog resolve RUN STEP --retry` lets it connect again. Under
`install(strict=True)` no connection is made inside a run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final

from steplog import plugins
from steplog.errors import NotInRun, OutcomeUnknown, StepFailed
from steplog.plugins import Patch, Patches
from steplog_interceptors._canonical import is_secret_query
from steplog_interceptors._exchange import failure, revived
from steplog_interceptors._sdk import without_ids

Hooks = dict[str, Callable[[ModuleType], None]]

# The modules of openai that open websockets; each has connection managers for both colours.
MODULES: Final = tuple(
    f"openai.resources.{name}"
    for name in (
        "realtime.realtime realtime.translations.translations beta.realtime.realtime responses.responses "
        "beta.responses.responses live.live live.sideband live.forks"
    ).split()
)
_MANAGER: Final = re.compile(r"\w+ConnectionManager")
_ENTERING: Final = ("__enter__", "__aenter__", "enter")

# Hosts at which a websocket is a session with a model, whoever opens it: frameworks do so without the SDK.
_HOSTS: Final = re.compile(r"(?:.*\.)?openai(?:\.azure)?\.com")

_WHY: Final = "what passes over a websocket is not recorded."

# Inside a connection manager, whose step has been written.
_known: Final[ContextVar[bool]] = ContextVar("steplog_interceptors_websocket", default=False)


def hooks(patches: Patches, sdk: str) -> Hooks:
    """What to do when a module is imported through which an SDK opens websockets."""
    if sdk != "openai":
        return {}

    def managers(module: ModuleType) -> None:
        for cls in classes_in(module):
            for name in _ENTERING:
                if name in vars(cls):
                    patches.apply(cls, name, _entering)

    def connections(module: ModuleType) -> None:
        patches.apply(module.connect, "__await_impl__", _awaiting)

    found: Hooks = {"websockets.asyncio.client": connections}
    for name in MODULES:
        found[name] = managers
    return found


def classes_in(module: ModuleType) -> Iterator[type]:
    """The connection managers that a module defines."""
    for name, found in vars(module).items():
        if isinstance(found, type) and _MANAGER.fullmatch(name) and found.__module__ == module.__name__:
            yield found


def _entering(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    """Connect as a step, for a manager of the SDK."""

    def enter(self: Any) -> Any:
        session = _Session(_asked_of(self)) if patch.on and not _known.get() else None
        ticket = None if session is None else plugins.begin(session.call())
        if session is None or ticket is None:
            return original(self)
        session.refuse(ticket)
        token = _known.set(True)
        try:
            connection = original(self)
        except Exception as error:
            ticket.finish(*session.failed(error), error=error)
            raise
        finally:
            _known.reset(token)
        ticket.finish(*session.opened())
        return connection

    async def enter_async(self: Any) -> Any:
        session = _Session(_asked_of(self)) if patch.on and not _known.get() else None
        return await (original(self) if session is None else session.connect(lambda: original(self)))

    return enter_async if inspect.iscoroutinefunction(original) else enter


def _awaiting(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    """Connect as a step, for whoever opens a websocket to a model's host without the SDK."""

    async def __await_impl__(self: Any) -> Any:  # noqa: N807 - it stands for the method of that name
        host, path = _address(str(getattr(self, "uri", "")))
        if not patch.on or _known.get() or not _HOSTS.fullmatch(host):
            return await original(self)
        return await _Session({"path": path}).connect(lambda: original(self))

    return __await_impl__


def _address(uri: str) -> tuple[str, str]:
    from urllib.parse import urlsplit

    parts = urlsplit(uri)
    return parts.hostname or "", parts.path


def _asked_of(manager: Any) -> dict[str, Any]:
    """What a connection manager was asked for: path and query, without host and credentials."""
    asked: dict[str, Any] = {"path": f"/{type(manager).__name__.removeprefix('Async')}"}
    with plugins.guard("reading what a websocket is opened for"):
        asked["path"] = manager._prepare_url().path  # noqa: SLF001 - each manager has one; the public face has none
        for name, value in vars(manager).items():
            short = name.rpartition("__")[2]
            if isinstance(value, str) and not is_secret_query(short):
                asked[short] = value
            elif short == "extra_query" and isinstance(value, Mapping):
                asked |= {key: str(item) for key, item in value.items() if not is_secret_query(key)}
    return asked


class _Session:
    """One websocket as a step."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._target = f"websocket {without_ids(asked['path'])}"

    def call(self) -> plugins.Call:
        """The effect to submit."""
        if plugins.active() and plugins.settings().strict:
            message = (
                f"{self._target}: {_WHY} It was not opened, because steplog.install(strict=True) allows nothing inside "
                f"a run that a resumed run could not be given back.\n"
                f"Open it outside the run, use the HTTP API (client.responses.create), or leave `strict` out."
            )
            raise NotInRun(message)
        request = {"method": "GET", "path": self._asked["path"], "stream": True, "params": self._asked}
        return plugins.Call("llm_call", self._target, {"websocket": self._asked}, "unsafe", request)

    async def connect(self, original: Callable[[], Any]) -> Any:
        """Open it from a task."""
        ticket = await plugins.begin_async(self.call())
        if ticket is None:
            return await original()
        self.refuse(ticket)
        token = _known.set(True)
        try:
            connection = await original()
        except Exception as error:
            await ticket.finish_async(*self.failed(error), error=error)
            raise
        finally:
            _known.reset(token)
        await ticket.finish_async(*self.opened())
        return connection

    def refuse(self, ticket: plugins.Ticket) -> None:
        """Raise what a recorded connection gives: the failure that it was, or else a halt."""
        if ticket.recorded is None:
            return
        error = ticket.recorded.data.get("error")
        if ticket.recorded.outcome == "failed" and error is not None:
            if "how" in ticket.recorded.data:
                kind = OutcomeUnknown if ticket.recorded.data["how"] == "unknown" else StepFailed
                error = {"module": kind.__module__, "class": kind.__qualname__, "message": error["message"]}
            again = revived(error)
            ticket.replayed(again)
            raise again
        ticket.diverged(f"{self._target}: a session cannot be given by hand: {_WHY}", field="websocket")

    def opened(self) -> tuple[str, dict[str, Any]]:
        """Outcome and detail of a connection that is made."""
        plugins.log.warning(
            "%s: %s A resumed run will stop here (Unreplayable) and ask whether to connect again.", self._target, _WHY
        )
        return "done", {"unreplayable": {"why": _WHY}}

    @staticmethod
    def failed(error: Exception) -> tuple[str, dict[str, Any]]:
        """Outcome and detail of a connection that could not be made."""
        return "failed", {"error": failure(error)}
