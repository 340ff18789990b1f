"""A run of a workflow, gone on with in a process of its own: that imports the function and calls it."""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from steplog._cli.output import printable
from steplog._cli.program import without_our_frames
from steplog.errors import RunStopped, SteplogError

STOPPED = 75


def can_be_called(call: Any) -> bool:
    """Whether the function of a run can be found by its name: a script's own has to be started by its script."""
    return isinstance(call, dict) and call.get("module") != "__main__" and "<locals>" not in str(call.get("name"))


def command(call: dict[str, Any]) -> list[str]:
    """The words that start it. No folder is put into the path because it is the current one."""
    return [sys.executable, "-P", "-m", "steplog._cli.workflow", str(call["module"]), str(call["name"])]


def path(call: dict[str, Any]) -> str:
    """The value of `PYTHONPATH` with which it finds what the recorded process has found."""
    own = [entry for entry in call.get("path") or () if isinstance(entry, str) and Path(entry).is_absolute()]
    return os.pathsep.join(filter(None, [*own, os.environ.get("PYTHONPATH", "")]))


def main(module: str, name: str) -> int:
    """Go on with the run that the environment names. Returns the exit code."""
    import steplog

    run_id = os.environ["STEPLOG_RUN_ID"]
    steplog.install()
    try:
        result = _found(module, name, run_id).resume(run_id)
        if inspect.isawaitable(result):
            import asyncio  # a plain function does not pay for it

            asyncio.run(_awaited(result))
    except RunStopped as stopped:
        print(f"steplog: {printable(str(stopped))}", file=sys.stderr)
        return STOPPED
    except SteplogError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001  # the program's own, shown as python shows it
        shown = without_our_frames(error)
        sys.excepthook(type(shown), shown, shown.__traceback__)
        return 1
    return 0


async def _awaited(result: Any) -> Any:
    return await result


def _found(module: str, name: str, run_id: str) -> Any:
    from steplog._runtime.workflow import Workflow

    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as gone:
        message = (
            f"run {run_id} is a call of {module}.{name}, which cannot be imported: {gone}\n"
            f"Put it back; or from where it is now, under the name of workflow that the run has (name=...): "
            f".run({run_id!r}, ...)"
        )
        raise SteplogError(message, run_id=run_id) from gone
    if not isinstance(found, Workflow):
        message = f"run {run_id} is a call of {module}.{name}, which is no workflow any more. Decorate it again."
        raise SteplogError(message, run_id=run_id)
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
