"""What a cassette leaves out of a log: all that differs when the same thing is recorded again, and says nothing.

Times and durations, processes, machines, versions and paths, headers about the connection, and where a stream happened
to be cut into chunks and pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from steplog._kernel import events as ev

Data = dict[str, Any]

# Of `run.created`: what a program said of its run, and what it recorded beside model calls.
_CREATED: Final = ("goal", "trigger", "also", "http")

# About the connection, the moment and the account's limits; some of it changes with every answer.
_HEADERS: Final = re.compile(
    r"date|age|server|via|nel|report-to|alt-svc|connection|keep-alive|content-length|transfer-encoding|traceresponse"
    r"|expect-ct|strict-transport-security|server-timing|expires|x-robots-tag|x-content-type-options"
    r"|cf-.*|x-cache.*|x-served-by|x-timer|x-runtime|x-response-time|x-amz-cf-.*|x-amzn-trace-id|x-cloud-trace-context"
    r"|x-envoy-.*|.*ratelimit.*|.*-processing-ms|x-request-time|x-ms-region|x-vercel-.*|x-correlation-id|cmp-upstream-.*",
    re.IGNORECASE,
)


def created(data: Data) -> Data:
    """The data of `run.created` as it stands in a cassette."""
    kept = {name: data[name] for name in _CREATED if data.get(name)}
    if kept.get("trigger") == {"kind": "program"}:
        del kept["trigger"]
    return kept


def of_run(type_: str, data: Data) -> Data:
    """The data of another event of a run."""
    if type_ == ev.RUN_CLAIMED:
        return {}
    return {name: value for name, value in data.items() if name not in ("unplayed", "commands")}


def started(run: str, step: str, data: Data, *, accounts: bool) -> Data:
    """The data of `step.started`.

    Args:
        run: the run.
        step: the step.
        data: the data.
        accounts: the run has calls for more than one account.
    """
    kept = dict(data)
    if kept.get("key") == f"{run}:{step}":
        del kept["key"]
    if not accounts:
        kept.pop("account", None)
    if "request" in kept:
        kept["request"] = {name: value for name, value in kept["request"].items() if name != "sdk_version"}
    return kept


def finished(data: Data) -> Data:
    """The data of `step.finished` and its kind."""
    kept = {name: value for name, value in data.items() if name not in ("ms", "request_id")}
    if "exchanges" in kept:
        kept["exchanges"] = [_exchange(exchange) for exchange in kept["exchanges"]]
    return kept


def _exchange(exchange: Data) -> Data:
    kept = {name: value for name, value in exchange.items() if name != "ms"}
    if "headers" in kept:
        kept["headers"] = [pair for pair in kept["headers"] if not _HEADERS.fullmatch(pair[0])]
    if "history" in kept:
        kept["history"] = [_exchange(earlier) for earlier in kept["history"]]
    return kept


def is_events(exchange: Data) -> bool:
    """Whether an exchange is a stream of server-sent events."""
    return any(
        name.lower() == "content-type" and value.lower().startswith("text/event-stream")
        for name, value in exchange.get("headers", ())
    )


def whole_streams(
    end: Data, notes: list[Data], bytes_of: Callable[[Data], bytes]
) -> tuple[Data, dict[int, bytes]] | None:
    """The end of a step whose streamed bodies lie in notes that were written while they passed, put together.

    Args:
        end: the data of its `step.finished`.
        notes: the data of its `step.progressed` events.
        bytes_of: gives the bytes of a body form.

    Returns:
        The data, and by the number of an exchange the bytes of its body; None where the notes say anything else.
    """
    if end.get("progressed") != len(notes) or any(not {"exchange", "body", "chunks"} <= note.keys() for note in notes):
        return None
    if any("job" in note for note in notes):
        return None
    kept = {name: value for name, value in end.items() if name != "progressed"}
    bodies: dict[int, bytes] = {}
    exchanges = []
    for number, exchange in enumerate(kept.get("exchanges", ())):
        form = exchange.get("body")
        if isinstance(form, dict) and "progressed" in form:
            mine = [note for note in notes if note["exchange"] == form["progressed"]]
            rest = bytes_of(form["rest"]) if form.get("rest") else b""
            bodies[number] = b"".join(bytes_of(note["body"]) for note in mine) + rest
            lengths = [length for note in mine for length in note["chunks"]]
            exchange = {**exchange, "chunks": [*lengths, *exchange.get("chunks", ())]}  # noqa: PLW2901 - its new form
        exchanges.append(exchange)
    if {note["exchange"] for note in notes} != {
        exchange["body"]["progressed"]
        for exchange in kept.get("exchanges", ())
        if isinstance(exchange.get("body"), dict) and "progressed" in exchange["body"]
    }:
        return None
    return {**kept, "exchanges": exchanges}, bodies
