"""Model calls of a program that is to be killed: noted down in the baseline, answered from there afterwards.

The place is the transport of the HTTP clients, below all that an SDK or steplog does. So a call that is answered from
the baseline is to the program, and to its log, a call like any other, chunk by chunk; it needs no key and costs
nothing.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog import plugins
from steplog._runtime.patches import Patch, Patches
from steplog._runtime.ticket import Ticket

if TYPE_CHECKING:
    from steplog.testing._crash_hooks import Kit

# The step whose request is about to be sent in this context.
_ASKING: Final[ContextVar[Ticket | None]] = ContextVar("steplog_crash_asking", default=None)
# How long a stream waits until a piece of it is in the log, before the process dies in the middle of it.
_PIECE_SECONDS: Final = 2.0


def watch(kit: Kit) -> None:
    """Watch the requests of model calls, and of the hosts that are recorded, in this process."""
    begin, begin_async = plugins.begin, plugins.begin_async

    def watched(call: plugins.Call) -> Ticket | None:
        return _noted(begin(call))

    async def watched_async(call: plugins.Call) -> Ticket | None:
        return _noted(await begin_async(call))

    plugins.begin, plugins.begin_async = watched, watched_async
    answers = Answers(kit)

    def apply(module: ModuleType) -> None:
        for client in (module.Client, module.AsyncClient):
            _patches.apply(client, "_transport_for_url", lambda original, _: _routed(original, kit, answers, module))

    _patches.install({"httpx2": apply, "httpx": apply})


_patches: Final = Patches()


def _noted(ticket: Ticket | None) -> Ticket | None:
    _ASKING.set(None if ticket is None or ticket.recorded is not None or ticket.call.request is None else ticket)
    return ticket


def _routed(original: Callable[..., Any], kit: Kit, answers: Answers, module: ModuleType) -> Callable[..., Any]:
    def _transport_for_url(client: Any, url: Any) -> Any:
        transport, ticket = original(client, url), _ASKING.get()
        if ticket is None or ticket.finished:
            return transport
        return _Transport(kit, answers, module, transport, ticket)

    return _transport_for_url


class Answers:
    """What the provider said in the baseline, by step and by what was asked of whom."""

    def __init__(self, kit: Kit) -> None:
        self._write: str | None = kit.plan.get("record")
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self._by_step: dict[str, list[dict[str, Any]]] = {}
        self._by_target: dict[str, list[dict[str, Any]]] = {}
        self.serving = bool(kit.plan.get("answers"))
        if self.serving and os.path.exists(kit.plan["answers"]):
            with open(kit.plan["answers"], "rb") as file:
                for line in file:
                    answer = orjson.loads(line)
                    self._by_step.setdefault(answer["step"], []).append(answer)
                    self._by_target.setdefault(answer["asked"], []).append(answer)

    def take(self, ticket: Ticket, asked: str) -> dict[str, Any] | None:
        """The answer to a request; None where nothing like it was asked in the baseline.

        A request that differs from all in the baseline, as one does that holds the time, gets the answer of the one
        with its number among those of its kind.
        """
        with self._lock:
            known = self._by_step.get(ticket.step)
            key = f"{ticket.step} {ticket.attempt}" if known else asked
            found = known or self._by_target.get(asked) or []
            number, self._taken[key] = self._taken[key], self._taken[key] + 1
            return found[min(number, len(found) - 1)] if found else None

    def keep(self, ticket: Ticket, asked: str, answer: dict[str, Any]) -> None:
        """Note an answer of the baseline."""
        if self._write is not None:
            line = orjson.dumps({"step": ticket.step, "asked": asked, **answer}) + b"\n"
            with self._lock, open(self._write, "ab", buffering=0) as file:
                file.write(line)


class _Transport:
    """One request on its way."""

    def __init__(self, kit: Kit, answers: Answers, module: ModuleType, transport: Any, ticket: Ticket) -> None:
        self._kit = kit
        self._answers = answers
        self._module = module
        self._transport = transport
        self._ticket = ticket
        self._asked = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def handle_request(self, request: Any) -> Any:
        if not self._is_mine(request):
            return self._transport.handle_request(request)
        answer = self._begin(request)
        if answer is not None:
            return self._answered(answer, _Chunks, self._module.SyncByteStream)
        try:
            response = self._transport.handle_request(request)
        except Exception as error:
            self._failed(error)
            raise
        return self._live(response, _Tee, self._module.SyncByteStream)

    async def handle_async_request(self, request: Any) -> Any:
        if not self._is_mine(request):
            return await self._transport.handle_async_request(request)
        answer = self._begin(request)
        if answer is not None:
            return self._answered(answer, _AsyncChunks, self._module.AsyncByteStream)
        try:
            response = await self._transport.handle_async_request(request)
        except Exception as error:
            self._failed(error)
            raise
        return self._live(response, _AsyncTee, self._module.AsyncByteStream)

    def _is_mine(self, request: Any) -> bool:
        """A token that is fetched on the way of a call is not its request."""
        asked = self._ticket.call.request or {}
        return (request.method.upper(), request.url.path) == (asked.get("method"), asked.get("path"))

    def _begin(self, request: Any) -> dict[str, Any] | None:
        ticket, kit = self._ticket, self._kit
        self._asked = f"{ticket.call.target} {request.method} {request.url.path}"
        kit.moment("after-intent", ticket.run_id, ticket.step, ticket.call.target)
        kit.begun(ticket.step, ticket.run_id)
        if kit.is_inside(ticket.run_id, ticket.step, ticket.call.target) is not None:
            kit.die(ticket.step)
        if not self._answers.serving or ticket.call.kind != "llm_call":
            return None
        answer = self._answers.take(ticket, self._asked)
        if answer is None:
            kit.note("unanswered", step=ticket.step, asked=self._asked)
            raise self._module.ConnectError(f"the baseline of this crash test has no answer to {self._asked}")
        return answer

    def _answered(self, answer: dict[str, Any], kind: type, base: type) -> Any:
        self._kit.ended(self._ticket.step, self._ticket.run_id)
        if "error" in answer:
            cls = getattr(self._module, answer["error"]["class"], self._module.TransportError)
            raise cls(answer["error"]["message"])
        chunks = [base64.b64decode(chunk) for chunk in answer["chunks"]]
        stream = type(kind.__name__, (kind, base), {})(chunks, self._kit, self._ticket)
        return self._module.Response(answer["status"], headers=answer["headers"], stream=stream)

    def _live(self, response: Any, kind: type, base: type) -> Any:
        self._kit.ended(self._ticket.step, self._ticket.run_id)
        answer = {"status": response.status_code, "headers": response.headers.multi_items()}
        done = _Once(lambda chunks: self._answers.keep(self._ticket, self._asked, {**answer, "chunks": chunks}))
        response.stream = type(kind.__name__, (kind, base), {})(response.stream, done)
        return response

    def _failed(self, error: Exception) -> None:
        self._kit.ended(self._ticket.step, self._ticket.run_id, failed=True)
        told = {"class": type(error).__name__, "message": str(error)}
        self._answers.keep(self._ticket, self._asked, {"error": told})


class _Chunks:
    """An answer of the baseline, mixed with the library's own class of streams."""

    def __init__(self, chunks: list[bytes], kit: Kit, ticket: Ticket) -> None:
        self._chunks = chunks
        self._kit = kit
        self._ticket = ticket
        self._middle = (len(chunks) + 1) // 2

    def __iter__(self) -> Iterator[bytes]:
        for number, chunk in enumerate(self._chunks):
            if number == self._middle:
                self._pass_the_middle()
            yield chunk

    def _pass_the_middle(self) -> None:
        kit, ticket = self._kit, self._ticket
        if kit.point is None or kit.point["phase"] != "piece":
            return
        deadline = time.monotonic() + _PIECE_SECONDS
        while ticket.noted is None or (not ticket.noted.count and time.monotonic() < deadline):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        if ticket.noted is not None:
            ticket.noted.catch_up()
        kit.moment("piece", ticket.run_id, ticket.step, ticket.call.target)

    def close(self) -> None:
        """Nothing is held."""


class _AsyncChunks(_Chunks):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in _Chunks.__iter__(self):
            yield chunk

    async def aclose(self) -> None:
        """Nothing is held."""


class _Once:
    """Tells what has passed of an answer, when it is over."""

    def __init__(self, tell: Callable[[list[str]], None]) -> None:
        self.chunks: list[str] = []
        self._tell: Callable[[list[str]], None] | None = tell

    def take(self, chunk: bytes) -> bytes:
        self.chunks.append(base64.b64encode(chunk).decode())
        return chunk

    def over(self) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(self.chunks)


class _Tee:
    def __init__(self, stream: Any, passed: _Once) -> None:
        self._stream = stream
        self._passed = passed

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            yield self._passed.take(chunk)
        self._passed.over()

    def close(self) -> None:
        """Close the live stream; what was not read of it is not in the baseline."""
        self._passed.over()
        self._stream.close()


class _AsyncTee(_Tee):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield self._passed.take(chunk)
        self._passed.over()

    async def aclose(self) -> None:
        """Close the live stream; what was not read of it is not in the baseline."""
        self._passed.over()
        await self._stream.aclose()


__all__ = ["Answers", "Patch", "watch"]
