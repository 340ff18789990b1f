"""Compensation: what a run has done is undone, the newest first.

The undoing is a run of its own, `<run>.undo`, with a step for each step that is undone. So a crash in the middle of it,
a step of it in doubt and a failure mean what they mean in every run, and the log of what was done stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from steplog._kernel.codec import Classes, decode
from steplog._kernel.fold import DONE, FINISHED, RunState, StepState
from steplog._kernel.refusal import Misfit
from steplog._runtime.cancel import SENT, cancel
from steplog._runtime.context import running_loop
from steplog._runtime.pack import value_tree, whole_data
from steplog._runtime.post import chosen
from steplog._runtime.step import KEY_PARAMETER
from steplog.errors import DecodeError, InvalidArgument, RunBusy, RunStopped, StoreError, UndoFailed
from steplog.stores.base import check_run_id, folded

if TYPE_CHECKING:
    from steplog._runtime.step import Tool
    from steplog.stores.base import BodyStore, Store

STEP: Final = "__steplog_step__"
"""The attribute by which a function says that its calls are steps already."""

_MAIN: Final = frozenset({"__main__", "__mp_main__"})

_MANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_known: dict[str, list[tuple[Tool, Callable[..., Any]]]] = {}


class Undone(NamedTuple):
    """What has become of the steps of a run, by their ids, the newest first.

    Attributes:
        run_id: the run that has undone them, or "" where there was nothing to undo.
        undone: steps that are undone.
        left: steps that may have changed something and have no `undo`.
    """

    run_id: str
    undone: tuple[str, ...]
    left: tuple[str, ...]


class _Planned(NamedTuple):
    step: StepState
    call: Callable[[], Any]
    awaited: bool


def register(tool: Tool, undo: Callable[..., Any]) -> None:
    """Note how calls of a tool are undone. Raises InvalidArgument for a function that cannot be called for it."""
    owner = f"step {tool.name}"
    if not callable(undo):
        raise InvalidArgument(f"{owner}: undo is a function, not {undo!r}. Write @steplog.step(undo=cancel_order).")
    parameters = list(inspect.signature(undo).parameters.values())
    # A key is no argument: a step that is called gets its own.
    names = set(inspect.signature(tool.fn).parameters) - {KEY_PARAMETER}
    required = {each.name for each in parameters[1:] if each.default is each.empty and each.kind not in _MANY}
    required -= {KEY_PARAMETER} if hasattr(undo, STEP) else set()
    if not parameters or required - names:
        missing = ", ".join(sorted(required - names)) or "the result"
        message = (
            f"{owner}: its undo function is called with the step's result, and by name with those of the step's "
            f"arguments that it takes; {missing} is none of them.\nWrite def undo(result, {', '.join(sorted(names))})."
        )
        raise InvalidArgument(message)
    _known.setdefault(tool.name, []).append((tool, undo))


def undo(run_id: str, *, by: str | None = None, store: Store | None = None) -> Undone:
    """Undo what a run has done: its finished steps that have an `undo`, the newest first.

    A run that has not ended is ended first, as cancelled. Called again, it goes on where it stopped; what is undone
    is not undone twice.

    Args:
        run_id: the run; no process may hold it.
        by: who undoes it, for the record.
        store: where it lives; as installed by default.

    Raises:
        UnknownRun: there is no such run.
        InvalidArgument: a step is in doubt and has to be settled first; or the arguments or the result of one cannot be
            given to its `undo`; or this is called in an event loop. Nothing was undone.
        RunBusy: a process holds the run.
        UndoFailed: an `undo` has raised; the steps before it are not undone yet.
        RunStopped: an `undo` is in doubt itself, say.
    """
    if running_loop() is not None:
        message = f"steplog.undo would stop the event loop: await asyncio.to_thread(steplog.undo, {run_id!r})"
        raise InvalidArgument(message, run_id=run_id)
    check_run_id(f"{run_id}.undo")
    where = chosen(store)
    state = folded(where.read(run_id))
    _refuse_doubt(state)
    if not state.completed_once:
        if cancel(run_id, by=by, note="to be undone", now=True, store=where) == SENT:
            raise _held(where, run_id)
        state = folded(where.read(run_id))
    return carry_out(state, by, where)


def carry_out(state: RunState, by: str | None, store: Store) -> Undone:
    """Undo the finished steps of a run that does nothing any more. Raises as `undo`."""
    _refuse_doubt(state)
    planned, left = _plan(state, store)
    if not planned:
        return Undone("", (), left)
    _carry_out(state.run_id, planned, by, store)
    return Undone(f"{state.run_id}.undo", tuple(each.step.id for each in planned), left)


def _held(store: Store, run_id: str) -> RunBusy:
    ask = getattr(store, "holder", None)
    found = None if ask is None else ask(run_id)
    facts = {} if found is None else {"pid": found.pid, "host": found.host, "since": found.since}
    by = f"a process (pid {found.pid} on {found.host}, since {found.since})" if found is not None else "this process"
    message = (
        f"run {run_id} is held by {by}. It was told to cancel, and nothing was undone.\n"
        f"Undo it when it has ended: steplog undo {run_id}"
    )
    return RunBusy(message, run_id=run_id, **facts)


def _refuse_doubt(state: RunState) -> None:
    doubted = [
        step
        for step in state.steps.values()
        if step.status not in FINISHED and (step.orphan or step.id in state.live)
        # A step that is safe to repeat may have happened as well; it matters where there is a way to undo it.
        if step.mode != "safe" or (step.kind != "local" and _find(step) is not None)
    ]
    if doubted:
        lines = "\n".join(f"  steplog resolve {state.run_id} {step.id} --done JSON | --failed MSG" for step in doubted)
        message = (
            f"run {state.run_id}: {doubted[0].target} may or may not have happened, so it is not known whether it is "
            f"to be undone. Nothing was undone.\nSettle it first:\n{lines}"
        )
        raise InvalidArgument(message, run_id=state.run_id, step=doubted[0].id)


def _plan(state: RunState, store: Store) -> tuple[list[_Planned], tuple[str, ...]]:
    """The steps to undo, and those that have no `undo` and may have changed something; the newest first."""
    planned: list[_Planned] = []
    left = []
    done = [step for step in state.steps.values() if step.status == DONE and step.kind != "local"]
    for step in sorted(done, key=_finished, reverse=True):
        found = _find(step)
        if found is not None:
            planned.append(_planned(state.run_id, step, *found, store.bodies))
        elif step.mode != "safe":
            left.append(step.id)
    return planned, tuple(left)


def _finished(step: StepState) -> int:
    return step.finished_seq or 0


def _find(step: StepState) -> tuple[Tool, Callable[..., Any]] | None:
    for tool, undo_it in reversed(_known.get(step.target, [])):
        modules = {step.module, tool.module}
        # A name of the author's own has no module, and is not that of a function which happens to be called like it. A
        # script's functions are in another module when it is imported.
        same = len(modules) == 1 or (None not in modules and bool(modules & {*_MAIN}))
        if tool.kind == step.kind and same:
            return tool, undo_it
    return None


def _planned(run_id: str, step: StepState, tool: Tool, undo_it: Callable[..., Any], bodies: BodyStore) -> _Planned:
    from steplog._runtime.step import Tool, call_async, call_sync

    try:
        finished = whole_data(step.finished or {}, bodies)
        tree = value_tree(step.started.get("args"), bodies)
        _refuse_incomplete(step, (tree, finished.get("result")))
        hints = [each.annotation for each in inspect.signature(tool.fn).parameters.values()]
        given = decode(tree, Classes.of(*hints, namespace=getattr(tool.fn, "__globals__", None)), "args")
        result = tool.value(decode(value_tree(finished.get("result"), bodies), tool.classes), finished)
    except (InvalidArgument, StoreError, DecodeError, Misfit) as why:
        message = (
            f"run {run_id}: step {step.target} ({step.id}) cannot be undone, since what it was called with and has "
            f"returned is not at hand: {why}\nNothing was undone."
        )
        raise InvalidArgument(message, run_id=run_id, step=step.id) from why
    named = {name: given[name] for name in _taken(undo_it, given)}
    awaited = inspect.iscoroutinefunction(undo_it)
    if hasattr(undo_it, STEP):
        return _Planned(step, lambda: undo_it(result, **named), awaited)
    own = Tool(undo_it, kind="tool_call", name=f"undo {tool.name}", mode="unsafe")
    how = call_async if awaited else call_sync
    return _Planned(step, lambda: how(own, (result,), named), awaited)


def _refuse_incomplete(step: StepState, recorded: tuple[Any, ...]) -> None:
    if step.lost or any("[redacted:" in str(each) for each in recorded):
        raise InvalidArgument("a secret was taken out of what is recorded of it, or its result was lost.")


def _taken(undo_it: Callable[..., Any], given: dict[str, Any]) -> Iterator[str]:
    parameters = list(inspect.signature(undo_it).parameters.values())[1:]
    every = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    names = {each.name for each in parameters}
    return (name for name in given if every or name in names)


def _carry_out(run_id: str, planned: list[_Planned], by: str | None, store: Store) -> None:
    from steplog._runtime.run import run

    trigger = {"kind": "undo", "by": by, "steps": len(planned)}
    opened = run(f"{run_id}.undo", goal=f"undo {run_id}", workflow="undo", trigger=trigger, store=store)
    ended: list[StepState] = []
    try:
        if any(each.awaited for each in planned):
            import asyncio

            asyncio.run(_all_async(opened, planned, ended))
        else:
            with opened:
                for each in planned:
                    each.call()
                    ended.append(each.step)
    except Exception as error:
        rest = [each.step for each in planned[len(ended) :]]
        if not rest or isinstance(error, (RunStopped, RunBusy, StoreError)):
            raise
        names = "\n".join(f"  {step.target} ({step.id})" for step in rest)
        message = (
            f"run {run_id}: undoing {rest[0].target} failed: {type(error).__name__}: {error}\n"
            f"{len(ended)} of {len(planned)} steps are undone. Not undone:\n{names}\n"
            f"Mend the cause, then go on: steplog undo {run_id}"
        )
        raise UndoFailed(message, run_id=run_id, step=rest[0].id, rest=tuple(step.id for step in rest)) from error


async def _all_async(opened: Any, planned: list[_Planned], ended: list[StepState]) -> None:
    async with opened:
        for each in planned:
            answer = each.call()
            if inspect.isawaitable(answer):
                await answer
            ended.append(each.step)
