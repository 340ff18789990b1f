"""One agent that speaks both SDKs in most of the ways there are, for logs that outlive a release.

`python -m tests.matrix.agent NAME` records it into tests/golden/sdk-NAME with the SDKs of the environment it runs in.
What it returns is said in words that every release can say: texts, counts, class names, never an SDK's own dump.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import anthropic
import openai
from pydantic import BaseModel

import steplog
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    anthropic_client,
    chat,
    chat_events,
    listed,
    message,
    message_events,
    openai_client,
    rate_limited,
    settled,
)

LOGS = Path(__file__).parents[1] / "golden"
RUN = "golden"
FORECAST = '{"city":"Oslo","degrees":-3}'
# Longer than what a log keeps in its lines, so that a recording has a body store.
LONG = "All work and no play makes a dull agent. " * 120


class Weather(BaseModel):
    """What a parsed answer holds."""

    city: str
    degrees: int


def provider() -> LocalProvider:
    """The provider of the recording."""
    turns = {"n": 0}

    def answer(hit: Hit) -> Reply:
        body = hit.json or {}
        asked = json.dumps(body)
        if "again" in asked:
            turns["n"] += 1
            if turns["n"] % 2:
                return rate_limited()
        if "refuse" in asked:
            return Reply.json({"error": {"message": "no such model", "type": "invalid_request_error"}}, 404)
        if hit.path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}]
            return Reply.json({"object": "list", "model": "embed-x", "data": data, "usage": {"prompt_tokens": 2}})
        if "/messages" in hit.path:
            return Reply.sse(message_events("a", "b")) if body.get("stream") else Reply.json(message(LONG))
        if body.get("stream"):
            return Reply.sse(chat_events("a", "b"))
        return Reply.json(chat(FORECAST), x_request_id="req_golden")

    return LocalProvider(handler=answer)


async def converse(url: str, *, asynchronous: bool) -> dict[str, Any]:
    """Make every call once, in clients of one colour, and say what came back."""
    gpt = openai_client(url, asynchronous=asynchronous, max_retries=1)
    claude = anthropic_client(url, asynchronous=asynchronous, max_retries=1)
    try:
        return await _openai(gpt) | await _anthropic(claude)
    finally:
        await settled(gpt.close())
        await settled(claude.close())


async def _openai(client: Any) -> dict[str, Any]:
    said: dict[str, Any] = {}
    whole = await settled(client.chat.completions.create(**ASK))
    said["chat"] = [whole.id, whole.choices[0].message.content, whole.usage.total_tokens, type(whole).__name__]
    chunks = await listed(await settled(client.chat.completions.create(stream=True, **ASK)))
    said["chat stream"] = [c.choices[0].delta.content if c.choices else None for c in chunks]
    raw = await settled(client.chat.completions.with_raw_response.create(temperature=0.5, **ASK))
    said["chat raw"] = [raw.headers["x-request-id"], raw.parse().choices[0].finish_reason, raw.retries_taken]
    parsed = await settled(client.chat.completions.parse(response_format=Weather, **ASK))
    said["chat parse"] = parsed.choices[0].message.parsed.model_dump()
    again = {"model": "gpt-x", "messages": [{"role": "user", "content": "again"}]}
    tried = await settled(client.chat.completions.with_raw_response.create(**again))
    said["chat tried twice"] = [tried.status_code, tried.retries_taken]
    vectors = await settled(client.embeddings.create(model="embed-x", input="hi", encoding_format="float"))
    said["embeddings"] = vectors.data[0].embedding
    try:
        await settled(client.chat.completions.create(model="refuse", messages=ASK["messages"]))
    except openai.APIStatusError as error:
        said["chat refused"] = [type(error).__name__, error.status_code, "no such model" in str(error)]
    return said


async def _anthropic(client: Any) -> dict[str, Any]:
    said: dict[str, Any] = {}
    whole = await settled(client.messages.create(**ASK_CLAUDE))
    said["message"] = [whole.id, whole.content[0].text == LONG, whole.usage.output_tokens, whole.stop_reason]
    events = await listed(await settled(client.messages.create(stream=True, **ASK_CLAUDE)))
    said["message stream"] = [event.type for event in events]
    beta = await settled(client.beta.messages.create(betas=["some-beta"], **ASK_CLAUDE))
    said["beta message"] = len(beta.content[0].text)
    try:
        await settled(client.messages.create(model="refuse", max_tokens=1, messages=ASK_CLAUDE["messages"]))
    except anthropic.APIStatusError as error:
        said["message refused"] = [type(error).__name__, error.status_code]
    return said


def perform(url: str, *, asynchronous: bool) -> dict[str, Any]:
    """The agent, in its run."""

    async def body() -> dict[str, Any]:
        async with steplog.run(f"{RUN}-{'async' if asynchronous else 'sync'}"):
            return await converse(url, asynchronous=asynchronous)

    return asyncio.run(body())


def record(name: str) -> None:
    """Write the log of both colours, and what the agent said."""
    folder = LOGS / f"sdk-{name}"
    home = folder / "home"
    folder.mkdir()  # a golden log is never written again
    steplog.install(home=home, durability="process")
    with provider() as server:
        said = {colour: perform(server.url, asynchronous=colour == "async") for colour in ("sync", "async")}
    steplog.uninstall()
    assert said["sync"] == said["async"]
    versions = {"openai": openai.__version__, "anthropic": anthropic.__version__}
    (folder / "said.json").write_text(json.dumps({"sdks": versions, "said": said["sync"]}, indent=1) + "\n")


if __name__ == "__main__":
    record(sys.argv[1])
