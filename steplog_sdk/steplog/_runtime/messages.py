"""What the interrupts say: what happened, what it means, what to do, as exact commands."""

from __future__ import annotations

from typing import Any

from steplog._kernel.drift import Difference, windows
from steplog._kernel.fold import RunState, StepState
from steplog.errors import DecodeError, DriftDetected, Indeterminate, Interrupt, LogFailed, Unreplayable


def describe(step: StepState) -> str:
    """A step in a few words, as `tool_call send_mail (s_abc…)`."""
    return f"{step.kind} {step.target} ({step.id})"


def settle_commands(run_id: str, step: str) -> tuple[str, ...]:
    """The three ways to settle a step whose outcome is not known."""
    return (
        f"steplog resolve {run_id} {step} --done JSON",
        f"steplog resolve {run_id} {step} --retry",
        f"steplog resolve {run_id} {step} --failed MSG",
    )


def indeterminate(run_id: str, step: StepState, detail: str = "") -> Indeterminate:
    """The interrupt for a step that may or may not have happened."""
    done, retry, failed = commands = settle_commands(run_id, step.id)
    message = (
        f"run {run_id}: {describe(step)} began (attempt {step.attempt}) and no outcome is recorded.\n"
        f"It may have happened, and mode {step.mode!r} does not allow a repeat.{detail}\n"
        f"Find out whether it happened, then settle it:\n"
        f"  {done}    it happened, with this result\n"
        f"  {retry}        it did not happen; run it again\n"
        f"  {failed}   it did not happen and must not"
    )
    return Indeterminate(message, run_id=run_id, step=step.id, commands=commands)


def unreplayable(run_id: str, step: StepState, why: str) -> Unreplayable:
    """The interrupt for a step that happened and whose result cannot be returned again."""
    done, retry, _failed = commands = settle_commands(run_id, step.id)
    message = (
        f"run {run_id}: {describe(step)} happened, but its result cannot be returned again: {why}\n"
        f"Running it again would repeat its effect. Give the result by hand, or allow the repeat:\n"
        f"  {done}\n"
        f"  {retry}"
    )
    return Unreplayable(message, run_id=run_id, step=step.id, commands=commands[:2])


def log_failed(run_id: str, step: str, target: str, *, begun: bool, cause: BaseException) -> LogFailed:
    """The interrupt for an append that failed, before or after the effect."""
    meaning = (
        f"The effect has happened and its outcome is not in the log: on resume {step} is in doubt."
        if begun
        else "The effect did not begin."
    )
    command = f"steplog resume {run_id}"
    message = f"run {run_id}: step {target} ({step}) could not be recorded: {cause}\n{meaning}\nThen go on: {command}"
    return LogFailed(message, run_id=run_id, step=step, commands=(command,))


def drift(
    run_id: str, state: RunState, asked: str, nearest: StepState | None, missed: int, difference: Difference | None
) -> DriftDetected:
    """The interrupt for a program that no longer does what its log says.

    Args:
        run_id: the run.
        state: its folded log.
        asked: the step that the program asks for now, in a few words.
        nearest: the recorded step that it is compared with, or None where the run had ended.
        missed: how many recorded steps at this place were not asked for.
        difference: the first difference between the two requests, or None when the kind or target differs.
    """
    lines = [f"run {run_id}: the program asks for {asked}, which its log does not hold at this place."]
    facts: dict[str, Any] = {"nearest": None if nearest is None else nearest.id}
    if nearest is None:
        lines.append(f"The run has ended ({state.status}); it can be replayed, but nothing new may happen in it.")
    else:
        more = f" (and {missed - 1} more)" if missed > 1 else ""
        lines.append(f"Recorded here: {describe(nearest)}, event {nearest.started_seq}{more}.")
    if difference is not None:
        recorded, found = windows(difference)
        lines += [f"First difference, at {difference.path or 'the value itself'}:", f"  - {recorded}", f"  + {found}"]
        facts.update(field=difference.path, recorded=difference.recorded, found=difference.found)
    lines += [
        "No effect was executed. A value that changes from run to run belongs in a step of its own, for example:",
        '  today = steplog.step("today", lambda: date.today())',
        'If the change is meant, resume with steplog.run(..., on_drift="run"), or start a new run:',
    ]
    commands = (f"steplog show {run_id}",)
    lines.append(f"  {commands[0]}    shows what was recorded")
    return DriftDetected("\n".join(lines), run_id=run_id, step=None, commands=commands, **facts)


def not_forsaken(run_id: str, step: StepState) -> DriftDetected:
    """The interrupt for a step that the program gave up when it was recorded, and waits for now."""
    command = f"steplog show {run_id} {step.id}"
    message = (
        f"run {run_id}: when it was recorded, the program stopped waiting for {describe(step)} and went on without its "
        f"result (a timeout, say). Now it keeps waiting.\nNothing was executed. What was recorded: {command}"
    )
    return DriftDetected(message, run_id=run_id, step=step.id, commands=(command,), nearest=step.id)


def undecodable(run_id: str, step: StepState, error: DecodeError) -> Unreplayable:
    """The interrupt for a recorded result that this program cannot restore, as one of a class it has not imported."""
    command = f"steplog resume {run_id}"
    message = (
        f"run {run_id}: the result of {describe(step)} is recorded, but this program cannot restore it: {error}\n"
        f"Mend the program, then go on: {command}"
    )
    return Unreplayable(message, run_id=run_id, step=step.id, commands=(command,))


def why_unreplayable(outcome: dict[str, Any]) -> str:
    """Why a recorded outcome cannot be returned, in a sentence."""
    if "redacted" in outcome:
        return "a secret was taken out of it before it was written."
    fault = outcome.get("unreplayable") or {}
    return f"{fault.get('why', 'it could not be encoded.')}"


def inner_drift(run_id: str, step: str, what: str, *, field: str | None, recorded: Any, found: Any) -> DriftDetected:
    """The interrupt for a step whose inside is not what was recorded, such as a second request or a longer read."""
    command = f"steplog show {run_id} {step}"
    message = f"run {run_id}: step {step}: {what}\nNothing was sent. What was recorded: {command}"
    facts = {"field": field, "recorded": recorded, "found": found, "nearest": step}
    return DriftDetected(message, run_id=run_id, step=step, commands=(command,), **facts)


def again(interrupt: Interrupt) -> Interrupt:
    """A copy to raise once more: one instance raised in several tasks would collect all their tracebacks."""
    rebuild, arguments = interrupt.__reduce__()
    copy: Interrupt = rebuild(*arguments)
    copy.__cause__ = interrupt.__cause__
    return copy
