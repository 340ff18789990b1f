"""Whether two answers have one form, whatever they say: the same fields of the same types.

What is null or an empty list in one may be anything in the other. Items of a list, and events of a stream, count
together; where they name their own `type` (or `object`), only those of one type are compared, and a type that only one
answer has is no change: a model may answer with text today and call a tool tomorrow. What a model writes as the input
of a tool is its words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

# Below these the fields are the model's or the program's own.
_FREE: Final = frozenset({"input", "arguments", "metadata", "parameters", "schema", "input_schema"})
# Of an event stream; `str.splitlines` knows others, which may stand inside JSON.
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_KINDS: Final = ("type", "object")


def changes(recorded: Any, found: Any, path: str = "") -> Iterator[str]:
    """Where the form of two answers differs, as `usage.total_tokens is gone`."""
    if recorded is None or found is None:
        return
    one, other = _kind(recorded), _kind(found)
    if one != other:
        yield f"{path or 'the answer'} was {one} and is {other}"
    elif isinstance(recorded, dict):
        yield from _fields(recorded, found, path)
    elif isinstance(recorded, list):
        items = _by_type(recorded), _by_type(found)
        for name in items[0].keys() & items[1].keys():
            yield from changes(_merged(items[0][name]), _merged(items[1][name]), f"{path}[]")


def _fields(recorded: dict[str, Any], found: dict[str, Any], path: str) -> Iterator[str]:
    for name in [*recorded, *(name for name in found if name not in recorded)]:
        where = f"{path}.{name}" if path else name
        if name not in found:
            yield f"{where} is gone"
        elif name not in recorded:
            yield f"{where} is new"
        elif name not in _FREE:
            yield from changes(recorded[name], found[name], where)


def _kind(node: Any) -> str:
    if isinstance(node, bool):
        return "a truth value"
    if isinstance(node, int | float):
        return "a number"
    if isinstance(node, str):
        return "a text"
    return "a list" if isinstance(node, list) else "an object"


def _by_type(items: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item in items:
        said = [str(item[name]) for name in _KINDS if isinstance(item, dict) and isinstance(item.get(name), str)]
        found.setdefault(said[0] if said else _kind(item), []).append(item)
    return found


def _merged(items: Iterable[Any]) -> Any:
    """One item that has every field of the items."""
    merged: Any = None
    for item in items:
        if isinstance(item, dict) and isinstance(merged, dict):
            merged = {
                name: _merged([merged[name], item[name]]) if name in merged and name in item else
                merged.get(name, item.get(name))
                for name in [*merged, *(name for name in item if name not in merged)]
            }  # fmt: skip
        elif isinstance(item, list) and isinstance(merged, list):
            merged = [*merged, *item]
        elif merged is None:
            merged = item
    return merged


def tree_of(body: bytes, content_type: str) -> Any:
    """What is compared of a body: its JSON, the JSON of its events, or its kind."""
    if content_type.lower().startswith("text/event-stream"):
        found = []
        for line in _LINE_END.split(body.decode("utf-8", "replace")):
            name, _, value = line.partition(":")
            if name == "data" and value.strip()[:1] == "{":
                try:
                    found.append(orjson.loads(value))
                except orjson.JSONDecodeError:
                    continue  # a stream that its reader left in the middle of an event
        return found
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return content_type.partition(";")[0].strip()
