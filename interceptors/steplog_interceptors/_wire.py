"""The HTTP client's `send`: where a step meets its request, and where bytes are recorded or served.

Inside an announced call only requests that the SDK marks as its own are looked at. Inside a `send`, nothing is: what a
transport or an authentication flow sends from there (token exchanges, say) passes by unrecorded.

Outside every announced call these are steps of their own: a request that an SDK has marked, one that is a model call by
its path and body, and one to a host that the settings name. So another tool's patch, a request that a middleware sends
while a stream is being read, or a client that steplog does not know cannot reach a provider unseen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from steplog import plugins
from steplog.errors import StepFailed, SteplogError
from steplog.plugins import Patch, Patches, Wrapper
from steplog_interceptors import _raised
from steplog_interceptors._account import account_of
from steplog_interceptors._call import CURRENT, PASSING, LogicalCall, Refused, current
from steplog_interceptors._credentials import authenticate, authenticate_async, wanted
from steplog_interceptors._exchange import Exchange, Library, failure, head, mixed, whole
from steplog_interceptors._http import HttpCall
from steplog_interceptors._jobs import AsyncContinued, Earlier, SyncContinued, ask, continues, fresh, lost
from steplog_interceptors._pieces import body_of
from steplog_interceptors._recognise import MODEL, is_model_call, must_pass, pattern_for
from steplog_interceptors._recording import StreamRecord
from steplog_interceptors._redirects import led_to, note, restore
from steplog_interceptors._replay import AsyncReplay, SyncReplay, end_of
from steplog_interceptors._sdk import UNKNOWN, Sdk
from steplog_interceptors._secrets import mints
from steplog_interceptors._stream import AsyncTee, SyncTee
from steplog_interceptors._verify import verify, verify_async

# Where a response keeps its step, for the exception that a program may make of it.
_TICKET: Final = "steplog.ticket"

# SDKs by the product name in their user agent, for requests outside an announced call.
known: Final[dict[str, Sdk]] = {}
# SDKs with a mark of their own.
marked: Final[list[Sdk]] = []


def hooks(patches: Patches) -> dict[str, Callable[[ModuleType], None]]:
    """What to do when an HTTP library is imported."""

    def apply(module: ModuleType) -> None:
        library = Library(module)
        # Where `httpx` is an alias of `httpx2` these are the same classes, and a class that is ours is left alone.
        patches.apply(module.Client, "send", _sync(library))
        patches.apply(module.AsyncClient, "send", _async(library))
        patches.apply(module.Response, "raise_for_status", _blaming)

    return {"httpx2": apply, "httpx": apply}


def _sync(library: Library) -> Wrapper:
    def wrap(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            call = call_of(request) if patch.on else None
            if call is None:
                return original(self, request, *args, **kwargs)
            attempt = Attempt(call, library, self, request, kwargs)
            if call.undecided:
                attempt.begin()
            elif not call.passing:
                attempt.named(request.read())
            if call.passing:
                attempt.make_ready()
                return original(self, request, *args, **kwargs)
            if call.replaying:
                verify(attempt, original, args, kwargs)
                return attempt.serve(SyncReplay, library.sync_stream)
            return attempt.live(original, args, kwargs)

        return send

    return wrap


def _async(library: Library) -> Wrapper:
    def wrap(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        async def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            call = call_of(request) if patch.on else None
            if call is None:
                return await original(self, request, *args, **kwargs)
            attempt = Attempt(call, library, self, request, kwargs)
            if call.undecided:
                await attempt.begin_async()
            elif not call.passing:
                attempt.named(await request.aread())
            if call.passing:
                await attempt.make_ready_async()
                return await original(self, request, *args, **kwargs)
            if call.replaying:
                await verify_async(attempt, original, args, kwargs)
                return attempt.serve(AsyncReplay, library.async_stream)
            return await attempt.live_async(original, args, kwargs)

        return send

    return wrap


def call_of(request: Any) -> LogicalCall | None:
    """The call that a request belongs to, or None where it is to pass."""
    call = current()
    if call is PASSING:
        return None
    if call is not None:
        return call if call.sdk.owns(request) else None
    if UNKNOWN.owns(request):
        product = request.headers.get("user-agent", "").partition("/")[0].lower()
        return LogicalCall(known.get(product.removeprefix("async"), UNKNOWN), net=True)
    for sdk in marked:
        if sdk.owns(request):
            return LogicalCall(sdk, net=True)
    hosts = plugins.settings().http
    pattern = pattern_for(request.url, hosts) if hosts else None
    if is_model_call(request, named=pattern is not None):
        return LogicalCall(MODEL, net=True)
    return None if pattern is None or must_pass(request, pattern) else HttpCall()


def _blaming(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    """Lay the exception that a program makes of an answer on the step that the answer came from."""

    def raise_for_status(self: Any) -> Any:
        try:
            return original(self)
        except Exception as error:
            ticket = self.extensions.get(_TICKET) if patch.on else None
            if ticket is not None:
                ticket.blame(error)
            raise

    return raise_for_status


class Attempt:
    """One request of a call, on its way through one client."""

    def __init__(self, call: LogicalCall, library: Library, client: Any, request: Any, options: Any) -> None:
        self.call = call
        self.library = library
        self.client = client
        self.request = request
        self.auth = options.get("auth")
        self.stream = options.get("stream", False)
        self.name: str | None = None

    def begin(self) -> None:
        """Submit the call; the answer is in the call afterwards."""
        with self._refusals():
            effect = self._effect(self.request.read() if plugins.active() else None)
            if wanted(self.call, effect):
                authenticate(self.call, self.request)
            self.call.bind(plugins.begin(effect))

    async def begin_async(self) -> None:
        """The same from a task."""
        with self._refusals():
            effect = self._effect(await self.request.aread() if plugins.active() else None)
            if wanted(self.call, effect):
                await self._authenticate(effect)
            self.call.bind(await plugins.begin_async(effect))

    async def _authenticate(self, effect: plugins.Call) -> None:
        import asyncio  # a program without tasks does not pay for it

        try:
            await authenticate_async(self.call, self.request)
        except asyncio.CancelledError:
            # The program stops waiting for a token, and may go on from there: then on resume it has to stop waiting
            # for this call again. Where a repeat does no harm, that is worth a step; of any other it is not claimed
            # that it may have happened.
            if effect.mode == "safe":
                ticket = plugins.begin(effect)
                if ticket is not None and ticket.recorded is None:
                    ticket.cancelled()
            raise

    def _effect(self, content: bytes | None) -> plugins.Call:
        if content is None:
            # No run is open: the recorder only wants to say so, and the body is left alone.
            call, request = self.call, self.request
            return plugins.Call(call.kind, f"{request.method} {request.url.path}", None, call.mode_of(request))
        effect = self.call.describe(self.request, content, stream=self.stream)
        with plugins.guard("tell for whom a request is made"):
            effect.account = account_of(self.request, self.client, self.auth, self.call.keys)
        return effect

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except SteplogError as error:
            if self.call.net:
                raise
            raise Refused(error) from error

    def named(self, content: bytes) -> None:
        """Tell this request from the call's first one."""
        self.name = self.call.name(self.request, content)

    # replay ----------------------------------------------------------------------------------------------------------

    def serve(self, kind: type, base: type) -> Any:
        """The recorded answer: a response of the client's own library, or the recorded exception."""
        call, recorded = self.call, self.call.recorded
        exchange = call.settled_by_hand() or call.next_exchange(self.name)
        if "status" not in exchange:
            raise self._failure(exchange["error"])
        if not self.stream or ("chunks" not in exchange and exchange["status"] >= 300):
            return self._served_whole(exchange, body_of(recorded, exchange))
        replay = mixed(kind, base)(call, self.library, exchange, self.request)
        call.stream = replay
        response = self._respond(exchange, replay)
        ticket = call.ticket
        _raised.note(response.request, lambda: ticket if recorded.outcome == "failed" else None)
        return response

    def _respond(self, exchange: Exchange, stream: Any) -> Any:
        request = led_to(self.library, exchange, self.request)
        response = self.library.respond(exchange, request, self.client, stream)
        restore(self.library, exchange, request, self.client, response)
        return self._answering(response)

    def _answering(self, response: Any) -> Any:
        """Let a response of a bare send know its step; the exceptions of an announced call are its scope's."""
        if self.call.net and response.is_error:
            response.extensions[_TICKET] = self.call.ticket
        return response

    def _served_whole(self, exchange: Exchange, body: bytes) -> Any:
        end_of(self.call, self.library, exchange, self.request)
        response = self._respond(exchange, self.library.module.ByteStream(body))
        response.read()
        if self.call.net and self.call.ticket is not None:
            self.call.ticket.replayed()
        return response

    def _failure(self, error: dict[str, str]) -> BaseException:
        rebuilt = self.library.fail(error, self.request)
        if self.call.net and self.call.ticket is not None:
            self.call.ticket.replayed(rebuilt)
        if isinstance(rebuilt, StepFailed) or error.get("before") == "send":
            return rebuilt if self.call.net else Refused(rebuilt)
        return rebuilt

    # live ------------------------------------------------------------------------------------------------------------

    def live(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Send, and record what comes back."""
        self.make_ready()
        request, earlier = self._asked()
        began = time.perf_counter()
        token = CURRENT.set(PASSING)
        try:
            response = original(self.client, request, *args, **kwargs)
            if self.stream and not self._is_streamed(response, earlier):
                # The SDK closes it unread when it tries again; what the provider said belongs in the log.
                response.read()
        except Exception as error:
            self._failed(error, time.perf_counter() - began)
            if self.call.net:
                self._ticket.finish("failed", self.call.detail(error), error=error, waited=self.call.waited)
            raise
        finally:
            CURRENT.reset(token)
        if self._is_streamed(response, earlier):
            if earlier is not None:
                self._continue(response, mixed(SyncContinued, self.library.sync_stream), earlier)
            return self._tee(response, began, SyncTee, self.library.sync_stream)
        self._refuse_lost_job(response, earlier)
        exchange = note(whole(response), response)
        self.call.add(exchange, self.name, time.perf_counter() - began)
        if self.call.net:
            self._ticket.finish(self._outcome(response), self.call.detail(), waited=self.call.waited)
        return self._answering(response)

    async def live_async(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The same for a task."""
        import asyncio  # a program without tasks does not pay for it

        await self.make_ready_async()
        request, earlier = self._asked()
        began = time.perf_counter()
        token = CURRENT.set(PASSING)
        try:
            response = await original(self.client, request, *args, **kwargs)
            if self.stream and not self._is_streamed(response, earlier):
                await response.aread()
        except Exception as error:
            self._failed(error, time.perf_counter() - began)
            if self.call.net:
                waited = self.call.waited
                await self._ticket.finish_async("failed", self.call.detail(error), error=error, waited=waited)
            raise
        except asyncio.CancelledError:
            self._ticket.cancelled()
            raise
        finally:
            CURRENT.reset(token)
        if self._is_streamed(response, earlier):
            if earlier is not None:
                self._continue(response, mixed(AsyncContinued, self.library.async_stream), earlier)
            return self._tee(response, began, AsyncTee, self.library.async_stream)
        self._refuse_lost_job(response, earlier)
        exchange = note(whole(response), response)
        self.call.add(exchange, self.name, time.perf_counter() - began)
        if self.call.net:
            await self._ticket.finish_async(self._outcome(response), self.call.detail(), waited=self.call.waited)
        return self._answering(response)

    def _is_streamed(self, response: Any, earlier: Earlier | None) -> bool:
        if earlier is not None and not continues(response, earlier):
            return False
        # A new credential is taken out before anything is written, for which the answer has to be there.
        return self.stream and response.is_success and not mints(self.request.url.path)

    @property
    def _ticket(self) -> plugins.Ticket:
        ticket = self.call.ticket
        assert ticket is not None
        return ticket

    def make_ready(self) -> None:
        """Fetch the credentials that were put off; raises (as `Refused`) what that raises."""
        self.request = self.call.amended(self.library, self.request, self.name)
        self.call.put_key(self.request)
        authenticate(self.call, self.request)
        self._refuse_without_credentials()

    async def make_ready_async(self) -> None:
        """The same for a task."""
        self.request = self.call.amended(self.library, self.request, self.name)
        self.call.put_key(self.request)
        await authenticate_async(self.call, self.request)
        self._refuse_without_credentials()

    def _asked(self) -> tuple[Any, Earlier | None]:
        """The request to send, and what an earlier attempt received of the job that it asks for, if it is one."""
        ticket, jobs = self._ticket, self.call.sdk.jobs
        if ticket.earlier is None or jobs is None:
            return self.request, None
        earlier = Earlier(jobs, ticket.earlier)
        return ask(self.library, jobs, self.request, ticket.earlier.job, earlier.last), earlier

    def _continue(self, response: Any, kind: Any, earlier: Earlier) -> None:
        jobs = self.call.sdk.jobs
        assert jobs is not None
        response.stream = kind(earlier.chunks, response.stream, fresh(jobs, self._ticket, earlier, response))
        # The SDK reads off the request what its caller wanted of the answer.
        response.request = self.request

    def _refuse_lost_job(self, response: Any, earlier: Earlier | None) -> None:
        why = (
            lost(response, self._ticket.earlier.job) if earlier is not None and self._ticket.earlier is not None else ""
        )
        if why:
            raise self._ticket.doubt(f"{why}\nA resumed run asks again. {self._ticket.call.lookup}")

    def _refuse_without_credentials(self) -> None:
        error = self.call.deferred
        if error is not None and self.call.deferred_sends:
            self.call.deferred = None
            self._failed(error, 0.0)
            raise error
        if error is not None:
            self.call.add({"error": failure(error, self.request) | {"before": "send"}}, self.name, 0.0)
            refused = Refused(error)
            plugins.conceal(refused, plugins.conceal(error, ()))
            raise refused

    def _failed(self, error: Exception, seconds: float) -> None:
        exchange: Exchange = {"error": failure(error, self.request)}
        failed = getattr(error, "_request", None)
        if failed is not None and failed.url != self.request.url:
            exchange["led"] = True
        self.call.add(exchange, self.name, seconds)

    def _tee(self, response: Any, began: float, kind: type, base: type) -> Any:
        record = StreamRecord(
            self.call, note(head(response, decoded=False), response), self.name, time.perf_counter() - began, response
        )
        record.broken = self.library.module.RemoteProtocolError
        response.stream = mixed(kind, base)(response.stream, record)
        self.call.stream = record
        _raised.note(response.request, record.raised)
        return response

    @staticmethod
    def _outcome(response: Any) -> str:
        return "failed" if response.is_error else "done"
