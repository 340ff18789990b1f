"""One HTTP exchange as data, and data as an exchange: for both HTTP libraries that the SDKs use.

`httpx2` is a fork of `httpx` with the same names, so one description serves both, and a log written over one can be
replayed over the other. A replayed response belongs to the library of the client that asks for it.

An exchange in `step.finished` is one of

    {"status", "http", "reason"?, "headers", "body", "ms", "request"?}                    read whole, content decoded
    {"status", "http", "reason"?, "headers", "body", "chunks", "end", "error"?, "ms", "request"?}   read as a stream
    {"error": {"module", "class", "message", "response"?}, "ms", "request"?}              the transport failed

`url`, `method` and `history` are present where the client was redirected: what the answer is the answer to, and the
answers before it. `request` is present where the attempt's request is not the step's own request; it is that request's
digest.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable
from datetime import timedelta
from types import ModuleType
from typing import Any, Final

import orjson

from steplog import plugins
from steplog.errors import StepFailed
from steplog.plugins import Body
from steplog_interceptors._canonical import query_without_credentials
from steplog_interceptors._secrets import mints, quoted_again, redact_answer

Exchange = dict[str, Any]

_LIBRARIES: Final = ("httpx2", "httpx")

# Never stored: credentials, and who the account belongs to. Everything else is the provider's answer.
_SECRET_HEADERS: Final = frozenset(
    "set-cookie authorization proxy-authorization proxy-authenticate www-authenticate x-api-key api-key cookie "
    "openai-organization openai-project anthropic-organization-id anthropic-workspace-id x-amz-security-token "
    "x-goog-api-key".split()
)
# A shorter word of such a header, such as "Bearer", names a scheme.
_CREDENTIAL_LENGTH: Final = 8
# They describe the bytes on the wire, and would contradict a body that is stored decoded.
_LENGTH_HEADERS: Final = frozenset({"content-length", "transfer-encoding"})
_ENCODING_HEADERS: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})


_URL_HEADERS: Final = frozenset({"location", "content-location", "x-goog-upload-url"})


class Library:
    """One of the two HTTP libraries, by the module that a client's class came from."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.name = module.__name__

    @functools.cached_property
    def sync_stream(self) -> type:
        """Base class of response bodies for the sync client."""
        stream: type = self.module.SyncByteStream
        return stream

    @functools.cached_property
    def async_stream(self) -> type:
        """Base class of response bodies for the async client."""
        stream: type = self.module.AsyncByteStream
        return stream

    def respond(self, exchange: Exchange, request: Any, client: Any, stream: Any) -> Any:
        """Build the recorded response around `stream`, for the request that was really made."""
        extensions = {"http_version": exchange["http"].encode("ascii")}
        if "reason" in exchange:
            extensions["reason_phrase"] = exchange["reason"].encode("ascii", "replace")
        response = self.module.Response(
            exchange["status"],
            headers=[(name, value) for name, value in exchange["headers"]],
            stream=stream,
            request=request,
            extensions=extensions,
            default_encoding=getattr(client, "_default_encoding", "utf-8"),
        )
        response.elapsed = timedelta(milliseconds=exchange.get("ms", 0.0))
        return response

    def fail(self, error: dict[str, Any], request: Any) -> Exception:
        """Rebuild a recorded exception: the same class of this client's own library, or a builtin."""
        path = request.url.raw_path.decode("ascii")
        error = error | {"message": quoted_again(error["message"], str(request.url), path)}
        # A log can be replayed over the other library than it was written with.
        is_theirs = error["module"].partition(".")[0] in _LIBRARIES
        cls: Any = getattr(self.module, error["class"], None) if is_theirs else None
        if not _is_exception(cls):
            return revived(error)
        rebuilt: Exception
        if issubclass(cls, self.module.HTTPStatusError):
            # An event hook of the client raised it.
            response = self.respond(
                {"http": "HTTP/1.1", **error["response"]}, request, None, self.module.ByteStream(b"")
            )
            rebuilt = cls(error["message"], request=request, response=response)
        elif issubclass(cls, self.module.RequestError):
            rebuilt = cls(error["message"], request=request)
        else:
            rebuilt = cls(error["message"])
        return rebuilt


def with_content(library: Library, request: Any, content: bytes) -> Any:
    """The same request with another body."""
    kept = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _LENGTH_HEADERS]
    return library.module.Request(
        request.method, request.url, headers=kept, content=content, extensions=request.extensions
    )


def revived(error: dict[str, Any]) -> Exception:
    """A recorded exception of a class that takes its message and nothing else, or `StepFailed` in its place."""
    module, name, message = error["module"], error["class"], error["message"]
    # Only what the program has already imported: a log must not be able to name a module to load.
    cls: Any = getattr(sys.modules.get(module), name, None)
    if _is_exception(cls):
        try:
            rebuilt: Exception = cls(message)
            if str(rebuilt) == message:
                return rebuilt
        except Exception as refused:  # noqa: BLE001 - whatever a class of the program does with a text alone
            plugins.log.debug("%s.%s cannot be built from its message: %r", module, name, refused)
    why = "cannot be built from its message" if _is_exception(cls) else "is not loaded in this program"
    message = (
        f"The recorded call failed with {module}.{name}: {message}\nThat class {why}, so this error stands for it."
    )
    return StepFailed(message, type_name=f"{module}:{name}")


def _is_exception(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Exception)


def failure(error: BaseException, request: Any = None) -> dict[str, Any]:
    """An exception as data; without the credentials of the request that it may quote."""
    message = str(error)
    for secret in plugins.conceal(error, [] if request is None else _credentials_of(request)):
        message = message.replace(secret, "[redacted]")
    message = plugins.scrub_urls(message)
    told: dict[str, Any] = {"module": type(error).__module__, "class": type(error).__qualname__, "message": message}
    response = getattr(error, "response", None)
    if hasattr(response, "status_code") and hasattr(response, "extensions"):
        told["response"] = head(response, decoded=True)
    return told


def _credentials_of(request: Any) -> list[str]:
    """The values of a request's headers that are credentials by their names; the longest first."""
    values = [value for name, value in request.headers.items() if name.lower() in _SECRET_HEADERS]
    words = {word for value in values if isinstance(value, str) for word in (value.strip(), *value.split())}
    return sorted((word for word in words if len(word) >= _CREDENTIAL_LENGTH), key=len, reverse=True)


def head(response: Any, *, decoded: bool) -> Exchange:
    """Status line and headers of a response; `decoded` says that its body will be stored without its encoding."""
    http = response.extensions.get("http_version", b"HTTP/1.1").decode("ascii", "replace")
    exchange: Exchange = {"status": response.status_code, "http": http}
    reason = response.extensions.get("reason_phrase")
    if reason is not None:
        exchange["reason"] = reason.decode("ascii", "replace")
    dropped = _SECRET_HEADERS
    if decoded and "content-encoding" in response.headers:
        dropped = dropped | _ENCODING_HEADERS
    exchange["headers"] = list(kept_headers(response.headers.multi_items(), dropped))
    return exchange


def kept_headers(pairs: Iterable[tuple[str, str]], dropped: frozenset[str] = _SECRET_HEADERS) -> Iterable[list[str]]:
    """The header pairs that may be stored."""
    return ([name, _without_secrets(name, value)] for name, value in pairs if name.lower() not in dropped)


def _without_secrets(name: str, value: str) -> str:
    """Where an answer leads to a URL that is signed, the signature is a credential like any other."""
    return query_without_credentials(value) if name.lower() in _URL_HEADERS and "?" in value else value


def whole(response: Any) -> Exchange:
    """A response that has been read to its end; `redacted` names the credentials that were taken out of it."""
    exchange = head(response, decoded=True)
    content = response.content
    if mints(response.request.url.path):
        with contextlib.suppress(ValueError):  # no JSON, so no fields of an API
            tree = orjson.loads(content)
            taken = redact_answer(tree)
            if taken:
                content = orjson.dumps(tree)
                exchange["redacted"] = taken
    return exchange | {"body": Body(content)}


@functools.cache
def mixed(kind: type, base: type) -> Any:
    """The class of a body for one library: it checks `isinstance(body, SyncByteStream)`."""
    return type(kind.__name__, (kind, base), {})
