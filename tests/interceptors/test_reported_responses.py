"""What recorders of other makes have broken in the responses and streams of the SDKs, and steplog must not."""

from __future__ import annotations

import asyncio
import logging
import pickle
from typing import Any

import anthropic
import openai
import pytest

import steplog
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    RELEASES,
    answers,
    anthropic_client,
    chat,
    chat_events,
    listed,
    message,
    message_events,
    openai_client,
    perform,
    rate_limited,
    settled,
)
from tests.interceptors.test_calls import HI, SSE_RESPONSE
from tests.support.sdk_calls import describe

both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])

WORDS = [f"word{number} " for number in range(6)]
SSE = {"openai": Reply.sse(chat_events(*WORDS)), "anthropic": Reply.sse(message_events(*WORDS))}
SDKS: dict[str, Any] = {
    "openai": (openai, openai_client, lambda c: c.chat.completions, ASK, chat()),
    "anthropic": (anthropic, anthropic_client, lambda c: c.messages, ASK_CLAUDE, message()),
}
both_sdks = pytest.mark.parametrize("sdk", SDKS)


def in_run(make: Any, use: Any, url: str, *, asynchronous: bool, **options: Any) -> Any:
    """What `use` gives of a client, in the run `r`."""

    async def body() -> Any:
        client = make(url, asynchronous=asynchronous, **options)
        try:
            async with steplog.run("r"):
                return await use(client)
        finally:
            await settled(client.close())

    return perform(body)


def finished(events: Any) -> list[dict[str, Any]]:
    return [event["data"] for event in events() if event["type"] == "step.finished"]


async def next_of(stream: Any) -> Any:
    return await anext(stream) if hasattr(stream, "__anext__") else next(stream)


# raw responses -------------------------------------------------------------------------------------------------------


@both_colours
@both_sdks
def test_a_raw_response_tells_its_headers_request_id_and_retries(sdk, asynchronous, home, offline):
    _, make, resource, ask, answer = SDKS[sdk]
    limits = Reply.json(
        answer, x_ratelimit_remaining_requests="41", x_request_id="req_7", request_id="req_7", retry_after_ms="12"
    )

    async def use(client: Any) -> Any:
        raw = await settled(resource(client).with_raw_response.create(**ask))
        parsed = await settled(raw.parse())
        remaining = raw.headers["x-ratelimit-remaining-requests"]
        told = (type(raw), raw.retries_taken, raw.request_id, remaining, raw.http_version, str(raw.url), raw.method)
        return told, describe(parsed), parsed._request_id, raw.http_response.content

    with LocalProvider(handler=answers(rate_limited(), rate_limited(), limits)) as provider:
        live = in_run(make, use, provider.url, asynchronous=asynchronous, max_retries=2)
        assert live[0][1:4] == (2, "req_7", "41")
        offline(provider)
        assert in_run(make, use, provider.url, asynchronous=asynchronous, max_retries=2) == live


RAW_STREAMS: dict[str, Any] = {
    "chat": (openai_client, lambda c: c.chat.completions.with_raw_response.create(stream=True, **ASK), SSE["openai"]),
    "responses": (openai_client, lambda c: c.responses.with_raw_response.create(stream=True, **HI), SSE_RESPONSE),
    "messages": (
        anthropic_client,
        lambda c: c.messages.with_raw_response.create(stream=True, **ASK_CLAUDE),
        SSE["anthropic"],
    ),
}


@both_colours
@pytest.mark.parametrize("name", RAW_STREAMS)
def test_a_raw_response_of_a_stream_is_parsed_to_the_sdks_own_stream(name, asynchronous, home, offline, events):
    make, call, reply = RAW_STREAMS[name]

    async def use(client: Any) -> Any:
        stream = await settled((await settled(call(client))).parse())
        return type(stream), describe(await listed(stream))

    with LocalProvider(handler=answers(reply)) as provider:
        live = in_run(make, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, use, provider.url, asynchronous=asynchronous) == live
    assert live[0].__module__.split(".")[0] in SDKS
    assert [(data["outcome"], data["exchanges"][0]["end"]) for data in finished(events)] == [("done", "terminal")]


@both_sdks
def test_a_returned_http_response_can_be_pickled(sdk, home, offline):
    _, make, resource, ask, answer = SDKS[sdk]

    async def use(client: Any) -> Any:
        copied = pickle.loads(pickle.dumps(resource(client).with_raw_response.create(**ask).http_response))
        return copied.status_code, copied.content, copied.http_version

    with LocalProvider(handler=answers(answer)) as provider:
        live = in_run(make, use, provider.url, asynchronous=False)
        offline(provider)
        assert in_run(make, use, provider.url, asynchronous=False) == live


@both_colours
@both_sdks
@pytest.mark.parametrize("recorded_as", ["whole", "in pieces"])
def test_an_answer_is_returned_in_the_shape_that_is_asked_for_now(recorded_as, sdk, asynchronous, home, offline):
    _, make, resource, ask, answer = SDKS[sdk]

    async def whole(client: Any) -> Any:
        return describe(await settled(resource(client).create(**ask)))

    async def in_pieces(client: Any) -> Any:
        manager = resource(client).with_streaming_response.create(**ask)
        if asynchronous:
            async with manager as response:
                return describe(await response.parse())
        with manager as response:
            return describe(response.parse())

    first, second = (whole, in_pieces) if recorded_as == "whole" else (in_pieces, whole)
    with LocalProvider(handler=answers(answer)) as provider:
        live = in_run(make, first, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, second, provider.url, asynchronous=asynchronous) == live


# streams -------------------------------------------------------------------------------------------------------------


@both_colours
@both_sdks
def test_a_stream_is_the_sdks_own_and_so_is_what_a_with_statement_gives(sdk, asynchronous, home, offline, events):
    module, make, resource, ask, _ = SDKS[sdk]

    async def use(client: Any) -> Any:
        stream = await settled(resource(client).create(stream=True, **ask))
        assert type(stream) is (module.AsyncStream if asynchronous else module.Stream)
        if asynchronous:
            async with stream as entered:
                items = [item async for item in entered]
        else:
            with stream as entered:
                items = list(entered)
        assert entered is stream
        assert stream.response.is_closed
        return describe(items)

    with LocalProvider(handler=answers(SSE[sdk])) as provider:
        live = in_run(make, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, use, provider.url, asynchronous=asynchronous) == live
    assert [data["exchanges"][0]["end"] for data in finished(events)] == ["terminal"]


@both_colours
@both_sdks
def test_leaving_a_with_statement_closes_the_response(sdk, asynchronous, home, offline):
    _, make, resource, ask, _ = SDKS[sdk]

    async def use(client: Any) -> Any:
        stream = await settled(resource(client).create(stream=True, **ask))
        if asynchronous:
            async with stream:
                first = await next_of(stream)
        else:
            with stream:
                first = await next_of(stream)
        assert stream.response.is_closed
        return describe(first)

    with LocalProvider(handler=answers(SSE[sdk])) as provider:
        live = in_run(make, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, use, provider.url, asynchronous=asynchronous) == live


@both_colours
@both_sdks
def test_iterating_again_goes_on_where_the_first_loop_stopped(sdk, asynchronous, home, offline):
    _, make, resource, ask, _ = SDKS[sdk]

    async def use(client: Any) -> Any:
        stream = await settled(resource(client).create(stream=True, **ask))
        head = [await next_of(stream), await next_of(stream)]
        rest = await listed(stream)
        return describe(head), describe(rest), describe(await listed(stream))

    with LocalProvider(handler=answers(SSE[sdk])) as provider:
        live = in_run(make, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, use, provider.url, asynchronous=asynchronous) == live
    assert len(live[1]) > 2
    assert live[2] == []


@both_colours
@both_sdks
def test_what_drains_a_returned_body_past_its_end_mark_finds_the_end(sdk, asynchronous, home, offline):
    _, make, resource, ask, _ = SDKS[sdk]

    async def read(client: Any) -> None:
        await listed(await settled(resource(client).create(stream=True, **ask)))

    async def drain(client: Any) -> bytes:
        response = (await settled(resource(client).create(stream=True, **ask))).response
        if asynchronous:
            return b"".join([piece async for piece in response.aiter_bytes()])
        return b"".join(response.iter_bytes())

    with LocalProvider(handler=answers(SSE[sdk])) as provider:
        in_run(make, read, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, drain, provider.url, asynchronous=asynchronous) == SSE[sdk].body


@both_sdks
def test_a_stream_may_be_read_in_another_task_than_it_was_opened_in(sdk, home, offline, events):
    _, make, resource, ask, _ = SDKS[sdk]

    async def use(client: Any) -> Any:
        stream = await asyncio.create_task(resource(client).create(stream=True, **ask))
        first = await asyncio.create_task(next_of(stream))
        rest = await asyncio.create_task(listed(stream))
        return describe([first, *rest])

    with LocalProvider(handler=answers(SSE[sdk])) as provider:
        live = in_run(make, use, provider.url, asynchronous=True)
        offline(provider)
        assert in_run(make, use, provider.url, asynchronous=True) == live
    assert [data["outcome"] for data in finished(events)] == ["done"]


@both_sdks
def test_a_return_out_of_an_async_for_leaves_no_complaint(sdk, home, offline, events, caplog, recwarn):
    _, make, resource, ask, _ = SDKS[sdk]
    complaints: list[Any] = []

    async def first_of(client: Any) -> Any:
        async with await resource(client).create(stream=True, **ask) as stream:
            async for item in stream:
                return describe(item)
        return None

    async def use(client: Any) -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        return await first_of(client)

    with caplog.at_level(logging.WARNING), LocalProvider(handler=answers(SSE[sdk])) as provider:
        live = in_run(make, use, provider.url, asynchronous=True)
        offline(provider)
        assert in_run(make, use, provider.url, asynchronous=True) == live
    assert [data["exchanges"][0]["end"] for data in finished(events)] == ["closed_early"]
    assert (complaints, caplog.records, list(recwarn)) == ([], [], [])


# helpers -------------------------------------------------------------------------------------------------------------


async def _text_only(stream: Any) -> Any:
    return await listed(stream.text_stream)


async def _until_done(stream: Any) -> Any:
    await settled(stream.until_done())
    return describe(await settled(stream.get_final_message()))


async def _final_text(stream: Any) -> Any:
    return await settled(stream.get_final_text())


async def _events(stream: Any) -> Any:
    return [event.type for event in await listed(stream)], describe(await settled(stream.get_final_message()))


HELPERS = {"text_stream": _text_only, "until_done": _until_done, "get_final_text": _final_text, "events": _events}


@both_colours
@pytest.mark.parametrize("beta", [False, True], ids=["messages", "beta.messages"])
@pytest.mark.parametrize("helper", HELPERS)
def test_the_helpers_of_an_anthropic_stream_work_and_are_recorded(helper, beta, asynchronous, home, offline, events):
    async def use(client: Any) -> Any:
        manager = (client.beta if beta else client).messages.stream(**ASK_CLAUDE)
        if asynchronous:
            async with manager as stream:
                return await HELPERS[helper](stream)
        with manager as stream:
            return await HELPERS[helper](stream)

    with LocalProvider(handler=answers(SSE["anthropic"])) as provider:
        live = in_run(anthropic_client, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(anthropic_client, use, provider.url, asynchronous=asynchronous) == live
    (data,) = finished(events)
    assert data["usage"] == {"input": 14, "cached": 5, "cache_write": 0, "output": 3, "total": 17}
    assert data["finish"] == "end_turn"


def test_usage_comes_from_the_last_chunk_and_the_request_is_left_alone(home, events):
    with LocalProvider(handler=answers(SSE["openai"])) as provider, steplog.run("r"):
        list(openai_client(provider.url).chat.completions.create(stream=True, **ASK))
        assert provider.hits[0].json == {**ASK, "stream": True}
    assert finished(events)[0]["usage"]["total"] == 12


# a second request while a stream is read -----------------------------------------------------------------------------


def refusing(hit: Hit) -> Reply:
    """An answer of which the first model wants none, and the second one all."""
    if hit.json["model"] != "claude-x":
        return SSE["anthropic"]
    opened, *_, closed = message_events("no").split("\n\n")[:-1]
    refusal = (
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"refusal","stop_sequence":null,'
        '"stop_details":{"type":"refusal","category":null,"explanation":null}},"usage":{"output_tokens":1}}'
    )
    return Reply.sse(f"{opened}\n\n{refusal}\n\n{closed}\n\n")


@both_colours
def test_a_fallback_that_is_asked_while_the_stream_is_read_is_recorded(asynchronous, home, offline, events):
    if not hasattr(anthropic, "BetaRefusalFallbackMiddleware"):
        pytest.skip(f"{RELEASES} has no fallback middleware")

    async def use(client: Any) -> Any:
        client = client.with_middleware(anthropic.BetaRefusalFallbackMiddleware([{"model": "claude-y"}]))
        stream = await settled(client.beta.messages.create(stream=True, **ASK_CLAUDE))
        with anthropic.BetaFallbackState():
            return describe(await listed(stream))

    with LocalProvider(handler=refusing) as provider:
        live = in_run(anthropic_client, use, provider.url, asynchronous=asynchronous)
        assert [hit.json["model"] for hit in provider.hits] == ["claude-x", "claude-y"]
        offline(provider)
        assert in_run(anthropic_client, use, provider.url, asynchronous=asynchronous) == live
    assert [data["outcome"] for data in finished(events)] == ["done", "done"]
