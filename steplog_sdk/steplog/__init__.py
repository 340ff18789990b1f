"""steplog makes an LLM agent's run durable.

    import steplog
    steplog.install()

    with steplog.run("refund-1001"):
        ...the agent, unchanged...

Kill it anywhere and run it again: finished steps return what was recorded, and only the rest runs.
"""

from __future__ import annotations

from steplog._kernel.codec import register_codec
from steplog._kernel.secret import Secret
from steplog._runtime.answers import NOT_HAPPENED, UNKNOWN, Happened
from steplog._runtime.api import step
from steplog._runtime.install import install, uninstall
from steplog._runtime.run import Run, current_run, run
from steplog.errors import (
    Corrupt,
    DriftDetected,
    EncodeError,
    Indeterminate,
    Interrupt,
    InvalidArgument,
    NotInRun,
    RunBusy,
    RunStopped,
    StepFailed,
    SteplogError,
    StoreError,
    Unreplayable,
)

__version__ = "0.1.0"

__all__ = [
    "NOT_HAPPENED",
    "UNKNOWN",
    "Corrupt",
    "DriftDetected",
    "EncodeError",
    "Happened",
    "Indeterminate",
    "Interrupt",
    "InvalidArgument",
    "NotInRun",
    "Run",
    "RunBusy",
    "RunStopped",
    "Secret",
    "StepFailed",
    "SteplogError",
    "StoreError",
    "Unreplayable",
    "__version__",
    "current_run",
    "install",
    "register_codec",
    "run",
    "step",
    "uninstall",
]
