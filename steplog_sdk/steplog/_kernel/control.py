"""Whether an effect that may run may run now: what is asked of the gates, and what they may answer.

`decide` says what the log means for an effect. Where it says that the effect may run, the owner's gates are asked, in
their order; the first that does not allow it decides. What they answer is recorded before the effect, and a step that
has an outcome is never judged again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

from steplog._kernel.decide import Effect
from steplog._kernel.state import RunState
from steplog.errors import Interrupt


class Asked:
    """An effect that may run as far as the log is concerned, as gates see it.

    Attributes:
        id: its step id.
        kind: llm_call, tool_call or local.
        target: model id, tool name or local name.
        mode: idempotency mode that the code declares.
        scope: id of the enclosing step, or "".
        args_hash: hash of its arguments.
        attempt: number of the attempt that is to begin, from 1.
        again: an earlier attempt was cut off, and may have happened.
        state: the folded log. It may lack what other branches were allowed in this very moment: a gate that counts
            keeps its own count of what it has admitted.
    """

    def __init__(
        self, state: RunState, effect: Effect, args_hash: str, attempt: int, args: Callable[[], Any], *, again: bool
    ) -> None:
        self.state = state
        self.id = effect.id
        self.kind = effect.kind
        self.target = effect.target
        self.mode = effect.mode
        self.scope = effect.scope
        self.args_hash = args_hash
        self.attempt = attempt
        self.again = again
        self._args = args

    @cached_property
    def args(self) -> Any:
        """Its arguments as a JSON tree: those of a tool by name, the body of a model's request; None where unknown."""
        return self._args()

    @property
    def run(self) -> dict[str, Any]:
        """The fields of its run: `run_id`, `workflow`, `version`, `goal` and `trigger`."""
        return run_fields(self.state)

    @property
    def held(self) -> dict[str, Any] | None:
        """What is known of it where it was blocked: see `Controls.held`."""
        controls = self.state.controls
        return None if controls is None else controls.held.get(self.id)


def run_fields(state: RunState) -> dict[str, Any]:
    """The fields of a run that conditions may look at."""
    get = state.created.get
    return {"run_id": state.run_id, **{name: get(name) for name in ("workflow", "version", "goal", "trigger")}}


class Allow(NamedTuple):
    """It may run.

    Attributes:
        note: what its `step.started` says of this judgement, under the name of the gate; a JSON object.
    """

    note: dict[str, Any] | None = None


class Deny(NamedTuple):
    """It must not run. The agent is told, and goes on.

    Attributes:
        rule: id of what denies it.
        reason: why, for the agent.
        message: a `step.rejected` is written instead of a `step.denied`, with these fields (`by`, `note`, `message`:
            id of the message that said so); None for a denial.
    """

    rule: str
    reason: str
    message: dict[str, Any] | None = None


class Later(NamedTuple):
    """It may run when some time has passed.

    Attributes:
        rule: id of what limits it.
        reason: why, for the agent.
        seconds: until it may run.
        patience: seconds that it may be made to wait; where `seconds` is more, the agent is told.
    """

    rule: str
    reason: str
    seconds: float
    patience: float


class Block(NamedTuple):
    """It must not run before somebody has approved it.

    Attributes:
        rule: id of what asks for approval.
        reason: why.
        expires: when it counts as rejected, in milliseconds since 1970, or None.
    """

    rule: str
    reason: str
    expires: int | None = None


class Decided(NamedTuple):
    """Its outcome is in the log by now: somebody has rejected it."""


class Stop(NamedTuple):
    """It must not run, and the run halts."""

    interrupt: Interrupt


ALLOW = Allow()

Verdict = Allow | Deny | Later | Block | Decided | Stop
