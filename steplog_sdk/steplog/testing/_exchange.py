"""One request and its answer, as cassette files and Python handlers state them.

A cassette file is JSON, schema 1: `request` has method, path (with its query), headers, body_type and body;
`response` has status, headers, body_type and body. A body_type is `json` (a tree), `sse` or `ndjson` (the text as it
goes over the wire), `base64` (any bytes), `multipart` (a description; requests only) or `empty`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from steplog.errors import InvalidArgument

SCHEMA: Final = 1

# An event ends at its blank line; the three spellings of a line end are all legal on the wire.
_EVENT: Final = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r)|.+\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Hit:
    """One request that the provider received.

    Attributes:
        number: from 1, in order of arrival.
        method: upper case.
        path: with its query.
        headers: names in lower case.
        body: the bytes as received.
    """

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def json(self) -> Any:
        """The parsed body, or None where it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Reply:
    """What to answer.

    Attributes:
        status: HTTP status.
        headers: sent as they are; length and framing are added.
        body: the bytes.
        streamed: send chunked, one chunk for each server-sent event (or line, of plain text), instead of whole with a
            length.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    streamed: bool = False

    @classmethod
    def json(cls, tree: Any, status: int = 200, **headers: str) -> Reply:
        """Answer a JSON tree; a keyword `retry_after="1"` becomes the header `retry-after`."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(status, {"content-type": "application/json", **names}, encode(tree))

    @classmethod
    def sse(cls, events: str | Iterable[Any], *, named: bool = False) -> Reply:
        """Answer server-sent events: the whole text, or the trees (or strings) of the `data:` lines.

        Args:
            events: a string is sent as it is; of anything else, each item is one event.
            named: an `event:` line with the tree's `type` goes before each `data:` line. Anthropic's messages and
                OpenAI's responses stream so, and the anthropic SDK skips events that have no name.

        Raises:
            InvalidArgument: an event that is to be named and has no `type`, or a whole text, which names its own.
        """
        if not isinstance(events, str):
            events = "".join(_event(event, named=named) for event in events)
        elif named:
            raise InvalidArgument("Reply.sse(text, named=True): write the `event:` lines into the text, or pass trees")
        return cls(200, {"content-type": "text/event-stream; charset=utf-8"}, events.encode(), streamed=True)

    @classmethod
    def lines(cls, *lines: str) -> Reply:
        """Answer lines of text, such as JSON trees, one chunk for each."""
        body = "".join(f"{line}\n" for line in lines)
        return cls(200, {"content-type": "text/plain; charset=utf-8"}, body.encode(), streamed=True)

    def parts(self) -> list[bytes]:
        """The body in the pieces in which a streamed reply sends it."""
        if not self.streamed:
            return [self.body]
        is_lines = self.headers.get("content-type", "").startswith("text/plain")
        return self.body.splitlines(keepends=True) if is_lines else _EVENT.findall(self.body)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request to recognise and the reply to give.

    Attributes:
        method: upper case.
        path: with its query.
        body: the canonical JSON text that the request must have, or None to accept any body.
        reply: the answer.
        name: where it comes from, for messages.
    """

    method: str
    path: str
    body: str | None
    reply: Reply
    name: str = "(inline)"

    @classmethod
    def of(cls, tree: Mapping[str, Any], name: str = "(inline)") -> Exchange:
        """Build from a schema-1 tree. Raises `InvalidArgument` when it is something else."""
        if tree.get("schema") != SCHEMA:
            raise InvalidArgument(
                f"{name}: schema {tree.get('schema')!r} is not an exchange; this release reads {SCHEMA}"
            )
        request, response = tree["request"], tree["response"]
        body = canonical(request["body"]) if request["body_type"] == "json" else None
        kind = response["body_type"]
        reply = Reply(response["status"], response["headers"], _response_bytes(kind, response["body"]), kind == "sse")
        return cls(request["method"], normal_path(request["path"]), body, reply, name)


def load(*sources: Exchange | Mapping[str, Any] | str | Path) -> Iterator[Exchange]:
    """Yield the exchanges of files, of folders (every `*.json` below, in order of their names), or of schema-1 trees.

    Raises:
        InvalidArgument: a tree or file that is not an exchange.
    """
    for source in sources:
        if isinstance(source, Exchange):
            yield source
        elif isinstance(source, Mapping):
            yield Exchange.of(source)
        else:
            path = Path(source)
            for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
                yield Exchange.of(json.loads(file.read_bytes()), str(file))


def canonical(tree: Any) -> str:
    """Return equal text for equal requests.

    A key whose value is null counts as absent: programs echo a model's message either with or without its null fields,
    and every provider takes both for the same. So does `"stream": false`, which some versions of the SDKs spell out.
    """
    return json.dumps(plain(tree), sort_keys=True, separators=(",", ":"))


def plain(tree: Any) -> Any:
    """Return a request body without what it may say or leave out; see `canonical`."""
    if isinstance(tree, dict) and tree.get("stream") is False:
        tree = {key: value for key, value in tree.items() if key != "stream"}
    return _without_nulls(tree)


def normal_path(path: str) -> str:
    """Return the path with its query parameters sorted; their order carries no meaning."""
    bare, mark, query = path.partition("?")
    return f"{bare}?{urlencode(sorted(parse_qsl(query, keep_blank_values=True)))}" if mark else bare


def encode(tree: Any) -> bytes:
    """Return compact JSON in UTF-8, as providers send it."""
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode()


def first_difference(wanted: Any, found: Any, path: str = "body") -> str | None:
    """Return a line that names the first place where two JSON trees differ, or None where they do not."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        pairs = [(f"{path}.{key}", wanted.get(key), found.get(key)) for key in sorted({*wanted, *found})]
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(wanted, found, strict=True))]
    else:
        same = canonical(wanted) == canonical(found)
        return None if same else f"{path}: wanted {_short(wanted)}, found {_short(found)}"
    return next((line for where, a, b in pairs if (line := first_difference(a, b, where))), None)


def leaves(tree: Any, path: str = "body") -> set[str]:
    """Return every `path: value` of a JSON tree."""
    if isinstance(tree, dict):
        return {leaf for key, value in tree.items() for leaf in leaves(value, f"{path}.{key}")}
    if isinstance(tree, list):
        return {leaf for i, item in enumerate(tree) for leaf in leaves(item, f"{path}[{i}]")}
    return {f"{path}: {canonical(tree)}"}


def _without_nulls(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_nulls(value) for key, value in tree.items() if value is not None}
    return [_without_nulls(item) for item in tree] if isinstance(tree, list) else tree


def _event(event: Any, *, named: bool) -> str:
    name = event.get("type") if isinstance(event, dict) else None
    if named and not isinstance(name, str):
        raise InvalidArgument(
            f"Reply.sse(..., named=True): an event is named after its `type`, and {_short(event)} has none; "
            "add one, or leave `named` out (chat completions have no names)"
        )
    data = event if isinstance(event, str) else encode(event).decode()
    return f"event: {name}\ndata: {data}\n\n" if named else f"data: {data}\n\n"


def _response_bytes(kind: str, body: Any) -> bytes:
    if kind == "json":
        return encode(body)
    if kind == "base64":
        return base64.b64decode(body)
    return (body or "").encode()


def _short(tree: Any, limit: int = 120) -> str:
    text = f"a list of {len(tree)}" if isinstance(tree, list) else canonical(tree)
    return text if len(text) <= limit else f"{text[:limit]}…"
