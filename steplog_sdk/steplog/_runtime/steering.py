"""What the owner of a run says of how it is steered: read from arguments and environment, checked, and put in force.

Nothing is loaded for a run that nobody steers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Literal

from steplog.errors import InvalidArgument

if TYPE_CHECKING:
    from steplog._kernel.state import RunState
    from steplog._runtime.policies import Given, Policy
    from steplog._runtime.recorder import Recorder

VARIABLE: Final = "STEPLOG_POLICY"
"""The variable that names the file of the policy for runs that name none."""

ON_BLOCK: Final = ("suspend", "wait")


def options(policy: Given | Literal[False], on_block: str | None, installed: Policy | None) -> dict[str, Any]:
    """The part of a run's options that steers it. Raises InvalidArgument."""
    blocks = on_block or os.environ.get("STEPLOG_ON_BLOCK") or "suspend"
    if blocks not in ON_BLOCK:
        raise InvalidArgument(f'unknown on_block {blocks!r}. Write on_block="suspend" or "wait".')
    return {"policy": _in_force(policy, installed), "unpoliced": policy is False, "on_block": blocks}


def _in_force(given: Given | Literal[False], installed: Policy | None) -> Policy | None:
    named = os.environ.get(VARIABLE)
    if given is False or (given is None and installed is None and not named):
        return None
    from steplog._runtime.policies import Policy, policy_of

    if given is not None:
        return policy_of(given)
    return installed or Policy.load(str(named))


def created(options: dict[str, Any]) -> dict[str, Any]:
    """What `run.created` says of it."""
    policy: Policy | None = options.get("policy")
    said: dict[str, Any] = {} if policy is None else {"policy": {"file": policy.source, "bundle": policy.digest}}
    return {**said, "undo_on_cancel": True} if options.get("undo_on_cancel") else said


def check(state: RunState, options: dict[str, Any]) -> None:
    """Refuse to go on without a policy with what began under one: its rules would be passed over in silence.

    Raises:
        InvalidArgument: this process has no policy, and does not say that it wants none.
    """
    began = state.created.get("policy")
    if not began or state.completed_once or options.get("policy") is not None or options.get("unpoliced", True):
        return
    file = began.get("file")
    message = (
        f"run {state.run_id} began under a policy ({file or 'of Python objects'}), and this process has none. Nothing "
        f"was executed.\nGive it one: steplog.run({state.run_id!r}, policy={file or 'policy.toml'!r}), or set "
        f"{VARIABLE}={file or 'policy.toml'}. To go on without: policy=False."
    )
    raise InvalidArgument(message, run_id=state.run_id)


def attach(recorder: Recorder, options: dict[str, Any]) -> None:
    """Give a run the gates that its settings and its log ask for. Without any it pays for none."""
    controls = recorder.journal.state.controls
    if options.get("policy") is None and (controls is None or not controls.held):
        return
    from steplog._runtime.gates import attach

    attach(recorder, options)
