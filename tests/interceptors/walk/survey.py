"""Which requests the methods make, and their modes, without a server: one call of each, answered in the process."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any, Final

from steplog.testing.provider import Reply
from steplog_interceptors import anthropic, openai
from steplog_interceptors._canonical import canonical, read_wire
from tests.interceptors.support import complete, http_of
from tests.interceptors.walk.calls import Call, calls
from tests.interceptors.walk.inventory import SDKS, client, methods
from tests.interceptors.walk.refused import NOT_CALLED, REFUSED

_RULES: Final = {"openai": openai.SDK, "anthropic": anthropic.SDK}
_ID: Final = re.compile(r"(?<=/)[a-z0-9_]+_(?:a1b2c3d4|\d+)(?=/|$)")

Modes = dict[str, str]


def template(method: str, path: str) -> str:
    """How a request is named in the tables: `POST /v1/files/{id}`."""
    return f"{method} {_ID.sub('{id}', path)}"


@functools.cache
def planned(sdk: str) -> tuple[Call, ...]:
    """Every call of every method that makes requests."""
    found: list[Call] = []
    for method in methods(sdk):
        if REFUSED.get(str(method)) not in NOT_CALLED:
            found += calls(method)
    return tuple(found)


@functools.cache
def survey(sdk: str) -> dict[str, Modes]:
    """By resource, the mode of each kind of request that its methods make."""
    found: dict[str, Modes] = {}
    library = http_of(SDKS[sdk])
    replies: list[Reply] = []
    resource = ""

    def answer(request: Any) -> Any:
        wire = read_wire(request, request.read())
        mode = _RULES[sdk].mode(wire, canonical(wire).json)
        found.setdefault(resource, {})[template(wire.method, wire.path)] = mode
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        return library.Response(reply.status, headers=dict(reply.headers), content=reply.body)

    transport = SDKS[sdk].DefaultHttpxClient(transport=library.MockTransport(answer))
    with warnings.catch_warnings(), client(sdk, "http://127.0.0.1:9", http_client=transport) as opened:
        warnings.simplefilter("ignore", DeprecationWarning)
        for call in planned(sdk):
            if not call.view and "sync" in call.method.colours:
                resource = call.method.resource
                replies[:] = call.answer.replies(0)
                complete(call.perform(opened))
    return found


def all_modes(sdk: str) -> Modes:
    """The mode of each kind of request that the SDK makes."""
    return {request: mode for modes in survey(sdk).values() for request, mode in modes.items()}
