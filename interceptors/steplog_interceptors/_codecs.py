"""Requests and responses of the HTTP libraries as recorded values.

An `APIStatusError` that a tool raised is recorded with the step of that tool; it comes back with its `response` and
`request`, without the credentials that these carry.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from steplog import plugins
from steplog_interceptors._canonical import canonical, read_wire, without_credentials
from steplog_interceptors._exchange import head

# What a request says about itself; of anything else it is unknown whether it is a credential.
_TOLD: Final = frozenset(
    "host accept accept-encoding content-type content-length user-agent idempotency-key anthropic-version "
    "anthropic-beta openai-beta".split()
)
_TOLD_PREFIX: Final = "x-stainless-"


def hooks() -> dict[str, Callable[[ModuleType], None]]:
    """What to do when an HTTP library is imported."""
    return {"httpx2": _register, "httpx": _register}


def _register(module: ModuleType) -> None:
    plugins.register_codec(module.Request, to=_request_to, of=lambda tree: _request_of(module, tree))
    plugins.register_codec(module.Response, to=_response_to, of=lambda tree: _response_of(module, tree))


def _request_to(request: Any) -> dict[str, Any]:
    headers = [[name, value] for name, value in request.headers.multi_items() if _is_told(name.lower())]
    # A body that is a stream, and was not read, is the program's to read.
    content = getattr(request, "_content", b"")
    stored = canonical(read_wire(request, content)).stored
    return {
        "method": request.method,
        "url": without_credentials(request.url),
        "headers": headers,
        "content": b"" if stored is None else stored.data,
    }


def _is_told(name: str) -> bool:
    return name in _TOLD or name.startswith(_TOLD_PREFIX)


def _request_of(module: ModuleType, tree: dict[str, Any]) -> Any:
    return module.Request(
        tree["method"], tree["url"], headers=[(name, value) for name, value in tree["headers"]], content=tree["content"]
    )


def _response_to(response: Any) -> dict[str, Any]:
    return {
        **head(response, decoded=True),
        "content": getattr(response, "_content", None),
        "request": getattr(response, "_request", None),
    }


def _response_of(module: ModuleType, tree: dict[str, Any]) -> Any:
    response = module.Response(
        tree["status"],
        headers=[(name, value) for name, value in tree["headers"]],
        stream=module.ByteStream(tree["content"] or b""),
        request=tree["request"],
        extensions={"http_version": tree["http"].encode("ascii")},
    )
    if tree["content"] is not None:
        response.read()
    return response
