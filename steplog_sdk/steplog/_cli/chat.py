"""A model call as a conversation: the messages of a request, and the message of an answer.

Providers change their shapes more often than steplog is released. Whatever is not recognised is shown as the JSON
that it is, so nothing is hidden by not being understood.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

# Base64 is not for reading; `--json` has it whole.
_DATA_LIMIT: Final = 400
# A tool call as it is written out below: of a whole answer, or of a stream.
_CALLED: Final = re.compile(
    r"^-> (?P<name>[\w.-]+)(?:\((?P<args>.*)\)(?:  \[[^\]\n]*\])?| (?P<bare>\{.*))$", re.MULTILINE
)
_CONVERSATION: Final = ("messages", "input", "system", "instructions")


class Message(NamedTuple):
    """One message.

    Attributes:
        role: who speaks, as the provider says it.
        text: what is said; tool calls and results are written out.
    """

    role: str
    text: str


def pretty(tree: Any) -> str:
    """JSON for reading; a text is shown as it is."""
    return tree if isinstance(tree, str) else json.dumps(tree, ensure_ascii=False, indent=2)


def parameters(request: Any) -> dict[str, Any]:
    """What a request says besides the conversation: model, sampling settings, tools and so on."""
    if not isinstance(request, dict):
        return {}
    return {key: value for key, value in request.items() if key not in _CONVERSATION}


def asked(request: Any) -> list[Message]:
    """The conversation that a request sends, in the order in which the model reads it."""
    if not isinstance(request, dict):
        return [Message("body", pretty(request))]
    messages = [Message("system", _content(request[key])) for key in ("system", "instructions") if request.get(key)]
    for key in ("messages", "input"):
        items = request.get(key)
        if isinstance(items, str):
            messages.append(Message("user", items))
        elif isinstance(items, list):
            messages.extend(_message(item) for item in items)
        elif items is not None:
            messages.append(Message(key, pretty(items)))
    return messages


def answered(response: Any) -> list[Message]:
    """The messages of a response body; for a stream, of the events put together."""
    if isinstance(response, str):
        return _streamed(response)
    if not isinstance(response, dict):
        return [Message("body", pretty(response))]
    if _objects(response.get("choices")):
        return [_message(choice.get("message", choice)) for choice in _objects(response["choices"])]
    if isinstance(response.get("output"), list) and response["output"]:
        return [_message(item) for item in response["output"]]
    if "content" in response and "role" in response:
        return [_message(response)]
    return [Message("body", pretty(response))]


def proposed(messages: Iterable[Message]) -> list[tuple[str, str]]:
    """The tools that an answer asks for, each as its name and its arguments."""
    found = (_CALLED.finditer(message.text) for message in messages)
    return [(match["name"], match["args"] or match["bare"] or "") for matches in found for match in matches]


def _message(item: Any) -> Message:
    if not isinstance(item, dict):
        return Message("input", pretty(item))
    role = str(item.get("role") or item.get("type") or "message")
    if "content" not in item and "tool_calls" not in item:
        return Message(role, _block(item))
    parts = [_content(item.get("content")), *_tool_calls(item)]
    if item.get("refusal"):
        parts.append(f"(refused) {item['refusal']}")
    if item.get("tool_call_id"):
        role = f"{role} {item['tool_call_id']}"
    return Message(role, "\n".join(part for part in parts if part))


def _tool_calls(item: dict[str, Any]) -> Iterator[str]:
    calls = item.get("tool_calls")
    for call in calls if isinstance(calls, list) else [calls] if calls else []:
        match call:
            case {"function": {"name": name, "arguments": arguments}}:
                yield _call(name, arguments, call.get("id"))
            case _:
                yield pretty(call)


def _call(name: Any, arguments: Any, call_id: Any) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"-> {name}({text})" + (f"  [{call_id}]" if call_id else "")


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(_block(block) for block in content)
    return pretty(content)


def _block(block: Any) -> str:
    if not isinstance(block, dict):
        return pretty(block)
    match block:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "thinking", "thinking": str(text)}:
            return f"(thinking) {text}"
        case {"type": "tool_use" | "server_tool_use", "name": name, "input": arguments}:
            return _call(name, arguments, block.get("id"))
        case {"type": "function_call", "name": name, "arguments": arguments}:
            return _call(name, arguments, block.get("call_id"))
        case {"type": "tool_result", "tool_use_id": call_id}:
            return f"<- [{call_id}] {_content(block.get('content'))}"
        case {"type": "function_call_output", "call_id": call_id}:
            return f"<- [{call_id}] {pretty(block.get('output'))}"
    return pretty(_shortened(block))


def _shortened(node: Any) -> Any:
    if isinstance(node, str) and len(node) > _DATA_LIMIT and " " not in node[:_DATA_LIMIT]:
        return f"{node[:40]}... ({len(node):,} characters; --json has them)"
    if isinstance(node, dict):
        return {key: _shortened(value) for key, value in node.items()}
    return [_shortened(item) for item in node] if isinstance(node, list) else node


def _streamed(text: str) -> list[Message]:
    events = list(_events(text))
    if not events:
        return [Message("body", text)]
    final = next((event["response"] for event in reversed(events) if isinstance(event.get("response"), dict)), None)
    if final is not None and final.get("output"):
        return answered(final)
    parts: dict[str, str] = {}
    for event in events:
        for key, piece in _pieces(event):
            parts[key] = parts.get(key, "") + piece
    if not parts:
        return [Message("stream", text)]
    return [Message("assistant", "\n".join(part for part in parts.values() if part))]


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if not line.startswith("data:"):
            continue
        try:
            event = json.loads(line[5:])
        except ValueError:
            continue  # the end marker of a stream is a bare word, and a cut stream may end in half a line
        if isinstance(event, dict):
            yield event


def _pieces(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The text that an event adds, under the key of the part that it adds to."""
    for choice in _objects(event.get("choices")):
        yield from _delta(str(choice.get("index")), choice.get("delta"))
    index = str(event.get("index"))
    match event:
        case {"type": "content_block_start", "content_block": {"name": str(name)}}:
            yield index, f"-> {name} "
        case {"type": "content_block_delta", "delta": {"text": str(piece)} | {"partial_json": str(piece)}}:
            yield index, piece
        case {"type": "content_block_delta", "delta": {"thinking": str(piece)}}:
            yield index, piece
        case {"type": "response.output_text.delta", "delta": str(piece)}:
            yield f"{event.get('output_index')}.{event.get('content_index')}", piece


def _delta(choice: str, delta: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(delta, dict):
        return
    if isinstance(delta.get("content"), str):
        yield choice, delta["content"]
    for call in _objects(delta.get("tool_calls")):
        key = f"{choice}.{call.get('index')}"
        match call.get("function"):
            case {"name": str(name), **rest}:
                yield key, f"-> {name} {rest.get('arguments') or ''}"
            case {"arguments": str(piece)}:
                yield key, piece


def _objects(node: Any) -> list[dict[str, Any]]:
    return [item for item in node if isinstance(item, dict)] if isinstance(node, list) else []
