"""What the local provider answers a method with, made from the type that the method declares to return."""

from __future__ import annotations

import inspect
import json
import types
import typing
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Union

from steplog.testing.provider import Reply
from tests.interceptors.walk.values import FILE, MARK, NoValue, tree

Kind = Literal["model", "page", "binary", "stream", "lines", "text", "nothing"]

# Classes by their names, because they have other modules in other versions.
_BINARY: Final = ("HttpxBinaryResponseContent", "BinaryAPIResponse", "AsyncBinaryAPIResponse")


class Body(NamedTuple):
    """The body of one answer.

    Attributes:
        data: its bytes, with `MARK` where a number goes.
        content_type: as a provider says it.
    """

    data: bytes
    content_type: str


@dataclass(frozen=True)
class Answer:
    """The answers to one call.

    Attributes:
        kind: what the caller gets, and so how it is read.
        bodies: one for each request that reading all of it takes; the last one answers all that follow.
    """

    kind: Kind
    bodies: tuple[Body, ...]

    def replies(self, number: int) -> list[Reply]:
        """The same answers for one numbered call: different from those of every other call."""
        found = []
        for data, content_type in self.bodies:
            headers = {"content-type": content_type, "x-request-id": f"req_{number}", "request-id": f"req_{number}"}
            data = data.replace(MARK.encode(), b"%d" % number)  # noqa: PLW2901
            found.append(Reply(200, headers | {"x-call": str(number)}, data, "event-stream" in content_type))
        return found


def answer(hint: Any) -> Answer | None:
    """The answer for a return annotation, or None for a type that holds no answer of a provider."""
    if hint is type(None):
        return Answer("nothing", (Body(b"", "application/json"),))
    if hint is str:
        return Answer("text", (Body(f"a text {MARK}".encode(), "text/plain; charset=utf-8"),))
    origin = typing.get_origin(hint) or hint
    name = getattr(origin, "__name__", "")
    if name in _BINARY:
        return Answer("binary", (Body(FILE * 40 + MARK.encode(), "application/octet-stream"),))
    if name in ("Stream", "AsyncStream"):
        return Answer("stream", (Body(events(typing.get_args(hint)[0]), "text/event-stream; charset=utf-8"),))
    if name in ("JSONLDecoder", "AsyncJSONLDecoder"):
        item = json_body(tree(typing.get_args(hint)[0])).data
        return Answer("lines", (Body(item + b"\n" + item + b"\n", "application/x-jsonl"),))
    if _pages(hint):
        return Answer("page", tuple(map(json_body, pages(hint))))
    if origin in (Union, types.UnionType):
        arms = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        return next((found for arm in arms if (found := answer(arm)) is not None), None)
    if origin is typing.Annotated:
        return answer(typing.get_args(hint)[0])
    if inspect.isclass(origin) and hasattr(origin, "model_fields"):
        return Answer("model", (json_body(tree(hint)),))
    return None


def _pages(hint: Any) -> bool:
    return inspect.isclass(hint) and any(base.__name__ == "BasePage" for base in hint.__mro__)


def pages(hint: Any) -> list[dict[str, Any]]:
    """A page of two items that announces another, and that other, which is the last."""
    first = _page(hint, more=True)
    return [first, _page(hint, more=False)]


def _page(hint: Any, *, more: bool) -> dict[str, Any]:
    page: dict[str, Any] = {}
    for name, field in hint.model_fields.items():
        value = tree(field.annotation, name, 1)
        if isinstance(value, list):
            page[name] = (
                [value[0], {**value[0], "id": f"second {MARK}"}] if value and isinstance(value[0], dict) else value * 2
            )
        elif isinstance(value, bool):
            page[name] = more
        elif isinstance(value, str) and name != "object":
            page[name] = f"{name}_{MARK}" if more else None
        else:
            page[name] = value
    return page


def events(item: Any) -> bytes:
    """A stream with one event for each of the first three types that it may hold, and its end mark."""
    arms = _arms(item)
    written = []
    for arm in arms[:3]:
        data = tree(arm)
        name = data.get("event", data.get("type", "completion"))
        if isinstance(data.get("data"), dict) and "event" in data:
            data = data["data"]
        data.pop("error", None)  # a top-level error is an error of the stream itself
        written.append(f"event: {name}\ndata: {json.dumps(data)}\n\n")
    return "".join([*written, "data: [DONE]\n\n"]).encode()


def _arms(hint: Any) -> list[Any]:
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _arms(typing.get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return [leaf for arm in typing.get_args(hint) for leaf in _arms(arm)]
    if not inspect.isclass(hint):
        raise NoValue(f"a stream of {hint}")
    return [hint]


def json_body(value: Any) -> Body:
    """A JSON answer."""
    return Body(json.dumps(value).encode(), "application/json")
