"""What recording adds to a stream: until its first chunk, and for each later one, through the real SDK."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import openai

import steplog
from steplog.testing import LocalProvider, Reply

ROUNDS = 150
CHUNKS = 400
ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}], "stream": True}


class Times(NamedTuple):
    """Seconds of one stream.

    Attributes:
        first: until the first chunk.
        first_cpu: of these: in which the reading thread computed. On a busy machine this alone can be compared.
        later: for each further chunk.
    """

    first: float
    first_cpu: float
    later: float


def measure(folder: Path) -> dict[str, float]:
    """Milliseconds until the first chunk and microseconds for each later one, recorded less unrecorded.

    The quickest tenth of each: what is slower than that had to share the machine.
    """
    steplog.uninstall()
    with LocalProvider(handler=lambda _hit: Reply.sse(_events())) as provider:
        client = openai.OpenAI(base_url=provider.url + "/v1", api_key="none", max_retries=0)
        for _ in range(10):
            _read(client)
        plain: list[Times] = []
        recorded: list[Times] = []
        # Alternating, so that a busy minute of the machine weighs on both.
        for number in range(ROUNDS):
            plain.append(_read(client))
            steplog.install(home=folder / "streams", durability="durable", interceptors=["openai"])
            with steplog.run(f"stream-{number}"):
                recorded.append(_read(client))
            steplog.uninstall()
    alone, more = _quickest(plain), _quickest(recorded)
    return {
        "first_chunk_ms": (more.first - alone.first) * 1e3,
        "first_chunk_cpu_ms": (more.first_cpu - alone.first_cpu) * 1e3,
        "first_chunk_alone_ms": alone.first * 1e3,
        "later_chunk_us": (more.later - alone.later) * 1e6,
        "later_chunk_alone_us": alone.later * 1e6,
    }


def _quickest(found: list[Times]) -> Times:
    return Times(*(statistics.quantiles(column, n=10)[0] for column in zip(*found, strict=True)))


def _read(client: openai.OpenAI) -> Times:
    began, cpu = time.perf_counter(), time.thread_time()
    stream = client.chat.completions.create(**ASK)
    next(stream)
    first, first_cpu = time.perf_counter(), time.thread_time()
    for _chunk in stream:
        pass
    return Times(first - began, first_cpu - cpu, (time.perf_counter() - first) / CHUNKS)


def _events() -> str:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-mini"}
    delta = {**head, "choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
    return f"data: {json.dumps(delta)}\n\n" * CHUNKS + "data: [DONE]\n\n"
