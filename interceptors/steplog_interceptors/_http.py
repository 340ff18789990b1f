"""A request to a host that `install(http=[...])` names, as a step.

The step is a tool call named `METHOD host/path`, with ids left out. Reading (GET, HEAD, OPTIONS) is safe to repeat; any
other method is not, unless the request carries an idempotency key, which then is part of its identity.

Part of identity: method, host with its port, path, query without credentials, body without credentials, and the headers
that choose what is answered (`accept`, `accept-language`, `range`). The service decides what a path means, so unlike a
model call the same request to another host is another request.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from steplog import plugins
from steplog_interceptors._call import LogicalCall
from steplog_interceptors._canonical import Canonical, Wire, canonical, read_wire
from steplog_interceptors._exchange import Exchange
from steplog_interceptors._modes import chosen
from steplog_interceptors._sdk import Sdk
from steplog_interceptors._secrets import REDACTED, SECRET_SEGMENT

_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_CHOOSING: Final = ("accept", "accept-language", "range")
_IDEMPOTENCY_KEY: Final = "idempotency-key"

# Fields of a JSON or form body, and names of a query, that hold a credential.
_SECRET_FIELD: Final = re.compile(
    r"(?:.*[_.-])?(?:api_?key|apikey|access_?key|private_?key|secret|client_?secret|password|passwd|passphrase"
    r"|(?:access|auth|refresh|id|bearer|session|bot)_?token|token|authorization|credentials?|signature)",
    re.IGNORECASE,
)
_FLEETING: Final = re.compile(r"signature|passw|passphrase", re.IGNORECASE)
# Segments that name one object: a number, a UUID, or anything long with a digit in it.
_ID: Final = re.compile(r"\d+|(?=[^/]*\d)[^/]{8,}")

REST: Final = Sdk("", (0, 0), re.compile(r"(?!)"))


class HttpCall(LogicalCall):
    """One request to a listed host."""

    kind = "tool_call"

    def __init__(self) -> None:
        super().__init__(REST, net=True)

    def mode_of(self, request: Any) -> str:
        """Idempotency mode of the request: what the user says about its kind, else what its method and headers say."""
        said = chosen(self.tables, request.method.upper(), request.url.path)
        if said is not None:
            return said
        if request.method.upper() in _SAFE:
            return "safe"
        return "keyed" if _IDEMPOTENCY_KEY in request.headers else "unsafe"

    def describe(self, request: Any, content: bytes, *, stream: bool) -> plugins.Call:
        """The effect to submit."""
        wire = read_wire(request, content)
        keys: list[str] = []
        form = _canonical(wire, self.ignored, keys)
        self.keys = tuple(keys)
        host = _host(request.url)
        query = [[name, value] for name, value in wire.query if not _is_secret(name)]
        chosen = {name: request.headers[name] for name in _CHOOSING if request.headers.get(name, "*/*") != "*/*"}
        identity = {**form.identity, "query": query, "host": host, "headers": chosen}
        if _IDEMPOTENCY_KEY in request.headers:
            identity["key"] = request.headers[_IDEMPOTENCY_KEY]
        path = "/".join(REDACTED if SECRET_SEGMENT.fullmatch(part) else part for part in wire.path.split("/"))
        kept = {"method": wire.method, "host": host, "path": path, "query": query, "headers": chosen, "stream": stream}
        more = {"content_type": wire.content_type, "redacted": form.redacted, "body": form.stored}
        more |= self._note_ignored()
        kept |= {name: value for name, value in more.items() if value}
        named = "/".join("{id}" if _ID.fullmatch(part) else part for part in wire.path.split("/"))
        call = plugins.Call(self.kind, f"{wire.method} {host}{named}", identity, self.mode_of(request), kept)
        call.amends = isinstance(form.json, dict)
        return call

    def detail(
        self, error: BaseException | None = None, *, told: dict[str, Any] | None = None, failed: bool = False
    ) -> dict[str, Any]:
        """What to record about the outcome."""
        del error, told, failed
        last: Exchange = self.exchanges[-1] if self.exchanges else {}
        status = {"status": last["status"]} if "status" in last else {}
        return {"exchanges": self.exchanges, **status, **self.finality()}


def _host(url: Any) -> str:
    name = f"[{url.host}]" if ":" in url.host else url.host
    return name if url.port is None else f"{name}:{url.port}"


def _is_secret(name: str) -> bool:
    return _SECRET_FIELD.fullmatch(name) is not None


def _canonical(wire: Wire, ignored: tuple[str, ...], keys: list[str]) -> Canonical:
    """The canonical form of a request whose body may hold a credential anywhere; those of them that last to `keys`."""
    form = canonical(wire, ignored)
    if wire.content_type.lower().startswith("application/x-www-form-urlencoded"):
        return _form(wire, form, keys)
    redacted: list[str] = []
    if "multipart" in form.identity["body"]:
        # Its bytes are not kept where one part is a credential: they cannot be replaced without the whole.
        redacted = [name for part in form.identity["body"]["multipart"] if (name := _redact_part(part))]
        return form._replace(stored=None, redacted=redacted) if redacted else form
    _redact(form.json, "", redacted, keys)
    if not redacted:
        return form
    form = canonical(wire._replace(content=json.dumps(form.json, separators=(",", ":")).encode()), ignored)
    return form._replace(redacted=[*form.redacted, *redacted])


def _redact_part(part: dict[str, Any]) -> str | None:
    named = re.search(r'name="([^"]*)"', " ".join(part["head"]))
    if named is None or "text" not in part or not _is_secret(named.group(1)):
        return None
    part["text"] = REDACTED
    return named.group(1)


def _redact(node: Any, path: str, found: list[str], keys: list[str]) -> None:
    if isinstance(node, list):
        for number, item in enumerate(node):
            _redact(item, f"{path}[{number}]", found, keys)
    elif isinstance(node, dict):
        for name, value in node.items():
            where = f"{path}.{name}" if path else name
            if value and isinstance(value, str) and _is_secret(name):
                node[name] = REDACTED
                found.append(where)
                _note_key(name, value, keys)
            else:
                _redact(value, where, found, keys)


def _note_key(name: str, value: str, keys: list[str]) -> None:
    """Note a credential by which accounts differ; a signature is new each time, and a password goes with a name."""
    if not _FLEETING.search(name):
        keys.append(value)


def _form(wire: Wire, form: Canonical, keys: list[str]) -> Canonical:
    pairs = parse_qsl(wire.content.decode("utf-8", "replace"), keep_blank_values=True)
    for name, value in pairs:
        if value and _is_secret(name):
            _note_key(name, value, keys)
    redacted = [name for name, value in pairs if value and _is_secret(name)]
    kept = [(name, REDACTED if name in redacted else value) for name, value in pairs]
    identity = {**form.identity, "body": {"form": [list(pair) for pair in kept]}}
    stored = plugins.Body(urlencode(kept, quote_via=quote).encode()) if redacted else form.stored
    return Canonical(identity, None, stored, redacted)
