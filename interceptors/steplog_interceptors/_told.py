"""What a person gave as the result of a call, as the events of a stream where the program reads events.

A response of the openai API is told as that API would tell it. For any other call the person gives the events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

_ENDS: Final = frozenset({"failed", "incomplete", "cancelled"})

# What the run is stopped with where there is nothing to make events of.
NO_EVENTS: Final = (
    "the program reads a stream of events here, and a stream cannot be made of the JSON given. Use --retry or "
    "--failed, or give --done the events themselves as one JSON string: '\"event: …\\ndata: {…}\\n\\n\"'."
)


def reads_events(request: Any, body: Any, *, stream: bool) -> bool:
    """Whether the maker of a model call reads its answer as a stream of events.

    Args:
        request: of the HTTP client.
        body: its JSON.
        stream: whether the HTTP client was asked for an answer that is read as it comes.
    """
    if isinstance(body, dict) and body.get("stream") is True:
        return True
    # Bedrock, Vertex and Gemini say it in the path: `invoke-with-response-stream`, `:streamRawPredict`.
    if "stream" in request.url.path.rpartition("/")[2].lower():
        return True
    # The generated SDKs let an answer stream for no other reason, unless their caller wants it raw.
    return stream and "x-stainless-lang" in request.headers and "x-stainless-raw-response" not in request.headers


def as_events(result: Any, tell: Callable[[Any], bytes | None] | None) -> str | None:
    """The text of an event stream that tells of `result`, by `tell` or because it is one; None where it is none."""
    if isinstance(result, str):
        return f"{result.rstrip()}\n\n" if result.startswith(("event:", "data:")) else None
    told = tell(result) if tell is not None else None
    return None if told is None else told.decode()


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
