"""The plan that an agent keeps, where its log shows one: which items are done, and which were left open.

Agents write plans and to-do lists as JSON: as the arguments of a tool, in an answer, or in the state that every prompt
shows. A list counts as a plan where it stands under a name for one and each of its items says how far it is, or which
tool is to do it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

_NAMES: Final = frozenset({"plan", "steps", "todo", "todos", "tasks", "task_list", "checklist"})
_OPEN: Final = frozenset(
    {
        "pending",
        "open",
        "todo",
        "to do",
        "planned",
        "waiting",
        "in progress",
        "running",
        "not started",
        "blocked",
        "next",
    }
)
_DONE: Final = frozenset({"done", "completed", "complete", "finished", "ok", "success", "succeeded"})
_DROPPED: Final = frozenset({"failed", "cancelled", "canceled", "skipped", "dropped"})
_TITLES: Final = ("title", "content", "name", "task", "description", "step", "id")
_FENCE: Final = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_DEPTH: Final = 6
_ITEMS: Final = 200


class Item(NamedTuple):
    """One item of a plan.

    Attributes:
        title: what is to be done, as the agent names it.
        tool: the tool that is to do it, or "".
        is_open: whether the plan says that it is still to do; None where it does not say.
    """

    title: str
    tool: str
    is_open: bool | None


def plan_in(text: str) -> list[Item] | None:
    """The last plan that a text shows, or None: a text that is JSON, or that quotes some between fences."""
    found = None
    for piece in (text, *_FENCE.findall(text)):
        if piece.lstrip()[:1] not in ("{", "["):
            continue
        try:
            tree = json.loads(piece)
        except ValueError:
            continue  # text that only begins like JSON
        found = plan_of(tree) or found
    return found


def plan_of(tree: Any) -> list[Item] | None:
    """The last plan in a JSON tree, or None."""
    found = None
    for name, items in _lists(tree, _DEPTH):
        if name in _NAMES and 0 < len(items) <= _ITEMS:
            read = [_item(item) for item in items]
            if all(item is not None for item in read):
                found = [item for item in read if item is not None]
    return found


def _lists(node: Any, depth: int) -> Iterator[tuple[str, list[Any]]]:
    if not depth:
        return
    for name, value in (
        node.items() if isinstance(node, dict) else [("", each) for each in node] if isinstance(node, list) else ()
    ):
        if isinstance(value, list):
            yield str(name).lower(), value
        if isinstance(value, dict | list):
            yield from _lists(value, depth - 1)


def _item(node: Any) -> Item | None:
    if not isinstance(node, dict):
        return None
    status = str(node.get("status") or node.get("state") or "").lower().replace("_", " ").replace("-", " ")
    tool = str(node["tool"]) if isinstance(node.get("tool"), str) else ""
    if "done" in node and isinstance(node["done"], bool):
        status = "done" if node["done"] else "open"
    if status not in _OPEN | _DONE | _DROPPED and not (tool and not status):
        return None
    title = next((str(node[name]) for name in _TITLES if isinstance(node.get(name), str | int)), tool)
    return Item(title or tool, tool, status in _OPEN if status else None)


def still_open(plan: list[Item], done: frozenset[str] | set[str]) -> list[Item]:
    """The items that nobody has done: not those whose tool has succeeded since.

    Args:
        plan: the plan as it was last shown.
        done: names of the tools that succeeded after that.
    """
    return [item for item in plan if item.is_open is not False and not (item.tool and item.tool in done)]
