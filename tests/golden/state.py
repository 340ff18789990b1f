"""What a log folds to, as far as no later release may see it otherwise."""

from __future__ import annotations

from typing import Any

from steplog._kernel.state import RunState

_RUN = ("run_id", "status", "reason", "epoch", "seq", "head", "completed_once")
_STEP = ("id", "kind", "target", "scope", "after", "mode", "status", "attempt", "started_seq", "finished_seq")
_STEP += ("occurrence", "orphan", "given_up", "lost")


def kept(state: RunState) -> dict[str, Any]:
    """The facts of a run and of its steps that decisions are made of, and that are shown to people."""
    return {
        **{name: getattr(state, name) for name in _RUN},
        "retry": sorted(state.retry),
        "live": sorted(state.live),
        "steps": [{name: getattr(step, name) for name in _STEP} for step in state.steps.values()],
    }
