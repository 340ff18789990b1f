"""Which gates a run has, made when it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steplog._runtime.approvals import HeldGate
from steplog._runtime.control import Control
from steplog._runtime.policy_gate import PolicyGate

if TYPE_CHECKING:
    from steplog._runtime.policies import Policy
    from steplog._runtime.recorder import Recorder


def attach(recorder: Recorder, options: dict[str, Any]) -> None:
    """Hold what was blocked, and ask the policy of a run if it has one."""
    policy: Policy | None = options.get("policy")
    control = gated(recorder)
    control.waits = options.get("on_block") == "wait"
    control.add(HeldGate(recorder))
    if policy is not None:
        control.add(PolicyGate(policy, recorder))


def gated(recorder: Recorder) -> Control:
    """The control of a run, made when the first gate is added."""
    if recorder.control is None:
        recorder.control = Control(recorder)
    return recorder.control
