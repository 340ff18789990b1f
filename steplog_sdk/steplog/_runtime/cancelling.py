"""How the cancellation of a run reaches its program, and what the program may still do then.

It is delivered as `Cancelled` at the next step that has no recorded outcome: to every branch of the run, at the step
that it asks for. From then on a step is allowed only where the program unwinds: while it handles that interrupt (in an
`except`, a `finally` or the exit of a `with`), or inside `with run.cleanup()`. What was delivered where is recorded, so
a resume and a replay deliver it at the same steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog._kernel import events as ev
from steplog._kernel.waiting import must_unwind
from steplog._runtime import told
from steplog._runtime.group import Entry
from steplog.errors import Cancelled, LeaseLost, LogFailed, StoreError

if TYPE_CHECKING:
    from steplog._runtime.drive import Steps
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Ticket

CLEANUP_SECONDS: Final = 30.0
CLEANUP_STEPS: Final = 100

_CLEANING: ContextVar[bool] = ContextVar("steplog_cleaning", default=False)


class Unwinding:
    """The unwinding of a run whose cancellation was delivered.

    Attributes:
        interrupt: what was raised first.
    """

    def __init__(self, interrupt: Cancelled) -> None:
        self.interrupt = interrupt
        self._until = time.monotonic() + CLEANUP_SECONDS
        self._steps = 0

    def allows(self, *, one_more: bool) -> bool:
        """Whether a step of the cleanup may begin, which is counted, or go on."""
        self._steps += one_more
        return self._steps <= CLEANUP_STEPS and time.monotonic() < self._until


@contextmanager
def cleanup() -> Iterator[None]:
    """What is done inside is cleanup, also in tasks that are started inside."""
    token = _CLEANING.set(True)
    try:
        yield
    finally:
        _CLEANING.reset(token)


def unwind_if_cancelled(recorder: Recorder, ticket: Ticket, *, begins: bool = True) -> Steps[None]:
    """Deliver the cancellation of a run, if there is one, to a step that has no outcome.

    Args:
        recorder: of the run.
        ticket: the step.
        begins: it is about to begin; else it waits and is asked about again and again.

    Raises:
        Cancelled: the step must not begin, or a wait must not go on.
    """
    state = recorder.journal.state
    if state.controls is None or not must_unwind(state, ticket.step, live=recorder.dispatch.live):
        return
    if recorder.unwinding is not None and is_unwinding():
        if recorder.unwinding.allows(one_more=begins):
            return
        raise recorder.halt(
            told.unwound_too_long(recorder.named, recorder.unwinding.interrupt, CLEANUP_SECONDS, CLEANUP_STEPS)
        )
    raise (yield from _deliver(recorder, ticket))


def _deliver(recorder: Recorder, ticket: Ticket) -> Steps[Cancelled]:
    state = recorder.journal.state
    assert state.controls is not None
    cancel: dict[str, Any] = state.controls.cancel or {}
    call = ticket.call
    if recorder.dispatch.live and ticket.step not in cancel["delivered"]:
        data = orjson.dumps({"kind": call.kind, "target": call.target})
        try:
            yield recorder.journal.put(Entry(ev.CANCEL_DELIVERED, ticket.step, data, [], sync=True))
        except (StoreError, LogFailed, LeaseLost) as failed:
            raise recorder.unwritten(ticket, failed, begun=False) from failed
        except BaseException:
            recorder.journal.flush_soon()
            raise
    interrupt = told.cancelled(recorder.named, cancel, ticket.step, f"{call.kind} {call.target}")
    recorder.unwind(interrupt)
    return interrupt


def is_unwinding() -> bool:
    """Whether the executing code handles a cancellation."""
    if _CLEANING.get():
        return True
    found: list[BaseException | None] = [sys.exception()]
    seen: set[int] = set()
    while found:
        error = found.pop()
        if error is None or id(error) in seen:
            continue
        # A task group cancels the siblings of a task in which the interrupt was raised.
        if isinstance(error, Cancelled) or type(error).__name__ == "CancelledError":
            return True
        seen.add(id(error))
        found += [error.__cause__, error.__context__]
        if isinstance(error, BaseExceptionGroup):
            found += error.exceptions
    return False
