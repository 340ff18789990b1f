"""Which gates a run has, made when it is opened."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from steplog._kernel.approval import hold
from steplog._kernel.control import Asked, Verdict
from steplog._runtime.control import Control, Gate
from steplog._runtime.policy_gate import PolicyGate

if TYPE_CHECKING:
    from steplog._runtime.policies import Policy
    from steplog._runtime.recorder import Recorder


class HeldGate(Gate):
    """Holds what was blocked until somebody has decided on it."""

    name, order = "approval", 20

    def judge(self, asked: Asked) -> Verdict:
        """Whether it was approved, was rejected, or has to wait on."""
        return hold(asked, int(time.time() * 1000))


def attach(recorder: Recorder, options: dict[str, Any]) -> None:
    """Hold what was blocked, and ask the policy of a run if it has one."""
    policy: Policy | None = options.get("policy")
    control = gated(recorder)
    control.waits = options.get("on_block") == "wait"
    control.add(HeldGate())
    if policy is not None:
        control.add(PolicyGate(policy, recorder))


def gated(recorder: Recorder) -> Control:
    """The control of a run, made when the first gate is added."""
    if recorder.control is None:
        recorder.control = Control(recorder)
    return recorder.control
