"""Responses in the background: taken up where they are; and the keys by which a provider knows a request again."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anthropic
import openai
import pytest

import steplog
from steplog._runtime.resolve import resolve
from steplog.errors import Indeterminate
from steplog.stores.files import FileStore
from steplog.testing import Hit, LocalProvider, Reply
from steplog.testing.provider import Fault
from steplog_interceptors._jobs import Fresh
from steplog_interceptors._told import as_stream
from steplog_interceptors.openai import SDK
from tests.interceptors.support import (
    ASK,
    RawServer,
    answers,
    anthropic_client,
    chat,
    message,
    openai_client,
    perform,
    settled,
)

both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
JOB: dict[str, Any] = {"model": "gpt-x", "input": "hi", "background": True}
ID = "resp_0850765c843cca53"
WORDS = ("one ", "two ", "three")
# Newer SDKs make a connection error of what the HTTP client raises in the middle of a stream.
BROKEN = r"Connection error|before the job's last event"

Events = Callable[..., list[dict[str, Any]]]


class Died(BaseException):
    """Stands for the death of the process."""


def response(status: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": "".join(WORDS), "annotations": [], "logprobs": []}]
    output = [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}]
    head = {"id": ID, "object": "response", "created_at": 1, "model": "gpt-x", "background": True, "status": status}
    rest = {"error": None, "incomplete_details": None, "tools": [], "parallel_tool_calls": True, "tool_choice": "auto"}
    return {**head, **rest, "output": output if status == "completed" else []}


def job_events() -> list[dict[str, Any]]:
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response("queued")},
        *({"type": "response.output_text.delta", "delta": word, **place} for word in WORDS),
        {"type": "response.completed", "response": response("completed")},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def sse(events: list[dict[str, Any]]) -> Reply:
    return Reply.sse("".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))


def job_provider(hit: Hit) -> Reply:
    """Begins a job, or tells the rest of it."""
    if hit.method == "POST":
        return sse(job_events())
    query = dict(parse_qsl(urlsplit(hit.path).query))
    assert query["stream"] == "true"
    return sse(job_events()[int(query.get("starting_after", -1)) + 1 :])


def read(url: str, *, asynchronous: bool, stop_after: int | None = None, **options: Any) -> Any:
    """Read a job's stream in run `r`; with `stop_after`, the process dies after so many events."""

    async def body() -> Any:
        client = openai_client(url, asynchronous=asynchronous, **options)
        found: list[Any] = []
        try:
            async with steplog.run("r"):
                stream = await settled(client.responses.create(stream=True, **JOB))
                while stop_after is None or len(found) < stop_after:
                    try:
                        found.append(await anext(stream) if asynchronous else next(stream))
                    except (StopIteration, StopAsyncIteration):
                        return found
                raise Died
        finally:
            await settled(client.close())

    return perform(body)


@both_colours
@pytest.mark.parametrize("stop_after", [1, 2, 3, 4])
def test_a_job_that_was_cut_off_goes_on_after_the_last_recorded_event(stop_after, asynchronous, home, events, offline):
    with LocalProvider(handler=job_provider) as provider:
        with pytest.raises(Died):
            read(provider.url, asynchronous=asynchronous, stop_after=stop_after)
        resumed = read(provider.url, asynchronous=asynchronous)
        assert [event.type for event in resumed] == [event["type"] for event in job_events()]
        methods = [(hit.method, hit.path.partition("?")[2]) for hit in provider.hits]
        assert methods == [("POST", ""), ("GET", f"stream=true&starting_after={stop_after - 1}")]
        # The original body is not sent again, nor what described it.
        assert provider.hits[1].body == b""
        assert "content-type" not in provider.hits[1].headers
        assert provider.hits[1].headers["authorization"] == provider.hits[0].headers["authorization"]
        offline(provider)
        assert read(provider.url, asynchronous=asynchronous) == resumed
    started = [event["data"] for event in events() if event["type"] == "step.started"]
    assert [(each.get("attempt", 1), each.get("job")) for each in started] == [
        (1, None),
        (2, {"kind": "response", "id": ID}),
    ]


@both_colours
def test_the_name_of_a_job_is_on_disk_before_the_program_sees_its_first_event(asynchronous, home, events):
    async def body() -> None:
        client = openai_client(provider.url, asynchronous=asynchronous)
        async with steplog.run("r"):
            stream = await settled(client.responses.create(stream=True, **JOB))
            assert not [event for event in events(notes=True) if event["type"] == "step.progressed"]
            await anext(stream) if asynchronous else next(stream)
            names = [event["data"].get("job") for event in events(notes=True) if event["type"] == "step.progressed"]
            assert names[0] == {"kind": "response", "id": ID}
            await settled(stream.close())
        await settled(client.close())

    with LocalProvider(handler=job_provider) as provider:
        provider.inject(Fault("hang", after=1))
        perform(body)


@pytest.mark.parametrize("query", [{}, {"api-version": "preview"}], ids=["plain", "with a query of its own"])
def test_the_question_for_the_rest_goes_where_the_request_went(query, home):
    with LocalProvider(handler=job_provider) as provider:
        with pytest.raises(Died):
            read(provider.url, asynchronous=False, stop_after=2, default_query=query)
        read(provider.url, asynchronous=False, default_query=query)
        asked = urlsplit(provider.hits[1].path)
    assert asked.path == f"/v1/responses/{ID}"
    assert dict(parse_qsl(asked.query)) == {**query, "stream": "true", "starting_after": "1"}


def test_a_job_whose_events_were_compressed_is_asked_for_from_its_beginning(home):
    """What was compressed cannot be cut between two events."""
    body = gzip.compress(sse(job_events()[:2]).body)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\n"
    with RawServer(head, body) as server, pytest.raises(Died):
        read(server.url, asynchronous=False, stop_after=2)
    with LocalProvider(handler=job_provider) as provider:
        assert len(read(provider.url, asynchronous=False)) == len(job_events())
        assert [hit.path for hit in provider.hits] == [f"/v1/responses/{ID}?stream=true"]


@both_colours
def test_a_job_that_the_provider_has_forgotten_is_a_matter_for_a_person(asynchronous, home):
    def handler(hit: Hit) -> Reply:
        gone = {"error": {"message": f"Response with id '{ID}' not found.", "type": "invalid_request_error"}}
        return job_provider(hit) if hit.method == "POST" else Reply.json(gone, 404)

    with LocalProvider(handler=handler) as provider:
        with pytest.raises(Died):
            read(provider.url, asynchronous=asynchronous, stop_after=2)
        with pytest.raises(steplog.RunStopped) as stopped:
            read(provider.url, asynchronous=asynchronous, max_retries=2)
        assert isinstance(stopped.value.__cause__, Indeterminate)
        assert f"response {ID} and does not know that name any more (status 404)" in str(stopped.value)
        assert [hit.method for hit in provider.hits] == ["POST", "GET"]

        resolve(FileStore(str(home)), "r", stopped.value.step, how="retry")
        assert len(read(provider.url, asynchronous=asynchronous)) == len(job_events())
        assert [hit.method for hit in provider.hits] == ["POST", "GET", "POST"]


def attached(answer: Callable[[int], Reply]) -> Callable[[Hit], Reply]:
    """A provider whose first answer to the question for the rest is odd; the argument is the last known event."""
    asked: list[Hit] = []

    def handler(hit: Hit) -> Reply:
        if hit.method == "POST" or asked:
            return job_provider(hit)
        asked.append(hit)
        return answer(int(dict(parse_qsl(urlsplit(hit.path).query))["starting_after"]))

    return handler


CUT_SHORT: dict[str, Callable[[int], Reply]] = {
    "nothing": lambda _last: sse([]),
    "not to its end": lambda last: sse(job_events()[last + 1 : -1]),
    "half an event": lambda last: Reply.sse(sse(job_events()[last + 1 :]).body[:-1].decode()),
}


@both_colours
@pytest.mark.parametrize("answer", CUT_SHORT)
def test_a_job_whose_stream_ends_before_the_job_is_not_done(answer, asynchronous, home, events, offline):
    with LocalProvider(handler=attached(CUT_SHORT[answer])) as provider:
        with pytest.raises(Died):
            read(provider.url, asynchronous=asynchronous, stop_after=2)
        with pytest.raises(Exception, match=BROKEN):
            read(provider.url, asynchronous=asynchronous)
        resumed = read(provider.url, asynchronous=asynchronous)
        assert [event.sequence_number for event in resumed] == list(range(len(job_events())))
        assert [hit.method for hit in provider.hits] == ["POST", "GET", "GET"]
        offline(provider)
        assert read(provider.url, asynchronous=asynchronous) == resumed
    ends = [event["data"] for event in events() if event["type"] == "step.finished"]
    assert [(end["outcome"], end.get("job_open")) for end in ends] == [("failed", True), ("done", None)]


@both_colours
def test_a_new_job_whose_stream_ends_before_the_job_is_taken_up(asynchronous, home):
    def handler(hit: Hit) -> Reply:
        return sse(job_events()[:2]) if hit.method == "POST" else job_provider(hit)

    with LocalProvider(handler=handler) as provider:
        with pytest.raises(Exception, match=BROKEN):
            read(provider.url, asynchronous=asynchronous)
        assert len(read(provider.url, asynchronous=asynchronous)) == len(job_events())
        assert [hit.method for hit in provider.hits] == ["POST", "GET"]


@both_colours
def test_a_job_that_is_told_in_another_form_stops_the_run(asynchronous, home):
    with LocalProvider(handler=attached(lambda _last: Reply.json(response("completed")))) as provider:
        with pytest.raises(Died):
            read(provider.url, asynchronous=asynchronous, stop_after=2)
        with pytest.raises(steplog.RunStopped) as stopped:
            read(provider.url, asynchronous=asynchronous, max_retries=2)
        assert isinstance(stopped.value.__cause__, Indeterminate)
        assert "answered with application/json instead of an event stream" in str(stopped.value)
        assert "client.responses.retrieve(ID)" in str(stopped.value)
        assert len(read(provider.url, asynchronous=asynchronous)) == len(job_events())
        assert [hit.method for hit in provider.hits] == ["POST", "GET", "GET"]


@both_colours
def test_events_that_are_recorded_are_left_out_where_the_provider_tells_all(asynchronous, home):
    with LocalProvider(handler=attached(lambda _last: sse(job_events()))) as provider:
        with pytest.raises(Died):
            read(provider.url, asynchronous=asynchronous, stop_after=3)
        resumed = read(provider.url, asynchronous=asynchronous)
    assert [event.sequence_number for event in resumed] == list(range(len(job_events())))


def told_until(last: int) -> Any:
    """What an earlier attempt knows of the job, as far as it matters for the rest."""
    return type("Known", (), {"last": last, "pieces": {"msg_1"}})


def anothers(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return json.loads(json.dumps(events).replace(ID, "resp_another").replace("msg_1", "msg_2"))


def within(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that name no job themselves."""
    return [event for event in events if "response" not in event]


@both_colours
@pytest.mark.parametrize(
    "rest, why",
    [
        (lambda last: anothers(job_events()), "answers with response resp_another"),
        (lambda last: within(anothers(job_events()))[last:], "goes on with msg_2, which was never begun"),
        (lambda last: job_events()[last + 2 :], "those between are missing"),
        (lambda last: [*job_events()[last + 1 : -1], anothers(job_events())[-1]], "answers with response resp_another"),
    ],
    ids=["from its beginning", "from its middle", "with a gap", "at its end"],
)
def test_what_is_not_the_rest_of_the_job_stops_the_run(rest, why, asynchronous, home, events):
    with LocalProvider(handler=attached(lambda last: sse(rest(int(last))))) as provider:
        with pytest.raises(Died):
            read(provider.url, asynchronous=asynchronous, stop_after=2)
        with pytest.raises(steplog.RunStopped) as stopped:
            read(provider.url, asynchronous=asynchronous, max_retries=2)
    assert isinstance(stopped.value.__cause__, Indeterminate)
    assert why in str(stopped.value)
    assert not [event for event in events() if event["type"] == "step.finished"]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_recorded_events_are_left_out_wherever_their_chunks_are_cut(size, newline):
    told = sse(job_events()).body.replace(b"\n", newline.encode())
    new = sse(job_events()[3:]).body.replace(b"\n", newline.encode())
    jobs = SDK.jobs
    assert jobs is not None
    fresh = Fresh(jobs, {"kind": "response", "id": ID}, told_until(2), AssertionError)
    assert b"".join(fresh.feed(told[at : at + size]) for at in range(0, len(told), size)) + fresh.rest() == new


def test_a_job_whose_events_are_named_in_their_data_alone_comes_to_its_end(home, events):
    bare = "".join(f"data: {json.dumps(event)}\n\n" for event in job_events())
    with LocalProvider(handler=answers(Reply.sse(bare))) as provider:
        assert len(read(provider.url, asynchronous=False)) == len(job_events())
    assert [event["data"]["outcome"] for event in events() if event["type"] == "step.finished"] == ["done"]


@both_colours
def test_a_job_whose_connection_broke_and_ended_the_run_is_taken_up(asynchronous, home, events):
    with LocalProvider(handler=job_provider) as provider:
        provider.inject(Fault("drop", after=2), Fault("status", hit=2, status=503, times=1))
        for _ in range(2):
            with pytest.raises(Exception, match=r"Connection error|peer closed|503|injected"):
                read(provider.url, asynchronous=asynchronous)
        assert len(read(provider.url, asynchronous=asynchronous)) == len(job_events())
        assert [hit.method for hit in provider.hits] == ["POST", "GET", "GET"]
    ends = [event["data"] for event in events() if event["type"] == "step.finished"]
    assert [(end["outcome"], end.get("job_open")) for end in ends] == [
        ("failed", True),
        ("failed", True),
        ("done", None),
    ]


def test_a_job_whose_reader_timed_out_and_went_on_is_not_taken_up(home):
    went_on: list[int] = []

    async def body() -> None:
        async with openai_client(provider.url, asynchronous=True) as client, steplog.run("r"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.responses.create(stream=True, **JOB), 0.3)
            steplog.step("fallback", lambda: went_on.append(1))

    with LocalProvider(handler=job_provider) as provider:
        provider.inject(Fault("hang"))
        perform(body)
        perform(body)
        assert len(provider.hits) == 1
    assert went_on == [1]


def test_a_response_given_by_hand_is_told_as_the_sdk_expects_it(home):
    told = Reply(200, {"content-type": "text/event-stream"}, as_stream(response("completed")) or b"")
    with LocalProvider(handler=answers(told)) as provider:
        with openai_client(provider.url).responses.stream(**JOB) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
    assert text == final.output_text == "".join(WORDS)
    assert as_stream({"object": "chat.completion"}) is None
    assert as_stream("text") is None


KEYED = {
    "openai": (openai_client, lambda c, **k: c.chat.completions.create(**ASK, **k), chat()),
    "anthropic": (
        anthropic_client,
        lambda c, **k: c.messages.create(model="claude-x", max_tokens=9, messages=ASK["messages"], **k),
        message(),
    ),
}


@both_colours
@pytest.mark.parametrize("sdk", KEYED)
def test_a_client_that_sends_keys_sends_that_of_the_step_in_every_attempt(sdk, asynchronous, home, events):
    make, ask, answer = KEYED[sdk]
    failed = Reply.json({"error": {"message": "busy", "type": "server_error"}}, 500, retry_after="0")

    async def body() -> None:
        client = make(provider.url, asynchronous=asynchronous, max_retries=1)
        client._idempotency_header = "Idempotency-Key"
        try:
            async with steplog.run("r"):
                await settled(ask(client))
        finally:
            await settled(client.close())

    with LocalProvider(handler=answers(failed, failed, answer)) as provider:
        with pytest.raises((openai.APIError, anthropic.APIError), match="busy"):
            perform(body)
        perform(body)
        sent = [hit.headers["idempotency-key"] for hit in provider.hits]
    (key,) = {f"r:{event['step']}" for event in events() if event["type"] == "step.started"}
    assert key.startswith("r:s_")
    assert sent == [key] * 3


@pytest.mark.parametrize("sdk", KEYED)
def test_no_key_is_sent_where_the_client_sends_none_and_the_users_own_stays(sdk, home):
    make, ask, answer = KEYED[sdk]
    with LocalProvider(handler=answers(answer)) as provider, steplog.run("r"):
        ask(make(provider.url))
        ask(make(provider.url), extra_headers={"Idempotency-Key": "mine"})
        client = make(provider.url)
        client._idempotency_header = "Idempotency-Key"
        ask(client, extra_headers={"Idempotency-Key": "mine as well"})
        sent = [hit.headers.get("idempotency-key") for hit in provider.hits]
    assert sent == [None, "mine", "mine as well"]


def test_outside_a_run_a_client_makes_up_its_own_key(home):
    with LocalProvider(handler=answers(chat())) as provider:
        client = openai_client(provider.url)
        client._idempotency_header = "Idempotency-Key"
        client.chat.completions.create(**ASK)
        assert provider.hits[0].headers["idempotency-key"].startswith("stainless-python-retry-")
