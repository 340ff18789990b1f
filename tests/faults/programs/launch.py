"""Dispatch the agent once, or again and again in forks of one process that has paid for the imports.

    python -m tests.faults.programs.launch FOLDER URL PLAN
    python -m tests.faults.programs.launch            reads such lines, as JSON lists, and answers each with a status

A dispatch leaves `outcome` in its folder, unless it was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import steplog
from tests.faults.programs import agent as program

# A dispatch takes a fraction of a second. SIGALRM ends one that hangs, and its status says so.
HANGS_AFTER_SECONDS = 60


def dispatch(folder: Path, url: str, plan: str) -> None:
    """Run or resume the agent in this process, which has not used steplog before."""
    signal.alarm(HANGS_AFTER_SECONDS)
    steplog.install(home=folder / "home", strict=True)
    program.world = program.World(folder, url, plan)
    program.world.killer.install()
    outcome: dict[str, Any]
    try:
        with steplog.run(program.RUN):
            outcome = {"answer": program.agent()}
    except steplog.RunStopped as stopped:
        outcome = {"stopped": stopped.reason, "step": stopped.step, "message": str(stopped)}
    except Exception:
        outcome = {"stopped": "error", "message": traceback.format_exc()}
    (folder / "outcome").write_text(json.dumps(outcome))


def serve() -> None:
    """Fork one child for each line of standard input."""
    _import_what_is_imported_late()
    for line in sys.stdin:
        folder, url, plan = json.loads(line)
        child = os.fork()
        if not child:
            dispatch(Path(folder), url, plan)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _import_what_is_imported_late() -> None:
    world = program.World(Path(), "http://127.0.0.1", "")
    assert world.model.chat.completions
    assert world.async_model.chat.completions
    for point in entry_points(group="steplog.interceptors"):
        point.load()


if __name__ == "__main__":
    if sys.argv[1:]:
        dispatch(Path(sys.argv[1]), *sys.argv[2:])
    else:
        serve()
