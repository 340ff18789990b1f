"""The SDKs' own helpers over streams (`.stream()`, text, events, final objects, raw lines), replayed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import steplog
from steplog.testing import LocalProvider
from steplog.testing.provider import Reply
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    answers,
    anthropic_client,
    chat_events,
    message_events,
    openai_client,
    perform,
    settled,
)
from tests.support.sdk_calls import describe

WORDS = ("one ", "two ", "three")
Use = Callable[[Any, int | None], Awaitable[Any]]


def response_events() -> str:
    """The events of a streamed response, as the helper of the SDK needs them."""
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-x", "error": None, "tools": []}
    rest = {"incomplete_details": None, "parallel_tool_calls": True, "tool_choice": "auto", "metadata": {}}
    begun = {**head, **rest, "status": "in_progress", "output": []}
    text = {"type": "output_text", "text": "".join(WORDS), "annotations": [], "logprobs": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.content_part.added", "part": {**text, "text": ""}, **place},
        *({"type": "response.output_text.delta", "delta": word, "logprobs": [], **place} for word in WORDS),
        {"type": "response.output_text.done", "text": "".join(WORDS), "logprobs": [], **place},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {**begun, "status": "completed", "output": [item]}},
    ]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in numbered)


async def take(stream: Any, count: int | None) -> list[Any]:
    """The first items, or all."""
    found: list[Any] = []
    if hasattr(stream, "__aiter__"):
        async for item in stream:
            found.append(item)
            if len(found) == count:
                break
    else:
        for item in stream:
            found.append(item)
            if len(found) == count:
                break
    return found


async def within(manager: Any, use: Callable[[Any], Awaitable[Any]]) -> Any:
    """Use what a manager of either colour gives."""
    if hasattr(manager, "__aenter__"):
        async with manager as opened:
            return await use(opened)
    with manager as opened:
        return await use(opened)


async def chat_helper(client: Any, count: int | None) -> Any:
    async def use(stream: Any) -> Any:
        found = await take(stream, count)
        final = None if count else describe(await settled(stream.get_final_completion()))
        return [event.type for event in found], final

    return await within(client.chat.completions.stream(**ASK), use)


async def responses_helper(client: Any, count: int | None) -> Any:
    async def use(stream: Any) -> Any:
        found = await take(stream, count)
        return describe(found), None if count else describe(await settled(stream.get_final_response()))

    return await within(client.responses.stream(model="gpt-x", input="hi"), use)


async def messages_text(client: Any, count: int | None) -> Any:
    async def use(stream: Any) -> Any:
        found = await take(stream.text_stream, count)
        return found, None if count else describe(await settled(stream.get_final_message()))

    return await within(client.messages.stream(**ASK_CLAUDE), use)


async def messages_events(client: Any, count: int | None) -> Any:
    async def use(stream: Any) -> Any:
        found = await take(stream, count)
        if not count:
            await settled(stream.until_done())
        return describe(found)

    return await within(client.messages.stream(**ASK_CLAUDE), use)


async def raw_lines(client: Any, count: int | None) -> Any:
    async def use(response: Any) -> Any:
        return await take(response.iter_lines(), count)

    return await within(client.chat.completions.with_streaming_response.create(stream=True, **ASK), use)


async def raw_parsed(client: Any, count: int | None) -> Any:
    raw = await settled(client.chat.completions.with_raw_response.create(stream=True, **ASK))
    stream = await settled(raw.parse())
    found = await take(stream, count)
    await settled(stream.close())
    return describe(found)


HELPERS: dict[str, tuple[Any, Use, Reply]] = {
    "chat": (openai_client, chat_helper, Reply.sse(chat_events(*WORDS))),
    "responses": (openai_client, responses_helper, Reply.sse(response_events())),
    "messages, text": (anthropic_client, messages_text, Reply.sse(message_events(*WORDS))),
    "messages, events": (anthropic_client, messages_events, Reply.sse(message_events(*WORDS))),
    "raw lines": (openai_client, raw_lines, Reply.sse(chat_events(*WORDS))),
    "raw, parsed": (openai_client, raw_parsed, Reply.sse(chat_events(*WORDS))),
}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("count", [None, 2], ids=["whole", "left early"])
@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_gives_again_what_it_gave(name, count, asynchronous, home, events, offline):
    make, use, reply = HELPERS[name]

    async def body() -> Any:
        client = make(provider.url, asynchronous=asynchronous)
        try:
            async with steplog.run("r"):
                return await use(client, count)
        finally:
            await settled(client.close())

    with LocalProvider(handler=answers(reply)) as provider:
        live = perform(body)
        offline(provider)
        assert perform(body) == live
    finished = [event["data"] for event in events() if event["type"] == "step.finished"]
    assert [step["outcome"] for step in finished] == ["done"]
    assert finished[0]["exchanges"][0]["end"] == ("closed_early" if count else "terminal")
