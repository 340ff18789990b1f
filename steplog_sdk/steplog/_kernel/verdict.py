"""Whether a replay did what was recorded, and where it first did something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from steplog._kernel.fold import BLOCKED, RunState, StepState

IDENTICAL: Final = "identical"
DIFFERENT: Final = "different"

ENDED: Final = frozenset({"completed", "escalated", "cancelled", "failed"})
"""How a run can have ended for good. What is suspended, or has no end because its process died, ends in the open."""

STOPPED_BY: Final = frozenset({"budget", "approval", "waiting"})
"""For these reasons a run is stopped at a step that its program asks for, and a replay at the same."""


class Halted(NamedTuple):
    """What stopped a replay.

    Attributes:
        reason: reason code of the interrupt.
        step: the recorded step concerned, or None.
        message: what the interrupt says.
    """

    reason: str
    step: str | None
    message: str


class Divergence(NamedTuple):
    """The first thing that a replay did otherwise.

    Attributes:
        kind: `drift` (another call than the recorded one), `unrecorded` (a call where nothing is recorded),
            `unreplayable` (a recorded outcome that cannot be given back), `end` (the run ended otherwise), `unplayed`
            (recorded steps were not asked for), `not opened` (the program never opened the run), or the reason code of
            another interrupt.
        message: what happened, for people.
        step: id of the recorded step concerned, or None.
    """

    kind: str
    message: str
    step: str | None = None


class Judgement(NamedTuple):
    """What came of a replay.

    Attributes:
        verdict: `identical` or `different`.
        divergence: the first difference, or None.
        note: where the recording ends before the program does, in a sentence; else "".
    """

    verdict: str
    divergence: Divergence | None
    note: str = ""


def judge(
    recorded: RunState,
    halted: Halted | None,
    unplayed: Sequence[StepState],
    end: dict[str, Any] | None,
    *,
    branched: bool = True,
) -> Judgement:
    """Compare a replay with its recording.

    Args:
        recorded: the folded log.
        halted: what stopped the replay, or None.
        unplayed: recorded steps with an outcome that it did not ask for.
        end: how it ended, as data of a `run.ended` or `run.suspended`, or None where the program left no run.
        branched: other branches of it may have been on their way to the step at which the recording stopped.
    """
    has_ended = recorded.status in ENDED
    before = recorded.ended or {}
    if halted is not None:
        if not unplayed and not branched and halted.reason == "unrecorded" and (stop := _stop(recorded)):
            message = f"the recorded run was stopped at {stop}, which the program does not ask for.\n{halted.message}"
            return _differs(Divergence("unrecorded", message, halted.step))
        if not has_ended and not unplayed and (halted.reason == "unrecorded" or _same_stop(before, halted)):
            return Judgement(IDENTICAL, None, _open_end(recorded, halted))
        return _differs(Divergence(halted.reason, halted.message, halted.step))
    if has_ended and end is not None and (difference := _end_difference(before, end)):
        return _differs(Divergence("end", difference))
    if unplayed:
        return _differs(_left_out(unplayed))
    note = "" if has_ended else f"the recording has no end ({_how(recorded)}); in the replay the run {_told(end or {})}"
    return Judgement(IDENTICAL, None, note)


def _differs(divergence: Divergence) -> Judgement:
    return Judgement(DIFFERENT, divergence)


def _same_stop(before: dict[str, Any], halted: Halted) -> bool:
    return (before.get("reason"), before.get("step")) == (halted.reason, halted.step)


def _stop(recorded: RunState) -> str:
    """The step at which somebody else than the program has stopped the recorded run, in a few words, or ""."""
    found = (recorded.ended or {}).get("step")
    if recorded.status != "suspended" or recorded.reason not in STOPPED_BY or not found:
        return ""
    step = recorded.steps.get(found)
    return f"{found if step is None else f'{step.kind} {step.target} ({found})'} ({recorded.reason})"


def _open_end(recorded: RunState, halted: Halted) -> str:
    step = recorded.steps.get(halted.step or "")
    place = "at" if step is not None and step.status == BLOCKED else "in the middle of"
    where = "" if step is None else f", {place} {step.kind} {step.target} ({step.id})"
    return f"the recording ends here{where} ({_how(recorded)})"


def _how(recorded: RunState) -> str:
    if recorded.status == "suspended":
        return f"suspended: {recorded.reason}"
    return "its process died, or is still at work"


def _end_difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """How two ends differ, or "" where they do not."""
    if _essence(before) == _essence(now):
        return ""
    return f"the recorded run {_told(before)}; in the replay it {_told(now)}"


def _essence(end: dict[str, Any]) -> tuple[Any, ...]:
    error = end.get("error") or {}
    # The text beside a reason: why it was escalated.
    message = end.get("message") if end.get("outcome") == "escalated" else None
    return end.get("outcome"), end.get("reason"), message, error.get("type"), error.get("message")


def _told(end: dict[str, Any]) -> str:
    error = end.get("error") or {}
    if error:
        told = ": ".join(str(error[key]) for key in ("type", "message") if error.get(key))
        return f"{end.get('outcome') or 'was interrupted'} ({told})"
    if end.get("outcome") == "escalated":
        return f"escalated ({end.get('message')})"
    return str(end.get("outcome") or f"stopped ({end.get('reason') or 'nothing says why'})")


def _left_out(unplayed: Sequence[StepState]) -> Divergence:
    first = unplayed[0]
    more = f", and {len(unplayed) - 1} more" if len(unplayed) > 1 else ""
    message = f"the program ended without asking for {first.kind} {first.target} ({first.id}){more}"
    return Divergence("unplayed", message, first.id)
