"""What a process keeps of the runs that it has closed: memory, objects, descriptors, threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.processes import _environment

RUNS = 10_000
# What the first runs leave behind (modules, caches of fixed size) is paid once.
WARM = 2_000

PROGRAM = """
import asyncio, gc, json, os, sys, threading
import steplog

steplog.install(home=sys.argv[1], interceptors=[], durability="process")

@steplog.step(mode="safe")
def tool(number): return {"number": number}

@steplog.step
async def effect(number): return {"number": number}

async def agent(name):
    async with steplog.run(name):
        await asyncio.gather(*(effect(number) for number in range(3)))

def once(number):
    if number % 10 == 0:
        asyncio.run(agent(f"run-{number}"))
        return
    if number % 10 == 5:
        try:
            with steplog.run(f"run-{number}"):
                tool(1)
                raise ValueError(number)
        except ValueError:
            return
    if number % 10 == 7:
        number -= 1  # again the one before
    with steplog.run(f"run-{number}"):
        for step in range(3):
            tool(step)

def facts():
    gc.collect()
    with open("/proc/self/status") as status:
        rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    descriptors = len(os.listdir("/proc/self/fd"))
    return {"rss_kb": rss, "objects": len(gc.get_objects()), "fds": descriptors, "threads": threading.active_count()}

warm, runs = int(sys.argv[2]), int(sys.argv[3])
for number in range(warm):
    once(number)
before = facts()
for number in range(warm, runs):
    once(number)
after = facts()
print(json.dumps({name: after[name] - before[name] for name in before}))
"""


def measure(folder: Path, runs: int = RUNS, warm: int = WARM) -> dict[str, float]:
    """What the runs behind the first ones add: kilobytes, objects that the collector knows, descriptors, threads."""
    command = [sys.executable, "-c", PROGRAM, str(folder / "many"), str(warm), str(runs)]
    done = subprocess.run(command, env=_environment(), stdout=subprocess.PIPE, text=True, check=True)
    grown = json.loads(done.stdout)
    left = sum(value for name, value in grown.items() if name != "rss_kb")
    return {f"runs_{runs}_{name}": float(value) for name, value in {**grown, "left": left}.items()}
