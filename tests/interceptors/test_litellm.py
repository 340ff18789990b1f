"""litellm, which reaches most providers by HTTP clients of its own: nothing of it is patched."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from tests.interceptors.support import chat, message, message_events
from tests.support.processes import environment

pytestmark = pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is not installed")

PROGRAM = """
import asyncio, json, sys
import steplog
steplog.install(home=sys.argv[1], durability="process", strict=True, also=["uuid"])
import litellm

url = sys.argv[2]
asked = [{"role": "user", "content": "hi"}]
key = {"api_key": "k"}
tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def gemini(messages):
    where = url + "/models/gemini-1.5-pro"
    return litellm.completion(model="gemini/gemini-1.5-pro", messages=messages, api_base=where, tools=tools, **key)


def text(answer):
    return answer.choices[0].message.content


def agent():
    claude = {"model": "anthropic/claude-3-5-sonnet-20240620", "api_base": url, **key}
    yield text(litellm.completion(messages=asked, **claude))
    yield [chunk.choices[0].delta.content for chunk in litellm.completion(messages=asked, stream=True, **claude)]
    yield text(asyncio.run(litellm.acompletion(messages=[*asked, *asked], **claude)))
    yield text(litellm.completion(model="openai/gpt-4o", messages=asked, api_base=url + "/v1", **key))
    called = gemini(asked).choices[0].message
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "found"}
    yield called.tool_calls[0].id
    yield text(gemini([*asked, called.model_dump(), result]))


with steplog.run("r") as run:
    answers = list(agent())
print(json.dumps({"answers": answers, "replayed": run.replayed, "executed": run.executed}))
"""

CALL = {"functionCall": {"name": "look", "args": {}}}


def provider_of_all(hit: Hit) -> Reply:
    if "messages" in hit.path:
        return Reply.sse(message_events("a", "b")) if hit.json.get("stream") else Reply.json(message())
    if "generateContent" in hit.path:
        part = {"text": "done"} if "found" in hit.body.decode() else CALL
        content = {"role": "model", "parts": [part]}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return Reply.json({"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage})
    return Reply.json(chat())


def test_calls_are_recorded_and_returned_without_a_provider(tmp_path: Path) -> None:
    def program() -> dict[str, Any]:
        words = [sys.executable, "-c", PROGRAM, str(tmp_path / "home"), provider.url]
        env = environment(LITELLM_LOCAL_MODEL_COST_MAP="True")
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    with LocalProvider(handler=provider_of_all) as provider:
        live = program()
        assert len(provider.hits) == 6
    returned = program()
    assert returned["answers"] == live["answers"]
    assert (live["replayed"], returned["executed"]) == (0, 0)
    assert live["answers"][-1] == "done"
