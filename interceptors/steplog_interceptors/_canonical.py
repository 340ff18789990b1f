"""What a request is, and what of it is kept.

Identity is read from the request as it goes to the wire, never from the caller's arguments: those may be one-shot
generators, and reading them would empty the request.

Part of identity: method, path (with the deployment or model that Azure, Bedrock and Vertex put there), query without
credentials, body. Not part of it: host, headers, credentials, and the random boundary of a multipart body.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import orjson

from steplog.plugins import Body, without
from steplog_interceptors._secrets import redact

_SECRET_QUERY: Final = frozenset(
    "key api_key api-key apikey sig signature token access_token auth_token id_token refresh_token client_secret "
    "password".split()
)
# A part of a multipart body that is longer than this is compared by its hash.
_INLINE_PART: Final = 4096

_BOUNDARY: Final = re.compile(rb'boundary="?([^";,]+)"?', re.IGNORECASE)


class Wire(NamedTuple):
    """A request as it went to the wire.

    Attributes:
        method: HTTP method, upper case.
        path: path with the base path, without host and query.
        query: sorted pairs without credentials.
        content_type: value of the header, or "".
        content: the body's bytes.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    content_type: str
    content: bytes


class Canonical(NamedTuple):
    """A request in canonical form.

    Attributes:
        identity: JSON tree that decides whether two requests are the same.
        json: the body's tree when it is JSON, credentials replaced, else None.
        stored: what to keep of the body, or None when it is empty: its exact bytes, unless it holds a credential.
        redacted: paths at which a credential was replaced.
    """

    identity: dict[str, Any]
    json: Any
    stored: Body | None
    redacted: list[str]


def read_wire(request: Any, content: bytes) -> Wire:
    """Take a request of either HTTP library apart; `content` is its body, already read."""
    url = request.url
    # Parsing a query costs more than all the rest, and hardly any request has one.
    items = url.params.multi_items() if url.query else ()
    pairs = sorted((key, value) for key, value in items if not is_secret_query(key))
    content_type = request.headers.get("content-type", "")
    return Wire(request.method.upper(), url.path, tuple(pairs), content_type, content)


def without_credentials(url: Any) -> str:
    """A URL of either HTTP library as text, without user, password and the query's credentials."""
    pairs = [(key, value) for key, value in url.params.multi_items() if not is_secret_query(key)]
    # `params=` replaces the query; an empty one has to be taken away by its own name.
    bare = url.copy_with(username="", password="")
    return str(bare.copy_with(params=pairs) if pairs else bare.copy_with(query=None))


def query_without_credentials(url: str) -> str:
    """A URL as text, without its query's credentials; everything else stays as it is written."""
    bare, _, rest = url.partition("?")
    query, mark, fragment = rest.partition("#")
    kept = [pair for pair in query.split("&") if not is_secret_query(pair.partition("=")[0])]
    return bare + ("?" + "&".join(kept) if kept else "") + mark + fragment


# Below the recorder's own limit, which counts what it wraps around the body.
_DEPTH: Final = 80
# Says nothing, and some releases of an SDK send it where others do not: a log must outlive an upgrade of the SDK.
# anthropic before 2.0 has it in the URL of every beta call; the header names the beta in all of them.
_IDLE_QUERY: Final = frozenset({("beta", "true")})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def is_secret_query(name: str) -> bool:
    """Whether a query parameter holds a credential."""
    lowered = name.lower()
    return lowered in _SECRET_QUERY or lowered.startswith(("x-amz-", "x-goog-"))


def canonical(wire: Wire, ignored: Iterable[str] = ()) -> Canonical:
    """The canonical form of a request; `ignored` are paths in its JSON body that are no part of its identity."""
    tree: Any = None
    redacted: list[str] = []
    stored = Body(wire.content) if wire.content else None
    if not wire.content:
        body: dict[str, Any] = {}
    elif wire.content_type.lower().startswith("multipart/"):
        body = {"multipart": _multipart(wire)}
    else:
        parsed = _parse(wire.content)
        if parsed is None:
            body = {"sha256": hashlib.sha256(wire.content).hexdigest(), "size": len(wire.content)}
        else:
            tree = parsed[0]
            redacted = redact(tree)
            if redacted:
                stored = Body(json.dumps(tree, separators=(",", ":")).encode())
            told = _unordered(wire.path, without(tree, ignored))
            body = {"json": told} if _is_plain(told) else {"json_sha256": _sorted_digest(told)}
    query = [list(pair) for pair in wire.query if pair not in _IDLE_QUERY]
    identity = {"method": wire.method, "path": wire.path, "query": query, "body": body}
    return Canonical(identity, tree, stored, redacted)


def _unordered(path: str, tree: Any) -> Any:
    """A body whose lists have no order where the API gives them none and an SDK sends them in a random one.

    `vector_stores.file_batches.upload_and_poll` puts the ids of its files in the order of a set of objects in memory.
    """
    if not path.endswith("/file_batches") or not isinstance(tree, dict):
        return tree
    ids = tree.get("file_ids")
    if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
        return tree
    return {**tree, "file_ids": sorted(ids)}


def digest(canonical: Canonical) -> str:
    """A short name of a request within its step, equal for equal identities."""
    return _sorted_digest(canonical.identity)[:32]


def _sorted_digest(tree: Any) -> str:
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _is_plain(tree: Any) -> bool:
    """Whether the recorder can take a body as a tree: not too deep, and every text in it encodable.

    A provider takes other bodies too (a schema of sixty nested objects), so a run must not refuse them.
    """
    level = [tree]
    for _ in range(_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                below += node.values()
                below += node.keys()
            elif isinstance(node, list):
                below += node
            elif isinstance(node, str) and not node.isascii() and _SURROGATE.search(node):
                return False
        if not below:
            return True
        level = below
    return False


def _parse(content: bytes) -> tuple[Any] | None:
    # In a tuple, because `null` is a body too.
    try:
        return (orjson.loads(content),)
    except orjson.JSONDecodeError:
        pass
    try:
        # What orjson refuses and the SDKs can send: escaped lone surrogates.
        return (json.loads(content, parse_constant=_refuse),)
    except ValueError:
        return None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _multipart(wire: Wire) -> list[Any]:
    match = _BOUNDARY.search(wire.content_type.encode("latin-1", "replace"))
    if match is None:
        return [_part(wire.content)]
    sections = wire.content.split(b"--" + match.group(1))
    # Before the first boundary there is nothing, and after the last one "--".
    return [_part(section) for section in sections[1:-1]]


def _part(section: bytes) -> dict[str, Any]:
    head, separator, content = section.partition(b"\r\n\r\n")
    if not separator:
        head, content = b"", section
    content = content.removesuffix(b"\r\n")
    part: dict[str, Any] = {"head": sorted(head.decode("latin-1").strip().splitlines())}
    if len(content) <= _INLINE_PART:
        try:
            return part | {"text": content.decode()}
        except UnicodeDecodeError:
            return part | {"base64": base64.b64encode(content).decode("ascii")}
    return part | {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
