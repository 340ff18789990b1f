"""The last word of a task, built from its state: it needs no model, so it can be had however a task ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from steplog.bounded.state import DONE, TaskState
from steplog.bounded.tools import Tool

_OPENING: Final = {
    "max_steps": "I could not finish this within the steps that I may take.",
    "max_tool_calls": "I could not finish this within the calls that I may make.",
    "max_tokens": "I could not finish this within the reading and writing that I may do.",
    "deadline": "I could not finish this in time.",
    "repeated_call": "I came to a point at which I would only have repeated myself.",
    "no_progress": "I came to a point at which I made no progress.",
    "needs_approval": "This is waiting for somebody's approval.",
    "unknown_outcome": "Something went wrong on the way, and I do not know whether it has happened.",
    "cancelled": "This was cancelled.",
    "budget": "I could not finish this within my budget.",
}

_NEXT: Final = {
    "needs_approval": "It goes on when that is decided.",
    "unknown_outcome": "Somebody will find out before it is tried again.",
    "cancelled": "Nothing more will happen.",
}

_HAND_OVER: Final = "A person will take it from here."


def closing_message(state: TaskState, tools: Mapping[str, Tool]) -> str:
    """What to tell the person for whom a task was done, whatever its stop reason: what happened, and what did not.

    Built from what the tools' `done` and `undone` say and from the state alone, so it claims nothing that the state
    does not know. A final answer of the model comes first; it stands alone where it says `completed` and no planned
    write has failed.

    Args:
        state: the task's.
        tools: its tools, by name.
    """
    if state.stop is None:
        return "This is still under way."
    if state.stop == DONE:
        head = state.answer or ""
        failed = any(each["status"] == "failed" and tools[each["tool"]].writes for each in state.plan)
        return " ".join([head, *_record(state, tools)]) if failed or state.outcome != "completed" else head
    return " ".join([_OPENING[state.stop], *_record(state, tools), _NEXT.get(state.stop, _HAND_OVER)])


def _record(state: TaskState, tools: Mapping[str, Tool]) -> list[str]:
    """One sentence for each write: of those that were tried, and of the plan's that were not."""
    told = []
    for written in state.written.values():
        tool = tools[written["tool"]]
        told.append(_tried(state, tool, written["status"]))
    tried = {state.planned_key(each["id"]) for each in state.plan} & set(state.written)
    untried = (tools[each["tool"]] for each in state.plan if state.planned_key(each["id"]) not in tried)
    return [*told, *(tool.undone for tool in untried if tool.writes)]


def _tried(state: TaskState, tool: Tool, status: str) -> str:
    if status == "ok":
        return tool.done
    if status == "unknown":
        return f"Whether this happened is not known: {tool.done}"
    return tool.undone if status != "needs_approval" or state.pending is None else f"{tool.undone} It needs approval."
