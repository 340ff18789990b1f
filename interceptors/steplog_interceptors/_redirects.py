"""Redirects that a client followed inside `send`, as part of the exchange that they led to."""

from __future__ import annotations

from typing import Any

from steplog_interceptors._canonical import without_credentials
from steplog_interceptors._exchange import Exchange, Library, head
from steplog_interceptors._secrets import hide_path, show_path


def note(exchange: Exchange, response: Any) -> Exchange:
    """Add to an exchange what its answer is the answer to, where the client was led elsewhere."""
    past = getattr(response, "history", None)
    if past:
        exchange["method"] = response.request.method
        exchange["url"] = hide_path(without_credentials(response.request.url), past[0].request.url.path)
        exchange["history"] = [_past(one, past[0].request.url.path) for one in past]
    return exchange


def _past(response: Any, path: str) -> Exchange:
    exchange = head(response, decoded=True)
    exchange["headers"] = [[name, hide_path(value, path)] for name, value in exchange["headers"]]
    asked = response.request
    return exchange | {"method": asked.method, "url": hide_path(without_credentials(asked.url), path)}


def led_to(library: Library, exchange: Exchange, request: Any) -> Any:
    """The request that a recorded answer belongs to: the one that was made now, or where it would be led."""
    return _request(library, exchange, request) if "url" in exchange else request


def restore(library: Library, exchange: Exchange, request: Any, client: Any, response: Any) -> None:
    """Give a rebuilt response its past and, where the client did not follow, its next request."""
    response.history = [
        library.respond(_shown(one, request), _request(library, one, request), client, library.module.ByteStream(b""))
        for one in exchange.get("history", ())
    ]
    build = getattr(client, "_build_redirect_request", None)
    if build is not None and response.has_redirect_location and not exchange.get("history"):
        response.next_request = build(request, response)


def _shown(exchange: Exchange, request: Any) -> Exchange:
    path = request.url.path
    return exchange | {"headers": [(name, show_path(value, path)) for name, value in exchange["headers"]]}


def _request(library: Library, exchange: Exchange, request: Any) -> Any:
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() != "host"]
    url = show_path(exchange["url"], request.url.path)
    return library.module.Request(exchange["method"], url, headers=headers)
