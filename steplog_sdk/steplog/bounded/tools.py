"""Tools as the loop knows them: what they do to the world, and what of their results may be believed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from steplog.errors import InvalidArgument, StepDenied, StepFailed, SteplogError, StepRateLimited, StepRejected

Json = dict[str, Any]

SUPPLIED: Final = ("idempotency_key", "timeout", "user_id")
"""Parameters that the loop supplies and the model cannot."""

PERMANENT: Final = frozenset({"not_found", "invalid_state", "denied", "rejected"})
"""Codes of errors that another try does not mend: the plan step has failed."""


# What keeps a call from being made; the narrower before the wider.
_REFUSALS: Final = ((StepRateLimited, "rate_limited"), (StepRejected, "rejected"), (StepDenied, "denied"))


class Tool:
    """A function that the model may propose to call.

    It returns a dict. `{"status": "ok", ...}` is a success, and so is any dict without a status;
    `{"status": "error", "code": ..., "detail": ...}` a failure, final where the code is `not_found`, `invalid_state`,
    `denied` or `rejected`; `{"status": "needs_approval"}` asks for a person; `{"status": "unknown"}` says that it may
    have happened. An exception is a failure with its class name as the code; a `TimeoutError` or `ConnectionError` of a
    tool that writes is an unknown outcome.

    Attributes:
        name: as the model and the log name it.
        writes: whether it changes something in the world.
        mode: idempotency mode of its steps.
        facts: fields of its results that become facts.
        subject: the argument that says what the facts are about, such as `order_id`; its value is put before them.
        done: what a person is told when it has happened, such as `The refund was issued.`
        undone: what a person is told when it has not.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        writes: bool,
        name: str | None = None,
        mode: str | None = None,
        facts: Collection[str] = (),
        subject: str | None = None,
        done: str | None = None,
        undone: str | None = None,
    ) -> None:
        """Describe a tool.

        Args:
            fn: a plain function, sync or async, called with the model's arguments by name. Where it has parameters of
                these names the loop supplies them: `idempotency_key` (str; the same for every attempt at one plan
                step), `timeout` (float; seconds that are left), `user_id` (str).
            writes: whether it changes something.
            name: the function's own by default.
            mode: `safe` for one that reads, and for one that writes `keyed` where it takes an `idempotency_key`, else
                `unsafe`.
            facts: fields of its results that may be believed. Free text is never one of them: it would be taken for an
                authority.
            subject: the argument that says what a fact is about.
            done: what a person is told when it has happened.
            undone: what a person is told when it has not.

        Raises:
            InvalidArgument: `fn` has no name, or cannot be called by name.
        """
        self.fn = fn
        self.name: str = name or str(getattr(fn, "__name__", ""))
        if not self.name or self.name == "<lambda>":
            message = "a tool needs a name: Tool(fn, name='get_order', writes=False)"
            raise InvalidArgument(message)
        if isinstance(facts, str):
            message = f"tool {self.name}: facts takes names of fields in a list: facts=[{facts!r}]"
            raise InvalidArgument(message)
        self.writes = writes
        self._signature = inspect.signature(fn)
        parameters = self._signature.parameters
        self.supplied = tuple(each for each in SUPPLIED if each in parameters)
        default = "safe" if not writes else "keyed" if "idempotency_key" in parameters else "unsafe"
        self.mode = default if mode is None else mode
        self.facts = tuple(facts)
        self.subject = subject
        self.done = done or f"{self.name} was done."
        self.undone = undone or f"{self.name} was not done."
        self._check(parameters.values())

    def _check(self, parameters: Iterable[inspect.Parameter]) -> None:
        by_place = [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_ONLY]
        if by_place:
            message = (
                f"tool {self.name}: {by_place[0]} can only be given by its place, and a model names its arguments."
            )
            raise InvalidArgument(message)
        if self.mode not in ("safe", "keyed", "unsafe"):
            message = f"tool {self.name}: mode is {self.mode!r}; it is one of safe, keyed, unsafe."
            raise InvalidArgument(message)
        if self.mode == "keyed" and "idempotency_key" not in self.supplied:
            message = (
                f"tool {self.name}: mode 'keyed' hands the key to a parameter `idempotency_key`, which it has not."
            )
            raise InvalidArgument(message)
        if self.writes and self.mode == "safe":
            message = (
                f"tool {self.name} writes, so it is not `safe` to run again after a crash. "
                f"Give its function a parameter `idempotency_key`, or leave the mode out."
            )
            raise InvalidArgument(message)

    def misfit(self, arguments: Json) -> str | None:
        """Why the function cannot be called with these arguments, or None."""
        taken = [each for each in self.supplied if each in arguments]
        if taken:
            return f"{taken[0]} is not the model's to give"
        try:
            self._signature.bind(**arguments, **dict.fromkeys(self.supplied))
        except TypeError as error:
            return str(error)
        return None

    def facts_of(self, arguments: Json, result: Json) -> Json:
        """The facts in a successful result, under the names that they have in the state."""
        prefix = f"{arguments.get(self.subject)}." if self.subject else f"{self.name}."
        return {prefix + name: result[name] for name in self.facts if name in result}


def result_of(value: Any) -> Json:
    """What a tool has returned, as a result with a status."""
    if not isinstance(value, dict):
        return {"status": "ok", "value": value}
    status = value.get("status", "ok")
    if status == "ok":
        return {"status": "ok", **value}
    if status == "needs_approval":
        return value
    if status == "unknown":
        return {"code": "unknown", **value}
    return {**value, "status": "error", "code": str(value.get("code", status))}


def failure_of(tool: Tool, error: Exception) -> Json:
    """The result that an exception stands for, out of a tool or in its place."""
    code, detail = type(error).__name__, _told(error)
    for kind, name in _REFUSALS:
        if isinstance(error, kind):
            return {"status": "error", "code": name, "detail": detail}
    if isinstance(error, StepFailed):
        # The exception itself could not be rebuilt; what it was called is what the model has seen.
        return {"status": "error", "code": error.type_name or "failed", "detail": detail}
    if tool.writes and isinstance(error, (TimeoutError, ConnectionError, SteplogError)):
        # An exception that left the run would have the call made again when the run is resumed.
        return {"status": "unknown", "code": code, "detail": detail}
    if isinstance(error, SteplogError):
        raise error
    return {"status": "error", "code": code, "detail": detail}


def _told(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a text that cannot be had must not cost the result
        return f"{type(error).__name__}, which does not say what it is"
