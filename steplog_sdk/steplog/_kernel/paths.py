"""Places inside a JSON tree, written as messages about drift write them: `messages[4].content`.

    name        the field of an object
    *           every field of an object
    [4]  [*]    one item of a list, or every item

A field whose name holds a dot or a bracket cannot be written; `*` covers it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from steplog.errors import InvalidArgument

_STEP: Final = re.compile(r"(?P<dot>\.?)(?P<name>[^.\[\]\s]+)|\[(?P<index>\d+|\*)\]")

Place = tuple[str | int, ...]
_ANY_ITEM: Final = -1


@lru_cache(maxsize=256)
def parse(path: str) -> Place:
    """The steps of a path.

    Raises:
        InvalidArgument: it is not a path.
    """
    steps: list[str | int] = []
    end = 0
    for match in _STEP.finditer(path):
        name, index = match["name"], match["index"]
        # A name is parted from what stands before it by a dot, and has none where it stands first.
        if match.start() != end or (name is not None and bool(match["dot"]) == (end == 0)):
            break
        steps.append(name if name is not None else _ANY_ITEM if index == "*" else int(index))
        end = match.end()
    # `$` is how other notations begin; here it would be a field that no provider has, and ignore nothing.
    if not steps or end != len(path) or steps[0] == "$":
        message = (
            f"{path!r} is not a path in a request's body: steplog cannot read it.\n"
            f'Write fields and items as messages about drift do: "metadata.request_id", "messages[0].name"; '
            f'"messages[*].name" is the name of every message, "metadata.*" every field of metadata.'
        )
        raise InvalidArgument(message)
    return tuple(steps)


def without(tree: Any, paths: Iterable[str]) -> Any:
    """A JSON tree without what stands at the paths; the same object where nothing stands there.

    A field is left out. An item of a list becomes null, so that the others keep their place.
    """
    for path in paths:
        tree = _without(tree, parse(path))
    return tree


def _without(node: Any, place: Place) -> Any:
    step, rest = place[0], place[1:]
    if isinstance(node, dict) and isinstance(step, str):
        names = list(node) if step == "*" else [step] if step in node else []
        if not rest:
            return {name: value for name, value in node.items() if name not in names} if names else node
        changed: dict[Any, Any] = {name: _without(node[name], rest) for name in names}
        return {**node, **changed} if any(changed[name] is not node[name] for name in names) else node
    if isinstance(node, list) and isinstance(step, int):
        items = [
            (_without(item, rest) if rest else None) if step in (_ANY_ITEM, number) else item
            for number, item in enumerate(node)
        ]
        return items if any(new is not old for new, old in zip(items, node, strict=True)) else node
    return node


def put(tree: Any, path: str, value: Any) -> Any:
    """A JSON tree with a value at a path; what is not on the way there is shared with the tree that was given.

    The last field may be a new one, and an item of a list is put behind its last by the number that comes next.

    Raises:
        InvalidArgument: it is not a path to one place, or there is nothing of that kind on the way.
    """
    place = parse(path)
    if "*" in place or _ANY_ITEM in place:
        message = f"{path!r} names many places, and a value is put at one. Write its number or name in place of `*`."
        raise InvalidArgument(message)
    return _put(tree, place, value, path)


def _put(node: Any, place: Place, value: Any, path: str) -> Any:
    step, rest = place[0], place[1:]
    if isinstance(node, dict) and isinstance(step, str) and (step in node or not rest):
        return {**node, step: _put(node[step], rest, value, path) if rest else value}
    if isinstance(node, list) and isinstance(step, int) and 0 <= step < len(node) + (not rest):
        changed = _put(node[step], rest, value, path) if rest else value
        return [*node[:step], changed, *node[step + 1 :]]
    there = (
        "fields " + ", ".join(list(node)[:12])
        if isinstance(node, dict)
        else f"{len(node)} items"
        if isinstance(node, list)
        else type(node).__name__
    )
    shown = f"[{step}]" if isinstance(step, int) else step
    raise InvalidArgument(f"there is no place {path!r}: nothing stands at {shown!r}. What is there: {there}.")
