"""An operator's word on a step whose outcome is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from steplog._kernel import events as ev
from steplog._kernel.codec import encode, encode_exception
from steplog._kernel.fold import DONE, FAILED, FINISHED, RUNNING, RunState, StepState
from steplog._kernel.fork import is_simulation
from steplog._kernel.references import references
from steplog._runtime import redaction, settings
from steplog._runtime.door import PROCESS
from steplog._runtime.journal import Journal
from steplog._runtime.pack import Sink
from steplog.errors import InvalidArgument, OutcomeUnknown, StepFailed, UnknownStep
from steplog.stores.base import folded

if TYPE_CHECKING:
    from steplog._kernel.redact import Redactor
    from steplog.stores.base import BodyStore, Store

HOW = ("done", "retry", "failed", "unknown")


def resolve(
    store: Store,
    run_id: str,
    step: str,
    *,
    how: str,
    result: Any = None,
    message: str = "",
    by: str | None = None,
    note: str | None = None,
    force: bool = False,
) -> RunState:
    """Settle a step: it happened with this result, it may run again, it failed, or nobody can tell.

    Args:
        store: where the run lives.
        run_id: the run; nobody may hold it.
        step: the step's id.
        how: `done`, `retry`, `failed` or `unknown`.
        result: for `done`: the value that the step returns from now on.
        message: for `failed`: the text of the `StepFailed` that it raises from now on.
        by: who says so.
        note: why.
        force: let a step run again although somebody has said that it happened.

    Returns:
        The run's state afterwards.

    Raises:
        UnknownRun, UnknownStep: there is no such run or step.
        InvalidArgument: the step is not in doubt, or has happened on somebody's word, or `how` is not one of the four.
        RunBusy: the run is being written by a process.
        EncodeError: the result cannot be recorded.
    """
    if how not in HOW:
        text = f"a step is settled as done, retry, failed or unknown, not as {how!r}."
        raise InvalidArgument(text, run_id=run_id, step=step)
    # Before the run is taken: a claim would reopen a run that has ended.
    before = folded(store.read(run_id))
    if not force:
        refuse_second(before, step, how)
    found = _check(before, step, how, store.bodies, claimed=False)
    redactor = _redactor()
    sink = Sink(redactor, store.bodies.name)
    told = message if how == "failed" else message or _unknown(found)

    def build(into: Sink) -> bytes:
        return into.line(_data(into, how, result, told, {"by": by, "note": note}))

    line = sink.event(build, store.bodies)
    if how == "done" and sink.redacted:
        text = (
            f"the value for step {step} of run {run_id} holds what looks like a secret, which is not written down, so "
            f"it could not be returned. Nothing was written.\nGive a reference in its place, or set STEPLOG_KEY, with "
            f"which values are kept encrypted."
        )
        raise InvalidArgument(text, run_id=run_id, step=step)
    journal = Journal.open(store, run_id, dict, redactor)
    try:
        if not force:
            refuse_second(journal.state, step, how)
        _check(journal.state, step, how, store.bodies, claimed=True)
        journal.wait(journal.submit(ev.STEP_RESOLVED, step, line, sink.bodies))
        return journal.snapshot()
    finally:
        journal.close()


def _redactor() -> Redactor:
    return redaction.redactor((PROCESS.settings or settings.resolve()).redact)


def shown(text: str) -> str:
    """What an operator has said, as the log holds it: without secrets."""
    return _redactor().redact(text.encode("utf-8", "backslashreplace"))[0].decode()


def _data(sink: Sink, how: str, result: Any, message: str, facts: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {"how": how, **{name: value for name, value in facts.items() if value is not None}}
    if how == "done":
        data["result"] = sink.value(encode(result, where="--done"))
    elif how in ("failed", "unknown"):
        kind = StepFailed if how == "failed" else OutcomeUnknown
        error = kind(message, type_name="resolved")
        data["error"] = {"type": kind.__name__, "message": message, "value": encode_exception(error)}
    return data


def _unknown(step: StepState) -> str:
    """What a program, and the model behind it, is told of an effect of which nobody knows."""
    return (
        f"The outcome of {step.target} is unknown: it was cut off after it had begun, and nobody could find out what "
        f"became of it. It may or may not have had its effect. Find out before you do it again or rely on it."
    )


def _check(state: RunState, step: str, how: str, bodies: BodyStore, *, claimed: bool) -> StepState:
    found = state.steps.get(step)
    if found is None:
        text = f"run {state.run_id} has no step {step}. See its steps: steplog show {state.run_id}"
        raise UnknownStep(text, run_id=state.run_id, step=step)
    if how == "done" and is_session(found):
        text = (
            f"step {step} of run {state.run_id} is a websocket session: no JSON can stand for what passes over it.\n"
            f"Let it connect again (--retry), or say that it failed (--failed MESSAGE) or that nobody can tell "
            f"(--unknown)."
        )
        raise InvalidArgument(text, run_id=state.run_id, step=step)
    if how in ("retry", "done") and found.status == FAILED:
        # A failure that is returned for ever may be one of the answer alone: a person says that the step may be tried
        # again, or that it has happened after all.
        return found
    if found.status == "skipped" and is_simulation(state.created):
        return found  # what a fork refused gets the result with which it is to go on
    if found.status == RUNNING and not claimed:
        # Under a process that has died, as a rule; one that lives does not let the run be taken.
        return found
    if not in_doubt(found, bodies):
        text = f"step {step} of run {state.run_id} is {found.status}; there is nothing to settle."
        raise InvalidArgument(text, run_id=state.run_id, step=step)
    return found


def refuse_second(state: RunState, step: str, how: str) -> None:
    """Refuse to let an effect happen again of which somebody has said that it happened. Raises InvalidArgument."""
    found = state.steps.get(step)
    outcome = found.finished if found is not None and found.status == DONE else None
    if how != "retry" or outcome is None or outcome.get("how") != "done":
        return
    text = (
        f"step {step} of run {state.run_id} was settled as done by {outcome.get('by') or 'somebody'}: it has happened. "
        f"With --retry it would happen once more. Nothing was written.\nTo give it another result: "
        f"steplog resolve {state.run_id} {step} --done JSON\nIf it has not happened after all: "
        f"steplog resolve {state.run_id} {step} --retry --force"
    )
    raise InvalidArgument(text, run_id=state.run_id, step=step)


def is_session(step: StepState) -> bool:
    """Whether a step is a connection that stays open, whose result is no value."""
    return step.kind == "llm_call" and step.target.startswith("websocket ")


def in_doubt(step: StepState, bodies: BodyStore) -> bool:
    """Whether an operator's word is needed: the outcome is unknown, known but not returnable, or given by a person."""
    if step.status in FINISHED:
        outcome = step.finished or {}
        noted = step.progressed if "progressed" in outcome else []
        lost = any(not bodies.has(name) for data in [outcome, *noted] for name in references(data))
        # A result given by hand may turn out to be of no use to the program; then another word takes its place.
        by_hand = outcome.get("how") == "done"
        return lost or by_hand or "unreplayable" in outcome or "redacted" in outcome
    return step.orphan


def json_value(text: str) -> Any:
    """The value of a `--done` argument. Raises InvalidArgument when it is not JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        message = f"--done takes JSON, and {shown(text)!r} is not: {error}. A string needs its quotes: --done '\"ok\"'"
        raise InvalidArgument(message) from error
