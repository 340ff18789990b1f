"""Recorded values as conditions see them: numbers, text, lists and tables, without the classes that they had."""

from __future__ import annotations

from typing import Any, Final, Protocol

import orjson

from steplog._kernel.secret import MARK, SHOWN


class _Asks(Protocol):
    args: Any
    request: dict[str, Any] | None


_NUMBERS: Final = {"int": int, "float": float, "decimal": float}


def plain(tree: Any) -> Any:
    """The value of an encoded tree in JSON's own terms.

    A Decimal is a number, a date its ISO 8601 text, a dataclass or model its fields, an Enum the name of its member, a
    tuple or set a list; what is secret is `[redacted:secret]`.
    """
    if isinstance(tree, list):
        return [plain(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get(MARK)
    if kind is None:
        return {key: plain(item) for key, item in tree.items()}
    return _unwrapped(str(kind), tree)


def _unwrapped(kind: str, tree: dict[str, Any]) -> Any:
    value = tree.get("v", tree.get("text", tree.get("base64")))
    if kind in _NUMBERS and isinstance(value, str):
        number = _NUMBERS[kind](value)
        return int(number) if isinstance(number, float) and number.is_integer() else number
    if kind == "secret":
        return SHOWN
    if kind == "enum" and "name" in tree:
        return tree["name"]
    if kind == "map" and isinstance(value, list):
        return {str(plain(key)): plain(item) for key, item in value}
    if kind == "str" and isinstance(value, list):
        return "".join(run if isinstance(run, str) else "\ufffd" for run in value)
    return plain(value)


def body_of(call: _Asks) -> Any:
    """The body of a model call's request, or what identifies the call where there is none; None where unreadable."""
    if not isinstance(call.args, dict) or "body" not in call.args:
        return plain(call.args)
    body = call.args["body"]
    if not body:
        return {}
    if "json" in body:
        return body["json"]
    raw = getattr((call.request or {}).get("body"), "data", None)
    try:
        return None if raw is None else orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
