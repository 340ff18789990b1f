"""How much slower 1,000 concurrent calls of a local provider are for being recorded, through the real async SDK.

The provider answers at once, so this is the worst case: nothing but the SDK's own work to hide the recording behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import openai

import steplog

ROUNDS: Final = 5
CALLS: Final = 1_000
_ROOT: Final = Path(__file__).resolve().parent.parent


def measure(folder: Path) -> dict[str, float]:
    """Per cent that the quickest recorded round took longer than the quickest unrecorded one, and the same of CPU time.

    Rounds alternate, so that a busy minute of the machine weighs on both.
    """
    steplog.uninstall()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    plain: list[tuple[float, float]] = []
    recorded: list[tuple[float, float]] = []
    try:
        with _provider() as url:
            asyncio.run(_calls(url))
            for number in range(ROUNDS):
                plain.append(asyncio.run(_calls(url)))
                steplog.install(home=folder / "concurrent", durability="durable", interceptors=["openai"])
                recorded.append(asyncio.run(_recorded(url, f"round-{number}")))
                steplog.uninstall()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (wall, cpu), (more, more_cpu) = _quickest(plain), _quickest(recorded)
    return {
        "concurrent_overhead_pct": (more / wall - 1) * 100,
        "concurrent_cpu_overhead_pct": (more_cpu / cpu - 1) * 100,
        "concurrent_alone_us": wall / CALLS * 1e6,
    }


def _quickest(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    return min(wall for wall, _ in rounds), min(cpu for _, cpu in rounds)


@contextlib.contextmanager
def _provider() -> Iterator[str]:
    command = [sys.executable, "-m", "bench.provider"]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        finally:
            server.kill()


async def _recorded(url: str, run_id: str) -> tuple[float, float]:
    async with steplog.run(run_id) as run:
        times = await _calls(url)
        assert run.executed == CALLS
    return times


async def _calls(url: str) -> tuple[float, float]:
    """Wall and CPU seconds of all calls at once, each with a question of its own."""
    gc.collect()
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600.0) as client:
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(client.chat.completions.create(**_asked(number)) for number in range(CALLS)))
        return time.perf_counter() - began, time.process_time() - cpu


def _asked(number: int) -> dict[str, Any]:
    question = {"role": "user", "content": f"Question {number}. " + "word " * 180}
    return {"model": "gpt-4o-mini", "messages": [question]}
