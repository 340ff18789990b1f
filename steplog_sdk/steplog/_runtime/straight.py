"""The two halves of the recorder as plain calls, for a step that waits for nothing but its events.

`Recorder.proceed` and `Recorder.finish` are generators, because what they are part of may wait for much else. These are
the same order of the same steps, and whatever goes wrong is answered by the recorder's own methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steplog._runtime.blame import blame
from steplog._runtime.context import Owner, advance

if TYPE_CHECKING:
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Ticket


def proceed(recorder: Recorder, ticket: Ticket) -> None:
    """Write the intent of an attempt, from a thread; the effect may begin when this returns."""
    entry = recorder.intend(ticket)
    try:
        recorder.journal.write(entry)
    except BaseException as failed:
        recorder.not_begun(ticket, entry, failed)
        raise
    recorder.begun(ticket)


async def proceed_async(recorder: Recorder, ticket: Ticket) -> None:
    """The same from a task."""
    entry = recorder.intend(ticket)
    try:
        future = recorder.journal.put(entry).in_line.wait_in_loop(entry)
        if future is not None:
            await future
            entry.check()
    except BaseException as failed:
        recorder.not_begun(ticket, entry, failed)
        raise
    recorder.begun(ticket)


def finish(
    ticket: Ticket,
    outcome: str,
    detail: dict[str, Any],
    who: Owner | None = None,
    *,
    error: BaseException | None = None,
    waited: float = 0.0,
) -> None:
    """Write the outcome of an attempt, from a thread; the caller may see it when this returns.

    `who` is the `owner` that executes, where the caller knows it; the rest is as for `Recorder.finish`.
    """
    recorder = ticket.recorder
    entry = recorder.conclude(ticket, outcome, detail, waited)
    if entry is None:
        return
    try:
        recorder.journal.write(entry)
        if ticket.noted is not None:
            ticket.noted.check()
    except BaseException as failed:
        recorder.not_ended(ticket, entry, failed)
        raise
    if error is not None:
        blame(error, ticket.step)
    advance(recorder, ticket.effect.scope, ticket.step, who)


async def finish_async(
    ticket: Ticket,
    outcome: str,
    detail: dict[str, Any],
    who: Owner | None = None,
    *,
    error: BaseException | None = None,
    waited: float = 0.0,
) -> None:
    """The same from a task; the event loop never waits for the disk."""
    recorder = ticket.recorder
    entry = recorder.conclude(ticket, outcome, detail, waited)
    if entry is None:
        return
    try:
        future = recorder.journal.put(entry).in_line.wait_in_loop(entry)
        if future is not None:
            await future
            entry.check()
        if ticket.noted is not None:
            ticket.noted.check()
    except BaseException as failed:
        recorder.not_ended(ticket, entry, failed)
        raise
    if error is not None:
        blame(error, ticket.step)
    advance(recorder, ticket.effect.scope, ticket.step, who)
