"""The life of a step that is verified or retried, written once for both colours.

It is a generator that yields what its driver must do, in a thread or in a task, and gets the answer back.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from steplog._kernel.codec import encode
from steplog._runtime import messages
from steplog._runtime.answers import NOT_HAPPENED, UNKNOWN, Happened
from steplog._runtime.blame import blamed
from steplog._runtime.cancelling import unwind_if_cancelled
from steplog._runtime.changes import warn_of_changes
from steplog._runtime.context import inside, unrecorded
from steplog._runtime.deadline import within
from steplog._runtime.drive import Steps, run, run_async
from steplog._runtime.mail import attend
from steplog._runtime.outcome import done, failure
from steplog._runtime.ticket import Ticket
from steplog.errors import Interrupt, InvalidArgument

if TYPE_CHECKING:
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.step import Tool

Action = tuple[str, Any]
Life = Generator[Action, Any, Any]


def life(tool: Tool, recorder: Recorder, ticket: Ticket, arguments: tuple[Any, ...], named: dict[str, Any]) -> Life:
    """Run a step that was told to proceed: verify, attempt, retry, record.

    Yields `("log", steps)` for a half of the recorder, `("call", thunk)` for the user's function, `("ask", thunk)` for
    its verify function and `("sleep", seconds)`; is sent the result.
    """
    if tool.binder.takes_key:
        named = tool.binder.with_key(arguments, named, ticket.key)
    if ticket.verify:
        answer = yield from _verify(tool, recorder, ticket, arguments, named)
        if isinstance(answer, Happened):
            return answer.result
    first = ticket.attempt
    while True:
        try:
            result = yield "call", functools.partial(tool.fn, *arguments, **named)
        except Interrupt:
            # An inner step halted the run; this one stays open, and its mode says what that means on resume.
            raise
        except Exception as error:
            if not (ticket.attempt - first < tool.retries and isinstance(error, tool.retry_on)):
                yield "log", recorder.finish(ticket, "failed", {"error": failure(error, tool.classes)}, error=error)
                raise
            yield "log", recorder.finish(ticket, "failed", _retried(tool, ticket, error))
            try:
                yield "sleep", tool.backoff * 2 ** (ticket.attempt - first)
            except BaseException:
                # Given up between two attempts: the next one will not be made, whatever the log says of the last.
                recorder.note_given_up(ticket)
                raise
            recorder.dispatch.expect_again(ticket.step)
            ticket = _next_attempt(recorder, ticket)
            yield "log", _heed(recorder, ticket)
            yield "log", recorder.proceed(ticket)
            continue
        warn_of_changes(tool, ticket, arguments, named)
        yield "log", done(recorder, ticket, result, tool.classes)
        return result


def _heed(recorder: Recorder, ticket: Ticket) -> Steps[None]:
    """Take in what others have said to the run. Raises Cancelled where it must not be tried again."""
    yield from attend(recorder, ticket)
    yield from unwind_if_cancelled(recorder, ticket)


def _next_attempt(recorder: Recorder, ticket: Ticket) -> Ticket:
    following = Ticket(recorder, ticket.call, ticket.effect)
    following.hashed = ticket.hashed
    following.branch = ticket.branch
    following.attempt = ticket.attempt + 1
    return following


def _retried(tool: Tool, ticket: Ticket, error: Exception) -> dict[str, Any]:
    # The step itself and the inner steps whose failure this is may run again, now or on resume.
    retry = [ticket.step, *blamed(error, ticket.recorder.journal.state)]
    return {"error": failure(error, tool.classes), "retry": retry}


def _verify(tool: Tool, recorder: Recorder, ticket: Ticket, arguments: tuple[Any, ...], named: dict[str, Any]) -> Life:
    assert tool.verify is not None
    state = recorder.journal.state.steps[ticket.step]
    try:
        answer = yield "ask", functools.partial(tool.verify, *arguments, **named)
    except Exception as error:
        detail = f"\nIts verify function raised {type(error).__name__}: {error}"
        raise recorder.halt(messages.indeterminate(recorder.named, state, detail)) from error
    if isinstance(answer, Happened):
        yield "log", recorder.settled(ticket, encode(answer.result, where="verify", classes=tool.classes))
        return answer
    if answer is NOT_HAPPENED:
        yield "log", recorder.proceed(ticket)
        return answer
    detail = "\nIts verify function cannot tell."
    if answer is not UNKNOWN:
        detail = (
            f"\nIts verify function returned {answer!r}; it must return steplog.Happened(result), "
            f"steplog.NOT_HAPPENED or steplog.UNKNOWN."
        )
    raise recorder.halt(messages.indeterminate(recorder.named, state, detail))


def drive(steps: Life, tool: Tool, ticket: Ticket) -> Any:
    """Live it in a thread."""
    try:
        action, subject = next(steps)
        while True:
            try:
                answer = _perform(action, subject, tool, ticket)
            except BaseException as error:  # noqa: BLE001  # thrown into the life, which decides and re-raises
                action, subject = steps.throw(error)
            else:
                action, subject = steps.send(answer)
    except StopIteration as stop:
        return stop.value


def _perform(action: str, subject: Any, tool: Tool, ticket: Ticket) -> Any:
    if action == "log":
        return run(subject)
    if action == "sleep":
        return time.sleep(subject)
    with _scope(action, ticket):
        answer = subject()
    refuse_awaitable(tool, answer)
    return answer


def refuse_awaitable(tool: Tool, answer: Any) -> None:
    """Refuse what a plain function has left to be done."""
    if not inspect.isawaitable(answer):
        return
    if inspect.iscoroutine(answer):
        answer.close()
    message = (
        f"step {tool.name}: the plain function {tool.fn!r} returned an awaitable, whose outcome cannot be recorded "
        f"before it is seen.\nGive steplog the async function itself: await steplog.step({tool.name!r}, fetch)"
    )
    raise InvalidArgument(message)


def note_cancelled(ticket: Ticket, interruption: BaseException) -> None:
    """Note that a caller stopped waiting for its effect, if that is what has happened."""
    import asyncio  # a program without tasks does not pay for it

    if isinstance(interruption, asyncio.CancelledError):
        ticket.cancelled()


async def drive_async(steps: Life, ticket: Ticket) -> Any:
    """Live it in a task."""
    try:
        action, subject = next(steps)
        while True:
            try:
                answer = await _perform_async(action, subject, ticket)
            except BaseException as error:  # noqa: BLE001  # thrown into the life, which decides and re-raises
                action, subject = steps.throw(error)
            else:
                action, subject = steps.send(answer)
    except StopIteration as stop:
        return stop.value


async def _perform_async(action: str, subject: Any, ticket: Ticket) -> Any:
    if action == "log":
        return await run_async(subject)
    if action == "sleep":
        import asyncio

        return await asyncio.sleep(subject)
    try:
        with _scope(action, ticket):
            answer = subject()
            if action == "call" and inspect.isawaitable(answer):
                return await within(ticket, answer)
            return await answer if inspect.isawaitable(answer) else answer
    except BaseException as interruption:
        if action == "call":
            note_cancelled(ticket, interruption)
        raise


def _scope(action: str, ticket: Ticket) -> AbstractContextManager[None]:
    # What a verify function asks is about the world as it is now: recorded, its answer would be returned on the next
    # resume as well, when the effect may have happened since.
    return unrecorded() if action == "ask" else inside(ticket.recorder, ticket.step)
