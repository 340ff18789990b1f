"""How far a task may go before it is stopped."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from steplog.errors import InvalidArgument

if TYPE_CHECKING:
    from steplog.bounded.state import TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one task. None of them is ever exceeded; which one ended a task is its stop reason.

    They are to be chosen from measured runs that succeeded: a high percentile and a margin. Raising one automatically
    when a task reaches it defeats it.

    Attributes:
        max_steps: turns of the loop, each with one call of the model.
        max_tool_calls: calls of tools.
        max_tokens: tokens that the model reads and writes, over the whole task. Checked before each call of the model
            with the size of what it would read and the most that it may write.
        max_output_tokens: the most that the model may write in one reply; it is told so.
        deadline: seconds of active time: of models and tools, not of waiting for people. What is left is the timeout
            of the next call.
        max_repeat: how often the same tool may be proposed with the same arguments.
        max_stalls: turns in a row that change neither a fact nor the status of a plan step.
        max_plan_steps: the longest plan.

    Raises:
        InvalidArgument: one is not a positive number.
    """

    max_steps: int = 8
    max_tool_calls: int = 6
    max_tokens: int = 4000
    max_output_tokens: int = 300
    deadline: float = 30.0
    max_repeat: int = 2
    max_stalls: int = 3
    max_plan_steps: int = 6

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            number = isinstance(value, (int, float) if each.name == "deadline" else int)
            if not number or isinstance(value, bool) or not value > 0:
                message = f"Limits: {each.name} is {value!r}; it takes a number above zero, such as {each.default}."
                raise InvalidArgument(message)


def reached(state: TaskState, limits: Limits, next_input: int) -> str | None:
    """The limit that forbids one more call of the model, or None.

    Args:
        state: the task so far.
        limits: its bounds.
        next_input: tokens that the model would read.
    """
    if state.step >= limits.max_steps:
        return "max_steps"
    if state.tool_calls >= limits.max_tool_calls:
        return "max_tool_calls"
    if state.elapsed >= limits.deadline:
        return "deadline"
    if state.tokens + next_input + limits.max_output_tokens > limits.max_tokens:
        return "max_tokens"
    return None
