"""`--steplog=verify`: each model call is made again, whatever client makes it, and its answer compared by its form."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest
import requests

import steplog
from steplog import plugins
from steplog._kernel.shape import changes
from steplog.testing import Fault, Hit, LocalProvider, Reply
from steplog.testing._cut import Mismatch
from steplog.testing.session import RECORD, VERIFY, Options, Session
from tests.interceptors.support import chat, chat_events, message, message_events

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
MESSAGES = CHAT | {"max_tokens": 9}


@pytest.fixture(autouse=True)
def _installed():
    steplog.install()
    yield
    steplog.uninstall()


def answer(hit: Hit) -> Reply:
    streamed = hit.json.get("stream")
    if "/messages" in hit.path:
        return Reply.sse(message_events("well", "then")) if streamed else Reply.json(message("well then"))
    return Reply.sse(chat_events("well ", "then")) if streamed else Reply.json(chat("well then"))


class Programs:
    """One model call by each kind of client."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _openai(self, cls: Any = openai.OpenAI) -> Any:
        return cls(base_url=self._url + "/v1", api_key="none", max_retries=0)

    def _anthropic(self, cls: Any = anthropic.Anthropic) -> Any:
        return cls(base_url=self._url, api_key="none", max_retries=0)

    def openai_call(self) -> Any:
        with self._openai() as client:
            return client.chat.completions.create(**CHAT).model_dump()

    def openai_stream(self) -> Any:
        with self._openai() as client:
            return [chunk.model_dump() for chunk in client.chat.completions.create(**CHAT, stream=True)]

    async def openai_async_call(self) -> Any:
        async with self._openai(openai.AsyncOpenAI) as client:
            return (await client.chat.completions.create(**CHAT)).model_dump()

    async def openai_async_stream(self) -> Any:
        async with self._openai(openai.AsyncOpenAI) as client:
            return [chunk.model_dump() async for chunk in await client.chat.completions.create(**CHAT, stream=True)]

    def anthropic_call(self) -> Any:
        with self._anthropic() as client:
            return client.messages.create(**MESSAGES).model_dump()

    def anthropic_stream(self) -> Any:
        with self._anthropic() as client, client.messages.stream(**MESSAGES) as stream:
            return [*stream.text_stream], stream.get_final_message().model_dump()

    async def anthropic_async_call(self) -> Any:
        async with self._anthropic(anthropic.AsyncAnthropic) as client:
            return (await client.messages.create(**MESSAGES)).model_dump()

    async def anthropic_async_stream(self) -> Any:
        async with self._anthropic(anthropic.AsyncAnthropic) as client:
            return [event.model_dump() async for event in await client.messages.create(**MESSAGES, stream=True)]

    def httpx_call(self) -> Any:
        return httpx.post(f"{self._url}/v1/chat/completions", json=CHAT, trust_env=False).json()

    def requests_call(self) -> Any:
        with requests.Session() as session:
            session.trust_env = False
            return session.post(f"{self._url}/v1/chat/completions", json=CHAT).json()


NAMES = [name for name in vars(Programs) if not name.startswith("_")]


def use(session: Session, program: Callable[[], Any]) -> Any:
    session.engage()
    try:
        with session:
            found = program()
            return asyncio.run(found) if asyncio.iscoroutine(found) else found
    finally:
        session.release()


def recorded(program: Callable[[], Any]) -> tuple[Any, Session]:
    """What a program gives, and the session in which it may be verified."""
    session = Session("test_it.py::test", RECORD, Options(), "pytest --steplog=all", "it.json")
    result = use(session, program)
    cassette = session.recorded(dt.date(2026, 11, 30))
    return result, Session(session.test, VERIFY, Options(), session.again, session.path, cassette)


def added_to(reply: Reply) -> Reply:
    """The same answer with a field more in it, everywhere."""
    if reply.streamed:
        lines = reply.body.decode().splitlines(keepends=True)
        told = (line.replace('data: {"', 'data: {"extra": 1, "', 1) for line in lines)
        return Reply(reply.status, reply.headers, "".join(told).encode(), streamed=True)
    return Reply.json({**json.loads(reply.body), "extra": 1})


@pytest.mark.parametrize("name", NAMES)
def test_every_client_makes_its_call_once_more_and_gets_the_recorded_answer(name):
    with LocalProvider(handler=answer) as provider:
        program = getattr(Programs(provider.url), name)
        result, session = recorded(program)
        other = Session(**vars_of(session))
        provider._handler = lambda hit: with_other_words(answer(hit))
        assert use(session, program) == result
        assert (session.compared.made, session.compared.left_out(session.runs), session.compared.changes) == (1, 0, [])
        assert len(provider.hits) == 2
        assert provider.hits[0].body == provider.hits[1].body

        provider._handler = lambda hit: added_to(answer(hit))
        with pytest.raises(Mismatch, match="extra is new"):
            use(other, program)


def vars_of(session: Session) -> dict[str, Any]:
    return {name: getattr(session, name) for name in ("test", "doing", "options", "again", "path", "cassette")}


def with_other_words(reply: Reply) -> Reply:
    return Reply(reply.status, reply.headers, reply.body.replace(b"well", b"fine"), streamed=reply.streamed)


@pytest.mark.parametrize("name", ["openai_call", "anthropic_stream", "openai_async_stream", "requests_call"])
@pytest.mark.parametrize(
    "fault, told",
    [(Fault("status", status=529), "the status was 200 and is 529"), (Fault("drop"), "was made and not answered")],
    ids=["refused", "dropped"],
)
def test_a_call_that_fails_now_fails_the_test_and_not_the_program(name, fault, told):
    with LocalProvider(handler=answer) as provider:
        program = getattr(Programs(provider.url), name)
        result, session = recorded(program)
        provider.inject(fault)
        found = []
        with pytest.raises(Mismatch, match=told):
            use(session, lambda: found.append(settled(program())))

    assert found == [result]


def settled(value: Any) -> Any:
    return asyncio.run(value) if asyncio.iscoroutine(value) else value


def test_a_stream_that_its_reader_left_is_compared_as_far_as_it_was_read():
    def program() -> Any:
        with openai.OpenAI(base_url=provider.url + "/v1", api_key="none", max_retries=0) as client:
            with client.chat.completions.create(**CHAT, stream=True) as stream:
                return next(iter(stream)).model_dump()

    def ending(hit: Hit) -> Reply:
        events = [event for event in answer(hit).body.decode().split("\n\n") if "[DONE]" not in event]
        usage = {"id": "1", "object": "chat.completion.chunk", "choices": [], "usage": {"total_tokens": 9}}
        return Reply.sse("\n\n".join([*filter(None, events), f"data: {json.dumps(usage)}", "data: [DONE]", ""]))

    # The rest comes late, so that only its beginning is in the cassette.
    with LocalProvider(handler=ending, event_delay=0.1) as provider:
        _, session = recorded(program)
        use(session, program)
        assert (session.compared.made, session.compared.changes) == (1, [])


def test_an_answer_that_cannot_be_asked_for_again_is_counted():
    def program() -> Any:
        return plugins.record(plugins.Call("llm_call", "mine", {"q": 1}, "safe"), lambda _ticket: "answered")

    result, session = recorded(program)

    assert use(session, program) == result
    assert (session.compared.made, session.compared.left_out(session.runs)) == (0, 1)


def delta(**fields: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"delta": fields}]}


TOOL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "one, other",
    [
        # A model says something today, and calls a tool tomorrow.
        ({"message": {"content": "a"}}, {"message": {"content": None, "tool_calls": [TOOL]}}),
        ([delta(role="assistant", content="a")], [delta(role="assistant"), delta(tool_calls=[TOOL])]),
        ({"content": [{"type": "text", "text": "a"}]}, {"content": [{"type": "tool_use", "input": {"x": 1}}]}),
        (
            [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}],
            [
                {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}},
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "b"}},
            ],
        ),
        ({"message": {"content": "a", "reasoning_content": "b"}}, {"message": {"content": "a"}}),
        ({"arguments": {"a": 1}}, {"arguments": {"b": "c"}}),
    ],
)
def test_what_a_model_decides_is_no_change_of_form(one, other):
    assert [*changes(one, other), *changes(other, one)] == []


@pytest.mark.parametrize(
    "one, other, told",
    [
        ({"message": {"content": "a"}}, {"message": {"text": "a"}}, ["message.content is gone", "message.text is new"]),
        ([delta(content="a")], [delta(text="a")], ["[].choices[].delta.text is new"]),
        (
            [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}],
            [{"type": "content_block_delta", "delta": {"type": "text_delta", "txt": "a"}}],
            ["[].delta.text is gone", "[].delta.txt is new"],
        ),
        ({"tool_calls": [TOOL]}, {"tool_calls": "f"}, ["tool_calls was a list and is a text"]),
        ({"usage": {"total": 1}}, {"usage": {"total": "1"}}, ["usage.total was a number and is a text"]),
        ({"ok": True}, {"ok": 1}, ["ok was a truth value and is a number"]),
    ],
)
def test_a_change_of_form_is_named_by_its_place(one, other, told):
    assert list(changes(one, other)) == told


def test_of_a_part_what_is_new_may_have_been_in_the_rest():
    assert list(changes({"a": 1}, {"a": 1, "b": 2}, whole=False)) == []
    assert list(changes({"a": 1, "c": 1}, {"a": "x"}, whole=False)) == ["a was a number and is a text", "c is gone"]
