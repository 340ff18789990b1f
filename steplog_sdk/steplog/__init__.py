"""steplog makes an LLM agent's run durable.

    import steplog
    steplog.install()

    with steplog.run("refund-1001"):
        ...the agent, unchanged...

Kill it anywhere and run it again: finished steps return what was recorded, and only the rest runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from steplog import _start  # noqa: F401  # notes the directory now, before the program moves
from steplog.errors import (
    BudgetExceeded,
    Cancelled,
    Corrupt,
    DriftDetected,
    EncodeError,
    Indeterminate,
    Interrupt,
    InvalidArgument,
    NotInRun,
    RunBusy,
    RunStopped,
    Simulated,
    StepDenied,
    StepFailed,
    SteplogError,
    StepRateLimited,
    StepRejected,
    StoreError,
    Suspended,
    UndoFailed,
    Unrecorded,
    Unreplayable,
    WaitTimeout,
)

if TYPE_CHECKING:
    from steplog._kernel.budget import Budget
    from steplog._kernel.codec import register_codec
    from steplog._kernel.rule import Rule
    from steplog._kernel.secret import Secret
    from steplog._runtime.answers import NOT_HAPPENED, UNKNOWN, Happened
    from steplog._runtime.api import step
    from steplog._runtime.approvals import approve, reject
    from steplog._runtime.cancel import cancel
    from steplog._runtime.fork import fork
    from steplog._runtime.install import install, uninstall
    from steplog._runtime.pause import sleep, sleep_async, sleep_until, sleep_until_async
    from steplog._runtime.policies import Policy
    from steplog._runtime.post import signal
    from steplog._runtime.replay import Replay, replay
    from steplog._runtime.run import Run, current_run, run
    from steplog._runtime.undo import undo
    from steplog._runtime.workflow import Workflow, workflow

__version__ = "0.1.0"

__all__ = [
    "NOT_HAPPENED",
    "UNKNOWN",
    "Budget",
    "BudgetExceeded",
    "Cancelled",
    "Corrupt",
    "DriftDetected",
    "EncodeError",
    "Happened",
    "Indeterminate",
    "Interrupt",
    "InvalidArgument",
    "NotInRun",
    "Policy",
    "Replay",
    "Rule",
    "Run",
    "RunBusy",
    "RunStopped",
    "Secret",
    "Simulated",
    "StepDenied",
    "StepFailed",
    "StepRateLimited",
    "StepRejected",
    "SteplogError",
    "StoreError",
    "Suspended",
    "UndoFailed",
    "Unrecorded",
    "Unreplayable",
    "WaitTimeout",
    "Workflow",
    "__version__",
    "approve",
    "cancel",
    "current_run",
    "fork",
    "install",
    "register_codec",
    "reject",
    "replay",
    "run",
    "signal",
    "sleep",
    "sleep_async",
    "sleep_until",
    "sleep_until_async",
    "step",
    "undo",
    "uninstall",
    "workflow",
]

# Where each name comes from. What a program does not use is not loaded, and the errors need nothing.
_HOMES: Final = {
    "Workflow": "steplog._runtime.workflow",
    "NOT_HAPPENED": "steplog._runtime.answers",
    "UNKNOWN": "steplog._runtime.answers",
    "Budget": "steplog._kernel.budget",
    "Happened": "steplog._runtime.answers",
    "Policy": "steplog._runtime.policies",
    "Replay": "steplog._runtime.replay",
    "Run": "steplog._runtime.run",
    "Rule": "steplog._kernel.rule",
    "Secret": "steplog._kernel.secret",
    "approve": "steplog._runtime.approvals",
    "reject": "steplog._runtime.approvals",
    "cancel": "steplog._runtime.cancel",
    "current_run": "steplog._runtime.run",
    "fork": "steplog._runtime.fork",
    "install": "steplog._runtime.install",
    "register_codec": "steplog._kernel.codec",
    "replay": "steplog._runtime.replay",
    "run": "steplog._runtime.run",
    "signal": "steplog._runtime.post",
    "sleep": "steplog._runtime.pause",
    "sleep_async": "steplog._runtime.pause",
    "sleep_until": "steplog._runtime.pause",
    "sleep_until_async": "steplog._runtime.pause",
    "step": "steplog._runtime.api",
    "undo": "steplog._runtime.undo",
    "uninstall": "steplog._runtime.install",
    "workflow": "steplog._runtime.workflow",
}

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = globals()[name] = getattr(import_module(home), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
