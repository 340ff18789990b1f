"""What recorders of other makes have broken around the call: requests, patches, loggers, readers that go away."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import itertools
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

import steplog
from steplog.errors import Interrupt, RunStopped
from steplog.testing import LocalProvider
from steplog.testing._rig import everything_in
from steplog.testing.provider import Fault, Reply
from steplog_interceptors import anthropic as anthropic_interceptor
from steplog_interceptors import openai as openai_interceptor
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    KEY,
    answers,
    anthropic_client,
    chat,
    chat_events,
    chunk_lengths,
    echo,
    http_of,
    listed,
    message,
    message_events,
    open_records,
    openai_client,
    perform,
    settled,
)
from tests.support.sdk_calls import describe

both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])

WORDS = ("first ", "second ", "third ")
SDKS: dict[str, Any] = {
    "openai": (openai_client, lambda c, **o: c.chat.completions.create(**ASK, **o), chat(), chat_events(*WORDS)),
    "anthropic": (
        anthropic_client,
        lambda c, **o: c.messages.create(**ASK_CLAUDE, **o),
        message(),
        message_events(*WORDS),
    ),
}
both_sdks = pytest.mark.parametrize("sdk", SDKS)


def steps(events: Any, kind: str = "step.finished") -> list[dict[str, Any]]:
    return [event["data"] for event in events() if event["type"] == kind]


def in_run(make: Any, use: Any, url: str, *, asynchronous: bool) -> Any:
    """What `use` gives of a client, in the run `r`."""

    async def body() -> Any:
        client = make(url, asynchronous=asynchronous)
        try:
            async with steplog.run("r"):
                return await use(client)
        finally:
            await settled(client.close())

    return perform(body)


# requests ------------------------------------------------------------------------------------------------------------


@both_sdks
def test_arguments_that_were_not_given_are_not_in_the_request(sdk, home, events):
    make, create, answer, _ = SDKS[sdk]
    module = openai if sdk == "openai" else anthropic
    names = ("temperature", "stop") if sdk == "openai" else ("system", "stop_sequences")
    absent = dict(zip(names, (module.NOT_GIVEN, getattr(module, "omit", module.NOT_GIVEN)), strict=True))
    with LocalProvider(handler=answers(answer)) as provider, steplog.run("r"):
        client = make(provider.url)
        create(client, **absent)
        sent = provider.hits[0].json
    (started,) = steps(events, "step.started")
    assert started["request"]["body"]["json"] == sent
    assert sent.keys() == (ASK if sdk == "openai" else ASK_CLAUDE).keys()
    assert started["request"]["params"].keys() & absent.keys() == set()


class Weather(BaseModel):
    city: str


@both_colours
def test_a_model_class_as_response_format_is_stored_as_its_schema(asynchronous, home, events):
    async def use(client: Any) -> Any:
        return await settled(client.chat.completions.parse(response_format=Weather, **ASK))

    with LocalProvider(handler=answers(chat('{"city":"Oslo"}'))) as provider:
        answer = in_run(openai_client, use, provider.url, asynchronous=asynchronous)
        (started,) = steps(events, "step.started")
        assert started["request"]["body"]["json"] == provider.hits[0].json
    assert answer.choices[0].message.parsed == Weather(city="Oslo")
    assert started["request"]["body"]["json"]["response_format"]["json_schema"]["name"] == "Weather"


ONE_SHOT: dict[str, Any] = {
    "openai": lambda c: c.chat.completions.create(
        model="gpt-x",
        messages=(m for m in ASK["messages"]),
        tools=(t for t in [{"type": "function", "function": {"name": "look", "parameters": {}}}]),
    ),
    "anthropic": lambda c: c.messages.create(
        model="claude-x",
        max_tokens=9,
        messages=(m for m in ASK_CLAUDE["messages"]),
        tools=iter([{"name": "look", "input_schema": {"type": "object"}}]),
    ),
}


@both_colours
@both_sdks
def test_generators_in_a_request_are_used_up_once_by_the_sdk(sdk, asynchronous, home, offline):
    make, _, answer, _ = SDKS[sdk]

    async def use(client: Any) -> Any:
        return describe(await settled(ONE_SHOT[sdk](client)))

    with LocalProvider(handler=answers(answer)) as provider:
        live = in_run(make, use, provider.url, asynchronous=asynchronous)
        assert len(provider.hits[0].json["messages"]) == len(provider.hits[0].json["tools"]) == 1
        offline(provider)
        assert in_run(make, use, provider.url, asynchronous=asynchronous) == live


def test_forty_calls_in_threads_get_their_own_answers_in_any_order(home, offline):
    def program(prompts: list[str]) -> dict[str, str]:
        with steplog.run("r"), openai_client(provider.url) as client, ThreadPoolExecutor(8) as pool:

            def ask(prompt: str) -> str:
                messages = [{"role": "user", "content": prompt}]
                return client.chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content

            return dict(zip(prompts, pool.map(ask, prompts), strict=True))

    prompts = [f"question {number}" for number in range(40)]
    with LocalProvider(handler=echo) as provider:
        live = program(prompts)
        assert live == {prompt: f"echo {prompt}" for prompt in prompts}
        offline(provider)
        assert program(prompts[::-1]) == live


# what is not to be noticed -------------------------------------------------------------------------------------------


@both_sdks
def test_clients_and_their_methods_are_the_sdks_own(sdk, home):
    module = openai if sdk == "openai" else anthropic
    kinds = (module.OpenAI, module.AsyncOpenAI) if sdk == "openai" else (module.Anthropic, module.AsyncAnthropic)
    for kind in kinds:
        client = kind(api_key=KEY)
        assert type(client) is kind
        assert type(copy.copy(client)) is kind
        create = client.chat.completions.create if sdk == "openai" else client.messages.create
        bare = inspect.unwrap(create.__func__)
        assert inspect.iscoroutinefunction(bare) == kind.__name__.startswith("Async")
        assert not hasattr(create, "__steplog_patch__")
        assert "model" in inspect.signature(create).parameters


def test_no_key_gets_into_the_log_or_its_logger(home, caplog):
    key, other = KEY.replace("test", "proj") + "9", "ant-plain-words-that-no-rule-knows"
    failing = Reply.json({"error": {"message": "no", "type": "invalid_request_error"}}, 400)
    caplog.set_level(logging.DEBUG, logger="steplog")
    with LocalProvider(handler=answers(chat())) as provider:
        provider.inject(Fault("status", status=429), Fault("drop", hit=3))
        with steplog.run("r"):
            openai_client(provider.url, api_key=key, max_retries=1).chat.completions.create(**ASK)
            with pytest.raises(openai.APIConnectionError):
                openai_client(provider.url, api_key=key).chat.completions.create(**ASK)
        with pytest.raises(RunStopped), steplog.run("r"):
            openai_client(provider.url, api_key=key).embeddings.create(model="x", input="drift")
    with (
        LocalProvider(handler=answers(failing)) as provider,
        pytest.raises(anthropic.BadRequestError),
        steplog.run("s"),
    ):
        anthropic_client(provider.url, api_key=other).messages.create(**ASK_CLAUDE)
    kept = everything_in(home)
    assert b"/v1/chat/completions" in kept
    assert caplog.records
    for secret in (key, other):
        assert secret.encode() not in kept
        assert secret not in caplog.text


# other tools on the same method --------------------------------------------------------------------------------------


class Tracer:
    """Another tool that wraps the method that steplog patches, as tracing tools do."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name
        self.seen = 0
        self.original: Any = None

    def install(self) -> None:
        original = self.original = vars(self.owner)[self.name]

        @functools.wraps(original)
        def traced(*args: Any, **kwargs: Any) -> Any:
            self.seen += 1
            return original(*args, **kwargs)

        setattr(self.owner, self.name, traced)

    def uninstall(self) -> None:
        setattr(self.owner, self.name, self.original)


PLACES = {
    "request": (openai.OpenAI.__mro__[1], "request"),
    "send": (http_of(openai).Client, "send"),
    "create": (openai.resources.chat.completions.Completions, "create"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("order", list(itertools.product(["ours first", "theirs first"], repeat=2)), ids="-".join)
def test_another_tool_on_the_same_method_comes_and_goes_in_any_order(order, place, home, events):
    openai_interceptor.interceptor.uninstall()
    anthropic_interceptor.interceptor.uninstall()
    owner, name = PLACES[place]
    bare = vars(owner)[name]
    tracer = Tracer(owner, name)
    tools = [openai_interceptor.interceptor, tracer]
    try:
        for tool in tools if order[0] == "ours first" else tools[::-1]:
            tool.install()
        with LocalProvider(handler=answers(chat())) as provider, openai_client(provider.url) as client:
            for _ in range(2):
                with steplog.run("both"):
                    client.chat.completions.create(**ASK)
            assert len(provider.hits) == 1
            assert tracer.seen >= 1
            for tool in tools if order[1] == "ours first" else tools[::-1]:
                tool.uninstall()
            with steplog.run("none"):
                client.chat.completions.create(**ASK)
            assert len(provider.hits) == 2
    finally:
        setattr(owner, name, bare)
    assert [event["type"] for event in events("both") if event["type"].startswith("step.")] == [
        "step.started",
        "step.finished",
    ]
    assert not [event for event in events("none") if event["type"].startswith("step.")]


# readers that go away ------------------------------------------------------------------------------------------------


@both_sdks
def test_a_stream_that_is_collected_in_another_thread_is_concluded(sdk, home, events, monkeypatch):
    make, create, _, sse = SDKS[sdk]
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)

    def read_a_little(client: Any) -> None:
        stream = create(client, stream=True)
        next(stream)
        cycle = [stream]
        cycle.append(cycle)  # so that only the collector frees it

    with LocalProvider(handler=answers(Reply.sse(sse))) as provider, steplog.run("r"):
        client = make(provider.url)
        gc.disable()
        try:
            read_a_little(client)
            elsewhere = threading.Thread(target=gc.collect)
            elsewhere.start()
            elsewhere.join()
        finally:
            gc.enable()
        list(create(client, stream=True))
    first, second = steps(events)
    assert (first["exchanges"][0]["end"] in ("closed_early", "abandoned"), second["exchanges"][0]["end"]) == (
        True,
        "terminal",
    )
    assert complaints == []


@both_colours
@both_sdks
def test_a_stream_that_is_dropped_keeps_what_was_read_of_it(sdk, asynchronous, home, offline, events):
    make, create, _, sse = SDKS[sdk]

    async def use(client: Any) -> Any:
        stream = await settled(create(client, stream=True))
        found = [await anext(stream) if asynchronous else next(stream) for _ in range(2)]
        response = stream.response
        del stream
        gc.collect()
        if asynchronous:
            await response.aclose()  # the SDK itself leaves that to whoever drops an async stream
        return describe(found)

    with LocalProvider(handler=answers(Reply.sse(sse))) as provider:
        live = in_run(make, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, use, provider.url, asynchronous=asynchronous) == live
    assert len(chunk_lengths(events)) == 2


@both_colours
@both_sdks
def test_a_stream_that_is_dropped_unread_is_recorded_as_abandoned(sdk, asynchronous, home, offline, events):
    make, create, _, sse = SDKS[sdk]

    async def use(client: Any) -> None:
        for _ in range(3):
            stream = await settled(create(client, stream=True))
            response = stream.response if asynchronous else None
            del stream
            gc.collect()
            if response is not None:
                await response.aclose()  # an open connection outlives its loop otherwise

    with LocalProvider(handler=answers(Reply.sse(sse))) as provider:
        in_run(make, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        in_run(make, use, provider.url, asynchronous=asynchronous)
    ends = [data["exchanges"][0]["end"] for data in steps(events)]
    assert ends == ["closed_early" if asynchronous else "abandoned"] * 3


@both_sdks
def test_async_streams_that_nobody_reads_do_not_pile_up(sdk, home):
    make, create, _, sse = SDKS[sdk]

    async def use(client: Any) -> int:
        earlier = open_records()
        for _ in range(20):
            await create(client, stream=True)
        gc.collect()
        await listed(await create(client, stream=True))
        return len([record for record in open_records() if record not in earlier])

    with LocalProvider(handler=answers(Reply.sse(sse))) as provider:
        assert in_run(make, use, provider.url, asynchronous=True) == 0


class Halted(Interrupt):
    reason = "indeterminate"


@both_colours
@both_sdks
@pytest.mark.parametrize("managed", [False, True], ids=["loop", "with"])
@pytest.mark.parametrize(
    "error", [ValueError("a bug"), KeyboardInterrupt(), Halted("in doubt")], ids=lambda e: type(e).__name__
)
def test_a_stream_whose_reader_fails_is_read_anew_when_that_ended_the_run(
    error, managed, sdk, asynchronous, home, events
):
    make, create, _, sse = SDKS[sdk]
    broken = [error]

    def keep(item: Any, found: list[Any]) -> None:
        found.append(item)
        if broken:
            raise broken.pop()

    async def use(client: Any) -> list[Any]:
        found: list[Any] = []
        if managed and asynchronous:
            async with await create(client, stream=True) as stream:
                async for item in stream:
                    keep(item, found)
        elif managed:
            with create(client, stream=True) as stream:
                for item in stream:
                    keep(item, found)
        elif asynchronous:
            async for item in await create(client, stream=True):
                keep(item, found)
        else:
            # Nothing but the loop holds the stream: it is closed as soon as the exception leaves the loop.
            for item in create(client, stream=True):
                keep(item, found)
        return found

    with LocalProvider(handler=answers(Reply.sse(sse))) as provider:
        with pytest.raises((ValueError, KeyboardInterrupt, RunStopped)):
            in_run(make, use, provider.url, asynchronous=asynchronous)
        assert len(in_run(make, use, provider.url, asynchronous=asynchronous)) > len(WORDS)
        assert len(provider.hits) == 2
    assert [data["attempt"] for data in steps(events)] == [2]


@both_colours
@both_sdks
@pytest.mark.parametrize("how", ["break", "handled"])
def test_a_stream_that_is_left_is_concluded_before_the_program_does_anything_else(
    how, sdk, asynchronous, home, offline, events
):
    make, create, _, sse = SDKS[sdk]
    told: list[Any] = []

    async def first(client: Any) -> Any:
        stream = await settled(create(client, stream=True))
        if how == "handled":
            try:
                if asynchronous:
                    async with stream:
                        raise ValueError(describe(await anext(stream)))
                with stream:
                    raise ValueError(describe(next(stream)))
            except ValueError as error:
                return error.args
        if asynchronous:
            async with stream:
                return describe(await anext(stream))
        for item in stream:
            return describe(item)
        return None

    async def use(client: Any) -> Any:
        found = await first(client)
        gc.collect()

        @steplog.step
        def tell() -> None:
            told.append([event["type"] for event in events() if event["type"].startswith("step.")])

        tell()
        return found

    with LocalProvider(handler=answers(Reply.sse(sse))) as provider:
        live = in_run(make, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, use, provider.url, asynchronous=asynchronous) == live
    (seen,) = told
    assert seen == ["step.started", "step.finished", "step.started"]
    # Older releases of the SDKs do not close the response of a loop that was broken off.
    ends = ("closed_early", "abandoned") if how == "break" else ("closed_early",)
    assert steps(events)[0]["exchanges"][0]["end"] in ends
