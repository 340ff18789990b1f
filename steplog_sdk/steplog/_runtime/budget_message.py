"""What the interrupt of a budget says: the limit, what is used of it, and how to go on."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

from steplog._kernel.budget import COUNTS, Exceeded
from steplog._runtime.messages import Named
from steplog.errors import BudgetExceeded

_UNITS: Final = {
    "max_steps": "steps",
    "max_model_calls": "model calls",
    "max_tool_calls": "calls of tools",
    "max_tokens": "tokens",
    "max_cost": "US dollars",
    "deadline": "seconds at work",
    "max_repeat": "calls of the same target with the same arguments",
    "max_stalls": "model calls without progress",
}


def exceeded(run: Named, step: str, what: str, found: Exceeded, *, begun: bool) -> BudgetExceeded:
    """The interrupt for an attempt that does not fit into the budget.

    Args:
        run: the run.
        step: the step's id.
        what: the step in two words, as `llm_call gpt-5`.
        found: the limit that it would exceed.
        begun: it was under way when the time was up.
    """
    limit, unit = found.limit, _UNITS[found.limit]
    higher = _enough(found)
    raised = run.command("resume", f"--budget {limit}={higher}")
    needs = f", and this step needs up to {_number(found.needs)} more" if limit in ("max_tokens", "max_cost") else ""
    if found.needs is None:
        needs = ""
    why = f"\n{found.why}" if found.why else ""
    would = "was under way when the run reached" if begun else "would exceed"
    fate = "Its outcome is not known; the step's mode says what a resumed run does." if begun else "It has not begun."
    message = (
        f"run {run.run_id}: {what} {would} {limit} of its budget: {_number(found.used)} of "
        f"{_number(found.allowed)} {unit} are used{needs}. {fate}{why}\n"
        f"Look at what the run has done, then raise the limit, here or in the program "
        f"(steplog.Budget({limit}={higher if higher != 'none' else 'None'})), and resume:\n"
        f"  {run.command('show')}\n"
        f"  {raised}"
    )
    facts = {"limit": limit, "used": found.used, "needs": found.needs, "allowed": found.allowed}
    return BudgetExceeded(message, run_id=run.run_id, step=step, commands=(raised,), **facts)


def _enough(found: Exceeded) -> str:
    """A limit with room for this step and as much again as was allowed."""
    if found.needs is None:
        return "none"
    least = Decimal(str(found.used)) + Decimal(str(found.needs))
    twice = max(2 * Decimal(str(found.allowed)), least)
    if found.limit in COUNTS:
        return str(math.ceil(twice))
    return f"{twice.quantize(Decimal('0.01')) + (0 if found.limit == 'deadline' else Decimal('0.01')):f}"


def _number(count: Any) -> str:
    if isinstance(count, float):
        return f"{count:,.1f}"
    return f"{count:,}" if isinstance(count, int) else str(count)
