"""What the interrupts say: what happened, what it means, what to do, as exact commands."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from steplog._kernel.fold import FAILED, RunState, StepState
from steplog.errors import (
    DecodeError,
    DriftDetected,
    Indeterminate,
    Interrupt,
    LogFailed,
    SteplogError,
    StoreError,
    Suspended,
    Unrecorded,
    Unreplayable,
)


class Named(NamedTuple):
    """A run as a person names it on the command line.

    Attributes:
        run_id: its id.
        option: ` --home DIR` where the command line would look for the run elsewhere, else "".
    """

    run_id: str
    option: str = ""

    def command(self, verb: str, *words: str) -> str:
        """A command about the run, to be typed as it stands."""
        return " ".join(("steplog", verb, self.run_id, *words)) + self.option


def describe(step: StepState) -> str:
    """A step in a few words, as `tool_call send_mail (s_abc…)`."""
    return f"{step.kind} {step.target} ({step.id})"


def settle_commands(run: Named, step: str) -> tuple[str, str, str, str]:
    """The four ways to settle a step whose outcome is not known."""
    return (
        run.command("resolve", step, "--done JSON"),
        run.command("resolve", step, "--retry"),
        run.command("resolve", step, "--failed MSG"),
        run.command("resolve", step, "--unknown"),
    )


def indeterminate(run: Named, step: StepState, detail: str = "") -> Indeterminate:
    """The interrupt for a step that may or may not have happened."""
    done, retry, failed, unknown = commands = settle_commands(run, step.id)
    message = (
        f"run {run.run_id}: {describe(step)} began (attempt {step.attempt}) and no outcome is recorded.\n"
        f"It may have happened, and mode {step.mode!r} does not allow a repeat.{detail}\n"
        f"Find out whether it happened, then settle it and resume:\n"
        f"  {done}    it happened, with this result\n"
        f"  {retry}        it did not happen; run it again\n"
        f"  {failed}   it did not happen and must not\n"
        f"  {unknown}      nobody can tell; the program is told so"
    )
    return Indeterminate(message, run_id=run.run_id, step=step.id, commands=commands)


def unreplayable(run: Named, step: StepState, why: str) -> Unreplayable:
    """The interrupt for a step that happened and whose result, or error, cannot be returned again."""
    done, retry, failed, unknown = settle_commands(run, step.id)
    if step.target.startswith("websocket "):
        message = (
            f"run {run.run_id}: {describe(step)} was open, and cannot be given back: {why}\n"
            f"Let it connect again, or say what the program is to be told:\n"
            f"  {retry}        connect again\n"
            f"  {failed}   it failed, with this message\n"
            f"  {unknown}      nobody can tell; the program is told so"
        )
        return Unreplayable(message, run_id=run.run_id, step=step.id, commands=(retry, failed, unknown))
    if step.status == FAILED:
        error = (step.finished or {}).get("error") or {}
        told = ": ".join(str(error[key]) for key in ("type", "message") if error.get(key))
        message = (
            f"run {run.run_id}: {describe(step)} failed, but its error cannot be raised again: {why}\n"
            f"Recorded of it: {told or 'that it failed'}\n"
            f"Say what the program is to be told, or allow another attempt:\n"
            f"  {failed}   it failed, with this message\n"
            f"  {retry}        run it again\n"
            f"  {done}    it happened all the same, with this result"
        )
        return Unreplayable(message, run_id=run.run_id, step=step.id, commands=(failed, retry, done))
    repeated = (
        "Running it again may give another result than the one that the run went on with"
        if step.mode == "safe"
        else "Running it again would repeat its effect"
    )
    message = (
        f"run {run.run_id}: {describe(step)} happened, but its result cannot be returned again: {why}\n"
        f"{repeated}. Give the result by hand, or allow the repeat:\n"
        f"  {done}\n"
        f"  {retry}"
    )
    return Unreplayable(message, run_id=run.run_id, step=step.id, commands=(done, retry))


def unrecordable(run: Named, step: StepState, why: str) -> Unreplayable:
    """The interrupt for a result that cannot be written, so that it could not be returned on a resume."""
    done, retry, *_ = settle_commands(run, step.id)
    commands = (run.command("resume"),) if step.mode == "safe" else (done, retry)
    then = (
        "Its mode is 'safe', so it runs again"
        if step.mode == "safe"
        else "It has happened, so give its result by hand, or allow the repeat"
    )
    options = "\n".join(f"  {command}" for command in commands)
    message = (
        f"run {run.run_id}: {describe(step)} returned something that cannot be recorded: {why}\n"
        f"Mend the step first. {then}:\n{options}"
    )
    return Unreplayable(message, run_id=run.run_id, step=step.id, commands=commands)


def log_failed(run: Named, step: str, target: str, *, begun: bool, cause: BaseException) -> LogFailed:
    """The interrupt for an append that failed, before or after the effect."""
    meaning = (
        f"The effect has happened and its outcome is not in the log: on resume {step} is in doubt."
        if begun
        else "The effect did not begin."
    )
    command = run.command("resume")
    what = f"run {run.run_id}: step {target} ({step}) could not be recorded: {_named(cause)}"
    message = f"{what}\n{meaning}\nMend the cause, then go on: {command}"
    return LogFailed(message, run_id=run.run_id, step=step, commands=(command,))


def end_not_recorded(run: Named, cause: BaseException) -> LogFailed:
    """The interrupt for a run whose end could not be appended."""
    command = run.command("resume")
    message = (
        f"run {run.run_id}: its end could not be recorded: {_named(cause)}\n"
        f"What its steps have recorded is kept, and is returned on resume.\n"
        f"Mend the cause, then go on: {command}"
    )
    return LogFailed(message, run_id=run.run_id, step=None, commands=(command,))


def _named(cause: BaseException) -> str:
    return str(cause) if isinstance(cause, SteplogError) else f"{type(cause).__name__}: {cause}".rstrip(": ")


def once_more(count: int) -> str:
    """What to say where a program makes a call once more than it is recorded."""
    times = "once, and was already played" if count == 1 else f"{count} times, and each was already played"
    return f"An equal call is recorded {times}: the program makes it once more than it did."


def unrecorded(run: Named, state: RunState, asked: str, step: StepState | None, again: int = 0) -> Unrecorded:
    """The interrupt of a replay for a call without a recorded outcome.

    Args:
        run: the run that is replayed.
        state: its folded log.
        asked: the call, in a few words.
        step: the recorded step that it is, where that began and has no outcome; else None.
        again: how many equal calls are recorded, where all of them were asked for before; else 0.
    """
    if step is not None:
        what = (
            f"the recording ends in the middle of {describe(step)}: attempt {step.attempt} began, and no outcome is "
            f"recorded."
        )
    elif state.completed_once:
        what = f"the program asks for {asked}, and the run was recorded to its end without it."
    else:
        what = f"the program asks for {asked}; the recording ends before it."
    what += f"\n{once_more(again)}" if again and step is None else ""
    commands = (run.command("show"),) if state.completed_once else (run.command("show"), run.command("resume"))
    then = "What was recorded:" if state.completed_once else "What was recorded, and how to go on from there, live:"
    listed = "\n".join(f"  {command}" for command in commands)
    message = (
        f"replay of run {run.run_id}: {what}\nIt was not executed: nothing new happens in a replay.\n{then}\n{listed}"
    )
    facts = {"asked": asked, "nearest": None if step is None else step.id}
    return Unrecorded(message, run_id=run.run_id, step=None if step is None else step.id, commands=commands, **facts)


def refused(run: Named, what: str) -> Unrecorded:
    """The interrupt of a replay for something that was tried past the log."""
    show = run.command("show")
    message = (
        f"replay of run {run.run_id}: {what} is not recorded, and was refused: nothing new happens in a replay.\n"
        f"What reaches other systems belongs in a step (@steplog.step), so that it is recorded and returned. What is "
        f"harmless can be allowed: steplog.replay(..., allow=[...])\nWhat was recorded:\n  {show}"
    )
    return Unrecorded(message, run_id=run.run_id, commands=(show,), asked=what)


def refused_outside(run: Named, what: str) -> str:
    """What is said of a replay in which something was tried outside the run."""
    message = str(refused(run, what))
    if not what.startswith(("connection", "look-up")):
        return message
    host = what.removeprefix("connection to ").removeprefix("look-up of ").partition(",")[0]
    return (
        f"{message}\nIs it none of the program's business (telemetry, say)? {run.command('replay', '--ignore', host)}"
    )


def whose(run: Named, state: RunState, account: str, asked: tuple[str, ...], *, taken: bool) -> DriftDetected:
    """The interrupt for an account's request of which the log does not tell which recorded one it is.

    Args:
        run: the run.
        state: its folded log.
        account: who asks.
        asked: ids of the recorded steps that it could be.
        taken: they are its own, and were given to another account.
    """
    steps = [state.steps[step] for step in asked if step in state.steps]
    target = steps[0].target if steps else "a request"
    recorded = [f"{step.id} for account {step.account}, event {step.started_seq}" for step in steps[:8]]
    show = run.command("show")
    lines = [f"run {run.run_id}: {target} is recorded in equal requests; account {account} asks for it now."]
    lines += [f"  {one}" for one in recorded]
    lines.append(_TAKEN if taken else _CHANGED)
    if not taken:
        lines.append(f"  {run.command('resume', '--on-drift run')}")
    lines.append(f"What was recorded:\n  {show}")
    facts = {"field": "account", "recorded": [step.account for step in steps], "found": account}
    nearest = steps[0].id if steps else None
    return DriftDetected("\n".join(lines), run_id=run.run_id, step=None, commands=(show,), nearest=nearest, **facts)


_TAKEN: Final = (
    "Its own was given to another account, which asked first while this one had not been seen: the accounts ask in "
    "another order, or the other one's credentials have changed.\n"
    "It was not executed. Start it again with the accounts in the recorded order (a set has none); from the next run "
    "on, put each account's part into a step whose arguments name it."
)
_CHANGED: Final = (
    "That account is not in the log, so its credentials have changed, and which of the recorded accounts it is cannot "
    "be told. It was not executed.\n"
    "Start it again with the credentials that were recorded, of all the accounts but one at least. Where that cannot "
    "be, let the results be given out as they are asked for:"
)


def not_forsaken(run: Named, step: StepState) -> DriftDetected:
    """The interrupt for a step that the program gave up when it was recorded, and waits for now."""
    command = run.command("show", step.id)
    message = (
        f"run {run.run_id}: when it was recorded, the program stopped waiting for {describe(step)} and went on without "
        f"its result (a timeout, say). Now it keeps waiting.\nNothing was executed. What was recorded: {command}"
    )
    return DriftDetected(message, run_id=run.run_id, step=step.id, commands=(command,), nearest=step.id)


def namesake(run: Named, step: StepState, recorded: str, found: str) -> DriftDetected:
    """The interrupt for a tool that has the name and arguments of a recorded one and is another function."""
    show = run.command("show", step.id)
    message = (
        f"run {run.run_id}: {describe(step)} was recorded from the function in {recorded}; now one of the same name in "
        f'{found} asks for it.\nTwo tools need two names: @steplog.step(name="..."). If the function has only moved, '
        f'give it its old name: @steplog.step(name="{step.target}").\nNothing was executed. What was recorded: {show}'
    )
    facts = {"field": "module", "recorded": recorded, "found": found, "nearest": step.id}
    return DriftDetected(message, run_id=run.run_id, step=step.id, commands=(show,), **facts)


def undecodable(run: Named, step: StepState, error: DecodeError) -> Unreplayable:
    """The interrupt for a recorded result that this program cannot restore, as of a class it has not imported."""
    command = run.command("resume")
    message = (
        f"run {run.run_id}: the result of {describe(step)} is recorded, but this program cannot restore it: {error}\n"
        f"Mend the program, then go on: {command}"
    )
    return Unreplayable(message, run_id=run.run_id, step=step.id, commands=(command,))


def unreadable(run: Named, step: StepState, error: StoreError) -> Unreplayable:
    """The interrupt for a recorded outcome that was whole when the log was opened and cannot be read now."""
    verify, resume = commands = (run.command("verify"), run.command("resume"))
    message = (
        f"run {run.run_id}: the outcome of {describe(step)} is recorded and cannot be read now: {error}\n"
        f"Nothing was executed. Find out what is wrong with the file, then go on:\n  {verify}\n  {resume}"
    )
    return Unreplayable(message, run_id=run.run_id, step=step.id, commands=commands)


def locked(run: Named, step: StepState, why: str) -> Unreplayable:
    """The interrupt for a step whose result is there, encrypted with a key that is not at hand."""
    resume = run.command("resume")
    message = (
        f"run {run.run_id}: {describe(step)} is recorded, and its result is encrypted: {why}\n"
        f"Nothing was executed. Then carry on:\n  {resume}"
    )
    return Unreplayable(message, run_id=run.run_id, step=step.id, commands=())


def blocked(run: Named, step: StepState, rule: str, reason: str) -> Suspended:
    """The interrupt for a step that may not begin before somebody has approved it."""
    commands = tuple(run.command(verb, step.id) for verb in ("approve", "reject", "show"))
    approve, reject, show = commands
    message = (
        f"run {run.run_id}: {describe(step)} needs approval: {reason}\n"
        f"Rule {rule} asks for it. The step has not begun. Look at it, decide, and resume:\n"
        f"  {show}\n  {approve}\n  {reject}"
    )
    return Suspended(message, run_id=run.run_id, step=step.id, commands=(approve, reject, run.command("resume")))


def why_unreplayable(outcome: dict[str, Any]) -> str:
    """Why a recorded outcome cannot be returned, in a sentence."""
    if "redacted" in outcome:
        return "a secret was taken out of it before it was written."
    fault = outcome.get("unreplayable") or {}
    return f"{fault.get('why', 'it could not be encoded.')}"


def inner_drift(run: Named, step: str, what: str, *, field: str | None, recorded: Any, found: Any) -> DriftDetected:
    """The interrupt for a step whose inside is not what was recorded, such as a second request or a longer read."""
    command = run.command("show", step)
    message = f"run {run.run_id}: step {step}: {what}\nNothing was sent. What was recorded: {command}"
    facts = {"field": field, "recorded": recorded, "found": found, "nearest": step}
    return DriftDetected(message, run_id=run.run_id, step=step, commands=(command,), **facts)


def again(interrupt: Interrupt) -> Interrupt:
    """A copy to raise once more: one instance raised in several tasks would collect all their tracebacks."""
    rebuild, arguments = interrupt.__reduce__()
    copy: Interrupt = rebuild(*arguments)
    copy.__cause__ = interrupt.__cause__
    return copy
