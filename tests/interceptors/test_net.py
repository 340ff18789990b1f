"""What reaches the provider past an announced call is recorded all the same, and what is no model call is not."""

from __future__ import annotations

from typing import Any

import openai
import pytest

import steplog
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    answers,
    anthropic_client,
    chat,
    chat_events,
    http_of,
    listed,
    message,
    openai_client,
    perform,
    rate_limited,
    settled,
)
from tests.support.sdk_calls import describe

both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def shadowed(client: Any) -> Any:
    """The client with a `request` of its own, as tracing tools put one there, that goes around the patched class."""
    base = next(cls for cls in type(client).__mro__ if "request" in cls.__dict__)
    original = base.__dict__["request"].__wrapped__
    client.request = original.__get__(client)
    return client


@both_colours
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_with_a_request_of_its_own_is_recorded(stream, asynchronous, home, offline, events):
    def program() -> Any:
        async def body() -> Any:
            client = shadowed(openai_client(provider.url, asynchronous=asynchronous))
            async with steplog.run("r"):
                answer = await settled(client.chat.completions.create(stream=stream, **ASK))
                described = describe(await listed(answer) if stream else answer)
            await settled(client.close())
            return described

        return perform(body)

    with LocalProvider(handler=answers(Reply.sse(chat_events("a")) if stream else chat())) as provider:
        live = program()
        offline(provider)
        assert program() == live
    told = ("step.started", "step.finished")  # a slow stream may tell its progress as well
    assert tuple(event["type"] for event in events() if event["type"] in told) == told


@both_colours
def test_attempts_past_a_scope_are_steps_that_replay_in_order(asynchronous, home, offline, events):
    def program() -> Any:
        async def body() -> Any:
            client = shadowed(openai_client(provider.url, asynchronous=asynchronous, max_retries=2))
            async with steplog.run("r"):
                answer = describe(await settled(client.chat.completions.create(**ASK)))
            await settled(client.close())
            return answer

        return perform(body)

    with LocalProvider(handler=answers(rate_limited(), chat())) as provider:
        live = program()
        offline(provider)
        assert program() == live
    outcomes = [event["data"]["outcome"] for event in events() if event["type"] == "step.finished"]
    assert outcomes == ["failed", "done"]


@both_colours
def test_a_transport_failure_past_a_scope_is_raised_again(asynchronous, home, offline):
    provider = LocalProvider(handler=answers(chat()))
    provider.close()

    async def body() -> str:
        client = shadowed(openai_client(provider.url, asynchronous=asynchronous))
        async with steplog.run("r") as run:
            with pytest.raises(openai.APIConnectionError) as caught:
                await settled(client.chat.completions.create(**ASK))
            assert run.replayed + run.executed == 1
        await settled(client.close())
        return repr(caught.value.__cause__)

    live = perform(body)
    offline(provider)
    assert perform(body) == live


def test_a_subclass_that_brought_its_own_request_before_install_is_one_step_a_call(home, offline, events):
    from steplog_interceptors.openai import interceptor

    interceptor.uninstall()

    class Traced(openai.OpenAI):
        pass

    original = openai.OpenAI.request
    Traced.request = original
    interceptor.install()

    def program() -> Any:
        with steplog.run("r"), Traced(base_url=provider.url + "/v1", api_key="x", max_retries=2) as client:
            return client.chat.completions.create(**ASK)

    with LocalProvider(handler=answers(rate_limited(), chat())) as provider:
        live = program()
        offline(provider)
        assert program() == live
    assert [event["type"] for event in events() if event["type"].startswith("step.")] == [
        "step.started",
        "step.finished",
    ]


@both_colours
def test_a_subclass_that_calls_what_it_overrides_is_one_step_a_call(asynchronous, home, events):
    base = openai.AsyncOpenAI if asynchronous else openai.OpenAI

    class Counted(base):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            return super().request(*args, **kwargs)

    from steplog_interceptors.openai import interceptor

    interceptor.uninstall()
    interceptor.install()  # now both the subclass's method and the one that it calls are patched

    async def body() -> None:
        client = Counted(base_url=provider.url + "/v1", api_key="x", max_retries=1)
        async with steplog.run("r"):
            await settled(client.chat.completions.create(**ASK))
        await settled(client.close())

    with LocalProvider(handler=answers(rate_limited(), chat())) as provider:
        perform(body)
    assert [len(event["data"]["exchanges"]) for event in events() if event["type"] == "step.finished"] == [2]


@both_colours
def test_a_call_that_is_made_inside_another_is_a_step_of_its_own(asynchronous, home, offline, events):
    def program() -> Any:
        def fetch_key() -> str:
            return openai_client(provider.url).models.retrieve("key-holder").id

        async def fetch_key_async() -> str:
            return fetch_key()

        async def body() -> Any:
            key = fetch_key_async if asynchronous else fetch_key
            client = openai_client(provider.url, asynchronous=asynchronous, api_key=key)
            async with steplog.run("r"):
                answer = describe(await settled(client.chat.completions.create(**ASK)))
            await settled(client.close())
            return answer

        return perform(body)

    def handler(hit: Hit) -> Reply:
        return Reply.json({"id": "the-key", "object": "model"} if hit.method == "GET" else chat())

    with LocalProvider(handler=handler) as provider:
        live = program()
        offline(provider)
        assert program() == live
    paths = [event["data"]["request"]["path"] for event in events() if event["type"] == "step.started"]
    assert paths == ["/v1/models/key-holder", "/v1/chat/completions"]


@both_colours
def test_credential_traffic_inside_a_call_is_neither_recorded_nor_replayed(asynchronous, home, offline, events):
    http = http_of(openai)
    tokens: list[str] = []

    class TokenAuth(http.Auth):
        def sync_auth_flow(self, request: Any) -> Any:
            with http.Client() as client:
                tokens.append(client.post(provider.url + "/token").json()["token"])
            request.headers["authorization"] = "Bearer " + tokens[-1]
            yield request

        async def async_auth_flow(self, request: Any) -> Any:
            async with http.AsyncClient() as client:
                tokens.append((await client.post(provider.url + "/token")).json()["token"])
            request.headers["authorization"] = "Bearer " + tokens[-1]
            yield request

    def handler(hit: Hit) -> Reply:
        return Reply.json({"token": "tok-secret"} if hit.path == "/token" else chat())

    def program() -> Any:
        async def body() -> Any:
            cls = http.AsyncClient if asynchronous else http.Client
            client = openai_client(provider.url, asynchronous=asynchronous, http_client=cls(auth=TokenAuth()))
            async with steplog.run("r"):
                answer = describe(await settled(client.chat.completions.create(**ASK)))
            await settled(client.close())
            return answer

        return perform(body)

    with LocalProvider(handler=handler) as provider:
        live = program()
        assert [hit.path for hit in provider.hits] == ["/token", "/v1/chat/completions"]
        offline(provider)
        assert program() == live
    assert tokens == ["tok-secret"]
    assert [len(event["data"]["exchanges"]) for event in events() if event["type"] == "step.finished"] == [1]
    assert not any(b"tok-secret" in path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_other_traffic_of_the_program_is_none_of_our_business(home, events):
    http = http_of(openai)
    with LocalProvider(handler=answers({"a": 1})) as provider, steplog.run("r"), http.Client() as client:
        assert client.get(provider.url + "/anything").json() == {"a": 1}
    assert not [event for event in events() if event["type"].startswith("step.")]


def test_a_transport_that_sends_through_another_client_is_one_exchange(home, events):
    http = http_of(openai)

    class Relay(http.BaseTransport):
        def handle_request(self, request: Any) -> Any:
            with http.Client() as inner:
                answer = inner.send(request)
            return http.Response(answer.status_code, headers=answer.headers, content=answer.content)

    with LocalProvider(handler=answers(chat())) as provider, steplog.run("r"):
        openai_client(provider.url, http_client=http.Client(transport=Relay())).chat.completions.create(**ASK)
    assert [len(event["data"]["exchanges"]) for event in events() if event["type"] == "step.finished"] == [1]


@both_colours
def test_a_middleware_that_asks_again_is_served_both_answers(asynchronous, home, offline, events):
    anthropic = pytest.importorskip("anthropic")
    if not hasattr(anthropic, "Middleware"):
        pytest.skip(f"anthropic {anthropic.__version__} has no middleware")

    def twice(request: Any, call_next: Any) -> Any:
        first = call_next(request)
        return call_next(request) if "again" in str(first.parse()) else first

    async def twice_async(request: Any, call_next: Any) -> Any:
        first = await call_next(request)
        return await call_next(request) if "again" in str(await first.parse()) else first

    def program() -> Any:
        async def body() -> Any:
            client = anthropic_client(provider.url, asynchronous=asynchronous)
            client = client.with_middleware(twice_async if asynchronous else twice)
            async with steplog.run("r"):
                answer = describe(await settled(client.messages.create(**ASK_CLAUDE)))
            await settled(client.close())
            return answer

        return perform(body)

    with LocalProvider(handler=answers(message("again"), message("fine"))) as provider:
        live = program()
        assert len(provider.hits) == 2
        offline(provider)
        assert program() == live
    assert [len(event["data"]["exchanges"]) for event in events() if event["type"] == "step.finished"] == [2]


def test_a_middleware_that_answers_by_itself_is_no_effect(home, events):
    anthropic = pytest.importorskip("anthropic")
    if not hasattr(anthropic, "Middleware"):
        pytest.skip(f"anthropic {anthropic.__version__} has no middleware")
    cached = object()
    client = anthropic_client("http://127.0.0.1:9").with_middleware(lambda request, call_next: cached)
    with steplog.run("r"):
        assert client.messages.create(**ASK_CLAUDE) is cached
    assert not [event for event in events() if event["type"].startswith("step.")]
