"""Many calls at once: each recorded once, each returned to the caller that made it."""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import steplog
from steplog import plugins
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from tests.interceptors.support import answers, chat, chat_events, echo, openai_client, perform

COUNT = 20


def ask(number: int) -> dict[str, Any]:
    return {"model": "gpt-x", "messages": [{"role": "user", "content": f"question {number}"}]}


def text(answer: Any) -> str:
    return answer.choices[0].message.content


EXPECTED = [f"echo question {number}" for number in range(COUNT)]


def test_gathered_calls_each_get_their_own_answer_back(home, offline):
    def program() -> list[str]:
        async def body() -> list[str]:
            async with openai_client(provider.url, asynchronous=True) as client, steplog.run("r"):
                answers = await asyncio.gather(*(client.chat.completions.create(**ask(n)) for n in range(COUNT)))
            return [text(answer) for answer in answers]

        return perform(body)

    with LocalProvider(handler=echo) as provider:
        assert program() == EXPECTED
        assert len(provider.hits) == COUNT
        offline(provider)
        assert program() == EXPECTED


def test_equal_calls_of_a_fresh_client_do_not_overtake_each_other(home, offline, monkeypatch):
    """The SDK looks its platform up in threads, at the first calls of a client; those need not end in their order."""
    waits: list[float] = []

    def slow_at_first() -> str:
        time.sleep(waits.pop(0) if waits else 0.0)
        return "Linux"

    def program(*seconds: float) -> list[str]:
        waits[:] = seconds

        async def body() -> list[str]:
            async with openai_client(provider.url, asynchronous=True) as client, steplog.run("r"):
                found = await asyncio.gather(*(client.chat.completions.create(**ask(1)) for _ in range(4)))
            return [text(answer) for answer in found]

        return perform(body)

    monkeypatch.setattr(sys.modules["openai._base_client"], "get_platform", slow_at_first)
    with LocalProvider(handler=lambda hit: Reply.json(chat(f"number {hit.number}"))) as provider:
        first = program(0.2, 0.1)
        offline(provider)
        assert program(0.0, 0.0, 0.1) == first
    assert sorted(first) == [f"number {number}" for number in range(1, 5)]


def test_calls_in_a_thread_pool_each_get_their_own_answer_back(home, offline):
    def program() -> list[str]:
        with openai_client(provider.url) as client, steplog.run("r") as run, ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda n: text(client.chat.completions.create(**ask(n))), range(COUNT)))
            assert run.replayed + run.executed == COUNT
        return found

    with LocalProvider(handler=echo) as provider:
        assert program() == EXPECTED
        offline(provider)
        assert program() == EXPECTED


def test_gathered_streams_each_get_their_own_chunks_back(home, offline):
    def handler(hit: Hit) -> Reply:
        return Reply.sse(chat_events(*hit.json["messages"][-1]["content"].split()))

    def program() -> list[str]:
        async def one(client: Any, number: int) -> str:
            stream = await client.chat.completions.create(stream=True, **ask(number))
            words = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            return " ".join(word for word in words if word)

        async def body() -> list[str]:
            async with openai_client(provider.url, asynchronous=True) as client, steplog.run("r"):
                return await asyncio.gather(*(one(client, n) for n in range(COUNT)))

        return perform(body)

    expected = [f"question {number}" for number in range(COUNT)]
    with LocalProvider(handler=handler) as provider:
        assert program() == expected
        offline(provider)
        assert program() == expected


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_task_never_waits_for_the_disk_in_the_event_loop(stream, home, monkeypatch):
    def blocks(*_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("the event loop is blocked")

    monkeypatch.setattr(plugins, "begin", blocks)
    monkeypatch.setattr(plugins.Ticket, "finish", blocks)

    async def body() -> None:
        async with openai_client(provider.url, asynchronous=True) as client, steplog.run("r") as run:
            answer = await client.chat.completions.create(stream=stream, **ask(1))
            if stream:
                await answer.close()
            assert run.executed == 1

    with LocalProvider(handler=answers(Reply.sse(chat_events("a")) if stream else chat())) as provider:
        perform(body)
