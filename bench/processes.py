"""Figures of whole processes: importing, opening a long log, resuming a run."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

AGENT = """
import sys, steplog
steplog.install(home=sys.argv[1], interceptors=[], durability="process")

@steplog.step(mode="safe")
def tool(number, text): return {"number": number, "text": text}

with steplog.run("long") as run:
    for number in range(int(sys.argv[2])):
        tool(number, "x" * 1000)
    print(run.executed)
"""
IMPORT = "import time; began = time.perf_counter(); import steplog; print((time.perf_counter() - began) * 1000)"
READY = """
import time; began = time.perf_counter()
import sys, steplog
steplog.install(home=sys.argv[1], interceptors=[], durability="process")
with steplog.run():
    steplog.step("now", time.time)
    print((time.perf_counter() - began) * 1000)
"""
OPEN = """
import sys, time, steplog
steplog.install(home=sys.argv[1], interceptors=[], durability="process")
began = time.perf_counter()
with steplog.run("long"):
    took = time.perf_counter() - began
    # `getrusage` would tell the peak of the process that started this one, where that is higher.
    (peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(took, peak)
"""


def measure(folder: Path) -> dict[str, float]:
    """Seconds and milliseconds, each the median of a few starts."""
    agent = folder / "agent.py"
    agent.write_text(AGENT)
    # The file system's cache is warm and the byte code is compiled, as on a machine that runs agents.
    _output(IMPORT_ARGS)
    imports = [float(_output(IMPORT_ARGS)) for _ in range(7)]
    bare = statistics.median(_seconds(["-c", "pass"]) for _ in range(7))
    home = str(folder / "resume")
    assert _output([str(agent), home, "500"]) == "500"
    resumed = statistics.median(_seconds([str(agent), home, "500"]) for _ in range(5))
    home = str(folder / "open")
    assert _output([str(agent), home, "50000"]) == "50000"
    opened, peak = map(float, _output(["-c", OPEN, home]).split())
    log = folder / "open/runs/long/events.jsonl"
    size = log.stat().st_size
    log.with_suffix(".checkpoint").unlink()
    unaided, unaided_peak = map(float, _output(["-c", OPEN, home]).split())
    ready = [float(_output(["-c", READY, str(folder / "ready")])) for _ in range(5)]
    return {
        "import_ms": statistics.median(imports),
        "ready_ms": statistics.median(ready),
        "resume_process_s": resumed - bare,
        "open_100000_s": opened,
        "open_100000_unaided_s": unaided,
        "open_100000_memory_per_file_byte": max(peak, unaided_peak) * 1024 / size,
    }


IMPORT_ARGS = ["-c", IMPORT]


def _output(arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=_environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


def _seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    _output(arguments)
    return time.perf_counter() - began


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
