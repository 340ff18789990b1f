"""What events change in what is known of a run's budget: its limits, and what it has used up of them.

Counting begins with the first `run.budgeted`, which says what was used before it. Every attempt that begins from then
on says in `judged.budget` of its `step.started` what is set aside for it, and in `spent` of its `step.finished` what of
that was used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from steplog._kernel import events as ev
from steplog._kernel.budget import BudgetState, Charge, Usage
from steplog._kernel.events import Event
from steplog._kernel.state import RunState


def limited(known: BudgetState | None, event: Event) -> BudgetState:
    """What a `run.budgeted` makes of what was known."""
    data = event.data
    if known is None:
        known = BudgetState(usage=Usage(**data.get("used", {})).copy())
    limits = data.get("limits", {})
    if data.get("by") == "operator":
        known.operator.update(limits)
    else:
        known.set_by_program(limits)
    known.prices = data.get("prices", known.prices)
    return known


def account(known: BudgetState, state: RunState, event: Event) -> None:
    """Take over what any other event says, after the state was advanced by it."""
    active = _table(event.data.get("judged")).get("budget", event.data).get("active", 0)
    known.usage.active_ms = max(known.usage.active_ms, active)
    change = _CHANGES.get(event.type)
    if change is not None:
        change(known, state, event)


def _started(known: BudgetState, state: RunState, event: Event) -> None:
    step = event.step or ""
    charge = Charge.of(_table(event.data.get("judged")).get("budget"))
    known.usage.begin(step, state.steps[step].kind, charge)
    known.stalls += state.steps[step].kind == "llm_call" and known.changes > 0


def _finished(known: BudgetState, _state: RunState, event: Event) -> None:
    spent = event.data.get("spent")
    # Of a call that nobody waits for any more, what it uses is not known.
    lost = event.data.get("outcome") == "cancelled" or spent is None
    known.usage.end(event.step or "", None if lost else Charge.of(spent))


def _skipped(known: BudgetState, state: RunState, event: Event) -> None:
    step = state.steps.get(event.step or "")
    if step is not None:
        known.usage.take_back(step.id, step.kind)
        known.stalls -= step.kind == "llm_call" and known.stalls > 0


def _lost(known: BudgetState, _state: RunState, _event: Event) -> None:
    known.usage.lose_all()


def _progressed(known: BudgetState, _state: RunState, event: Event) -> None:
    known.changes = event.data.get("number", known.changes + 1)
    known.progress = event.data.get("digest", "")
    known.stalls = 0


def _table(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


_CHANGES: Final[dict[str, Callable[[BudgetState, RunState, Event], None]]] = {
    ev.STEP_STARTED: _started,
    ev.STEP_FINISHED: _finished,
    ev.STEP_SKIPPED: _skipped,
    ev.RUN_CLAIMED: _lost,
    ev.RUN_PROGRESSED: _progressed,
}
