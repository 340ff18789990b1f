"""Which bodies the data of an event names: by what steplog has laid out, never by what a program's value looks like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

VALUES: Final = frozenset({"args", "result", "value"})
"""Under these lie encoded values of the user's program; everything else in an event was laid out by steplog."""

FOREIGN: Final = frozenset({"params"})
"""Parameters of a request are the provider's own names and may be spelled like ours."""


def is_form(node: Any) -> bool:
    """Whether a node of a detail tree stands for bytes."""
    if not isinstance(node, dict) or len(node) != 1 + ("size" in node):
        return False
    return "json" in node or any(isinstance(node.get(key), str) for key in ("text", "base64", "body"))


def references(data: dict[str, Any]) -> Iterator[str]:
    """Names of the bodies that an event names.

    What a program passed as arguments or got as a result may look like one of our references by accident, so inside
    values only the reserved form counts, and inside a body's own JSON nothing does.
    """
    for key, node in data.items():
        if key in VALUES:
            yield from _value_references(node)
        elif key in FOREIGN:
            continue
        elif is_form(node):
            if "body" in node:
                yield str(node["body"])
        elif isinstance(node, dict):
            yield from references(node)
        elif isinstance(node, list):
            yield from references(dict(enumerate(node)))  # type: ignore[arg-type]  # keys only need to be no value names


def _value_references(node: Any) -> Iterator[str]:
    if isinstance(node, dict) and node.get("$steplog") == "body":
        yield str(node["sha256"])
