"""A response of the openai API as the events of a stream: a person gave the response, and the program reads events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

_ENDS: Final = frozenset({"failed", "incomplete", "cancelled"})


def as_stream(response: Any) -> bytes | None:
    """The bytes of an event stream that tells of `response` from its beginning to its end; None where it is none."""
    if not isinstance(response, dict) or response.get("object") != "response":
        return None
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps({**event, "sequence_number": number}).encode())
        for number, event in enumerate(_events(response))
    )


def _events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    items = [item for item in response.get("output") or () if isinstance(item, dict)]
    yield {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}
    for number, item in enumerate(items):
        place = {"output_index": number, "item_id": item.get("id", "")}
        yield {"type": "response.output_item.added", "item": _begun(item), **place}
        yield from _inside(item, place)
        yield {"type": "response.output_item.done", "item": item, **place}
    status = response.get("status")
    end = status if status in _ENDS else "completed"
    yield {"type": f"response.{end}", "response": response}


def _begun(item: dict[str, Any]) -> dict[str, Any]:
    empty: dict[str, Any] = {"content": []} if "content" in item else {}
    return item | empty | ({"arguments": ""} if "arguments" in item else {})


def _inside(item: dict[str, Any], place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if isinstance(item.get("arguments"), str):
        arguments = item["arguments"]
        yield {"type": "response.function_call_arguments.delta", "delta": arguments, **place}
        yield {"type": "response.function_call_arguments.done", "arguments": arguments, **place}
    for number, part in enumerate(item.get("content") or ()):
        where = {**place, "content_index": number}
        text = part.get("text") if part.get("type") == "output_text" else None
        yield {"type": "response.content_part.added", "part": part | ({"text": ""} if text else {}), **where}
        if text:
            yield {"type": "response.output_text.delta", "delta": text, "logprobs": [], **where}
            yield {"type": "response.output_text.done", "text": text, "logprobs": [], **where}
        yield {"type": "response.content_part.done", "part": part, **where}
