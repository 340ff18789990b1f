"""JSON for people and for `git diff`: short things on one line, long ones a member a line."""

from __future__ import annotations

import json
from typing import Any, Final

_WIDTH: Final = 120
# Streams have hundreds of events of a few words each.
_ONE_LINE_EACH: Final = "sse"


def pretty(node: Any, indent: int = 0, *, key: str = "") -> str:
    """The text of a JSON tree."""
    flat = json.dumps(node, ensure_ascii=False)
    if len(flat) + indent <= _WIDTH or not node or not isinstance(node, (dict, list)):
        return flat
    inner = " " * (indent + 1)
    if isinstance(node, dict):
        members = [
            f"{json.dumps(name, ensure_ascii=False)}: {pretty(value, indent + 1, key=name)}"
            for name, value in node.items()
        ]
        opening, closing = "{", "}"
    else:
        members = [
            json.dumps(item, ensure_ascii=False) if key == _ONE_LINE_EACH else pretty(item, indent + 1) for item in node
        ]
        opening, closing = "[", "]"
    lines = f",\n{inner}".join(members)
    return f"{opening}\n{inner}{lines}\n{' ' * indent}{closing}"
