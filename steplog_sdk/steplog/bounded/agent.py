"""Drives the loop: every answer of the model and of a tool becomes a step of a run, so a task survives its process."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import steplog
from steplog import plugins
from steplog.bounded.closing import closing_message
from steplog.bounded.core import Answered, Ask, AskModel, AwaitDecision, CallTool, Decision, Loop
from steplog.bounded.limits import Limits
from steplog.bounded.memory import Memory
from steplog.bounded.state import DONE, NEEDS_APPROVAL, UNKNOWN_OUTCOME, TaskState
from steplog.bounded.tools import Json, Tool, failure_of, result_of
from steplog.bounded.view import estimate_tokens, render
from steplog.errors import InvalidArgument, RunStopped, SteplogError

# What stops a run and is an end that the loop knows of, by the reason code of the interrupt.
_STOPS: Final = {
    "approval": NEEDS_APPROVAL,
    "waiting": NEEDS_APPROVAL,
    "cancelled": "cancelled",
    "budget": "budget",
    "indeterminate": UNKNOWN_OUTCOME,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far a task has come.

    Attributes:
        state: its state.
        message: what to tell the person for whom it was done.
        commands: what settles a task that waits for somebody, in the order in which to try it; empty otherwise.
    """

    state: TaskState
    message: str
    commands: tuple[str, ...] = ()

    @property
    def stop(self) -> str:
        """Why it stopped: one of `steplog.bounded.STOPS`."""
        return self.state.stop or ""


class Agent:
    """A model and tools, in a loop that always ends.

    Attributes:
        tools: its tools, by name.
        limits: the bounds of each task.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        tools: Sequence[Tool],
        *,
        limits: Limits | None = None,
        memory: Memory | None = None,
        view: Callable[[TaskState, Limits], str] = render,
        count: Callable[[str], int] = estimate_tokens,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put an agent together.

        Args:
            model: called as `model(view, max_output_tokens=..., timeout=...)`, sync or async, and returns the next
                reply: `{"type": "plan", "steps": [{"id", "tool", "depends_on"}]}`,
                `{"type": "tool", "name", "args", "plan_step"}` or
                `{"type": "final", "outcome": "completed" | "cannot_complete", "text"}`. It raises `TimeoutError` where
                its time is up.
            tools: what it may call.
            limits: the bounds of each task.
            memory: what is known of users from earlier tasks; the model is shown the notes that fit the goal.
            view: what the model is shown of a state, as text.
            count: tokens of a text. It should not count too few: `max_tokens` holds for what it counts.
            clock: seconds, of which differences are taken.

        Raises:
            InvalidArgument: two tools have one name.
        """
        self.tools: dict[str, Tool] = {each.name: each for each in tools}
        if len(self.tools) != len(tools):
            names = sorted(each.name for each in tools)
            message = f"two tools have one name among {names}; give one of them another: Tool(fn, name=...)"
            raise InvalidArgument(message)
        self.limits = limits or Limits()
        self._model = model
        self._memory = memory
        self._view = view
        self._count = count
        self._clock = clock

    def run(self, goal: str, *, user_id: str, run_id: str | None = None, **options: Any) -> Outcome:
        """Do a task, or go on with it where it stopped.

        Args:
            goal: what is to be done.
            user_id: for whom; from the session, never from the model.
            run_id: the run in which it is recorded; the open run without one, else a new one.
            options: further ones of `steplog.run`. A task that waits for somebody is suspended; with
                `on_wait="block"` it keeps the process.

        Returns:
            How it ended. Called again with the same `run_id` it gives the same, or goes on if it waited for somebody.

        Raises:
            RunStopped: the run stopped for a reason that is not the task's own, such as drift.
            Exception: what the model raised, other than `TimeoutError`; calling again tries again.
        """
        opened = steplog.current_run()
        if run_id is None and opened is not None:
            task_id = plugins.record(_task(user_id, goal), _task_id)
            return self._drive(opened, TaskState(task_id, user_id, goal))
        scope = steplog.run(run_id, goal=goal, **{"on_wait": "suspend", **options})
        state = TaskState(scope.run_id, user_id, goal)
        doing: list[Ask] = []
        try:
            with scope:
                outcome = self._drive(scope, state, doing)
        except RunStopped as stopped:
            return self._stopped(state, stopped, doing)
        return outcome

    async def run_async(self, goal: str, *, user_id: str, run_id: str | None = None, **options: Any) -> Outcome:
        """The same from a task; the model and the tools may be async."""
        opened = steplog.current_run()
        if run_id is None and opened is not None:
            task_id = await plugins.record_async(_task(user_id, goal), _task_id_async)
            return await self._drive_async(opened, TaskState(task_id, user_id, goal))
        scope = steplog.run(run_id, goal=goal, **{"on_wait": "suspend", **options})
        state = TaskState(scope.run_id, user_id, goal)
        doing: list[Ask] = []
        try:
            async with scope:
                outcome = await self._drive_async(scope, state, doing)
        except RunStopped as stopped:
            return self._stopped(state, stopped, doing)
        return outcome

    # driving -----------------------------------------------------------------------------------------------------

    def _loop(self, state: TaskState) -> Generator[Ask, Any, None]:
        return Loop(state, self.tools, self.limits, view=self._view, count=self._count).turns()

    def _drive(self, run: steplog.Run, state: TaskState, doing: list[Ask] | None = None) -> Outcome:
        if self._memory is not None:
            state.remembered = plugins.record(_remembering(state), lambda _ticket: self._recall(state))
        loop, answer = self._loop(state), None
        while (ask := _next(loop, answer)) is not None:
            if doing is not None:
                doing[:] = [ask]
            answer = self._answer(run, ask, state)
        return self._ended(run, state)

    async def _drive_async(self, run: steplog.Run, state: TaskState, doing: list[Ask] | None = None) -> Outcome:
        if self._memory is not None:

            async def recall(_ticket: Any) -> list[str]:
                return self._recall(state)

            state.remembered = await plugins.record_async(_remembering(state), recall)
        loop, answer = self._loop(state), None
        while (ask := _next(loop, answer)) is not None:
            if doing is not None:
                doing[:] = [ask]
            answer = await self._answer_async(run, ask, state)
        return self._ended(run, state)

    def _answer(self, run: steplog.Run, ask: Ask, state: TaskState) -> Answered | Decision:
        if isinstance(ask, AwaitDecision):
            return _decision(run.wait(_approval(ask)))
        try:
            return _answered(plugins.record(_call(ask, state), lambda _ticket: self._perform(ask, state)))
        except SteplogError as refused:
            return _refused(ask, refused)

    async def _answer_async(self, run: steplog.Run, ask: Ask, state: TaskState) -> Answered | Decision:
        if isinstance(ask, AwaitDecision):
            return _decision(await run.wait_async(_approval(ask)))

        async def perform(_ticket: Any) -> Json:
            return await self._perform_async(ask, state)

        try:
            return _answered(await plugins.record_async(_call(ask, state), perform))
        except SteplogError as refused:
            return _refused(ask, refused)

    def _recall(self, state: TaskState) -> list[str]:
        assert self._memory is not None
        return self._memory.read(state.user_id, state.goal)

    # performing --------------------------------------------------------------------------------------------------

    def _perform(self, ask: AskModel | CallTool, state: TaskState) -> Json:
        began, timed_out = self._clock(), False
        asked = self._model if isinstance(ask, AskModel) else ask.tool.fn
        if inspect.iscoroutinefunction(asked) or inspect.iscoroutinefunction(type(asked).__call__):
            raise _is_async(ask)
        try:
            value = self._start(ask, state)
            if inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()
                raise _is_async(ask)  # noqa: TRY301  # what has been called may have acted
            value = _checked(ask, value)
        except Exception as error:  # noqa: BLE001  # `_failed` raises again what stands for nothing
            value, timed_out = _failed(ask, error), isinstance(ask, AskModel)
        return {"value": value, "seconds": round(self._clock() - began, 3), "timed_out": timed_out}

    async def _perform_async(self, ask: AskModel | CallTool, state: TaskState) -> Json:
        began, timed_out = self._clock(), False
        try:
            value = self._start(ask, state)
            value = _checked(ask, await value if inspect.isawaitable(value) else value)
        except Exception as error:  # noqa: BLE001  # `_failed` raises again what stands for nothing
            value, timed_out = _failed(ask, error), isinstance(ask, AskModel)
        return {"value": value, "seconds": round(self._clock() - began, 3), "timed_out": timed_out}

    def _start(self, ask: AskModel | CallTool, state: TaskState) -> Any:
        if isinstance(ask, AskModel):
            return self._model(ask.view, max_output_tokens=ask.max_output_tokens, timeout=ask.timeout)
        supplied = {"idempotency_key": ask.key, "timeout": ask.timeout, "user_id": state.user_id}
        return ask.tool.fn(**ask.arguments, **{each: supplied[each] for each in ask.tool.supplied})

    # the end -----------------------------------------------------------------------------------------------------

    def _ended(self, run: steplog.Run, state: TaskState) -> Outcome:
        if state.stop != DONE or state.outcome != "completed":
            run.escalate(state.outcome or str(state.stop))
        return Outcome(state, closing_message(state, self.tools))

    def _stopped(self, state: TaskState, stopped: RunStopped, doing: list[Ask]) -> Outcome:
        stop = _STOPS.get(stopped.reason)
        if stop is None:
            raise stopped
        asked = doing[0] if doing else None
        if isinstance(asked, CallTool) and stop in (NEEDS_APPROVAL, UNKNOWN_OUTCOME):
            _note_held(state, asked, stop)
        state.finish(stop)
        commands = tuple(stopped.commands)
        if isinstance(asked, AwaitDecision):
            commands = tuple(each.replace(" JSON", """ '{"approved": true}'""") for each in commands)
        return Outcome(state, closing_message(state, self.tools), commands)


def _note_held(state: TaskState, asked: CallTool, stop: str) -> None:
    """Note a call that the recorder has stopped, of which the loop has not heard."""
    call = {"tool": asked.tool.name, "arguments": asked.arguments}
    if asked.tool.writes:
        state.written[asked.key] = {**call, "status": "unknown" if stop == UNKNOWN_OUTCOME else "needs_approval"}
    if stop == NEEDS_APPROVAL:
        state.pending = {**call, "key": asked.key}


def _next(loop: Generator[Ask, Any, None], answer: Any) -> Ask | None:
    try:
        return loop.send(answer)
    except StopIteration:
        return None


def _task(user_id: str, goal: str) -> plugins.Call:
    return plugins.Call("local", "bounded.task", {"user_id": user_id, "goal": goal}, mode="safe")


def _task_id(ticket: plugins.Ticket | None) -> str:
    """What tells a task from the others of its run: else their plan steps would share keys, and so one effect."""
    assert ticket is not None  # its run is open
    return f"{ticket.run_id}:{ticket.step}"


async def _task_id_async(ticket: plugins.Ticket | None) -> str:
    return _task_id(ticket)


def _remembering(state: TaskState) -> plugins.Call:
    return plugins.Call("local", "bounded.memory", {"user_id": state.user_id, "query": state.goal}, mode="safe")


def _call(ask: AskModel | CallTool, state: TaskState) -> plugins.Call:
    if isinstance(ask, AskModel):
        # What the model was shown is what identifies its reply: a changed view never gets an old one.
        asked = {"view": ask.view, "max_output_tokens": ask.max_output_tokens}
        return plugins.Call("local", "bounded.model", asked, mode="safe")
    # Equal calls of two tasks for two users are different ones, whichever comes first on a resume.
    return plugins.Call("tool_call", ask.tool.name, ask.arguments, mode=ask.tool.mode, account=state.user_id)


def _name(ask: AskModel | CallTool) -> str:
    return "the model" if isinstance(ask, AskModel) else f"tool {ask.tool.name}"


def _is_async(ask: AskModel | CallTool) -> InvalidArgument:
    return InvalidArgument(f"{_name(ask)} is async, so the task is done with `await agent.run_async(...)`.")


def _checked(ask: AskModel | CallTool, value: Any) -> Any:
    """What was returned, as the JSON that it is when it comes out of the log."""
    if isinstance(ask, CallTool):
        value = result_of(value)
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{_name(ask)} has returned {type(value).__name__}, of which not all is JSON: {error}"
        if isinstance(ask, CallTool) and ask.tool.writes:
            # It is done. An exception would have the call made again when the run is resumed.
            plugins.log.error("%s. What it has returned is lost", message)
            return {**{name: str(value[name]) for name in ("status", "code") if name in value}, "detail": message}
        raise InvalidArgument(message) from error


def _failed(ask: AskModel | CallTool, error: Exception) -> Json | None:
    """What an exception stands for; None for a model that ran out of time. Raises it where it stands for nothing."""
    if isinstance(ask, CallTool):
        return failure_of(ask.tool, error)
    if isinstance(error, TimeoutError):
        return None
    raise error


def _answered(recorded: Json) -> Answered:
    return Answered(recorded["value"], recorded["seconds"], recorded["timed_out"])


def _refused(ask: AskModel | CallTool, refused: SteplogError) -> Answered:
    """What the loop is told of a call that a policy did not let through."""
    if isinstance(ask, AskModel):
        raise refused
    return Answered(failure_of(ask.tool, refused), 0.0)


def _approval(ask: AwaitDecision) -> str:
    return f"approval.{ask.name}"


def _decision(value: Any) -> Decision:
    if isinstance(value, bool):  # what whoever decides in a shell types first
        return Decision(approved=value, note="")
    if not isinstance(value, dict) or not isinstance(value.get("approved"), bool):
        return Decision(approved=False, note=f"the decision was not understood: {value!r}")
    return Decision(approved=value["approved"], note=str(value.get("note", "")))
