"""Every error that steplog raises.

Two trees, because two kinds of reader exist:

* `SteplogError` (an `Exception`) is for the program: it may catch one and go on.
* `Interrupt` (a `BaseException`) is for whoever runs the program. Agent frameworks catch `Exception` around tools
  and models and feed the text to the model; an interrupt must not become something that the model talks its way
  around, so `except Exception` does not see it. It leaves the outermost run scope as `RunStopped`.

Messages say what happened, what it means and what to do next. Every error carries its facts as attributes and can be
pickled, because errors cross process boundaries and are themselves recorded.
"""

from __future__ import annotations

from typing import Any


class _Facts(BaseException):
    """Keyword facts become attributes, and survive pickling; `BaseException` alone would drop them."""

    run_id: str | None = None
    step: str | None = None

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], facts: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class SteplogError(_Facts, Exception):
    """Root of the errors that a program may catch.

    Attributes:
        run_id: the run concerned, or None.
        step: the step id concerned, or None.
    """


class InvalidArgument(SteplogError, ValueError):
    """A run id, mode, durability level or other argument that steplog does not accept."""


class EncodeError(SteplogError, TypeError):
    """A value that the log cannot hold. Nothing was written and no effect has begun.

    Attributes:
        path: where in the value, as `result.items[3].socket`.
        type_name: the type that has no codec.
    """

    path: str = ""
    type_name: str = ""


class DecodeError(SteplogError):
    """A recorded value that cannot be restored in this program, usually because its class is not imported.

    Attributes:
        path: where in the value.
        type_name: `module:Class` as recorded.
    """

    path: str = ""
    type_name: str = ""


class UnknownRun(SteplogError, LookupError):
    """No run of this name is in the store."""


class UnknownStep(SteplogError, LookupError):
    """No step of this name is in the run."""


class RunBusy(SteplogError):
    """Another writer holds the run; one run has one writer.

    Attributes:
        pid: the holder's process id, or None where the lock file does not say.
        host: the holder's host name, or None.
        since: when it took the run, ISO 8601, or None.
    """

    pid: int | None = None
    host: str | None = None
    since: str | None = None


class StoreError(SteplogError):
    """The store could not read or write: disk full, read-only, no permission, failed sync.

    Attributes:
        errno: the operating system's number, or None.
        path: the file concerned, or None.
    """

    errno: int | None = None
    path: str | None = None


class ForkedWriter(StoreError):
    """A forked child tried to write to the run of its parent."""


class ReenteredWriter(StoreError):
    """A signal handler or finalizer tried to record in the middle of an append of the thread that it interrupted."""


class Corrupt(StoreError):
    """A log that is damaged in a way a crash cannot cause. It is never repaired in silence.

    Attributes:
        path: the log file.
        line: line number, from 1.
        offset: byte offset of that line.
        expected: the seal, sequence number or link that should stand there, or None.
        found: what stands there, or None.
        last_good_seq: sequence number of the last event that verifies, or None.
    """

    line: int = 0
    offset: int = 0
    expected: str | None = None
    found: str | None = None
    last_good_seq: int | None = None


class Conflict(Corrupt):
    """Two writers wrote to one log: a line proves itself but does not continue the chain."""


class UnsupportedFormat(StoreError):
    """A log of a newer format than this release can read.

    Attributes:
        found: the format that the log names.
    """

    found: str | None = None


class BodyMissing(StoreError, LookupError):
    """A body that a line names is not in the body store (pruned or lost).

    Attributes:
        sha256: its name.
        pruned: the day on which it was pruned, as `2026-11-30`, or None where that is not known.
    """

    sha256: str = ""
    pruned: str | None = None


class KeyMissing(StoreError):
    """Something was encrypted with a key that `STEPLOG_KEY` does not hold.

    Attributes:
        key_id: the id of the key that is needed (16 hex digits).
    """

    key_id: str = ""


class StepFailed(SteplogError):
    """Stands for a recorded failure whose own exception cannot be rebuilt, or that an operator recorded.

    Attributes:
        type_name: the class of the original exception, or `resolved` when an operator settled the step.
    """

    type_name: str = ""


class OutcomeUnknown(StepFailed):
    """Stands for the outcome of an effect that was cut off and of which an operator could not find out.

    It may or may not have happened. An ordinary exception, so that an agent reads its text like any failure of a tool.
    """


class StepDenied(SteplogError):
    """The run's policy does not allow a step, which has not run. An agent reads why, and may do something else.

    Attributes:
        rule: id of the rule that decided, or `default_action`.
        reason: why, as the rule says it.
    """

    rule: str = ""
    reason: str = ""


class StepRateLimited(StepDenied):
    """The step would exceed a rate, and waiting for its turn would take too long. It has not run.

    Attributes:
        retry_after: seconds until it would be allowed.
    """

    retry_after: float = 0.0


class StepRejected(StepDenied):
    """A person has rejected the step, or nobody has approved it in time. It has not run.

    Attributes:
        by: who rejected it, or None where the time for it ran out.
        note: what they wrote, or None.
    """

    by: str | None = None
    note: str | None = None


class WaitTimeout(SteplogError, TimeoutError):
    """No signal of the name that a run waits for came in time.

    Attributes:
        signal: the name.
    """

    signal: str = ""


class UndoFailed(SteplogError):
    """A step could not be undone: its `undo` function has raised, and that is the cause.

    Attributes:
        rest: ids of the steps that are not undone, this one first.
    """

    rest: tuple[str, ...] = ()


class NotInRun(SteplogError, RuntimeError):
    """An effect would escape the log: it happens outside every run, or its worker has lost the run."""


class RunStopped(SteplogError):
    """A run left its scope without finishing; `__cause__` is the interrupt that stopped it.

    Attributes:
        reason: reason code from the closed list in `Interrupt.reason`.
        commands: the commands that settle it, in the order in which to try them.
    """

    reason: str = ""
    commands: tuple[str, ...] = ()


class Interrupt(_Facts):
    """Root of the signals that stop a run and that agent code must not swallow.

    Attributes:
        reason: a word of the closed list in `steplog._kernel.reasons`, for a suspended run: `indeterminate`, `drift`,
            `unreplayable`, `unrecorded`, `simulated`, `approval`, `waiting`, `budget`, `cancelled`,
            `lease_lost`, `log_failed`.
        run_id: the run.
        step: the step concerned, or None.
        commands: commands that settle it.
    """

    reason: str = ""
    commands: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()
    """Names of the attributes that the log keeps beside these."""


class Indeterminate(Interrupt):
    """A step began, no outcome is recorded, and it is not declared safe to repeat: it may have happened or not."""

    reason = "indeterminate"


class DriftDetected(Interrupt):
    """The run asks for something else than its log holds at this place.

    Attributes:
        field: path of the first field that differs, or None where nothing comparable was recorded.
        recorded: the recorded value at that path.
        found: the value that the program has now.
        nearest: id of the recorded step that was compared, or None.
        source: what it probably comes from (`clock`, `uuid`, `random`, `order`, `address` or `path`), or None.
        site: the line of the program that asked, as `agent.py:88 in plan`, or None.
    """

    source: str | None = None
    site: str | None = None
    reason = "drift"
    field: str | None = None
    recorded: Any = None
    found: Any = None
    nearest: str | None = None


class Unreplayable(Interrupt):
    """A step happened, but its result cannot be returned: it could not be encoded, lost a secret, or was pruned."""

    reason = "unreplayable"


class Unrecorded(Interrupt):
    """A replay asks for something that is not recorded. It did not happen: nothing new happens in a replay.

    Attributes:
        asked: what was asked for, as `tool_call refund` or `connection to api.example.com:443`.
        nearest: id of the recorded step that began and has no outcome, or None.
    """

    reason = "unrecorded"
    asked: str = ""
    nearest: str | None = None


class Simulated(Interrupt):
    """A fork asks for a side effect. It did not happen: a fork is a simulation, unless it has live tools.

    Attributes:
        asked: what was asked for, as `tool_call refund`.
    """

    reason = "simulated"
    asked: str = ""


class Suspended(Interrupt):
    """The run waits for something that may take days, so its process ends. Nothing is lost: it can be resumed.

    Attributes:
        reason: `approval` where somebody has to approve a step, `waiting` where the run waits for a signal or a time.
    """

    reason = "approval"


class BudgetExceeded(Interrupt):
    """The next attempt of a step would exceed a limit of the run's budget. It has not begun.

    Attributes:
        limit: the limit, as `max_tokens`.
        used: what is used or set aside so far: a count, seconds of active time, or US dollars as text.
        needs: what the attempt can use more, in the same unit; None where that is not known.
        allowed: the limit's value, in the same unit.
    """

    reason = "budget"
    noted = ("limit", "used", "needs", "allowed")
    limit: str = ""
    used: Any = None
    needs: Any = None
    allowed: Any = None


class Cancelled(Interrupt):
    """Somebody has cancelled the run. Raised at the step that it asks for next; steps that clean up are still allowed.

    Attributes:
        by: who has cancelled it, or None.
        note: why, or None.
    """

    reason = "cancelled"
    by: str | None = None
    note: str | None = None


class LeaseLost(Interrupt):
    """Another writer took the run over, or a stranger wrote to its log; this process may not write any more."""

    reason = "lease_lost"


class LogFailed(Interrupt):
    """The log could not be written. Without its intent an effect did not begin; without its outcome it is in doubt."""

    reason = "log_failed"
