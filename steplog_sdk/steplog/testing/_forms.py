"""How raw bytes stand in a cassette: as a person would write them, wherever the exact bytes can be had back from that.

{"json": …}                         compact JSON
    {"json": …, "as": "s_…", "same": {"messages": 4}}   the same, whose list begins as that of an earlier request does
{"sse": [{"data": …}, "data: …"]}   server-sent events, each as a tree where that gives its text back
{"lines": ["…"]}                    text of several lines
{"text": "…"}                       text
{"base64": "…"}                     anything else
{"file": "<sha256>", "size": …}     anything else of some length, in a file beside the cassette
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any, Final

import orjson

from steplog._runtime.pack import inline_form

# Beyond this, base64 only gets in the way of a reader, and as a file it can be opened with what made it.
_BASE64_LIMIT: Final = 1024
_SSE: Final = b"\n\n"
_EVENTS: Final = ("event", "data")


def form_of(data: bytes, keep: Callable[[str, bytes], None], *, events: bool = False) -> dict[str, Any]:
    """The form of some bytes.

    Args:
        data: the bytes.
        keep: takes what is to lie in a file beside the cassette: its name and bytes.
        events: they are a stream of server-sent events.
    """
    if events:
        found = _sse(data)
        if found is not None:
            return {"sse": found}
    form = inline_form(data)
    if "json" in form:
        return {"json": orjson.loads(data)}
    if "text" in form and "\n" in form["text"]:
        return {"lines": form["text"].split("\n")}
    if "base64" in form and len(data) > _BASE64_LIMIT:
        name = hashlib.sha256(data).hexdigest()
        keep(name, data)
        return {"file": name, "size": len(data)}
    return form


def bytes_of(form: dict[str, Any], fetch: Callable[[str], bytes]) -> bytes:
    """The bytes of a form.

    Args:
        form: the form; shared lists are in their places again.
        fetch: gives the bytes of a file beside the cassette.

    Raises:
        ValueError: it is no form.
    """
    if "json" in form:
        return orjson.dumps(form["json"])
    if "sse" in form:
        return b"".join(_block(item) for item in form["sse"])
    if "lines" in form:
        return "\n".join(form["lines"]).encode()
    if "text" in form:
        return str(form["text"]).encode()
    if "base64" in form:
        return base64.b64decode(form["base64"], validate=True)
    if "file" in form:
        return fetch(form["file"])
    message = f"a body of the form {sorted(form)} is not known"
    raise ValueError(message)


def is_form(node: Any) -> bool:
    """Whether a node stands for bytes."""
    return isinstance(node, dict) and not {"json", "sse", "lines", "text", "base64", "file"}.isdisjoint(node)


def event_lengths(data: bytes) -> list[int]:
    """Lengths of the chunks of a stream that is cut behind each of its events."""
    lengths, start = [], 0
    while start < len(data):
        end = data.find(_SSE, start)
        stop = len(data) if end < 0 else end + len(_SSE)
        lengths.append(stop - start)
        start = stop
    return lengths


def _sse(data: bytes) -> list[Any] | None:
    blocks: list[Any] = []
    start = 0
    for length in event_lengths(data):
        block = data[start : start + length]
        start += length
        blocks.append(_tree(block))
    return None if None in blocks or not blocks else blocks


def _tree(block: bytes) -> Any:
    """An event as a tree where its text can be had back, else its text; None where it is none."""
    try:
        text = block.decode()
    except UnicodeDecodeError:
        return None
    if not text.endswith("\n\n"):
        return {"cut": text}
    text = text[:-2]
    fields: dict[str, Any] = {}
    for line in text.split("\n"):
        name, _, value = line.partition(": ")
        if name in _EVENTS and name not in fields:
            fields[name] = value
    if fields.get("data", "")[:1] in ("{", "["):
        try:
            fields["data"] = orjson.loads(fields["data"])
        except orjson.JSONDecodeError:
            return text
        if _block(fields) == block:
            return fields
    return text


def _block(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode() + _SSE
    if "cut" in item:
        return str(item["cut"]).encode()
    event = f"event: {item['event']}\n".encode() if "event" in item else b""
    return b"%bdata: %b%b" % (event, orjson.dumps(item["data"]), _SSE)


class Shared:
    """The lists of requests, so that a conversation is written once and not again with each of its turns."""

    def __init__(self) -> None:
        self._known: list[tuple[str, dict[str, Any]]] = []

    def shorten(self, step: str, form: dict[str, Any]) -> dict[str, Any]:
        """The form of a request's body without what an earlier request has as well."""
        tree = form.get("json")
        if not isinstance(tree, dict):
            return form
        best: tuple[int, str, dict[str, int]] = (0, "", {})
        for other, known in reversed(self._known[-_LOOK_BACK:]):
            same = {name: count for name, items in tree.items() if (count := _common(items, known.get(name)))}
            if sum(same.values()) > best[0]:
                best = (sum(same.values()), other, same)
        self._known.append((step, tree))
        _, other, same = best
        if sum(len(orjson.dumps(tree[name][:count])) for name, count in same.items()) < _WORTH_IT:
            return form
        rest = {name: items[same[name] :] if name in same else items for name, items in tree.items()}
        return {"as": other, "same": same, "json": rest}

    def restore(self, step: str, form: dict[str, Any]) -> dict[str, Any]:
        """The same form with all that it has.

        Raises:
            ValueError: it refers to a request that is not there.
        """
        tree = form.get("json")
        if not isinstance(tree, dict):
            return form
        if "as" in form:
            known = next((known for name, known in reversed(self._known) if name == form["as"]), None)
            if known is None:
                message = f"step {step} begins as step {form['as']}, which does not stand before it"
                raise ValueError(message)
            same = form["same"]
            tree = {
                name: [*known[name][: same[name]], *items] if name in same else items for name, items in tree.items()
            }
        self._known.append((step, tree))
        return {"json": tree}


# Among how many requests before it the longest common beginning is looked for.
_LOOK_BACK: Final = 16
# Bytes that a reference spares, from which on a reader is glad of it.
_WORTH_IT: Final = 400


def _common(items: Any, known: Any) -> int:
    if not isinstance(items, list) or not isinstance(known, list):
        return 0
    count = 0
    for one, other in zip(items, known, strict=False):
        # `1 == True == 1.0` in Python, not in JSON.
        if orjson.dumps(one) != orjson.dumps(other):
            break
        count += 1
    # A number or two is not worth a reference.
    return count if any(isinstance(item, dict) for item in items[:count]) else 0
