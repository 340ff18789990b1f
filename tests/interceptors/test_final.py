"""P4: a call that changes something is made again by itself only where it surely had no effect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
import requests

import steplog
from steplog._runtime.resolve import resolve
from steplog.stores.files import FileStore
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from tests.interceptors.support import anthropic_client, openai_client, rate_limited

BATCH = {"input_file_id": "f", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
SERVERS = [{"type": "url", "name": "mail", "url": "https://mail.example"}]


def batch(provider: LocalProvider) -> Any:
    return openai_client(provider.url, max_retries=1).batches.create(**BATCH)


def acting_stream(provider: LocalProvider) -> Any:
    ask = {"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": "mail ada"}]}
    client = anthropic_client(provider.url)
    return list(client.beta.messages.create(stream=True, mcp_servers=SERVERS, betas=["mcp-client-2025-04-04"], **ask))


def by_httpx(provider: LocalProvider) -> Any:
    with httpx2.Client(follow_redirects=True) as client:
        return client.post(provider.url + "/pay", json={"cents": 100}).raise_for_status()


def by_requests(provider: LocalProvider) -> Any:
    return requests.post(provider.url + "/pay", json={"cents": 100}, timeout=30).raise_for_status()


def error(status: int) -> Reply:
    return Reply.json({"error": {"message": "no", "type": "x"}}, status, retry_after="0")


def cut_json() -> Reply:
    return Reply(body=b'{"id": "batch_1", "object', headers={"content-type": "application/json"})


def overloaded() -> Reply:
    start = {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": []}}
    failed = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    return Reply.sse("".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in (start, failed)))


def led_away(where: str) -> Reply:
    return Reply(status=303, headers={"location": where})


def in_turn(*replies: Reply) -> Callable[[Hit], Reply]:
    queue = list(replies)
    return lambda _hit: queue.pop(0) if queue else Reply.json({"id": "batch_2", "object": "batch"})


DEAD = "http://127.0.0.1:1/receipt"
MAY_HAVE_HAPPENED = {
    "an answer that is no JSON": (batch, [cut_json()]),
    "a fault of the server, then a refusal": (batch, [error(500), error(401)]),
    "an error in the stream": (acting_stream, [overloaded()]),
    "a redirect to nobody, httpx": (by_httpx, [led_away(DEAD)]),
    "a redirect to nobody, requests": (by_requests, [led_away(DEAD)]),
    "a redirect to another scheme, httpx": (by_httpx, [led_away("app://paid")]),
    "a redirect to another scheme, requests": (by_requests, [led_away("app://paid")]),
    "a redirect to a refusal, httpx": (by_httpx, [led_away("/receipt"), error(404)]),
    "a redirect to a refusal, requests": (by_requests, [led_away("/receipt"), error(404)]),
}


@pytest.fixture
def named(home):
    """Requests to the local host are steps."""
    steplog.install(home=home, durability="process", interceptors=("http", "requests"), http=["127.0.0.1"])


def fails(program: Callable[[LocalProvider], Any], provider: LocalProvider) -> tuple[str, str]:
    with pytest.raises(Exception) as caught, steplog.run("r"):  # whatever the SDK makes of it
        program(provider)
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.parametrize("what", MAY_HAVE_HAPPENED)
def test_what_may_have_happened_is_not_made_again_by_itself(what, named, events):
    program, replies = MAY_HAVE_HAPPENED[what]
    with LocalProvider(handler=in_turn(*replies)) as provider:
        first = fails(program, provider)
        sent = len(provider.hits)
        for _ in range(3):
            assert fails(program, provider)[0] == first[0]
        assert len(provider.hits) == sent

    finished = [event["data"] for event in events() if event["type"] == "step.finished"]
    assert [data.get("final") for data in finished] == [True]


@pytest.mark.parametrize(
    "replies", [[error(400)], [rate_limited(), rate_limited()]], ids=["refused", "too many requests"]
)
def test_what_was_refused_is_made_again_when_its_failure_ended_the_run(replies, named):
    with LocalProvider(handler=in_turn(*replies)) as provider:
        fails(batch, provider)
        sent = len(provider.hits)
        with steplog.run("r"):
            assert batch(provider).id == "batch_2"
        assert len(provider.hits) == sent + 1


NOT_A_MODEL = {
    "/v1/chat": {"to": "bob", "message": "you are fired"},
    "/tasks/7/complete": {"prompt": "x", "done": True},
    "/posts/7/moderations": {"input": "delete"},
    "/repos/x/issues": {"title": "Login", "text": "a call with grant_type=client_credentials fails"},
    "/v1/logs": {"patient": 7, "text": "took 5 mg"},
    "/subscriptions/7/revoke": {"user": 7},
    "/agent": {"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": {}},
}


@pytest.mark.parametrize("path", NOT_A_MODEL)
def test_a_request_to_a_named_host_is_neither_taken_for_a_model_call_nor_let_pass(path, named, events):
    with LocalProvider(handler=lambda hit: Reply.json({"done": hit.number})) as provider:
        for _ in range(2):
            with steplog.run("r"), httpx2.Client() as client:
                answer = client.post(
                    provider.url + path, json=NOT_A_MODEL[path], headers={"accept": "text/event-stream"}
                )
                assert answer.json() == {"done": 1}
        assert len(provider.hits) == 1

    started = [event["data"] for event in events() if event["type"] == "step.started"]
    assert [(data["kind"], data["mode"]) for data in started] == [("tool_call", "unsafe")]


def test_a_services_events_have_no_end_mark(named):
    def read() -> list[str]:
        with steplog.run("r"), httpx2.Client() as client, client.stream("GET", provider.url + "/events") as response:
            return [line for line in response.iter_lines() if line]

    with LocalProvider(handler=lambda _hit: Reply.sse(["[DONE]", {"part": 2}, "[DONE]"])) as provider:
        first = read()
        assert len(first) == 3
        assert read() == first
        assert len(provider.hits) == 1


def test_a_credential_that_an_error_quotes_is_not_stored(named, home):
    secret = "gw7f3a9c2e11d04b55"
    with LocalProvider() as provider, pytest.raises(httpx2.LocalProtocolError, match=secret):
        with steplog.run("r"), httpx2.Client() as client:
            client.post(provider.url + "/pay", headers={"x-api-key": secret + "\n"})

    assert not [path for path in home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_a_person_may_say_that_it_has_happened_after_all(named, home, events):
    with LocalProvider(handler=in_turn(error(500), error(401))) as provider:
        fails(batch, provider)
        sent = len(provider.hits)
        (step,) = {event["step"] for event in events() if event["type"] == "step.started"}
        resolve(FileStore(home), "r", step, how="done", result={"id": "batch_9", "object": "batch"})
        with steplog.run("r"):
            assert batch(provider).id == "batch_9"
        assert len(provider.hits) == sent
