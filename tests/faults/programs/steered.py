"""A run that is steered in every way: it has a budget, is denied, held, waits, is cancelled, cleans up and is undone.

    python -m tests.faults.programs.steered FOLDER POINT

dies by SIGKILL at POINT (`before:12`: before the twelfth line reaches a log, `after:12`: behind it; "": nowhere) and
leaves `outcome` in its folder where it does not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import steplog
from steplog import Rule

RUN = "r"
RULES = [
    Rule(id="no", action="deny", target="buy", args={"what": "b"}),
    Rule(id="ask", action="require_approval", target="buy", args={"what": "c"}),
]
BUDGET = steplog.Budget(max_tool_calls=60, max_stalls=5)
OPERATOR = "max_tool_calls=50"


class World:
    """Where the program has its effects."""

    folder = Path()


world = World()


def effects() -> list[str]:
    """What has happened in the world, in order."""
    path = world.folder / "effects"
    return path.read_text().splitlines() if path.exists() else []


def happens(what: str) -> str:
    with open(world.folder / "effects", "a") as file:
        file.write(what + "\n")
    return what


def is_taken_back(result: str) -> Any:
    return steplog.Happened(None) if f"undo {result}" in effects() else steplog.NOT_HAPPENED


@steplog.step(mode="verify", verify=is_taken_back)
def take_back(result: str) -> None:
    happens(f"undo {result}")


@steplog.step(undo=take_back)
def buy(what: str) -> str:
    return happens(f"buy {what}")


@steplog.step(mode="safe")
def clean() -> None:
    happens("clean")


def program(store: Any = None) -> None:
    steered = {"policy": RULES, "budget": BUDGET, "on_wait": "suspend", "undo_on_cancel": True}
    with steplog.run(RUN, store=store, **steered) as run:
        run.progress(0)
        buy("a")
        try:
            buy("b")
        except steplog.StepDenied:
            run.progress(1)
        buy("c")
        got = run.wait("go")
        try:
            steplog.cancel(RUN, by="ann", store=store)
            buy(f"d {got}")
        finally:
            clean()


def dies(append: Callable[..., None], point: str, die: Callable[[], None]) -> Callable[..., None]:
    """A writer's `append` that dies around one line of all that this process writes."""
    when, _, place = point.partition(":")
    written, nth = 0, int(place or 0)

    def wrapped(self: Any, lines: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal written
        hit = written < nth <= written + len(lines)
        written += len(lines)
        if hit and when == "before":
            die()
        append(self, lines, *args, **kwargs)
        if hit:
            die()

    return wrapped


def main(where: str, point: str) -> None:
    from steplog.stores.writer import FileWriter

    FileWriter.append = dies(FileWriter.append, point, lambda: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[method-assign]
    world.folder = Path(where)
    steplog.install(home=world.folder / "home", interceptors=[])
    outcome: dict[str, Any] = {}
    try:
        program()
    except steplog.RunStopped as stopped:
        outcome = {"reason": stopped.reason, "run": stopped.run_id, "step": stopped.step}
    (world.folder / "outcome").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
