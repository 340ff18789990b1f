"""Whether two answers have one form, whatever they say: the same fields of the same types.

What is null or an empty list in one may be anything in the other. Items of a list, and events of a stream, count
together; where they or what they hold name a `type` (or `object`), only those of one type are compared, and a type
that only one answer has is no change: a model may answer with text today and call a tool tomorrow. Fields that are
there only where a model had something to put into them may come and go. What a model writes as the input of a tool is
its words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

# Below these the fields are the model's or the program's own.
_FREE: Final = frozenset({"input", "arguments", "metadata", "parameters", "schema", "input_schema"})
# They are there where a model has called a tool, has thought, or has refused, and only there.
_CHOSEN: Final = frozenset(
    "tool_calls function_call refusal reasoning reasoning_content thinking annotations citations audio logprobs".split()
)
# A piece of a message names what it adds; one that has a type of its own is compared by that.
_PIECE: Final = "delta"
_ADDED: Final = _CHOSEN | {"role", "content"}
# Of an event stream; `str.splitlines` knows others, which may stand inside JSON.
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_KINDS: Final = ("type", "object")


def changes(recorded: Any, found: Any, path: str = "", *, whole: bool = True) -> Iterator[str]:
    """Where the form of two answers differs, as `usage.total_tokens is gone`.

    Args:
        recorded: the tree of the recorded answer.
        found: that of the new one.
        path: where in the answers they are.
        whole: the recorded answer was read to its end; else fields that are new may have been in its rest.
    """
    if recorded is None or found is None:
        return
    one, other = _kind(recorded), _kind(found)
    if one != other:
        yield f"{path or 'the answer'} was {one} and is {other}"
    elif isinstance(recorded, dict):
        yield from _fields(recorded, found, path, whole=whole)
    elif isinstance(recorded, list):
        items = _by_type(recorded), _by_type(found)
        for name in items[0].keys() & items[1].keys():
            yield from changes(_merged(items[0][name]), _merged(items[1][name]), f"{path}[]", whole=whole)


def _fields(recorded: dict[str, Any], found: dict[str, Any], path: str, *, whole: bool) -> Iterator[str]:
    untyped = path.endswith(_PIECE) and not _said(recorded)
    optional = _ADDED if untyped else _CHOSEN
    for name in [*recorded, *(name for name in found if name not in recorded)]:
        where = f"{path}.{name}" if path else name
        if name not in found or name not in recorded:
            if name not in optional and (whole or name in recorded):
                yield f"{where} is {'new' if name in found else 'gone'}"
        elif name not in _FREE:
            yield from changes(recorded[name], found[name], where, whole=whole)


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
        said = [_said(item)]
        if isinstance(item, dict):
            said += [f"{name} {_said(value)}" for name, value in item.items() if _said(value)]
        found.setdefault(", ".join(filter(None, said)) or _kind(item), []).append(item)
    return found


def _said(node: Any) -> str:
    """What a node says that it is, or ""."""
    said = (node[name] for name in _KINDS if isinstance(node, dict) and isinstance(node.get(name), str))
    return next(said, "")


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
