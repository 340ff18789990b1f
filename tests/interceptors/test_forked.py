"""A request that a fork changes: every SDK, whole and as a stream, with retries; returned on a replay."""

from __future__ import annotations

from typing import Any

import pytest

import steplog
from steplog.errors import DriftDetected, RunStopped
from steplog.testing import LocalProvider, Reply
from steplog.testing.provider import Fault
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    anthropic_client,
    chat,
    chat_events,
    message,
    openai_client,
    perform,
    settled,
)


@pytest.fixture(autouse=True)
def _installed(home: Any) -> None:
    """Steplog, with both interceptors."""


BRIEF = {"messages[0].content": "Be brief."}


async def _read(stream: Any) -> str:
    found = []
    if hasattr(stream, "__aiter__"):
        async for chunk in stream:
            found.append(chunk.choices[0].delta.content or "" if chunk.choices else "")
    else:
        for chunk in stream:
            found.append(chunk.choices[0].delta.content or "" if chunk.choices else "")
    return "".join(found)


async def _streamed(client: Any) -> str:
    return await _read(await settled(client.chat.completions.create(**ASK, stream=True)))


async def _chat(client: Any) -> str:
    return (await settled(client.chat.completions.create(**ASK))).choices[0].message.content


async def _claude(client: Any) -> str:
    return (await settled(client.messages.create(**ASK_CLAUDE))).content[0].text


CALLS = {
    "chat": (openai_client, _chat),
    "stream": (openai_client, _streamed),
    "claude": (anthropic_client, _claude),
}


def answer(hit: Any) -> Reply:
    """Says which prompt it got."""
    said = f"I was asked: {hit.json['messages'][0]['content']}"
    if "anthropic-version" in hit.headers:
        return Reply.json(message(said))
    if hit.json.get("stream"):
        return Reply.sse(chat_events(said))
    return Reply.json(chat(said))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("call", CALLS)
def test_the_provider_gets_the_change_and_a_replay_its_answer(call: str, asynchronous: bool):
    make, use = CALLS[call]

    def play(run: str, url: str) -> str:
        async def body() -> str:
            client = make(url, asynchronous=asynchronous, max_retries=1)
            try:
                async with steplog.run(run):
                    return await use(client)
            finally:
                await settled(client.close())

        return perform(body)

    with LocalProvider(handler=answer) as provider:
        before = play("r", provider.url)
        # The first attempt fails, and the SDK's own retry has to carry the change as well.
        provider.inject(Fault("status", status=503))
        forked = steplog.fork("r", at=1, set=BRIEF)
        after = play(forked, provider.url)
        sent = [hit.json["messages"][0]["content"] for hit in provider.hits[1:]]
    assert before != after == "I was asked: Be brief."
    assert sent == ["Be brief.", "Be brief."]
    # The provider is gone.
    assert play(forked, provider.url) == after
    with steplog.replay(forked) as replayed:
        assert play(forked, provider.url) == after
    assert replayed.identical


def test_a_call_whose_executor_cannot_change_it_stops_before_it_is_made():
    from steplog.plugins import Call, begin

    def play(run: str) -> None:
        with steplog.run(run):
            ticket = begin(Call("tool_call", "acme.search", {"q": "tea"}, "safe"))
            assert ticket is not None
            if ticket.recorded is None:
                ticket.finish("done", {"result": 1})

    play("r")
    forked = steplog.fork("r", at=1, set={"q": "coffee"})
    with pytest.raises(RunStopped, match="cannot change its request") as stopped:
        play(forked)
    assert isinstance(stopped.value.__cause__, DriftDetected)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_request_to_a_listed_host_is_changed(asynchronous: bool, home: Any):
    import httpx

    steplog.uninstall()
    steplog.install(home=home, durability="process", http=["127.0.0.1"])

    def play(run: str, url: str) -> Any:
        async def body() -> Any:
            client = httpx.AsyncClient() if asynchronous else httpx.Client()
            try:
                with steplog.run(run):
                    return (await settled(client.post(url + "/items", json={"name": "tea"}))).json()
            finally:
                await settled(client.aclose() if asynchronous else client.close())

        return perform(body)

    with LocalProvider(handler=lambda hit: Reply.json(hit.json)) as provider:
        play("r", provider.url)
        forked = steplog.fork("r", at=1, set={"name": "coffee"}, live_tools=True)
        assert play(forked, provider.url) == play(forked, provider.url) == {"name": "coffee"}
        assert [hit.json["name"] for hit in provider.hits] == ["tea", "coffee"]
