"""steplog beside other systems: the same workload, the same disk, one after the other in one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

STEPS: Final = 500
ROUNDS: Final = 3
_ROOT: Final = Path(__file__).resolve().parent.parent
_PEERS_PYTHON: Final = _ROOT / ".venv-peers/bin/python"
_SECONDS: Final = 300


class System(NamedTuple):
    """A way of running the workload.

    Attributes:
        name: prefix of its figures.
        script: its module in `peers/`.
        python: the interpreter that has it.
    """

    name: str
    script: str
    python: Path


SYSTEMS: Final = (
    System("steplog", "steplog_safe", Path(sys.executable)),
    System("steplog_unsafe", "steplog_unsafe", Path(sys.executable)),
    System("dbos", "dbos_sqlite", _PEERS_PYTHON),
    System("langgraph", "langgraph_sqlite", _PEERS_PYTHON),
    System("call4agents", "call4agents_effect", _PEERS_PYTHON),
)


def measure(folder: Path) -> dict[str, float]:
    """Microseconds a step to record and to resume, and seconds of the resuming process, the best of a few rounds.

    Systems alternate within a round, so that a busy minute of the machine weighs on all.
    """
    best: dict[str, float] = {}
    for number in range(ROUNDS):
        for system in SYSTEMS:
            home = folder / f"{system.name}-{number}"
            home.mkdir()
            recorded = _run(system, "record", home)
            began = time.perf_counter()
            resumed = _run(system, "resume", home)
            found = {
                f"{system.name}_record_us": recorded["us"],
                f"{system.name}_resume_us": resumed["us"],
                f"{system.name}_resume_process_s": time.perf_counter() - began,
                f"{system.name}_ran_again": resumed["ran"],
                f"{system.name}_bytes_per_step": _size(home) / STEPS,
            }
            for name, value in found.items():
                worst = name.endswith("_ran_again")
                best[name] = max(best.get(name, 0), value) if worst else min(best.get(name, value), value)
    for system in SYSTEMS:
        if not system.name.startswith("steplog"):
            best[f"{system.name}_record_times"] = best[f"{system.name}_record_us"] / best["steplog_record_us"]
            best[f"{system.name}_resume_times"] = best[f"{system.name}_resume_us"] / best["steplog_resume_us"]
    return best


def _run(system: System, verb: str, home: Path) -> dict[str, Any]:
    script = _ROOT / "bench/peers" / f"{system.script}.py"
    command = [str(system.python), str(script), verb, str(home), str(STEPS)]
    # Silent about its own news: what is printed is the figure.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"us":')]
    if len(lines) != 1:
        message = f"{system.script} {verb} printed no figure (exit {done.returncode}):\n{done.stdout}{done.stderr}"
        raise RuntimeError(message)
    found: dict[str, Any] = json.loads(lines[0])
    return found


def _size(home: Path) -> int:
    return sum(file.stat().st_size for file in home.rglob("*") if file.is_file())
