"""The policy of an open run, as it is asked about each step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from steplog._kernel.approval import APPROVED
from steplog._kernel.control import Allow, Asked, Verdict
from steplog._kernel.decide import Effect
from steplog._kernel.plain import plain
from steplog._kernel.policy import Judgement, Knowledge, judge
from steplog._kernel.state import RunState, StepState
from steplog._runtime.control import Gate
from steplog._runtime.pack import form_bytes, value_tree, whole_data
from steplog._runtime.policies import Policy
from steplog.errors import StoreError

if TYPE_CHECKING:
    from steplog._runtime.recorder import Recorder
    from steplog.stores.base import BodyStore


class PolicyGate(Gate):
    """Asks the rules of a policy, and keeps count of what they allow.

    What was allowed in this very moment may not be folded yet, so the gate keeps its own count, which begins with what
    the log says.
    """

    name, order = "policy", 30

    def __init__(self, policy: Policy, recorder: Recorder) -> None:
        state, bodies = recorder.journal.state, recorder.journal.store.bodies
        self._policy = policy
        self._digest = policy.digest
        controls = state.controls
        self._buckets: dict[str, list[float]] = {} if controls is None else dict(controls.buckets)
        self._counted = counted(policy, state, bodies)
        # Of the step that is being judged: which rules count it, if it is admitted.
        self._counts: list[str] = []

    def judge(self, asked: Asked) -> Verdict:
        """What the rules say, unless it was said before."""
        self._counts = []
        if asked.again:
            # It was judged when it began, and may have happened.
            return Allow({"rule": "", "because": "an earlier attempt was cut off"})
        judgement = judge(self._policy.rules, self._policy.default_action, asked, self._knowledge())
        self._counts = judgement.counts
        if asked.held is not None and APPROVED in asked.held:
            return Allow({"rule": asked.held["rule"], "because": "approved"})
        if not isinstance(judgement.verdict, Allow):
            return judgement.verdict
        note: dict[str, Any] = {"rule": judgement.rule, "bundle": self._digest}
        return Allow({**note, "took": judgement.took} if judgement.took else note)

    def admitted(self, asked: Asked, note: dict[str, Any] | None) -> None:
        """Count the step, and take what it takes of a rate."""
        self._buckets.update((note or {}).get("took") or {})
        for rule in self._counts:
            self._counted.setdefault(rule, set()).add(asked.id)

    def _knowledge(self) -> Knowledge:
        return Knowledge(int(time.time() * 1000), self._buckets, self._counted, self._policy.holds)


def counted(policy: Policy, state: RunState, bodies: BodyStore) -> dict[str, set[str]]:
    """By the id of a rule that counts, the steps of a log that it would have counted; they have all begun."""
    found: dict[str, set[str]] = {rule.id: set() for rule in policy.rules if rule.count_over is not None}
    if not found:
        return {}
    for step, judgement in judgements(policy, state, bodies, found):
        if step.attempt > 0:
            for rule in judgement.counts:
                found[rule].add(step.id)
    return found


def judgements(
    policy: Policy, state: RunState, bodies: BodyStore, known: dict[str, set[str]]
) -> Iterator[tuple[StepState, Judgement]]:
    """What a policy comes to for each step of a log, in recorded order.

    Args:
        policy: the policy.
        state: the folded log.
        bodies: where large arguments are.
        known: by rule, the steps that count before the next one is asked for. The caller adds to it.
    """
    buckets: dict[str, list[float]] = {}
    for step in state.steps.values():
        asked = recorded(state, step, bodies)
        knowledge = Knowledge(_moment(step), buckets, known, policy.holds)
        judgement = judge(policy.rules, policy.default_action, asked, knowledge)
        if isinstance(judgement.verdict, Allow):
            buckets.update(judgement.took)
        yield step, judgement


def _moment(step: StepState) -> int:
    """When a step was asked for, in milliseconds since 1970; by the clock of its line, which informs and no more."""
    from datetime import datetime  # few programs need it

    try:
        return int(datetime.fromisoformat(step.started_ts).timestamp() * 1000)
    except ValueError:
        return 0


def recorded(state: RunState, step: StepState, bodies: BodyStore) -> Asked:
    """A step of a log as it would be asked about now."""
    effect = Effect(step.id, step.kind, step.target, step.scope, step.after, step.mode)
    return Asked(state, effect, "", max(1, step.attempt), lambda: recorded_args(step, bodies), again=False)


def recorded_args(step: StepState, bodies: BodyStore) -> Any:
    """The arguments of a recorded step as a JSON tree; None where they cannot be read."""
    try:
        data = whole_data(step.started, bodies)
        if "request" not in data:
            return plain(value_tree(data.get("args"), bodies))
        form = data["request"].get("body")
        if form is None:
            return {}
        return orjson.loads(form_bytes(form, bodies))
    except (StoreError, ValueError):
        return None
