"""Recording and replaying steps of 1 KB in, 1 KB out, in this process."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import steplog

ROUNDS = 5
STEPS = 300
PAYLOAD = {"text": "x" * 930, "number": 1, "flag": True, "items": ["a", "b"]}


@steplog.step(mode="safe")
def safe(number: int, payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "number": number}


@steplog.step
def unsafe(number: int, payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "number": number}


@steplog.step(mode="safe")
async def concurrent(number: int, payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "number": number}


def measure(folder: Path) -> dict[str, float]:
    """Every figure that needs no second process."""
    rounds = [_round(folder, number) for number in range(ROUNDS)]
    results = {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
    return {**results, **_replay(folder, 1_000), **_replay(folder, 10_000), **_replay(folder, 100_000), **_disk(folder)}


def _round(folder: Path, number: int) -> dict[str, float]:
    # Raw and recorded appends alternate within a round, so that a busy minute of the machine weighs on both.
    home = folder / f"round-{number}"
    steplog.install(home=home, interceptors=[], durability="durable")
    with steplog.run("safe"):
        recorded_safe = _each(STEPS, lambda i: safe(i, PAYLOAD))
    step = (home / "runs" / "safe" / "events.jsonl").stat().st_size // STEPS
    raw_safe = _raw(folder, step)
    with steplog.run("unsafe"):
        recorded_unsafe = _each(STEPS, lambda i: unsafe(i, PAYLOAD))
    gathered = asyncio.run(_gather("gather"))
    with steplog.run("threads"), ThreadPoolExecutor(32) as pool:
        began = time.perf_counter()
        list(pool.map(lambda i: safe(i, PAYLOAD), range(STEPS * 4)))
        threaded = (time.perf_counter() - began) / (STEPS * 4)
    raw_safe = (raw_safe + _raw(folder, step)) / 2
    with steplog.run("process", durability="process"):
        in_process = _each(STEPS * 4, lambda i: safe(i, PAYLOAD))
    return {
        "raw_append_sync_us": raw_safe * 1e6,
        "record_safe_ratio": recorded_safe / raw_safe,
        "record_unsafe_ratio": recorded_unsafe / raw_safe,
        "gather_ratio": gathered / raw_safe,
        "threads_ratio": threaded / raw_safe,
        "record_process_us": in_process * 1e6,
    }


def _each(count: int, call: Callable[[int], object]) -> float:
    began = time.perf_counter()
    for number in range(count):
        call(number)
    return (time.perf_counter() - began) / count


async def _gather(run_id: str) -> float:
    async with steplog.run(run_id):
        began = time.perf_counter()
        await asyncio.gather(*(concurrent(number, PAYLOAD) for number in range(500)))
        return (time.perf_counter() - began) / 500


def _raw(folder: Path, size: int) -> float:
    """Seconds for one append of as many bytes as a recorded step takes in its log, and its sync."""
    line = b"x" * size
    file = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(STEPS):
            os.write(file, line)
            os.fdatasync(file)
        return (time.perf_counter() - began) / STEPS
    finally:
        os.close(file)


def _replay(folder: Path, count: int) -> dict[str, float]:
    steplog.install(home=folder / f"replay-{count}", interceptors=[], durability="process")
    with steplog.run("replay"):
        _each(count, lambda i: safe(i, PAYLOAD))
    best = []
    for _ in range(3):
        with steplog.run("replay") as run:
            best.append(_each(count, lambda i: safe(i, PAYLOAD)))
            assert run.executed == 0
    return {f"replay_us_per_step_{count}": min(best) * 1e6}


def _disk(folder: Path) -> dict[str, float]:
    payload = len(str(PAYLOAD)) * 2 * 10_000
    size = sum(file.stat().st_size for file in (folder / "replay-10000").rglob("*") if file.is_file())
    return {"disk_bytes_per_payload_byte": size / payload}
