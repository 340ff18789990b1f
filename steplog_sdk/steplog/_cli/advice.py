"""What goes on with a run that is not finished, as command lines; one answer for every verb that gives advice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from steplog._cli import facts
from steplog._kernel.fold import BLOCKED, CLOSED_OUTCOMES, DENIED, FAILED, RunState, StepState


def next_lines(state: RunState, commands: Sequence[str] = ()) -> list[str]:
    """Commands that go on with a run that nobody holds, in the order in which to try them.

    Args:
        state: its folded log.
        commands: what the interrupt that has just stopped it says.
    """
    acting = [line for line in commands if not line.startswith(("steplog show ", f"steplog resume {state.run_id}"))]
    signals = [line for line in acting if line.startswith("steplog signal ")]
    if signals:  # a signal is taken by the run when it is resumed
        return [*signals, f"steplog resume {state.run_id}"]
    if acting:
        return acting[:1]
    if state.completed_once:
        # Resuming it can only end in the same place: it replays, and what it holds is all there will be.
        return [f"steplog show {state.run_id}"] if commands else []
    doubted = [step.id for step in state.steps.values() if facts.step_status(step, live=False) == facts.IN_DOUBT]
    if doubted and not commands:  # what has drifted is mended first: it never came as far as the step in doubt
        return [
            f"steplog resolve {state.run_id} {step} --done JSON    (or --retry, --failed MESSAGE, --unknown)"
            for step in doubted
        ]
    final = lasting_failure(state)
    if final is not None:
        return [f"steplog resolve {state.run_id} {final.id} --retry    (or --done JSON)"]
    denied = lasting_denial(state)
    if denied is not None:
        shown = f"steplog show {state.run_id} {_number(state, denied)}"
        return [f"{shown}    (denied on every resume, until the program catches StepDenied)"]
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
    if state.reason == "drift" and not state.completed_once:
        accepts = f"steplog resume {state.run_id} --on-drift run"
        return [f"steplog replay {state.run_id}", f"steplog resume {state.run_id}", accepts]
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


# What to do about a run that stands still, by its reason. One that a later release has added is let go on.
_SUSPENDED: Final = {
    "approval": "approve or reject the call, then let it go on",
    "budget": "raise its limit, or leave it as it is",
    "cancelled": "nothing; somebody is cancelling it",
    "drift": "mend the program until replay, which does nothing, says identical, and resume; if the change is meant, "
    "accept it with --on-drift run",
    "forked": "start it",
    "indeterminate": "find out whether {step} happened, then say so",
    "lease_lost": "nothing; another process has it",
    "log_failed": "mend the disk, then let it go on",
    "simulated": "say what {step} would have given, or fork it with --live-tools",
    "unrecorded": "let the program ask for what is recorded",
    "unreplayable": "say what {step} gave, or let it run again",
    "waiting": "give it what it waits for",
}


def to_do(state: RunState, *, live: bool) -> str:
    """What a person should do about a run, in one clause.

    Args:
        state: its folded log.
        live: a process is at work on it.
    """
    if live:
        return "nothing; a process is at work on it"
    if state.status in CLOSED_OUTCOMES:
        return "nothing; it has ended"
    doubted = [step for step in state.steps.values() if facts.step_status(step, live=False) == facts.IN_DOUBT]
    if state.reason == "drift" and state.completed_once:
        return "give the changed program a run of its own; this one has ended"
    if doubted and state.reason != "drift":
        return _SUSPENDED["indeterminate"].format(step=_named(state, doubted[0]))
    if state.status == "failed":
        final = lasting_failure(state)
        if final is not None:
            return f"decide on {_named(state, final)}: its failure is returned for ever"
        denied = lasting_denial(state)
        if denied is not None:
            return (
                f"nothing by resuming alone: {_named(state, denied)} was denied, which every resume raises again. "
                "Let the program catch StepDenied (StepRejected is one) and resume it, or begin a new run"
            )
        return "mend what failed, then let it go on"
    step = state.steps.get((state.ended or {}).get("step") or "")
    if state.reason == "approval" and step is not None and _is_decided(state, step.id):
        return "let it go on"
    told = _SUSPENDED.get(state.reason or "", "let it go on") if state.status == "suspended" else "let it go on"
    return told.format(step="the step" if step is None else _named(state, step))


def _named(state: RunState, step: StepState) -> str:
    return f"#{_number(state, step)} {step.target}"


def _number(state: RunState, step: StepState) -> int:
    return next((place for place, each in enumerate(state.steps, 1) if each == step.id), 0)


def lasting_failure(state: RunState) -> StepState | None:
    """The step whose failure ended the run and is returned for ever, so that resuming ends there again; else None.

    A failure that the program handled is returned for ever too, and did not end the run. So it counts only where the
    run's error, or one that this came from, tells of it.
    """
    return _lasting(state, FAILED)


def lasting_denial(state: RunState) -> StepState | None:
    """The same for a step that a person, the time or a rule has denied; no command lets that one run."""
    return _lasting(state, DENIED)


def _lasting(state: RunState, status: str) -> StepState | None:
    ended = state.ended or {}
    if state.status != "failed" or state.retry.intersection(ended.get("retry") or ()):
        return None
    told = list(_told(ended))
    lasting = [step for step in state.steps.values() if step.status == status and step.id not in state.retry]
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
