"""How a run ends: what the log says of its end, and what its scope is left by."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel import events as ev
from steplog._kernel import reasons
from steplog._runtime import messages, uncaught
from steplog._runtime.blame import blamed, told
from steplog._runtime.causes import causes
from steplog._runtime.pack import Sink
from steplog.errors import Cancelled, Interrupt, RunStopped

if TYPE_CHECKING:
    from steplog._runtime.group import Entry
    from steplog._runtime.recorder import Recorder

log: Final = logging.getLogger("steplog")


NOTHING: Final = object()
"""In the place of a result, where there is none."""


def record(
    recorder: Recorder,
    error: BaseException | None,
    said: tuple[str, str],
    result: Any = NOTHING,
    undone: dict[str, Any] | None = None,
) -> Entry:
    """Put the end of a run in line.

    Args:
        recorder: of the run.
        error: what leaves its scope, or None.
        said: the outcome and the reason that the program has given, for an end without an error.
        result: what a workflow has returned, encoded.
        undone: what was undone of a run that was cancelled, where that was asked for.
    """
    run_id = recorder.journal.run_id
    type_, data = _end(recorder, error, said)
    if undone is not None:
        data["undo"] = undone
    unplayed = recorder.dispatch.unplayed()
    if type_ == ev.RUN_ENDED and unplayed:
        data["unplayed"] = len(unplayed)
        message = "run %s ended without asking for %d step(s) that its log holds, first %s. See: steplog show %s"
        log.warning(message, run_id, len(unplayed), unplayed[0], run_id)
    outcome = data.get("outcome", reasons.SUSPENDED)
    what = "run %s: %s; %d step(s) returned from the log, %d executed"
    log.info(what, run_id, outcome, recorder.replayed, recorder.executed)
    sink = Sink(recorder.redactor, recorder.journal.store.bodies.name)
    if type_ == ev.RUN_ENDED and result is not NOTHING:
        data["result"] = sink.value(result)
    line = sink.line(data)
    return recorder.journal.submit(type_, None, line, sink.bodies)


def _end(recorder: Recorder, error: BaseException | None, said: tuple[str, str]) -> tuple[str, dict[str, Any]]:
    if recorder.unwinding is not None:
        return ev.RUN_ENDED, _cancelled(recorder.unwinding.interrupt, error)
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        outcome, reason = said
        if outcome == reasons.COMPLETED:
            return ev.RUN_ENDED, {"outcome": outcome, "reason": reason}
        return ev.RUN_ENDED, {"outcome": outcome, "reason": "escalated", "message": reason}
    if isinstance(error, Interrupt):
        return ev.RUN_SUSPENDED, {"reason": error.reason, "message": str(error), "step": error.step}
    facts = told(error)
    if isinstance(error, (Exception, SystemExit)):
        reason = "exit" if isinstance(error, SystemExit) else "error"
        return ev.RUN_ENDED, {
            "outcome": reasons.FAILED,
            "reason": reason,
            "error": facts,
            "retry": blamed(error, recorder.journal.state),
            **({"causes": behind} if (behind := causes(error)) else {}),
        }
    # KeyboardInterrupt, CancelledError, GeneratorExit: somebody stopped the program, nothing in it failed.
    return ev.RUN_SUSPENDED, {"reason": "interrupted", "error": facts}


def _cancelled(interrupt: Cancelled, error: BaseException | None) -> dict[str, Any]:
    """What is said of a run that was cancelled, whatever its program made of that."""
    data = {
        "outcome": reasons.CANCELLED,
        "reason": "cancelled",
        "message": str(interrupt).partition("\n")[0],
        "step": interrupt.step,
        "by": interrupt.by,
        "note": interrupt.note,
    }
    # Its cleanup has failed. A task that was cancelled together with the others has not.
    failed = isinstance(error, (Exception, SystemExit))
    return {**data, "error": told(error)} if failed and error is not None else data


def stopped(run: messages.Named, interrupt: Interrupt) -> RunStopped:
    """What an interrupt leaves the outermost run scope as."""
    resume = run.command("resume")
    # What was cancelled has ended.
    goes_on = resume not in interrupt.commands and not isinstance(interrupt, Cancelled)
    commands = (*interrupt.commands, resume) if goes_on else interrupt.commands
    message = f"run {run.run_id} stopped ({interrupt.reason}).\n{interrupt}"
    error = RunStopped(message, run_id=run.run_id, step=interrupt.step, reason=interrupt.reason, commands=commands)
    error.__cause__ = interrupt
    uncaught.watch()
    return error


def with_undone(run: messages.Named, interrupt: Cancelled, undone: dict[str, Any] | None) -> Interrupt:
    """The interrupt of a cancelled run, to be raised once more, which says what was undone."""
    copy = messages.again(interrupt)
    if undone is None:
        return copy
    error = undone.get("error")
    command = run.command("undo")
    if error is not None:
        text = f"What it has done is not undone to the end: {error['message']}\nGo on with that by: {command}"
        copy.commands = (*copy.commands, command)
    elif undone["run"] is None:
        text = "It has done nothing that could be undone."
    else:
        text = f"Undone: {undone['undone']} step(s), by run {undone['run']}."
    left = undone.get("left")
    copy.args = (f"{interrupt}\n{text}" + (f"\nNot undone, since it has no undo: {', '.join(left)}" if left else ""),)
    return copy
