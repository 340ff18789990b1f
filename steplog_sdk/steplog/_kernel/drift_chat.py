"""Two chat requests that differ, told message by message."""

from __future__ import annotations

import json
from typing import Any, Final

from steplog._kernel.prompts import Change, Said, changes

# Where the messages of a request are, in the APIs that have some.
_LISTS: Final = ("messages", "input", "contents")
_SHOWN: Final = 3
# Messages that are compared; between two longer stretches of differing ones nobody looks for pairs.
_COMPARED: Final = 200


def messages_of(request: Any) -> tuple[str, list[Any]]:
    """The field of a request that holds its messages, and the messages; ("", []) where it is no chat request."""
    if isinstance(request, dict):
        for name in _LISTS:
            found = request.get(name)
            if isinstance(found, list) and all(isinstance(item, dict) for item in found):
                return name, found
    return "", []


def told(recorded: Any, found: Any) -> list[str]:
    """How the conversations of two requests differ, a line for each of the first messages; [] where they do not."""
    name, old = messages_of(recorded)
    other, new = messages_of(found)
    if not name or name != other:
        return []
    first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    ours, theirs = (list(map(_said, messages[first : first + _COMPARED])) for messages in (old, new))
    differing = changes(ours, theirs)
    if not differing:
        return []
    lines = [_line(change, first, len(old), len(new)) for change in differing[:_SHOWN]]
    if len(differing) > _SHOWN:
        lines.append(f"  and {len(differing) - _SHOWN} more messages")
    return lines


def _line(change: Change, before: int, old: int, new: int) -> str:
    size = f"{len(change.new or change.old):,} characters"
    if change.b is None:
        assert change.a is not None
        return f"  message {change.a + before} of {old} ({change.role}, {size}): left out"
    number = f"message {change.b + before} of {new}"
    moved = f", recorded as number {change.a + before}" if change.a not in (None, change.b) else ""
    return f"  {number} ({change.role}, {size}): {change.label}{moved}"


def _said(message: dict[str, Any]) -> Said:
    role = str(message.get("role") or message.get("type") or "")
    rest = {key: value for key, value in message.items() if key != "role"}
    if len(rest) == 1 and isinstance(message.get("content"), str):
        return Said(role, message["content"])
    return Said(role, json.dumps(rest, ensure_ascii=False, sort_keys=True, default=str))


def is_of_a_tool(path: str, request: Any) -> bool:
    """Whether a path leads into what a tool has answered."""
    name, messages = messages_of(request)
    if not name or not path.startswith(f"{name}["):
        return False
    number = path[len(name) + 1 :].partition("]")[0]
    message = messages[int(number)] if number.isdigit() and int(number) < len(messages) else {}
    parts = message.get("content")
    answers = isinstance(parts, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_result" for part in parts
    )
    return message.get("role") == "tool" or message.get("type") == "function_call_output" or answers
