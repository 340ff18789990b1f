"""Retries, failures and credentials: one logical call is one step, and an outcome is returned as it was raised."""

from __future__ import annotations

import gzip
import json
from typing import Any

import anthropic
import openai
import pytest

import steplog
from steplog.errors import DriftDetected, NotInRun, RunStopped
from steplog.testing import LocalProvider
from steplog.testing.provider import Fault
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    KEY,
    OTHER_KEY,
    RawServer,
    answers,
    anthropic_client,
    chat,
    http_of,
    message,
    openai_client,
    perform,
    rate_limited,
    settled,
)
from tests.support.sdk_calls import describe, describe_error

SDKS = {
    "openai": (openai, openai_client, lambda c: c.chat.completions.create(**ASK), chat()),
    "anthropic": (anthropic, anthropic_client, lambda c: c.messages.create(**ASK_CLAUDE), message()),
}
both_sdks = pytest.mark.parametrize("sdk", SDKS)
both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def outcome(make: Any, use: Any, url: str, *, asynchronous: bool, **options: Any) -> Any:
    """What one call in run `r` gives or raises, described."""

    async def body() -> Any:
        client = make(url, asynchronous=asynchronous, **options)
        try:
            async with steplog.run("r"):
                try:
                    return describe(await settled(use(client)))
                except (openai.OpenAIError, anthropic.AnthropicError) as error:
                    return describe_error(error)
        finally:
            await settled(client.close())

    return perform(body)


@both_colours
@both_sdks
def test_a_call_that_was_tried_three_times_is_one_step_and_replays_without_pauses(
    sdk, asynchronous, home, offline, events, no_sleep
):
    _, make, use, answer = SDKS[sdk]
    with LocalProvider(handler=answers(rate_limited(), rate_limited(), answer)) as provider:
        live = outcome(make, use, provider.url, asynchronous=asynchronous, max_retries=2)
        assert len(provider.hits) == 3
        offline(provider)
        no_sleep()
        assert outcome(make, use, provider.url, asynchronous=asynchronous, max_retries=2) == live
    steps = [event["data"] for event in events() if event["type"] == "step.finished"]
    assert [[e["status"] for e in step["exchanges"]] for step in steps] == [[429, 429, 200]]


@both_colours
@both_sdks
def test_exhausted_retries_raise_again_what_they_raised(sdk, asynchronous, home, offline, events, no_sleep):
    module, make, use, _ = SDKS[sdk]
    with LocalProvider(handler=answers(rate_limited())) as provider:
        live = outcome(make, use, provider.url, asynchronous=asynchronous, max_retries=1)
        offline(provider)
        no_sleep()
        assert outcome(make, use, provider.url, asynchronous=asynchronous, max_retries=1) == live
    assert live["class"] == f"{module.__name__}.RateLimitError"
    assert events()[3]["data"]["outcome"] == "failed"
    assert len(events()[3]["data"]["exchanges"]) == 2


@both_colours
@both_sdks
@pytest.mark.parametrize(
    "fault,options,expected",
    # A short timeout strikes anywhere on a busy machine, so only what waits for it has one.
    [(Fault("drop"), {}, "APIConnectionError"), (Fault("hang"), {"timeout": 0.2}, "APITimeoutError")],
    ids=["dropped", "timed out"],
)
def test_a_transport_failure_is_raised_again(fault, options, expected, sdk, asynchronous, home, offline):
    module, make, use, answer = SDKS[sdk]
    with LocalProvider(handler=answers(answer)) as provider:
        provider.inject(fault)
        live = outcome(make, use, provider.url, asynchronous=asynchronous, **options)
        offline(provider)
        returned = outcome(make, use, provider.url, asynchronous=asynchronous)
    assert live["class"] == f"{module.__name__}.{expected}"
    assert returned == live


def test_a_refused_connection_is_raised_again_with_its_cause(home, offline):
    provider = LocalProvider(handler=answers(chat()))
    provider.close()
    causes = []
    for _ in range(2):
        with steplog.run("r"), pytest.raises(openai.APIConnectionError) as caught:
            openai_client(provider.url).chat.completions.create(**ASK)
        causes.append(caught.value.__cause__)
        offline(provider)
    assert [type(cause) for cause in causes] == [http_of(openai).ConnectError] * 2
    assert str(causes[0]) == str(causes[1])
    assert causes[1].request.method == "POST"


def test_more_allowed_retries_than_recorded_end_in_the_recorded_failure(home, offline, no_sleep):
    with LocalProvider(handler=answers(rate_limited())) as provider:
        first = outcome(openai_client, SDKS["openai"][2], provider.url, asynchronous=False, max_retries=0)
        offline(provider)
        no_sleep()
        assert outcome(openai_client, SDKS["openai"][2], provider.url, asynchronous=False, max_retries=3) == first


def test_fewer_allowed_retries_than_recorded_halt_instead_of_failing_silently(home, offline):
    with LocalProvider(handler=answers(rate_limited(), chat())) as provider:
        outcome(openai_client, SDKS["openai"][2], provider.url, asynchronous=False, max_retries=1)
        offline(provider)
        with pytest.raises(RunStopped) as stopped:
            outcome(openai_client, SDKS["openai"][2], provider.url, asynchronous=False, max_retries=0)
    assert isinstance(stopped.value.__cause__, DriftDetected)
    assert "max_retries" in str(stopped.value.__cause__)


def test_an_attempt_that_asks_for_something_else_is_told_from_the_first(home, offline, events):
    class Fallback(openai.OpenAI):
        """Asks another model when it tries again."""

        def _prepare_options(self, options: Any) -> Any:
            options.json_data = {**options.json_data, "model": self.models.pop(0)}
            return options

    def program(*models: str) -> Any:
        with steplog.run("r"), Fallback(base_url=provider.url + "/v1", api_key="x", max_retries=1) as client:
            client.models = list(models)
            return client.chat.completions.create(**ASK)

    with LocalProvider(handler=answers(rate_limited(), chat())) as provider:
        live = program("one", "two")
        assert [hit.json["model"] for hit in provider.hits] == ["one", "two"]
        offline(provider)
        assert program("one", "two") == live
        with pytest.raises(RunStopped) as stopped:
            program("one", "three")
    assert isinstance(stopped.value.__cause__, DriftDetected)
    assert [("request" in exchange) for exchange in events()[3]["data"]["exchanges"]] == [False, True]


def test_a_failure_that_ended_the_run_is_tried_again(home):
    with LocalProvider(handler=answers(rate_limited(), chat("at last"))) as provider:
        client = openai_client(provider.url)
        with pytest.raises(openai.RateLimitError), steplog.run("r"):
            client.chat.completions.create(**ASK)
        with steplog.run("r"):
            answer = client.chat.completions.create(**ASK)
    assert answer.choices[0].message.content == "at last"


def test_an_answer_that_cannot_be_parsed_says_so_in_the_log(home, events, offline):
    from pydantic import BaseModel

    class Wanted(BaseModel):
        number: int

    def program() -> str:
        with steplog.run("r"), pytest.raises(Exception, match="number") as caught:
            openai_client(provider.url).chat.completions.parse(response_format=Wanted, **ASK)
        return f"{type(caught.value)}: {caught.value}"

    with LocalProvider(handler=answers(chat('{"number":"none"}'))) as provider:
        live = program()
        offline(provider)
        assert program() == live
    finished = events()[3]["data"]
    assert finished["outcome"] == "failed"
    assert finished["parse"]["type"] == "ValidationError"


@both_colours
def test_replay_needs_no_key_and_stores_none(asynchronous, home, offline, monkeypatch):
    with LocalProvider(handler=answers(message())) as provider:
        live = outcome(anthropic_client, SDKS["anthropic"][2], provider.url, asynchronous=asynchronous)
        chatted = steplog.run("chat")
        with chatted:
            openai_client(provider.url).moderations.create(input="x")
        offline(provider)
        for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        assert live == outcome(
            anthropic_client, SDKS["anthropic"][2], provider.url, asynchronous=asynchronous, api_key=None
        )
        with steplog.run("chat"):
            openai_client(provider.url, api_key=OTHER_KEY).moderations.create(input="x")
    written = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert b"req" in written
    assert KEY.encode() not in written
    assert OTHER_KEY.encode() not in written


@both_colours
def test_a_live_call_without_a_key_fails_as_it_does_without_steplog(asynchronous, home, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with LocalProvider(handler=answers(message())) as provider:
        for _ in range(2):
            with pytest.raises(TypeError, match="authentication"):
                outcome(anthropic_client, SDKS["anthropic"][2], provider.url, asynchronous=asynchronous, api_key=None)
        assert provider.hits == []
        outcome(anthropic_client, SDKS["anthropic"][2], provider.url, asynchronous=asynchronous)
        assert len(provider.hits) == 1


@both_sdks
def test_strict_mode_reaches_the_caller_as_itself(sdk, home):
    _, make, use, answer = SDKS[sdk]
    steplog.install(home=home, strict=True, interceptors=())
    with LocalProvider(handler=answers(answer)) as provider:
        with pytest.raises(NotInRun):
            use(make(provider.url, max_retries=2))
        assert provider.hits == []


@both_sdks
def test_outside_a_run_a_call_passes_and_is_mentioned_once(sdk, home, caplog):
    _, make, use, answer = SDKS[sdk]
    with caplog.at_level("DEBUG", "steplog"), LocalProvider(handler=answers(rate_limited(), answer)) as provider:
        use(make(provider.url, max_retries=1))
        assert len(provider.hits) == 2
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert len([record for record in caplog.records if record.levelname == "DEBUG"]) == 1


def test_a_client_that_answers_past_send_is_refused(home, caplog):
    http = http_of(openai)

    class Shortcut(http.Client):
        def send(self, request: Any, **_kwargs: Any) -> Any:
            return http.Response(200, json=chat(), request=request)

    client = openai_client("http://127.0.0.1:9", http_client=Shortcut())
    with steplog.run("r"), pytest.raises(NotInRun, match="Shortcut") as caught:
        client.chat.completions.create(**ASK)
    assert "super().send(" in str(caught.value)
    assert [record.levelname for record in caplog.records if record.name == "steplog"] == ["ERROR"]


def test_pauses_between_polls_are_left_out_on_replay(home, offline, no_sleep):
    def poll(url: str) -> str:
        with steplog.run("r"):
            client = openai_client(url)
            return client.vector_stores.files.poll("file-1", vector_store_id="vs_1", poll_interval_ms=1).status

    states = ({"id": "file-1", "object": "vector_store.file", "status": s} for s in ("in_progress", "completed"))
    with LocalProvider(handler=answers(*states)) as provider:
        assert poll(provider.url) == "completed"
        offline(provider)
        no_sleep()
        assert poll(provider.url) == "completed"


def test_compressed_answers_are_stored_decoded(home, events, offline):
    body = gzip.compress(json.dumps(chat()).encode())
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {len(body)}"
    with RawServer(head.encode() + b"\r\n\r\n" + body) as server:
        with steplog.run("r"):
            live = openai_client(server.url).chat.completions.create(**ASK)
        offline(server)
        with steplog.run("r"):
            assert openai_client(server.url).chat.completions.create(**ASK) == live
    exchange = events()[3]["data"]["exchanges"][0]
    assert [name for name, _ in exchange["headers"]] == ["content-type"]
    assert exchange["body"]["text"] == json.dumps(chat())
