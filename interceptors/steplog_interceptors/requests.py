"""The requests library: requests to the hosts that `install(http=[...])` names, and model calls that are made with it.

What becomes a step, its mode and its identity are those of httpx. An answer is read whole before the program gets it,
also with `stream=True`: what is recorded must be complete, and this library has no place to listen in between. Its
`raw` then reads what was received, live and on a resume.
"""

from __future__ import annotations

import gzip
import io
import sys
import time
import zlib
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from types import ModuleType
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from steplog import plugins
from steplog.plugins import Patch, Patches
from steplog_interceptors._account import account_of
from steplog_interceptors._call import CURRENT, PASSING, LogicalCall
from steplog_interceptors._canonical import query_without_credentials
from steplog_interceptors._exchange import Exchange, failure, kept_headers, revived
from steplog_interceptors._pieces import body_of
from steplog_interceptors._secrets import hide_path, quoted_again, show_path
from steplog_interceptors._verify import compare, unanswered, wanted
from steplog_interceptors._wire import call_of

_TICKET: Final = "_steplog_ticket"

# Failures before the first byte has left, by class or, where one class means many things, by what they say.
_UNSENT: Final = frozenset(
    "ConnectTimeout MissingSchema InvalidSchema InvalidURL InvalidHeader InvalidProxyURL InvalidJSONError".split()
)
_UNSENT_TEXT: Final = "Failed to establish a new connection"
_ENCODING: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class RequestsInterceptor:
    """Records what passes through `requests.Session.send`.

    Attributes:
        name: `requests`.
        honours: settings that may name it.
    """

    name = "requests"
    honours = ("ignore", "modes")

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Patch the library, now or when it is imported. Idempotent."""
        self._patches.install({"requests.sessions": self._sessions, "requests.models": self._models})

    def uninstall(self) -> None:
        """Take back what is still ours. Idempotent."""
        self._patches.uninstall()

    def _sessions(self, module: ModuleType) -> None:
        self._patches.apply(module.Session, "send", _send)

    def _models(self, module: ModuleType) -> None:
        self._patches.apply(module.Response, "raise_for_status", _raise_for_status)


# Where the request that is being sent was led: redirects come back through `send`.
_HOPS: Final[ContextVar[list[str] | None]] = ContextVar("steplog_interceptors_hops", default=None)


def _send(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    def send(self: Any, request: Any, **kwargs: Any) -> Any:
        hops = _HOPS.get()
        if hops is not None:
            hops.append(request.url)
        shown = _Shown(request) if patch.on else None
        call = None if shown is None else call_of(shown)
        if shown is None or call is None:
            return original(self, request, **kwargs)
        call.tables = (RequestsInterceptor.name, *call.tables)
        if not plugins.active():
            # Outside every run: said, or refused, and otherwise none of our business.
            target = f"{shown.method} {shown.url.path}"
            plugins.begin(plugins.Call(call.kind, target, None, call.mode_of(shown)))
            return original(self, request, **kwargs)
        effect = call.describe(shown, _whole_body(request), stream=_is_streamed(self, kwargs))
        with plugins.guard("tell for whom a request is made"):
            effect.account = account_of(shown, more=call.keys)
        call.bind(plugins.begin(effect))
        if call.replaying:
            _verify(call, original, self, request, kwargs)
            return _returned(call, request, stream=_is_streamed(self, kwargs))
        return original(self, request, **kwargs) if call.passing else _live(call, original, self, request, kwargs)

    return send


def _is_streamed(session: Any, kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("stream", session.stream))


def _raise_for_status(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    def raise_for_status(self: Any) -> Any:
        try:
            return original(self)
        except Exception as error:
            ticket = self.__dict__.get(_TICKET) if patch.on else None
            if ticket is not None:
                ticket.blame(error)
            raise

    return raise_for_status


class _Url:
    """A URL with the names that it has in httpx."""

    def __init__(self, text: str) -> None:
        parts = urlsplit(text)
        self.host = (parts.hostname or "").lower()
        self.port = parts.port if parts.port != {"http": 80, "https": 443}.get(parts.scheme) else None
        self.path = parts.path or "/"
        self.query = parts.query
        self.params = self

    def multi_items(self) -> list[tuple[str, str]]:
        return parse_qsl(self.query, keep_blank_values=True)


class _Shown:
    """A prepared request with the names that it has in httpx."""

    def __init__(self, request: Any) -> None:
        self.method = request.method or "GET"
        self.url = _Url(request.url or "")
        self.headers = request.headers
        body = request.body
        self._content = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else b""


def _whole_body(request: Any) -> bytes:
    """The body's bytes; one that is a file or a generator is read, and sent as what was read."""
    body = request.body
    if body is None or isinstance(body, bytes):
        return body or b""
    if isinstance(body, str):
        return body.encode()
    read = body.read() if hasattr(body, "read") else b"".join(body)
    request.body = read.encode() if isinstance(read, str) else read
    # Bytes are sent again as they are; a position would have a redirect rewind them.
    request._body_position = None  # noqa: SLF001 - what the library notes of a body that it need not rewind
    request.headers.pop("Transfer-Encoding", None)
    request.headers["Content-Length"] = str(len(request.body))
    whole: bytes = request.body
    return whole


def _live(call: LogicalCall, original: Callable[..., Any], session: Any, request: Any, kwargs: dict[str, Any]) -> Any:
    ticket = call.ticket
    assert ticket is not None
    began = time.perf_counter()
    # Redirects come back through `send`; they are part of this request.
    token = CURRENT.set(PASSING)
    hops: list[str] = []
    hops_token = _HOPS.set(hops)
    try:
        response = original(session, _amended(ticket, request), **kwargs)
        content = response.content
    except Exception as error:
        told = failure(error, request)
        if told["class"] in _UNSENT or _UNSENT_TEXT in told["message"]:
            told["before"] = "send"
        exchange: Exchange = {"error": told}
        if hops:
            exchange["led"] = True
        call.add(exchange, None, time.perf_counter() - began)
        ticket.finish("failed", call.detail(error), error=error, waited=call.waited)
        raise
    finally:
        _HOPS.reset(hops_token)
        CURRENT.reset(token)
    exchange = _head(response, request) | {"body": plugins.Body(content), "encoding": response.encoding}
    response.raw = _raw(response, content if _is_streamed(session, kwargs) else b"")
    if response.history:
        exchange["history"] = [_head(one, request) for one in response.history]
    call.add(exchange, None, time.perf_counter() - began)
    ticket.finish("failed" if response.status_code >= 400 else "done", call.detail(), waited=call.waited)
    return _answering(call, response)


def _amended(ticket: plugins.Ticket, request: Any) -> Any:
    """The request with what a fork changes in its body."""
    if not ticket.changes:
        return request
    amended = request.copy()
    amended.prepare_body(plugins.changed(_whole_body(request), ticket.changes), None)
    return amended


def _verify(
    call: LogicalCall, original: Callable[..., Any], session: Any, request: Any, kwargs: dict[str, Any]
) -> None:
    """Make a call that is about to be answered from the log, where that is wanted."""
    exchange = wanted(call, None)
    if exchange is None:
        return
    token, hops_token = CURRENT.set(PASSING), _HOPS.set([])
    try:
        response = original(session, request, **kwargs)
        found = plugins.Answer(response.status_code, response.headers.get("content-type", ""), response.content)
    except Exception as error:  # noqa: BLE001  # the program gets the recorded answer, the test is told
        found = unanswered(error)
    finally:
        _HOPS.reset(hops_token)
        CURRENT.reset(token)
    compare(call, exchange, found)


def _head(response: Any, request: Any) -> Exchange:
    dropped = _ENCODING if "content-encoding" in response.headers else frozenset()
    path = urlsplit(request.url).path
    pairs = [[name, hide_path(value, path)] for name, value in kept_headers(response.headers.items())]
    told: Exchange = {
        "status": response.status_code,
        "reason": response.reason,
        "url": _bare(response.url, request),
        "method": response.request.method,
        "headers": [pair for pair in pairs if pair[0].lower() not in dropped],
    }
    if dropped:
        told["coded"] = [pair for pair in pairs if pair[0].lower() in dropped]
    return told


def _bare(url: str, request: Any) -> str:
    return hide_path(query_without_credentials(url), urlsplit(request.url).path)


def _answering(call: LogicalCall, response: Any) -> Any:
    if response.status_code >= 400:
        setattr(response, _TICKET, call.ticket)
    return response


def _returned(call: LogicalCall, request: Any, *, stream: bool) -> Any:
    ticket = call.ticket
    assert ticket is not None
    exchange = call.settled_by_hand() or call.next_exchange(None)
    if "status" not in exchange:
        error = _rebuilt(exchange["error"], request)
        ticket.replayed(error)
        raise error
    body = body_of(call.recorded, exchange)
    response = _response(exchange, request, body)
    if stream:
        response.raw = _raw(response, body)
    response.history = [_response(one, request, b"") for one in exchange.get("history", ())]
    ticket.replayed()
    return _answering(call, response)


def _response(exchange: Exchange, request: Any, body: bytes) -> Any:
    models: Any = sys.modules["requests.models"]
    response = models.Response()
    response.status_code = exchange["status"]
    response.reason = exchange.get("reason")
    led = "url" in exchange and exchange["url"] != _bare(request.url, request)
    path = urlsplit(request.url).path
    response.url = show_path(exchange["url"], path) if led else request.url
    pairs = [*exchange["headers"], *exchange.get("coded", ())]
    response.headers.update({name: show_path(value, path) for name, value in pairs})
    response.encoding = exchange.get("encoding")
    response.elapsed = timedelta(milliseconds=exchange.get("ms", 0.0))
    response.request = request
    if led and exchange.get("method"):
        response.request = request.copy()
        response.request.method, response.request.url = exchange["method"], response.url
    response.raw = _raw(response, b"")
    response._content = body  # noqa: SLF001 - what `Response.content` itself sets
    response._content_consumed = True  # noqa: SLF001 - so that `iter_content` cuts pieces off it
    return response


# How a body is coded that is stored decoded. Any other coding is of a package that need not be installed on a resume.
_CODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": lambda body: gzip.compress(body, mtime=0),
    "deflate": zlib.compress,
}


def _raw(response: Any, body: bytes) -> Any:
    """What `response.raw` is, over a body that has been read: coded as on the wire, and decoded where that is asked.

    The bytes of a coded body need not be those of the wire; they decode to the same.
    """
    urllib3: Any = sys.modules["urllib3.response"]
    headers = dict(response.headers)
    coding = response.headers.get("content-encoding")
    if coding is not None:
        coder = _CODERS.get(coding.strip().lower())
        body = coder(body) if coder is not None and body else body
        # They tell of bytes that are not given here.
        gone = _ENCODING if coder is None else _ENCODING - {"content-encoding"}
        headers = {name: value for name, value in headers.items() if name.lower() not in gone}
    return urllib3.HTTPResponse(
        body=io.BytesIO(body),
        headers=headers,
        status=response.status_code,
        reason=response.reason,
        version=11,
        preload_content=False,
        decode_content=False,
        enforce_content_length=False,
        request_method=response.request.method,
    )


def _rebuilt(error: dict[str, Any], request: Any) -> Exception:
    error = error | {"message": quoted_again(error["message"], request.url, request.path_url)}
    # Only what the program has already imported: a log must not be able to name a module to load.
    cls = getattr(sys.modules.get(error["module"]), error["class"], None)
    base: Any = sys.modules["requests.exceptions"]
    if isinstance(cls, type) and issubclass(cls, base.RequestException):
        rebuilt: Exception = cls(error["message"], request=request)
        return rebuilt
    return revived(error)


interceptor: Final = RequestsInterceptor()
