"""Disk space of long conversations, through the real SDK against a local provider.

The one of 1,000 turns sends about a gigabyte of requests, which takes minutes.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import openai

import steplog
from steplog.testing import LocalProvider, Reply

TURNS = (200, 1_000)
# 200 requests of this growth sum to about 38 MB.
WORDS_PER_TURN = 280


def measure(folder: Path) -> dict[str, float]:
    """Megabytes of conversations: as plain requests, and everything that a home holds while it is open."""
    return {name: value for turns in TURNS for name, value in _conversation(folder / f"chat-{turns}", turns).items()}


def _conversation(home: Path, turns: int) -> dict[str, float]:
    steplog.install(home=home, durability="process")
    words = random.Random(7)  # text to store, not a secret
    plain = 0
    with LocalProvider(handler=lambda hit: Reply.json(_answer(words, hit.json))) as provider:
        client = openai.OpenAI(base_url=provider.url + "/v1", api_key="none", max_retries=0)
        messages = [{"role": "system", "content": _text(words, 200)}]
        with steplog.run("chat"):
            for _ in range(turns):
                messages.append({"role": "user", "content": _text(words, WORDS_PER_TURN // 2)})
                reply = client.chat.completions.create(model="gpt-4o-mini", messages=messages)
                messages.append({"role": "assistant", "content": reply.choices[0].message.content})
                plain += len(provider.hits.pop().body)
    size = sum(file.stat().st_size for file in home.rglob("*") if file.is_file())
    return {f"chat_{turns}_plain_mb": plain / 1e6, f"chat_{turns}_mb": size / 1e6}


def _text(words: random.Random, count: int) -> str:
    return " ".join(words.choice(_VOCABULARY) for _ in range(count))


def _answer(words: random.Random, request: dict[str, object]) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{words.getrandbits(64):x}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": request["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": _text(words, WORDS_PER_TURN // 2), "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": len(json.dumps(request)) // 4, "completion_tokens": 190, "total_tokens": 200},
    }


_VOCABULARY = (
    "order refund customer parcel damaged delivery address invoice amount please check status account policy item "
    "warehouse carrier claim receipt replacement tracking number reason confirm contact support email message today "
    "tomorrow within days weeks after before because however therefore found missing broken wrong size colour stock"
).split()
