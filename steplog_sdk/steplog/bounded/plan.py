"""Plans: a proposal of the model, checked before any of it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steplog.bounded.tools import Tool


def problems_of(steps: Any, tools: Mapping[str, Tool], longest: int) -> list[str]:
    """What is wrong with a proposed plan, each in a sentence that its author can act on; empty for a good one.

    That it is well formed, uses tools that exist, looks back and never ahead, and has something before each write.
    Whether it is a good plan nobody can tell from its form.

    Args:
        steps: as the model gave them: a list of `{"id": ..., "tool": ..., "depends_on": [...]}`.
        tools: the tools there are, by name.
        longest: how many steps it may have.
    """
    if not isinstance(steps, list) or not steps:
        return ["plan must be a non-empty list"]
    problems = []
    if len(steps) > longest:
        problems.append(f"too many steps ({len(steps)} > {longest})")
    earlier: set[str] = set()
    for position, each in enumerate(steps, 1):
        if not isinstance(each, dict) or not isinstance(each.get("id"), str) or not each["id"]:
            problems.append(f"step {position}: must be an object with an id")
            continue
        problems.extend(f"{each['id']}: {problem}" for problem in _step_problems(each, tools, earlier))
        earlier.add(each["id"])
    return problems


def _step_problems(step: dict[str, Any], tools: Mapping[str, Tool], earlier: set[str]) -> list[str]:
    problems = []
    if step["id"] in earlier:
        problems.append("duplicate id")
    name, needs = step.get("tool"), step.get("depends_on", [])
    tool = tools.get(name) if isinstance(name, str) else None
    if tool is None:
        problems.append(f"unknown tool {name!r}")
    if not isinstance(needs, list):
        return [*problems, "depends_on must be a list of ids"]
    problems.extend(f"depends on {each!r}, which is not an earlier step" for each in needs if not _is_in(each, earlier))
    if tool is not None and tool.writes and not needs:
        problems.append("write step has no prerequisite")
    return problems


def accepted(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A plan without problems as the state keeps it: nothing of it is done."""
    return [
        {"id": each["id"], "tool": each["tool"], "depends_on": each.get("depends_on", []), "status": "pending"}
        for each in steps
    ]


def _is_in(name: Any, earlier: set[str]) -> bool:
    return isinstance(name, str) and name in earlier
