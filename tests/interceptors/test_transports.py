"""HTTP clients of the program's own, and clients made elsewhere: all record, and replay without a provider."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import steplog
from steplog.testing import LocalProvider
from steplog.testing.provider import Fault, Hit, Reply
from steplog_interceptors import openai as interceptor_of_openai
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    RELEASES,
    answers,
    anthropic_client,
    chat,
    chat_events,
    http_of,
    listed,
    message,
    message_events,
    openai_client,
    perform,
    rate_limited,
    settled,
)
from tests.support.processes import environment
from tests.support.sdk_calls import describe, describe_error

both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
HTTP = http_of(openai)


def _client_class(asynchronous: bool, library: Any = HTTP) -> Any:
    return library.AsyncClient if asynchronous else library.Client


def subclassed(asynchronous: bool) -> Any:
    """A client that adds a header in `send` and passes on."""
    if asynchronous:

        class Counting(HTTP.AsyncClient):
            async def send(self, request: Any, **kwargs: Any) -> Any:
                request.headers["x-counted"] = "1"
                return await super().send(request, **kwargs)
    else:

        class Counting(HTTP.Client):
            def send(self, request: Any, **kwargs: Any) -> Any:
                request.headers["x-counted"] = "1"
                return super().send(request, **kwargs)

    return Counting()


def rebuilding(asynchronous: bool) -> Any:
    """A client whose `send` makes another request out of the one it gets, as some gateways' clients do."""

    def rebuilt(request: Any) -> Any:
        again = HTTP.Request(request.method, request.url, headers=request.headers, content=request.read())
        again.extensions = request.extensions
        return again

    if asynchronous:

        class Rebuilding(HTTP.AsyncClient):
            async def send(self, request: Any, **kwargs: Any) -> Any:
                return await super().send(rebuilt(request), **kwargs)
    else:

        class Rebuilding(HTTP.Client):
            def send(self, request: Any, **kwargs: Any) -> Any:
                return super().send(rebuilt(request), **kwargs)

    return Rebuilding()


def relayed(asynchronous: bool) -> Any:
    """A client with a transport of its own around the stock one."""
    if asynchronous:

        class Transport(HTTP.AsyncHTTPTransport):
            async def handle_async_request(self, request: Any) -> Any:
                request.headers["x-relayed"] = "1"
                return await super().handle_async_request(request)
    else:

        class Transport(HTTP.HTTPTransport):
            def handle_request(self, request: Any) -> Any:
                request.headers["x-relayed"] = "1"
                return super().handle_request(request)

    return _client_class(asynchronous)(transport=Transport())


def hooked(asynchronous: bool) -> Any:
    """A client with event hooks; the one for responses reads them."""

    def note(request: Any) -> None:
        request.headers["x-hooked"] = "1"

    def read(response: Any) -> None:
        assert response.status_code

    async def note_async(request: Any) -> None:
        note(request)

    async def read_async(response: Any) -> None:
        read(response)

    hooks = (
        {"request": [note_async], "response": [read_async]} if asynchronous else {"request": [note], "response": [read]}
    )
    return _client_class(asynchronous)(event_hooks=hooks)


def legacy(asynchronous: bool) -> Any:
    """A client of the legacy httpx, which the openai SDK takes beside its own library."""
    if HTTP.__name__ == "httpx":
        pytest.skip("httpx is this release's own library")
    library = pytest.importorskip("httpx", reason="needs the legacy httpx")
    return _client_class(asynchronous, library)()


def aio(sdk: Any) -> Callable[[bool], Any]:
    """The SDK's client on aiohttp."""

    def make(asynchronous: bool) -> Any:
        if not asynchronous:
            pytest.skip("aiohttp is asynchronous")
        pytest.importorskip("aiohttp", reason="needs aiohttp")
        try:
            return sdk.DefaultAioHttpClient()
        except (RuntimeError, AttributeError) as missing:
            return pytest.skip(f"{RELEASES} cannot use the aiohttp that is here: {missing}")

    return make


def default(sdk: Any) -> Callable[[bool], Any]:
    """The SDK's default client, made by the program."""
    return lambda asynchronous: sdk.DefaultAsyncHttpxClient() if asynchronous else sdk.DefaultHttpxClient()


# name: (how a client of the SDK is made, the HTTP client)
TRANSPORTS: dict[str, tuple[Any, Callable[[bool], Any]]] = {
    "plain": (openai_client, lambda asynchronous: _client_class(asynchronous)()),
    "default": (openai_client, default(openai)),
    "legacy": (openai_client, legacy),
    "subclass": (openai_client, subclassed),
    "subclass that rebuilds": (openai_client, rebuilding),
    "transport": (openai_client, relayed),
    "event hooks": (openai_client, hooked),
    "authentication": (openai_client, lambda asynchronous: _client_class(asynchronous)(auth=("user", "opaque"))),
    "aiohttp": (openai_client, aio(openai)),
    "anthropic, default": (anthropic_client, default(anthropic)),
    "anthropic, aiohttp": (anthropic_client, aio(anthropic)),
}


def answer(hit: Hit) -> Reply:
    """What the SDK that asks wants to hear."""
    claude, stream = "max_tokens" in hit.json, bool(hit.json.get("stream"))
    if claude:
        return Reply.sse(message_events("a", "b")) if stream else Reply.json(message())
    return Reply.sse(chat_events("a", "b")) if stream else Reply.json(chat())


def ask(client: Any, **options: Any) -> Any:
    """The client's usual call."""
    if hasattr(client, "chat"):
        return client.chat.completions.create(**ASK, **options)
    return client.messages.create(**ASK_CLAUDE, **options)


def outcome(make: Callable[[], Any], **options: Any) -> Any:
    """What one call in run `r` gives or raises, described."""

    async def body() -> Any:
        client = make()
        try:
            async with steplog.run("r"):
                try:
                    got = await settled(ask(client, **options))
                    return describe(await listed(got) if options.get("stream") else got)
                except (openai.OpenAIError, anthropic.AnthropicError) as error:
                    return describe_error(error)
        finally:
            await settled(client.close())

    return perform(body)


# name: (what goes wrong, options of the call, options of the client, requests, what comes of it)
SCENES: dict[str, Any] = {
    "whole": ([], {}, {}, 1, "done"),
    "stream": ([], {"stream": True}, {}, 1, "done"),
    "recovered": ([Fault("status"), Fault("drop")], {}, {"max_retries": 2}, 3, "done"),
    "exhausted": ([Fault("status", times=2)], {}, {"max_retries": 1}, 2, "failed"),
    "dropped": ([Fault("drop")], {}, {}, 1, "failed"),
    "timed out": ([Fault("hang")], {}, {"timeout": 0.3}, 1, "failed"),
}


@both_colours
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("name", TRANSPORTS)
def test_any_transport_records_and_replays(name, scene, asynchronous, home, offline, events, monkeypatch):
    make, http = TRANSPORTS[name]
    faults, options, client_options, requests, expected = SCENES[scene]
    for module in ("openai", "anthropic"):
        # The pauses before a new attempt are not what is tested here.
        base = importlib.import_module(f"{module}._base_client").BaseClient
        monkeypatch.setattr(base, "_calculate_retry_timeout", lambda *_args, **_kwargs: 0.0)

    def client() -> Any:
        return make(provider.url, asynchronous=asynchronous, http_client=http(asynchronous), **client_options)

    with LocalProvider(handler=answer) as provider:
        for fault in faults:
            at = len(provider.hits) + 1 + sum(one.times for one in faults[: faults.index(fault)])
            provider.inject(Fault(fault.kind, hit=at, times=fault.times))
        live = outcome(client, **options)
        assert len(provider.hits) == requests
        offline(provider)
        assert outcome(client, **options) == live
    finished = [event["data"] for event in events() if event["type"] == "step.finished"]
    assert [step["outcome"] for step in finished] == [expected]
    assert len(finished[0]["exchanges"]) == requests
    assert not any(b"opaque" in path.read_bytes() for path in home.rglob("*") if path.is_file())


@both_colours
def test_a_mock_transport_is_asked_once(asynchronous, home, offline):
    asked: list[str] = []

    def handle(request: Any) -> Any:
        asked.append(request.url.path)
        return HTTP.Response(200, json=chat())

    def client() -> Any:
        http = _client_class(asynchronous)(transport=HTTP.MockTransport(handle))
        return openai_client("http://nowhere", asynchronous=asynchronous, http_client=http)

    live = outcome(client)
    assert outcome(client) == live
    assert asked == ["/v1/chat/completions"]


@both_colours
def test_authentication_and_event_hooks_of_a_client_do_not_run_on_replay(asynchronous, home, offline):
    ran: list[str] = []

    class Auth(HTTP.Auth):
        def auth_flow(self, request: Any) -> Any:
            ran.append("auth")
            yield request

    async def hook_async(_request: Any) -> None:
        ran.append("hook")

    def hook(_request: Any) -> None:
        ran.append("hook")

    def client() -> Any:
        hooks = {"request": [hook_async if asynchronous else hook]}
        http = _client_class(asynchronous)(auth=Auth(), event_hooks=hooks)
        return openai_client(provider.url, asynchronous=asynchronous, http_client=http)

    with LocalProvider(handler=answer) as provider:
        live = outcome(client)
        assert sorted(ran) == ["auth", "hook"]
        offline(provider)
        assert outcome(client) == live
    assert sorted(ran) == ["auth", "hook"]


def test_a_subclass_that_answers_without_the_original_send_is_refused_and_told_why(home):
    from steplog.errors import NotInRun

    class Shortcut(HTTP.AsyncClient):
        async def send(self, request: Any, **_kwargs: Any) -> Any:
            return HTTP.Response(200, json=chat(), request=request)

    def client() -> Any:
        return openai_client("http://nowhere", asynchronous=True, http_client=Shortcut())

    with pytest.raises(NotInRun, match="Shortcut"):
        outcome(client)


# clients that were made elsewhere ------------------------------------------------------------------------------------


def test_with_options_and_copy_are_the_same_client_to_a_run(home, offline, events):
    def program(change: Callable[[Any], Any]) -> Any:
        with steplog.run("r"):
            return describe(change(openai_client(provider.url)).chat.completions.create(**ASK))

    with LocalProvider(handler=answer) as provider:
        live = program(lambda c: c)
        offline(provider)
        changes = (
            lambda c: c.with_options(timeout=3, max_retries=5),
            lambda c: c.copy(api_key="another", default_headers={"x-a": "b"}),
            lambda c: c.with_options(http_client=HTTP.Client()).copy(),
        )
        for change in changes:
            assert program(change) == live
    assert len([event for event in events() if event["type"] == "step.started"]) == 1


@both_colours
def test_a_client_and_a_method_that_were_taken_before_install_record_like_any_other(
    asynchronous, home, offline, events
):
    interceptor_of_openai.interceptor.uninstall()
    with LocalProvider(handler=answer) as provider:

        async def body() -> Any:
            async with steplog.run("r"):
                got = describe(await settled(create(**ASK)))
            await settled(client.close())
            return got

        client = openai_client(provider.url, asynchronous=asynchronous)
        create = client.chat.completions.create
        interceptor_of_openai.interceptor.install()
        live = perform(body)
        offline(provider)
        client = openai_client(provider.url, asynchronous=asynchronous)
        create = client.chat.completions.create
        assert perform(body) == live
    assert [event["data"]["outcome"] for event in events() if event["type"] == "step.finished"] == ["done"]


def test_a_client_that_was_made_in_another_run_or_thread_belongs_to_the_run_that_uses_it(home, offline, events):
    made: list[Any] = []

    def make() -> None:
        made.append(openai_client(provider.url))

    def program(run: str) -> Any:
        with steplog.run(run):
            return describe(made[0].chat.completions.create(**ASK))

    with LocalProvider(handler=answer) as provider:
        with steplog.run("maker"):
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
            made[0].models  # noqa: B018  # touches a resource, which keeps the client's methods
        live = program("one")
        assert program("two") == live
        offline(provider)
        assert program("one") == program("two") == live
    assert [len([e for e in events(run) if e["type"] == "step.started"]) for run in ("maker", "one", "two")] == [
        0,
        1,
        1,
    ]


MODULE_LEVEL = """
import sys, steplog
steplog.install(home=sys.argv[2])
import openai
openai.base_url = sys.argv[1] + "/v1/"
openai.api_key = input()
openai.max_retries = 0
with steplog.run("r"):
    print(openai.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "hi"}]).model_dump_json())
"""


def test_the_module_itself_is_a_client(tmp_path):
    def program(key: str) -> str:
        command = [sys.executable, "-c", MODULE_LEVEL, url, str(tmp_path / "home")]
        done = subprocess.run(
            command, env=environment(), cwd=tmp_path, input=key, capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout

    with LocalProvider(handler=answers(rate_limited(), chat())) as provider:
        url = provider.url
        with pytest.raises(subprocess.CalledProcessError):
            program("opaque-1")  # the failure ends the run, and is tried again
        live = program("opaque-2")
        assert len(provider.hits) == 2
    assert program("opaque-3") == live
    written = b"".join(path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file())
    assert b"opaque-" not in written
