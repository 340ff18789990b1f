"""Replays of real SDK calls: nothing is sent, wherever the provider is, and every order comes back as it was."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest

import steplog
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    anthropic_client,
    chat,
    chat_events,
    message,
    openai_client,
    perform,
    rate_limited,
    settled,
)
from tests.support.sdk_calls import describe

both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def asked(text: str) -> dict[str, Any]:
    return {**ASK, "messages": [{"role": "user", "content": text}]}


def echo(hit: Hit) -> Reply:
    """An answer that tells which question it is for; streams come in pieces."""
    body = hit.json or {}
    text = str(body["messages"][-1]["content"])
    if hit.path.endswith("/v1/messages"):
        return Reply.json(message(text))
    return Reply.sse(chat_events(*text)) if body.get("stream") else Reply.json(chat(text))


def both(program: Any, handler: Any = echo) -> tuple[Any, Any, steplog.Replay, int]:
    """What a program gives recorded, and replayed while the provider is still there to be asked."""
    with LocalProvider(handler=handler) as provider:
        with steplog.run("r"):
            recorded = program(provider.url)
        sent = len(provider.hits)
        with steplog.replay("r") as replayed, steplog.run("r"):
            again = program(provider.url)
        return recorded, again, replayed, len(provider.hits) - sent


@both_colours
@pytest.mark.parametrize("where", ["outside the run", "in the run", "in the block"])
def test_an_unrecorded_call_reaches_no_provider_on_this_machine(where, asynchronous, home):
    def call(url: str, text: str) -> Any:
        async def body() -> Any:
            client = openai_client(url, asynchronous=asynchronous)
            answer = await settled(client.chat.completions.create(**asked(text)))
            await settled(client.close())
            return describe(answer)

        return perform(body)

    with LocalProvider(handler=echo) as provider:
        with steplog.run("r"):
            call(provider.url, "one")
        sent = len(provider.hits)

        with pytest.raises(steplog.RunStopped) as stopped, steplog.replay("r") as replayed:
            if where == "in the block":
                call(provider.url, "two")
            with steplog.run("r"):
                call(provider.url, "one")
                if where == "in the run":
                    call(provider.url, "two")
            call(provider.url, "two")

        assert isinstance(stopped.value.__cause__, (steplog.Unrecorded, steplog.DriftDetected))
        assert replayed.verdict == "different"
        assert len(provider.hits) == sent


def test_gather_with_identical_calls(home):
    def program(url: str) -> list[Any]:
        async def main() -> list[Any]:
            client = openai_client(url, asynchronous=True)
            texts = ["same", "same", "other", "same", "third"]
            found = await asyncio.gather(*(client.chat.completions.create(**asked(text)) for text in texts))
            await client.close()
            return [one.choices[0].message.content for one in found]

        return asyncio.run(main())

    recorded, again, replayed, sent = both(program)

    assert again == recorded == ["same", "same", "other", "same", "third"]
    assert (replayed.verdict, replayed.replayed, sent) == ("identical", 5, 0)


def test_as_completed_gives_the_recorded_order(home):
    delays = {"a": 0.3, "b": 0.0, "c": 0.15}

    def slow(hit: Hit) -> Reply:
        time.sleep(delays[hit.json["messages"][0]["content"]])
        return echo(hit)

    def program(url: str) -> list[str]:
        with openai_client(url) as client, ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(client.chat.completions.create, **asked(text)) for text in "abc"]
            order = []
            for future in as_completed(futures):
                text = future.result().choices[0].message.content
                order.append(text)
                client.chat.completions.create(**asked("b"), user=f"then {text}")
            return order

    recorded, again, replayed, sent = both(program, slow)

    assert again == recorded == ["b", "c", "a"]
    assert (replayed.verdict, replayed.replayed, sent) == ("identical", 6, 0)


def test_streams_that_are_read_in_turns(home):
    def program(url: str) -> list[str]:
        async def main() -> list[str]:
            client = openai_client(url, asynchronous=True)
            streams = [await client.chat.completions.create(**asked(text), stream=True) for text in ("ab", "cd")]
            pieces = []
            open_ = [aiter(stream) for stream in streams]
            while open_:
                for one in list(open_):
                    try:
                        chunk = await anext(one)
                    except StopAsyncIteration:
                        open_.remove(one)
                    else:
                        pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
            await client.close()
            return pieces

        return asyncio.run(main())

    recorded, again, replayed, sent = both(program)

    assert again == recorded == ["a", "c", "b", "d"]
    assert (replayed.verdict, sent) == ("identical", 0)


def test_an_agent_inside_a_tool_of_an_agent(home):
    def program(url: str) -> list[str]:
        with openai_client(url) as client, anthropic_client(url) as other:

            @steplog.step
            def inner(question: str) -> str:
                return str(other.messages.create(**ASK_CLAUDE).content[0].text) + question

            def agent(name: str) -> str:
                first = client.chat.completions.create(**asked(name)).choices[0].message.content
                told = inner(str(first))
                return str(client.chat.completions.create(**asked(told)).choices[0].message.content)

            with ThreadPoolExecutor(3) as pool:
                return list(pool.map(agent, ["one", "two", "one"]))

    recorded, again, replayed, sent = both(program)

    assert again == recorded
    assert (replayed.verdict, sent) == ("identical", 0)


def test_retries_of_an_sdk_wait_for_nothing(home):
    limits = iter([True, True, False])

    def limited(hit: Hit) -> Reply:
        return rate_limited() if next(limits, False) else Reply.json(chat("at last"))

    def program(url: str) -> str:
        with openai_client(url, max_retries=3) as client:
            return str(client.chat.completions.create(**ASK).choices[0].message.content)

    recorded, again, replayed, sent = both(program, limited)

    assert again == recorded == "at last"
    assert (replayed.verdict, sent) == ("identical", 0)
