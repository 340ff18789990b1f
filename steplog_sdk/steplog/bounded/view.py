"""What the model is shown of a task: its state, not its history, so that it stays as small at the hundredth turn."""

from __future__ import annotations

import json
from typing import Any

from steplog.bounded.limits import Limits
from steplog.bounded.state import TaskState


def render(state: TaskState, limits: Limits) -> str:
    """The view of a state, as JSON text."""
    view: dict[str, Any] = {
        "goal": state.goal,
        "plan": state.plan,
        "facts": state.facts,
        "last_result": state.last_result,
        "remaining": {
            "steps": limits.max_steps - state.step,
            "tool_calls": limits.max_tool_calls - state.tool_calls,
            "tokens": limits.max_tokens - state.tokens,
        },
    }
    if state.remembered:
        view["notes_of_earlier_tasks"] = state.remembered
    return json.dumps(view, sort_keys=True)


def estimate_tokens(text: str) -> int:
    """Tokens of a text at four characters each, rounded up: an estimate for English text, not a tokenizer."""
    return (len(text) + 3) // 4
