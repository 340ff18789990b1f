"""What goes on with a run that is not finished, as command lines; one answer for every verb that gives advice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from steplog._cli import facts
from steplog._kernel.fold import BLOCKED, CLOSED_OUTCOMES, FAILED, RunState, StepState


def next_lines(state: RunState, commands: Sequence[str] = ()) -> list[str]:
    """Commands that go on with a run that nobody holds, in the order in which to try them.

    Args:
        state: its folded log.
        commands: what the interrupt that has just stopped it says.
    """
    acting = [line for line in commands if not line.startswith(("steplog show ", f"steplog resume {state.run_id}"))]
    if acting:
        return acting[:1]
    if state.completed_once:
        # Resuming it can only end in the same place: it replays, and what it holds is all there will be.
        return [f"steplog show {state.run_id}"] if commands else []
    doubted = [step.id for step in state.steps.values() if facts.step_status(step, live=False) == facts.IN_DOUBT]
    if doubted and not commands:  # what has drifted is mended first: it never came as far as the step in doubt
        return [
            f"steplog resolve {state.run_id} {step} --done JSON | --retry | --failed MESSAGE | --unknown"
            for step in doubted
        ]
    final = lasting_failure(state)
    if final is not None:
        return [f"steplog resolve {state.run_id} {final.id} --retry | --done JSON"]
    resuming = (line for line in commands if line.startswith("steplog resume "))
    return [next(resuming, f"steplog resume {state.run_id}")]


def go_on(state: RunState, commands: Sequence[str] = ()) -> str:
    """The first of these commands, or "" where there is nothing to do."""
    return next(iter(next_lines(state, commands)), "")


def suspended_lines(state: RunState) -> list[str]:
    """The same for a run that is looked at later: what stopped it may have been settled since."""
    if state.status in CLOSED_OUTCOMES or state.status == "new":
        return []
    ended = state.ended or {}
    step = state.steps.get(ended.get("step") or "")
    open_still = step is not None and facts.step_status(step, live=False) in (facts.IN_DOUBT, facts.LOST, "skipped")
    if state.reason == "approval" and (step is None or step.status != BLOCKED or _is_decided(state, step.id)):
        return [f"steplog resume {state.run_id}"]
    settled = state.reason in ("indeterminate", "unreplayable", "simulated") and not open_still
    said = [] if settled or state.reason == "indeterminate" else ended.get("commands") or []
    # They name the home in which the run was then; it may have been moved, and who asks knows where it is now.
    return next_lines(state, [str(line).partition(" --home ")[0] for line in said])


def _is_decided(state: RunState, step: str) -> bool:
    held = {} if state.controls is None else state.controls.held.get(step, {})
    return bool({"approved", "rejected"} & held.keys())


def lasting_failure(state: RunState) -> StepState | None:
    """The step whose failure ended the run and is returned for ever, so that resuming ends there again; else None.

    A failure that the program handled is returned for ever too, and did not end the run. So it counts only where the
    run's error, or one that this came from, tells of it.
    """
    ended = state.ended or {}
    if state.status != "failed" or state.retry.intersection(ended.get("retry") or ()):
        return None
    told = list(_told(ended))
    lasting = [step for step in state.steps.values() if step.status == FAILED and step.id not in state.retry]
    lasting.sort(key=lambda step: step.finished_seq or 0, reverse=True)
    return next((step for step in lasting if any(_tells_of(error, step) for error in told)), None)


def _told(ended: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for error in (ended.get("error"), *(ended.get("causes") or ())):
        if isinstance(error, dict):
            yield error


def _tells_of(error: dict[str, Any], step: StepState) -> bool:
    finished = step.finished or {}
    message = str(error.get("message") or "")
    for own in facts.failures(finished):
        if own["type"] == error.get("type") and own["message"] == message:
            return True
    status = finished.get("status")
    return isinstance(status, int) and status >= 400 and re.search(rf"\b{status}\b", message) is not None
