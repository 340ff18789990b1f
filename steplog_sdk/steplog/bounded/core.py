"""The loop itself: pure, so that a task is a fold of what was answered to it.

`turns` is a generator. It yields what it wants to know, is sent the answer, and changes the state by it. Whoever drives
it asks a model, calls a tool or waits for a person; what comes out is decided by the answers alone. So the same
answers, out of a log or live, lead to the same state, to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from steplog.bounded.limits import Limits, reached
from steplog.bounded.plan import accepted, problems_of
from steplog.bounded.state import DONE, NEEDS_APPROVAL, RUNNING, UNKNOWN_OUTCOME, TaskState, fingerprint
from steplog.bounded.tools import PERMANENT, Json, Tool
from steplog.bounded.view import estimate_tokens, render


class AskModel(NamedTuple):
    """Ask the model for its next reply.

    Attributes:
        view: what it is shown.
        max_output_tokens: the most that it may write.
        timeout: seconds that it may take.
    """

    view: str
    max_output_tokens: int
    timeout: float


class CallTool(NamedTuple):
    """Call a tool.

    Attributes:
        tool: which.
        arguments: by name, as the model gave them.
        key: names the logical operation: the same for every attempt at one plan step.
        timeout: seconds that it may take.
    """

    tool: Tool
    arguments: Json
    key: str
    timeout: float


class AwaitDecision(NamedTuple):
    """Wait until somebody has decided on the call that the state holds as `pending`.

    Attributes:
        name: names exactly this call with exactly these arguments.
    """

    name: str


class Answered(NamedTuple):
    """What a model or a tool has answered.

    Attributes:
        value: the reply of the model, or the result of the tool.
        seconds: how long it took.
        timed_out: whether the model gave up because its time was over; then there is no reply.
    """

    value: Any
    seconds: float
    timed_out: bool = False


class Decision(NamedTuple):
    """What a person has decided on a held call.

    Attributes:
        approved: whether it may happen.
        note: what they said.
    """

    approved: bool
    note: str


Ask = AskModel | CallTool | AwaitDecision


class Loop:
    """The loop of one task.

    Attributes:
        state: the state, which it changes.
    """

    def __init__(
        self,
        state: TaskState,
        tools: Mapping[str, Tool],
        limits: Limits,
        *,
        view: Callable[[TaskState, Limits], str] = render,
        count: Callable[[str], int] = estimate_tokens,
    ) -> None:
        self.state = state
        self._tools = tools
        self._limits = limits
        self._view = view
        self._count = count

    def turns(self) -> Generator[Ask, Any, None]:
        """Go on until the task has a stop reason."""
        state = self.state
        while state.stop is None:
            view = self._view(state, self._limits)
            stop = reached(state, self._limits, self._count(view))
            stop = stop or (yield from self._turn(view))
            if stop is not None:
                state.finish(stop)

    def _turn(self, view: str) -> Generator[Ask, Any, str | None]:
        state, limits = self.state, self._limits
        state.step += 1
        before = state.signature()
        asked = AskModel(view, limits.max_output_tokens, self._left())
        reply, seconds, timed_out = yield asked
        state.spend(min(seconds, asked.timeout))
        if seconds > asked.timeout or (timed_out and state.elapsed >= limits.deadline):
            # Nobody waits for it any more, whatever it would have said.
            return "deadline"
        state.tokens += self._count(view)
        if timed_out:
            self._refuse("model_timeout", "the model did not answer in the time that it was given")
            stop = None
        else:
            state.tokens += self._count(json.dumps(reply))
            stop = yield from self._act(reply)
        state.stalls = 0 if state.signature() != before else state.stalls + 1
        if stop is None and state.stalls >= limits.max_stalls:
            return "no_progress"
        return stop

    def _left(self) -> float:
        return max(0.0, round(self._limits.deadline - self.state.elapsed, 3))

    # replies -----------------------------------------------------------------------------------------------------

    def _act(self, reply: Any) -> Generator[Ask, Any, str | None]:
        kind = reply.get("type") if isinstance(reply, dict) else None
        if kind == "tool":
            return (yield from self._propose(reply))
        if kind == "plan":
            self._plan(reply)
        elif kind == "final":
            return self._conclude(reply)
        else:
            self._refuse("invalid_reply", "a reply is an object whose type is plan, tool or final")
        return None

    def _refuse(self, code: str, detail: Any) -> None:
        self.state.last_result = {"status": "error", "code": code, "detail": detail}

    def _plan(self, reply: Json) -> None:
        if self.state.plan:
            self._refuse("invalid_plan", ["a plan is already set"])
            return
        steps = reply.get("steps")
        problems = problems_of(steps, self._tools, self._limits.max_plan_steps)
        if problems:
            self._refuse("invalid_plan", problems)
        else:
            self.state.plan = accepted(steps or [])

    def _conclude(self, reply: Json) -> str | None:
        outcome, text = reply.get("outcome"), reply.get("text")
        if outcome not in ("completed", "cannot_complete") or not isinstance(text, str):
            self._refuse("invalid_reply", "a final reply has outcome completed or cannot_complete, and a text")
            return None
        still_open = self.state.open_steps()
        if outcome == "completed" and still_open:
            self._refuse("plan_incomplete", still_open)
            return None
        self.state.outcome, self.state.answer = outcome, text
        return DONE

    # tools -------------------------------------------------------------------------------------------------------

    def _propose(self, reply: Json) -> Generator[Ask, Any, str | None]:
        name, arguments, plan_step = reply.get("name"), reply.get("args"), reply.get("plan_step")
        if not isinstance(name, str) or not isinstance(arguments, dict):
            self._refuse("invalid_reply", "a tool reply has a name and args, an object")
            return None
        seen = self.state.seen
        proposed = fingerprint([name, arguments])
        seen[proposed] = seen.get(proposed, 0) + 1
        if seen[proposed] > self._limits.max_repeat:
            return "repeated_call"
        tool = self._tools.get(name)
        if tool is None:
            self._refuse("unknown_tool", sorted(self._tools))
            return None
        if problem := tool.misfit(arguments):
            self._refuse("invalid_arguments", problem)
            return None
        named = plan_step if isinstance(plan_step, str) else None
        planned = self.state.planned(named)
        if planned and planned["tool"] != name and self._tools[planned["tool"]].writes:
            # A write would be taken for done that has not happened.
            self._refuse("wrong_tool", f"plan step {named} is a call of {planned['tool']}, not of {name}")
            return None
        if planned and (first := self.state.not_done(planned["depends_on"])):
            self._refuse("prerequisite_open", first)
            return None
        call = {"tool": name, "arguments": arguments, "plan_step": named, "key": self._key(named)}
        return (yield from self._call(call))

    def _key(self, plan_step: str | None) -> str:
        return self.state.planned_key(plan_step or f"adhoc{self.state.step}")

    def _call(self, call: Json) -> Generator[Ask, Any, str | None]:
        tool = self._tools[call["tool"]]
        if refused := self._written_before(tool, call):
            self.state.last_result = refused
            return None
        left = self._left()
        result, seconds, _ = yield CallTool(tool, call["arguments"], call["key"], left)
        self.state.spend(min(seconds, left))
        self.state.tool_calls += 1
        self.state.last_result = result
        return (yield from self._fold(tool, call, result))

    def _written_before(self, tool: Tool, call: Json) -> Json | None:
        """What to answer instead of doing a plan step twice. Behind a key the tool itself recognises the second try."""
        before = self.state.written.get(call["key"])
        if before is None or not tool.writes or tool.mode == "keyed" or before["status"] != "ok":
            return None
        detail = f"{before['tool']} was done for this step already, with {json.dumps(before['arguments'])}"
        return {"status": "error", "code": "already_done", "detail": detail}

    def _fold(self, tool: Tool, call: Json, result: Json) -> Generator[Ask, Any, str | None]:
        state, status = self.state, result["status"]
        planned = state.planned(call["plan_step"])
        if tool.writes:
            state.written[call["key"]] = {"tool": tool.name, "arguments": call["arguments"], "status": status}
        if status == "ok":
            if planned:
                planned["status"] = "done"
            state.facts.update(tool.facts_of(call["arguments"], result))
        elif status == "needs_approval":
            return (yield from self._hold(call))
        elif status == "unknown":
            return UNKNOWN_OUTCOME
        elif result["code"] in PERMANENT and planned:
            planned["status"] = "failed"
        return None

    def _hold(self, call: Json) -> Generator[Ask, Any, str | None]:
        """Wait for a decision on a call, and carry it out before anything else."""
        state = self.state
        name = fingerprint([call["key"], call["tool"], call["arguments"]])
        state.pending = {**call, "digest": name}
        state.finish(NEEDS_APPROVAL)
        decision = yield AwaitDecision(name)
        state.pending, state.stop, state.status = None, None, RUNNING
        if not decision.approved:
            self._refuse("rejected", decision.note)
            if planned := state.planned(call["plan_step"]):
                planned["status"] = "failed"
            return None
        if state.tool_calls >= self._limits.max_tool_calls:
            return "max_tool_calls"
        return (yield from self._call(call))
