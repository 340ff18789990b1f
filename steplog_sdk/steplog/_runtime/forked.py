"""What is different while a fork runs: the step that it changes, and the effects that it may not have.

How a fork is made is in `fork.py`; the rules are in `_kernel/fork.py`.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog._kernel import events as ev
from steplog._kernel.fork import changes_of, is_simulation
from steplog._kernel.paths import put
from steplog._runtime import lines, messages
from steplog._runtime.context import frame
from steplog._runtime.looking import Body
from steplog._runtime.pack import Sink
from steplog.errors import DriftDetected, InvalidArgument, LeaseLost, LogFailed, Simulated, StoreError
from steplog.stores.base import folded

if TYPE_CHECKING:
    from steplog._kernel.fold import RunState
    from steplog._runtime.ticket import Call, Ticket
    from steplog.stores.base import Store

STANDS_FOR: Final = "STEPLOG_FORK_OF"
"""Names the runs that a program may open by their own ids when a fork of them is meant: those it descends from."""

_REFUSED: Final = b'{"reason":"simulated"}'
Changes = Sequence[tuple[str, Any]]


def amend(ticket: Ticket) -> None:
    """Change what a call asks for, where the fork says so, before its intent is written.

    The step keeps its identity, which is that of the request that the program makes, so it is found again.
    """
    recorder, call = ticket.recorder, ticket.call
    changes = changes_of(recorder.journal.state.created, ticket.step)
    if not changes:
        return
    try:
        _amend(call, changes)
    except InvalidArgument as unfit:
        raise recorder.halt(_unfit(recorder.named, ticket, unfit)) from unfit
    ticket.changes = changes


def _amend(call: Call, changes: Changes) -> None:
    if not call.amends:
        message = f"what executes {call.kind} {call.target} cannot change its request. Give it a result: fork --result"
        raise InvalidArgument(message)
    if call.request is None:
        call.args = changed(call.args, changes)
    else:
        call.request = _changed_request(call.request, changes)


def changed(tree: Any, changes: Changes) -> Any:
    """A JSON tree with the changes made. Raises InvalidArgument where there is no such place."""
    for path, value in changes:
        tree = put(tree, path, value)
    return tree


def changed_bytes(data: bytes, changes: Changes) -> bytes:
    """A JSON body with the changes made; other fields keep their place. Raises InvalidArgument where that cannot be."""
    try:
        tree = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"the request's body is no JSON, so nothing in it can be set ({error}).") from error
    return orjson.dumps(changed(tree, changes))


def _changed_request(request: dict[str, Any], changes: Changes) -> dict[str, Any]:
    body = request.get("body")
    if not isinstance(body, Body):
        raise InvalidArgument("the request has no body, so nothing in it can be set.")
    params = dict(request.get("params") or {})
    params.update({path: value for path, value in changes if path in params})
    told = {"params": params} if params else {}
    return {
        **request,
        **told,
        "body": Body(changed_bytes(body.data, changes)),
        "changed": [path for path, _ in changes],
    }


def changed_arguments(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], changes: Changes
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function with the changes made; objects that the program holds are left as they are."""
    bound = inspect.signature(fn).bind_partial(*args, **kwargs)
    bound.apply_defaults()
    before = {name: copy.deepcopy(bound.arguments.get(name)) for name in {_first(path) for path, _ in changes}}
    bound.arguments.update(changed(before, changes))
    return bound.args, bound.kwargs


def _first(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def note_refused(ticket: Ticket) -> None:
    """Put in line what the program asked for and did not get, so that a person can give it a result."""
    journal = ticket.recorder.journal
    sink = Sink(ticket.recorder.redactor, journal.store.bodies.name)
    line = lines.intent(ticket, sink)
    with contextlib.suppress(StoreError, LogFailed, LeaseLost):  # the run stops all the same, and the halt says so
        journal.submit(ev.STEP_STARTED, ticket.step, line, sink.bodies, sync=False)
        journal.submit(ev.STEP_SKIPPED, ticket.step, _REFUSED)


def simulated(run: messages.Named, state: RunState, asked: str, step: str) -> Simulated:
    """The interrupt for an effect that a fork asks for."""
    fork = state.created.get("fork") or {}
    whose = f"a fork of {fork['run']}" if fork.get("run") else f"opened inside {fork.get('within')}, which is a fork"
    given, live = run.command("resolve", step, "--done JSON"), run.command("fork", "--live-tools")
    message = (
        f"run {run.run_id}: {asked} ({step}) was not executed: it is not declared safe, and this run is {whose}.\n"
        f"What it replays happened once, in the other run; what follows is a simulation, in which nothing happens.\n"
        f"Let it go on as if this had returned something, or have it happen, from here on, in a fork of this one:\n"
        f"  {given}    then: {run.command('resume')}\n"
        f"  {live}"
    )
    return Simulated(message, run_id=run.run_id, step=step, commands=(given, live), asked=asked)


def missed(run: messages.Named, state: RunState, asked: str) -> DriftDetected:
    """The interrupt for a program that does not ask for the step which its fork is to change."""
    fork = state.created["fork"]
    show = f"steplog show {fork['run']} {fork['at']}{run.option}"
    paths = ", ".join(path for path, _ in fork["set"])
    message = (
        f"run {run.run_id}: it was forked to change {paths} in step {fork['at']}, and the program asks for {asked} "
        f"there instead, so nothing would be changed.\nIt was not executed. The code is not what recorded "
        f"{fork['run']}, or it was started otherwise. What it asked for then:\n  {show}"
    )
    return DriftDetected(message, run_id=run.run_id, step=None, commands=(show,), nearest=fork["at"])


def _unfit(run: messages.Named, ticket: Ticket, unfit: InvalidArgument) -> DriftDetected:
    call: Call = ticket.call
    paths = ", ".join(path for path, _ in changes_of(ticket.recorder.journal.state.created, ticket.step))
    message = (
        f"run {run.run_id}: it was forked to change {paths} in {call.kind} {call.target} ({ticket.step}), which cannot "
        f"be done: {unfit}\nNothing was sent."
    )
    return DriftDetected(message, run_id=run.run_id, step=ticket.step, commands=(), nearest=ticket.step)


# opening ------------------------------------------------------------------------------------------------------------


def standing_in(run_id: str) -> str:
    """The run to open where a program opens one by its id: the fork that it was started for, in place of its ancestors.

    A program that names its run would go on with the original instead, for real.
    """
    resumed = os.environ.get("STEPLOG_RESUME")
    return resumed if resumed and run_id in os.environ.get(STANDS_FOR, "").split(",") else run_id


def inherited() -> dict[str, Any]:
    """What `run.created` of a new run says because it is opened inside a simulation: that it is a part of it."""
    outer = frame()
    if outer is None or not is_simulation(outer.recorder.journal.state.created):
        return {}
    return {"fork": {"within": outer.recorder.journal.run_id, "live_tools": False}}


def check_opened(store: Store, run_id: str, on_drift: str) -> None:
    """Refuse to go on with a real run inside a simulation.

    Raises:
        InvalidArgument: it is not over, or `on_drift` allows something new in it.
    """
    outer = frame()
    if outer is None or not is_simulation(outer.recorder.journal.state.created) or run_id not in store.runs():
        return
    state = folded(store.read(run_id))
    if is_simulation(state.created) or (state.completed_once and on_drift == "halt"):
        return
    simulation = outer.recorder.journal.run_id
    message = (
        f"run {simulation} is a fork and simulates; inside it the program opens run {run_id}, which is real and not "
        f"over. It was not gone on with, since its effects would happen.\n"
        f"Have them happen: steplog fork {simulation} --live-tools"
    )
    raise InvalidArgument(message, run_id=run_id)
