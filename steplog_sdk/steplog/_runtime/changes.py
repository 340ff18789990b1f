"""Tools that change what they are given: the result of a step is returned on a resume, such a change is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog._runtime.door import PROCESS
from steplog.errors import EncodeError

if TYPE_CHECKING:
    from steplog._runtime.step import Tool
    from steplog._runtime.ticket import Ticket

UNCHANGEABLE: Final = (str, int, float, bool, bytes, type(None))
"""Types of values that nobody can change."""


def warn_of_changes(tool: Tool, ticket: Ticket, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Say so when a tool has changed what it was given."""
    for value in (*arguments, *named.values()) if named else arguments:
        if not isinstance(value, UNCHANGEABLE):
            break
    else:
        return
    try:
        # Plain arguments are recorded as they are, so what was submitted has changed with them.
        after = ticket.call
        if not after.plain:
            after = tool.call(arguments, {name: value for name, value in named.items() if value is not ticket.key})
        changed = orjson.dumps(after.args) != ticket.given
    except (EncodeError, orjson.JSONEncodeError):
        changed = True
    if changed:
        message = (
            f"step {tool.name} changes an argument that it was given. On a resume its result is returned, but the "
            f"change is not made again. Return what has changed instead. (Said once.)"
        )
        PROCESS.warn_once(f"changes {tool.name}", message)
