"""What a request may do beyond computing an answer, read from its body; and what the user has said about it.

A model call is `safe` to repeat while nothing but its answer comes of it. What the provider keeps of it by itself (a
stored response that nobody has the id of, a line in a list of stored completions) is no effect: it says truly that the
model was asked twice. It is `unsafe` where the provider acts for the model while it answers: a remote MCP server may
send the mail, code in a named container may write the same line again, code with a network may do anything.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from steplog import plugins


def chosen(interceptors: Iterable[str], method: str, path: str) -> str | None:
    """The mode that the user gave to requests of this kind, or None. The pattern that was named first counts."""
    table = plugins.settings().modes
    for pattern, mode in (item for name in interceptors for item in table.get(name, {}).items()):
        if _expression(pattern).fullmatch(f"{method} {path}"):
            return mode
    return None


@functools.lru_cache(maxsize=256)
def _expression(pattern: str) -> re.Pattern[str]:
    pieces = re.split(r"(\*\*|\*|\{[^/{}]*\})", pattern)
    return re.compile("".join(_piece(piece) for piece in pieces), re.DOTALL)


def _piece(piece: str) -> str:
    if piece == "**":
        return ".*"
    return "[^/]+" if piece == "*" or piece.startswith("{") else re.escape(piece)


def changes_state(body: Any) -> bool:
    """Whether a request for inference, by the fields of OpenAI's and Anthropic's APIs, does more than compute."""
    if not isinstance(body, dict):
        return False
    # A response inside a conversation appends its input and its output to that conversation. One in the background is a
    # job: it goes on, and is paid for, whether or not anybody still waits for it.
    if body.get("conversation") is not None or body.get("background") is True:
        return True
    if body.get("mcp_servers") or _names_container(body.get("container")):
        return True
    return any(_acts(tool, body) for tool in _tools(body))


def _tools(holder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for tool in _dicts(holder.get("tools")):
        yield tool
        yield from _tools(tool)  # a namespace of tools


def _acts(tool: dict[str, Any], body: dict[str, Any]) -> bool:
    if tool.get("type") == "mcp":
        return not _only_reads(tool.get("allowed_tools")) and _goes_ahead(tool.get("require_approval"), body)
    place = tool.get("container") or tool.get("environment")
    if isinstance(place, str) or (isinstance(place, dict) and "container_id" in place):
        return True
    policy = place.get("network_policy") if isinstance(place, dict) else None
    return isinstance(policy, dict) and policy.get("type") != "disabled"


def _goes_ahead(approval: Any, body: dict[str, Any]) -> bool:
    """Whether a tool of a remote server may be called without, or with, an approval that this request brings."""
    if any(item.get("type") == "mcp_approval_response" and item.get("approve") for item in _dicts(body.get("input"))):
        return True
    if isinstance(approval, Mapping):
        return not _only_reads(approval.get("never"))
    # Asking first is what the provider does where nothing is said.
    return approval not in (None, "always")


def _only_reads(tools: Any) -> bool:
    return isinstance(tools, Mapping) and tools.get("read_only") is True


def _names_container(container: Any) -> bool:
    return isinstance(container, str) or (isinstance(container, dict) and bool(container.get("id")))


def _dicts(items: Any) -> Iterator[dict[str, Any]]:
    return (item for item in items if isinstance(item, dict)) if isinstance(items, list) else iter(())
