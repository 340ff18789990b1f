"""The ways in which programs call the SDKs: each records, and each is returned from the log."""

from __future__ import annotations

import inspect
import json
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

import steplog
from steplog.testing import LocalProvider
from steplog.testing.provider import Reply
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    answers,
    anthropic_client,
    chat,
    chat_events,
    listed,
    message,
    message_events,
    openai_client,
    perform,
    settled,
)
from tests.support.sdk_calls import describe


class Weather(BaseModel):
    city: str
    degrees: int


FORECAST = '{"city":"Oslo","degrees":-3}'
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "gpt-x-2026",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": FORECAST, "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 9,
        "output_tokens": 3,
        "total_tokens": 12,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 2},
    },
}
EMBEDDING = {
    "object": "list",
    "model": "embed-x",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}],
    "usage": {"prompt_tokens": 2, "total_tokens": 2},
}
RESPONSE_EVENTS = [
    {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "status": "in_progress", "output": []}},
    {
        "type": "response.output_item.added",
        "sequence_number": 1,
        "output_index": 0,
        "item": {**RESPONSE["output"][0], "content": []},
    },
    {
        "type": "response.content_part.added",
        "sequence_number": 2,
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "part": {"type": "output_text", "text": "", "annotations": []},
    },
    {
        "type": "response.output_text.delta",
        "sequence_number": 3,
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": FORECAST,
        "logprobs": [],
    },
    {"type": "response.completed", "sequence_number": 4, "response": RESPONSE},
]


async def entered(manager: Any, use: Any) -> Any:
    """Use what a context manager of either colour gives."""
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            return await use(value)
    with manager as value:
        return await use(value)


async def all_of(stream: Any) -> Any:
    return describe(await listed(stream))


async def raw_facts(raw: Any) -> Any:
    return (type(raw).__qualname__, raw.status_code, sorted(raw.headers.items()), describe(await settled(raw.parse())))


async def raw_bytes(raw: Any) -> Any:
    pieces = raw.iter_bytes()
    return b"".join([piece async for piece in pieces] if hasattr(pieces, "__aiter__") else list(pieces))


async def chat_helper(stream: Any) -> Any:
    events = await listed(stream)
    return [event.type for event in events], describe(await settled(stream.get_final_completion()))


async def responses_helper(stream: Any) -> Any:
    events = await listed(stream)
    return [event.type for event in events], describe(await settled(stream.get_final_response()))


async def final_message(stream: Any) -> Any:
    return describe(await settled(stream.get_final_message()))


async def text_stream(stream: Any) -> Any:
    return await listed(stream.text_stream)


async def value(awaited: Any) -> Any:
    return describe(await settled(awaited))


HI = {"model": "gpt-x", "input": "hi"}
SSE_CHAT = Reply.sse(chat_events("a", "b"))
SSE_MESSAGE = Reply.sse(message_events("a", "b"))
SSE_RESPONSE = Reply.sse("".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in RESPONSE_EVENTS))

# name: (client, answer, how it is called)
CALLS: dict[str, Any] = {
    "chat": (openai_client, chat(), lambda c: value(c.chat.completions.create(**ASK))),
    "chat parse": (
        openai_client,
        chat(FORECAST),
        lambda c: value(c.chat.completions.parse(response_format=Weather, **ASK)),
    ),
    "chat raw": (openai_client, chat(), lambda c: _raw(c.chat.completions.with_raw_response.create(**ASK))),
    "chat streaming response": (
        openai_client,
        chat(),
        lambda c: entered(c.chat.completions.with_streaming_response.create(**ASK), raw_facts),
    ),
    "chat streaming response, bytes": (
        openai_client,
        chat(),
        lambda c: entered(c.chat.completions.with_streaming_response.create(**ASK), raw_bytes),
    ),
    "chat stream": (openai_client, SSE_CHAT, lambda c: _stream(c.chat.completions.create(stream=True, **ASK))),
    "chat stream raw": (
        openai_client,
        SSE_CHAT,
        lambda c: _raw_stream(c.chat.completions.with_raw_response.create(stream=True, **ASK)),
    ),
    "chat stream helper": (
        openai_client,
        SSE_CHAT,
        lambda c: entered(c.chat.completions.stream(**ASK), chat_helper),
    ),
    "responses": (openai_client, RESPONSE, lambda c: value(c.responses.create(**HI))),
    "responses parse": (openai_client, RESPONSE, lambda c: value(c.responses.parse(text_format=Weather, **HI))),
    "responses raw": (openai_client, RESPONSE, lambda c: _raw(c.responses.with_raw_response.create(**HI))),
    "responses stream": (openai_client, SSE_RESPONSE, lambda c: _stream(c.responses.create(stream=True, **HI))),
    "responses stream helper": (
        openai_client,
        SSE_RESPONSE,
        lambda c: entered(c.responses.stream(text_format=Weather, **HI), responses_helper),
    ),
    "embeddings": (
        openai_client,
        EMBEDDING,
        lambda c: value(c.embeddings.create(model="embed-x", input="hi", encoding_format="float")),
    ),
    "messages": (anthropic_client, message(), lambda c: value(c.messages.create(**ASK_CLAUDE))),
    "messages raw": (anthropic_client, message(), lambda c: _raw(c.messages.with_raw_response.create(**ASK_CLAUDE))),
    "messages parse": (
        anthropic_client,
        message(FORECAST),
        lambda c: value(c.messages.parse(output_format=Weather, **ASK_CLAUDE)),
    ),
    "messages stream": (anthropic_client, SSE_MESSAGE, lambda c: _stream(c.messages.create(stream=True, **ASK_CLAUDE))),
    "messages stream helper": (
        anthropic_client,
        SSE_MESSAGE,
        lambda c: entered(c.messages.stream(**ASK_CLAUDE), final_message),
    ),
    "messages text stream": (
        anthropic_client,
        SSE_MESSAGE,
        lambda c: entered(c.messages.stream(**ASK_CLAUDE), text_stream),
    ),
    "messages streaming response": (
        anthropic_client,
        message(),
        lambda c: entered(c.messages.with_streaming_response.create(**ASK_CLAUDE), raw_facts),
    ),
    "beta messages": (
        anthropic_client,
        message(),
        lambda c: value(c.beta.messages.create(betas=["some-beta"], **ASK_CLAUDE)),
    ),
    "beta messages stream": (
        anthropic_client,
        SSE_MESSAGE,
        lambda c: entered(c.beta.messages.stream(**ASK_CLAUDE), final_message),
    ),
    "count tokens": (
        anthropic_client,
        {"input_tokens": 7},
        lambda c: value(c.messages.count_tokens(model="claude-x", messages=ASK_CLAUDE["messages"])),
    ),
}


async def _raw(awaited: Any) -> Any:
    return await raw_facts(await settled(awaited))


async def _stream(awaited: Any) -> Any:
    return await all_of(await settled(awaited))


async def _raw_stream(awaited: Any) -> Any:
    raw = await settled(awaited)
    return raw.status_code, await all_of(await settled(raw.parse()))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_returned_as_it_was(name, asynchronous, home, offline, events):
    make, answer, use = CALLS[name]

    def program() -> Any:
        async def body() -> Any:
            client = make(provider.url, asynchronous=asynchronous)
            if not callable(_method(client, name)):
                pytest.skip(f"openai {openai.__version__}, anthropic {anthropic.__version__}: no {name}")
            async with steplog.run("r"):
                described = await use(client)
            await settled(client.close())
            return described

        return perform(body)

    with LocalProvider(handler=answers(answer)) as provider:
        live = program()
        assert len(provider.hits) == 1
        offline(provider)
        assert program() == live
    finished = [event["data"] for event in events() if event["type"] == "step.finished"]
    assert [data["outcome"] for data in finished] == ["done"]


def _method(client: Any, name: str) -> Any:
    """The method that newer releases added, where a case needs one."""
    needed = {"messages parse": ("messages", "parse"), "responses parse": ("responses", "parse")}
    node = client
    for part in needed.get(name, ()):
        node = getattr(node, part, None)
    return node if node is not client else client.close


def test_what_the_log_says_about_a_model_call(home, events):
    with LocalProvider(handler=answers(Reply.json(chat(), x_request_id="req_1"))) as provider, steplog.run("r"):
        openai_client(provider.url).chat.completions.create(temperature=0.5, **ASK)
    started, finished = (event["data"] for event in events()[2:4])
    assert started["target"] == "gpt-x"
    assert started["mode"] == "safe"
    assert started["request"]["params"] == {"messages": 1, "temperature": 0.5}
    assert started["request"]["body"]["json"]["messages"] == ASK["messages"]
    assert started["request"]["sdk_version"] == openai.__version__
    assert finished["model"] == "gpt-x-2026"
    assert finished["usage"] == {"input": 9, "output": 3, "cached": 4, "total": 12}
    assert (finished["finish"], finished["request_id"], finished["status"], finished["parse"]) == (
        "stop",
        "req_1",
        200,
        "ok",
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_returned_response_says_how_long_the_recorded_one_took(stream, home, offline):
    def program() -> float:
        with steplog.run("r"):
            raw = openai_client(provider.url).chat.completions.with_raw_response.create(stream=stream, **ASK)
            if stream:
                list(raw.parse())
            return raw.elapsed.total_seconds()

    with LocalProvider(handler=answers(SSE_CHAT if stream else chat())) as provider:
        assert program() > 0
        offline(provider)
        assert program() > 0


def test_beta_features_that_a_call_asks_for_are_named(home, events):
    with LocalProvider(handler=answers(message())) as provider, steplog.run("r"):
        anthropic_client(provider.url).beta.messages.create(betas=["one-beta", "two-beta"], **ASK_CLAUDE)
    assert events()[2]["data"]["request"]["anthropic-beta"] == "one-beta,two-beta"


def test_cached_tokens_of_anthropic_count_as_input_like_everywhere_else(home, events):
    with LocalProvider(handler=answers(SSE_MESSAGE)) as provider, steplog.run("r"):
        list(anthropic_client(provider.url).messages.create(stream=True, **ASK_CLAUDE))
    finished = events()[3]["data"]
    assert finished["usage"] == {"input": 14, "cached": 5, "cache_write": 0, "output": 3, "total": 17}
    assert (finished["model"], finished["finish"]) == ("claude-x", "end_turn")


def test_one_shot_arguments_reach_the_provider_whole(home):
    with LocalProvider(handler=answers(message())) as provider, steplog.run("r"):
        anthropic_client(provider.url).messages.create(
            model="claude-x", max_tokens=1, messages=(m for m in ASK_CLAUDE["messages"])
        )
        assert provider.hits[0].json["messages"] == ASK_CLAUDE["messages"]


def test_the_methods_of_the_sdk_keep_their_signatures(home):
    assert list(inspect.signature(openai.OpenAI.request).parameters) == [
        "self", "cast_to", "options", "stream", "stream_cls",
    ]  # fmt: skip
    assert inspect.iscoroutinefunction(openai.AsyncOpenAI.request)
    assert not inspect.iscoroutinefunction(openai.OpenAI.request)


@pytest.mark.parametrize(
    "call,mode",
    [
        (lambda c: c.responses.create(**HI), "safe"),
        (lambda c: c.responses.create(conversation="conv_1", **HI), "unsafe"),
        (lambda c: c.responses.create(background=True, **HI), "unsafe"),
        (lambda c: c.responses.retrieve("resp_1"), "safe"),
        (lambda c: c.responses.cancel("resp_1"), "unsafe"),
        (lambda c: c.models.delete("ft:gpt-x-1"), "unsafe"),
        (lambda c: c.files.create(file=("a.txt", b"abc"), purpose="batch"), "unsafe"),
    ],
    ids=["inference", "in a conversation", "in the background", "read", "cancel", "delete", "upload"],
)
def test_only_calls_that_change_nothing_may_be_repeated(call, mode, home, events):
    with LocalProvider(handler=answers({"id": "x", "object": "x"})) as provider, steplog.run("r"):
        call(openai_client(provider.url))
    assert events()[2]["data"]["mode"] == mode


def test_a_call_without_a_model_is_named_by_its_path(home, events):
    with LocalProvider(handler=answers({"id": "resp_1", "object": "response"})) as provider, steplog.run("r"):
        openai_client(provider.url).responses.cancel("resp_67ccd3acc8d48190a77525dc6de64b4104becb25")
    assert events()[2]["data"]["target"] == "POST /v1/responses/{id}/cancel"


def test_an_upload_is_recognised_again_in_spite_of_its_random_boundary(home, offline):
    def upload(url: str) -> Any:
        with steplog.run("r"):
            return openai_client(url).files.create(file=("a.bin", bytes(range(256)) * 64), purpose="batch")

    with LocalProvider(handler=answers({"id": "file-1", "object": "file"})) as provider:
        live = upload(provider.url)
        assert len(provider.hits[0].body) > 16384
        offline(provider)
        assert upload(provider.url) == live
