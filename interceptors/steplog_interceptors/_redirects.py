"""Redirects that a client followed inside `send`, as part of the exchange that they led to."""

from __future__ import annotations

from typing import Any

from steplog_interceptors._canonical import without_credentials
from steplog_interceptors._exchange import Exchange, Library, head


def note(exchange: Exchange, response: Any) -> Exchange:
    """Add to an exchange what its answer is the answer to, where the client was led elsewhere."""
    past = getattr(response, "history", None)
    if past:
        exchange["method"] = response.request.method
        exchange["url"] = without_credentials(response.request.url)
        exchange["history"] = [
            {**head(one, decoded=True), "method": one.request.method, "url": without_credentials(one.request.url)}
            for one in past
        ]
    return exchange


def led_to(library: Library, exchange: Exchange, request: Any) -> Any:
    """The request that a recorded answer belongs to: the one that was made now, or where it would be led."""
    return _request(library, exchange, request) if "url" in exchange else request


def restore(library: Library, exchange: Exchange, request: Any, client: Any, response: Any) -> None:
    """Give a rebuilt response its past and, where the client did not follow, its next request."""
    response.history = [
        library.respond(one, _request(library, one, request), client, library.module.ByteStream(b""))
        for one in exchange.get("history", ())
    ]
    build = getattr(client, "_build_redirect_request", None)
    if build is not None and response.has_redirect_location and not exchange.get("history"):
        response.next_request = build(request, response)


def _request(library: Library, exchange: Exchange, request: Any) -> Any:
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() != "host"]
    return library.module.Request(exchange["method"], exchange["url"], headers=headers)
