"""Waiting that outlives the process: for a signal, or until a time. A wait is a step, and what came of it is recorded.

When it ends is recorded when it is first asked for, so a run that is resumed waits for the rest. A wait blocks its
thread or task; with `on_wait="suspend"` the run stops instead, once nothing else of it is under way, and is resumed
when what it waits for has come (`steplog resume --due`).
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from steplog._kernel import events as ev
from steplog._kernel.codec import decode
from steplog._kernel.waiting import is_busy, may_leave, open_waits, signal_data, signal_for
from steplog._runtime import settle, told
from steplog._runtime.budgeting import waiting
from steplog._runtime.cancelling import cleanup, unwind_if_cancelled
from steplog._runtime.context import Frame, running_loop
from steplog._runtime.door import PROCESS, place_of
from steplog._runtime.drive import Pause, Steps, run, run_async
from steplog._runtime.group import Entry
from steplog._runtime.life import note_cancelled
from steplog._runtime.mail import attend
from steplog._runtime.outcome import ANYWHERE, done, failure, returned
from steplog._runtime.pack import value_tree, whole_data
from steplog._runtime.ticket import Call, Ticket
from steplog.errors import InvalidArgument, LeaseLost, LogFailed, StoreError, WaitTimeout

if TYPE_CHECKING:
    from steplog._runtime.recorder import Recorder

log: Final = logging.getLogger("steplog")

ON_WAIT: Final = ("block", "suspend")

# Between two looks, from the first to the longest.
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.25

# A run is not suspended for less than this, nor before it has been quiet for this long: other branches may be about to
# ask for a step, and would never come to it if every resume ended before.
_SHORT_SECONDS: Final = 1.0
_QUIET_SECONDS: Final = 0.5


class Waits:
    """The part of a `Run` that is about waiting, and about its cancellation."""

    @property
    def recorder(self) -> Recorder:
        """What records the run."""
        raise NotImplementedError

    def wait(self, name: str, timeout: float | None = None) -> Any:
        """Wait for a signal, and return its value.

        It is a step: the first signal of this name that no wait has got yet, in the order in which they were sent, and
        the same one whenever the run is resumed or replayed. One that was sent before the run asked counts too.

        Args:
            name: of the signal, as `steplog signal RUN NAME JSON` and `steplog.signal` send it.
            timeout: seconds after which to give up, by the wall clock, counted from when this was first asked for; a
                run that is resumed waits for the rest. None: as long as it takes.

        Raises:
            WaitTimeout: no signal came in time. A `TimeoutError`, recorded like any failure of a step.
            InvalidArgument: the name or the timeout is none, or this is called in an event loop, which it would stop.
            Interrupt: the run is halted or cancelled, or (`on_wait="suspend"`) stops while it waits.
        """
        wanted = for_signal(name, timeout)
        return wait_here(wanted, place_in(self.recorder, wanted.target))

    async def wait_async(self, name: str, timeout: float | None = None) -> Any:  # noqa: ASYNC109  # it outlives the task
        """As `wait`, for a task; other tasks go on meanwhile."""
        wanted = for_signal(name, timeout)
        return await wait_here_async(wanted, place_in(self.recorder, wanted.target))

    def cleanup(self) -> AbstractContextManager[None]:
        """`with run.cleanup(): ...` allows the steps inside also after the run was cancelled.

        Steps in an `except` or `finally` through which the `Cancelled` passes are allowed without it; it is for cleanup
        that is done elsewhere, such as in tasks that are started there.
        """
        return cleanup()


class Wanted(NamedTuple):
    """What a wait waits for.

    Attributes:
        target: under which it is recorded.
        args: what it is asked for with; part of its identity.
        signal: name of the signal, or None.
        seconds: for how long at most, counted from when it is first asked for; None for as long as it takes.
        until: until when instead, in milliseconds since 1970.
    """

    target: str
    args: dict[str, Any]
    signal: str | None = None
    seconds: float | None = None
    until: int | None = None


def for_signal(name: str, timeout: float | None) -> Wanted:
    """The wait for a signal. Raises InvalidArgument."""
    check_signal(name)
    return Wanted(f"wait {name}", {"signal": name}, name, None if timeout is None else _checked(timeout, "timeout"))


def for_seconds(seconds: float) -> Wanted:
    """The wait for a number of seconds. Raises InvalidArgument."""
    return Wanted("sleep", {"seconds": seconds}, seconds=_checked(seconds, "seconds"))


def until(moment: Any) -> Wanted:
    """The wait for a time. Raises InvalidArgument."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        message = (
            f"sleep_until takes a datetime with a time zone, not {moment!r}; which moment it means must not depend on "
            f"the machine that resumes the run.\nWrite datetime(2026, 12, 24, 18, 0, tzinfo=UTC)."
        )
        raise InvalidArgument(message)
    moment = moment.astimezone(UTC)
    return Wanted("sleep_until", {"until": moment.isoformat()}, until=math.ceil(moment.timestamp() * 1000))


def check_signal(name: object) -> str:
    """Return the name of a signal. Raises InvalidArgument."""
    if isinstance(name, str) and 0 < len(name) <= 128 and name.isprintable():
        return name
    message = f'{name!r} is no name of a signal: use 1 to 128 printable characters, as in run.wait("approved").'
    raise InvalidArgument(message)


def check_on_wait(value: str) -> str:
    """Return the value when it is one of `ON_WAIT`. Raises InvalidArgument."""
    if value in ON_WAIT:
        return value
    raise InvalidArgument(f'unknown on_wait {value!r}. Write on_wait="block" or "suspend".')


def _checked(seconds: object, what: str) -> float:
    if isinstance(seconds, (int, float)) and 0 <= seconds < math.inf:
        return float(seconds)
    raise InvalidArgument(f"{what} is a number of seconds from 0, not {seconds!r}.")


def wait_here(wanted: Wanted, place: Frame) -> Any:
    """Wait in a thread. Raises as `Run.wait`."""
    if running_loop() is not None:
        message = (
            f"{wanted.target}: this would stop the event loop, and with it every other task. Await the async form: "
            f"await run.wait_async(...), steplog.sleep_async(...) or steplog.sleep_until_async(...)."
        )
        raise InvalidArgument(message, run_id=place.recorder.journal.run_id)
    ticket = settle.begin(place.recorder, _call(wanted), place)
    if ticket.recorded is not None:
        return returned(ticket)
    return run(_waited(place.recorder, ticket, wanted))


async def wait_here_async(wanted: Wanted, place: Frame) -> Any:
    """Wait in a task; the event loop goes on meanwhile."""
    ticket = await settle.begin_async(place.recorder, _call(wanted), place)
    if ticket.recorded is not None:
        return returned(ticket)
    try:
        return await run_async(_waited(place.recorder, ticket, wanted))
    except BaseException as interruption:
        note_cancelled(ticket, interruption)
        raise


def _call(wanted: Wanted) -> Call:
    return Call("local", wanted.target, wanted.args, "safe")


def _waited(recorder: Recorder, ticket: Ticket, wanted: Wanted) -> Steps[Any]:
    ends = yield from _begin(recorder, ticket, wanted)
    pause, quiet = _FIRST_PAUSE, _Quiet(recorder)
    began, most = time.monotonic(), math.inf if ends is None or wanted.until is not None else (ends - _now()) / 1000
    while True:
        yield from attend(recorder, ticket)
        recorder.refuse_if_halted()
        yield from unwind_if_cancelled(recorder, ticket, begins=False)
        if wanted.signal is not None and (message := _reserve(recorder, ticket.step, wanted.signal)):
            return (yield from _consume(recorder, ticket, message))
        # A clock that is set back meanwhile must not make a number of seconds a day.
        left = min(math.inf if ends is None else (ends - _now()) / 1000, most - (time.monotonic() - began))
        if left <= 0:
            return (yield from _ended(recorder, ticket, wanted))
        if recorder.handle.on_wait == "suspend" and left > _SHORT_SECONDS and quiet.enough(ticket):
            raise recorder.halt(told.waiting(recorder.named, open_waits(recorder.journal.state)))
        with waiting(ticket):
            yield Pause(min(pause, max(left, 0.001)))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _begin(recorder: Recorder, ticket: Ticket, wanted: Wanted) -> Steps[int | None]:
    """Until when to wait: as recorded when this was first asked for, else from now on."""
    journal, step_id = recorder.journal, ticket.step
    step = journal.step(step_id)
    controls = journal.state.controls
    known = None if controls is None else controls.waits.get(step_id)
    # One that has timed out, and whose failure ended the run, waits once more.
    if known is not None and step.doubt:
        ends: int | None = known.get("until")
        return ends
    data: dict[str, Any] = {}
    if wanted.signal is not None:
        data["signal"] = wanted.signal
    if wanted.seconds is not None:
        data["until"] = _now() + math.ceil(wanted.seconds * 1000)
    elif wanted.until is not None:
        data["until"] = wanted.until
    if wanted.signal is None and (earlier := _same_place(recorder, ticket)) is not None:
        # The program computes afresh how long to sleep, from the clock, say; it sleeps as long as it first said.
        data.update(until=earlier[1], instead_of=earlier[0])
    yield from _write(recorder, ticket, ev.WAIT_BEGAN, data)
    found: int | None = data.get("until")
    return found


def _same_place(recorder: Recorder, ticket: Ticket) -> tuple[str, int] | None:
    """The sleep that a dead process was in at this place of the program, and until when; None where it was in none."""
    effect, state = ticket.effect, recorder.journal.state
    for wait in open_waits(state):
        step = state.steps[wait.step]
        same = (step.scope, step.after, step.target) == (effect.scope, effect.after, effect.target)
        if same and step.orphan and wait.until is not None and step.id not in recorder.dispatch.seen:
            return step.id, wait.until
    return None


def _reserve(recorder: Recorder, step: str, name: str) -> str | None:
    mail = recorder.mail
    if mail is None:
        message = (
            f"run {recorder.journal.run_id}: nobody can send it the signal {name!r}: its store has no inbox. Use the "
            f"store of files, or one that has a method inbox(run_id)."
        )
        raise InvalidArgument(message, run_id=recorder.journal.run_id)
    with mail.lock:
        found = signal_for(recorder.journal.state, step, name, mail.reserved)
        if found is not None:
            mail.reserved.add(found)
        return found


def _consume(recorder: Recorder, ticket: Ticket, message: str) -> Steps[Any]:
    state = recorder.journal.state
    assert state.controls is not None
    if "step" not in state.controls.signals[message]:
        yield from _write(recorder, ticket, ev.SIGNAL_CONSUMED, {"message": message})
    bodies = recorder.journal.store.bodies
    data = whole_data(signal_data(state, message), bodies)
    if "redacted" in data:
        text = (
            f"signal {message} for run {state.run_id} holds what this program calls a secret, which is not kept, so "
            f"its value is lost. Send a reference in its place."
        )
        return (yield from _failed(recorder, ticket, InvalidArgument(text, run_id=state.run_id)))
    value = decode(value_tree(data.get("value"), bodies), ANYWHERE)
    yield from done(recorder, ticket, value)
    return value


def _ended(recorder: Recorder, ticket: Ticket, wanted: Wanted) -> Steps[None]:
    if wanted.signal is None:
        yield from done(recorder, ticket, None)
        return
    seconds = "" if wanted.seconds is None else f" in {wanted.seconds:g} seconds"
    text = f"no signal {wanted.signal!r} came{seconds}."
    yield from _failed(recorder, ticket, WaitTimeout(text, signal=wanted.signal, run_id=ticket.run_id))


def _failed(recorder: Recorder, ticket: Ticket, error: Exception) -> Steps[None]:
    yield from recorder.finish(ticket, "failed", {"error": failure(error)}, error=error)
    raise error


def _write(recorder: Recorder, ticket: Ticket, type_: str, data: dict[str, Any]) -> Steps[None]:
    try:
        yield recorder.journal.put(Entry(type_, ticket.step, orjson.dumps(data), [], sync=True))
    except (StoreError, LogFailed, LeaseLost) as failed:
        raise recorder.unwritten(ticket, failed, begun=False) from failed
    except BaseException:
        recorder.journal.flush_soon()
        raise


def _now() -> int:
    return int(time.time() * 1000)


class _Quiet:
    """Tells whether a run that waits may be suspended: nothing else of it is under way, or about to be."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._asked = -1
        self._since = 0.0

    def enough(self, ticket: Ticket) -> bool:
        recorder = self._recorder
        state = recorder.journal.state
        if not may_leave(state, ticket.effect.scope):
            topic = f"wait inside {recorder.journal.run_id} {ticket.effect.scope}"
            message = (
                f"run {recorder.journal.run_id}: {ticket.call.target} waits inside a step that may not be repeated, "
                f"so the run is not suspended meanwhile. Wait outside of tools. (Said once.)"
            )
            PROCESS.warn_once(topic, message)
            return False
        if is_busy(state) or recorder.dispatch.asked != self._asked:
            self._asked, self._since = recorder.dispatch.asked, time.monotonic()
            return False
        return time.monotonic() - self._since >= _QUIET_SECONDS


def place_in(recorder: Recorder, target: str) -> Frame:
    """The place of the executing code in a run. Raises InvalidArgument where it is in none, or in another one."""
    place = place_of("local", target)
    if place is None or place.recorder is not recorder:
        run_id = recorder.journal.run_id
        message = (
            f"run {run_id}: {target} is asked for outside of it, in code that belongs to "
            f"{'no run' if place is None else 'run ' + place.recorder.journal.run_id}. Ask inside its block."
        )
        raise InvalidArgument(message, run_id=run_id)
    return place
