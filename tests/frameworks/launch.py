"""Start or resume one of the agents, in the environment that has its framework.

    python -m tests.frameworks.launch AGENT FOLDER URL WAY PLAN
    python -m tests.frameworks.launch AGENT     reads such lines, without AGENT, as JSON lists; answers each

The second form forks a child for each line out of one process that has paid for the imports, and answers with the
exit status. A dispatch leaves `outcome` in its folder, unless it was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import steplog
from tests.faults.programs.killer import Killer
from tests.frameworks.shop import shop

RUN = "refund-ord_1001"
QUESTION = "The teapot of order ord_1001 came broken. Refund it."
NEEDS_DECISION = 75

# A dispatch takes a second, or a minute where all processors are busy. SIGALRM ends one that hangs.
HANGS_AFTER_SECONDS = 180


def dispatch(program: ModuleType, folder: Path, url: str, way: str, plan: str) -> int:
    """Run or resume the agent in this process; returns the exit status that a program of its own would have."""
    signal.alarm(HANGS_AFTER_SECONDS)
    os.environ |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_BASE": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
    shop.folder = folder
    killer = Killer(plan)
    shop.moment = killer.moment
    steplog.install(home=folder / "home", strict=True, **getattr(program, "OPTIONS", {}))
    killer.install()
    outcome: dict[str, Any]
    try:
        outcome = {"answer": _answer(getattr(program, way))}
    except steplog.RunStopped as stopped:
        outcome = {"stopped": stopped.reason, "step": stopped.step, "message": str(stopped)}
    except BaseException:
        outcome = {"error": traceback.format_exc()}
    (folder / "outcome").write_text(json.dumps(outcome))
    return 0 if "answer" in outcome else NEEDS_DECISION if "stopped" in outcome else 1


def _answer(agent: Any) -> Any:
    # A run is opened where a program would open it: around the event loop, or in the task that is the agent.
    if not inspect.iscoroutinefunction(agent):
        with steplog.run(RUN):
            return agent(QUESTION)

    async def inside() -> Any:
        async with steplog.run(RUN):
            return await agent(QUESTION)

    return asyncio.run(inside())


def serve(program: ModuleType) -> None:
    """Fork one child for each line of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        folder, *rest = json.loads(line)
        child = os.fork()
        if not child:
            said = os.open(Path(folder) / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(said, 1)
            os.dup2(said, 2)
            ended = dispatch(program, Path(folder), *rest)
            (Path(folder) / "imported").write_text("\n".join(sys.modules))
            os._exit(ended)
        _, status = os.waitpid(child, 0)
        _import_what_was_imported_late(Path(folder) / "imported")
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _import_what_was_imported_late(names: Path) -> None:
    """Import for all further children what one of them had to import for itself, which takes longer than its run."""
    for name in names.read_text().splitlines() if names.exists() else ():
        # A module that cannot be imported on its own is imported by the child again.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    names.unlink(missing_ok=True)


def main() -> None:
    """Load the agent, then do as the command line says."""
    name, *rest = sys.argv[1:]
    os.environ |= {"OPENAI_API_KEY": "local", "ANTHROPIC_API_KEY": "local"}
    program = importlib.import_module(f"tests.frameworks.agents.{name}")
    if not rest:
        serve(program)
        return
    folder, url, way, plan = rest
    status = dispatch(program, Path(folder), url, way, plan)
    signal.alarm(HANGS_AFTER_SECONDS)  # what a framework does at exit belongs to the dispatch
    sys.exit(status)


if __name__ == "__main__":
    main()
