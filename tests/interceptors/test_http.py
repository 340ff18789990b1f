"""Requests to named hosts, and calls of models by clients that no interceptor knows."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import steplog
from steplog._cli.show import show
from steplog.errors import NotInRun, RunStopped
from steplog.testing import LocalProvider
from steplog.testing.provider import Fault, Hit, Reply
from tests.interceptors.support import KEY, chat, chat_events, perform, settled

LIBRARIES = [name for name in ("httpx2", "httpx") if importlib.util.find_spec(name)]
both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@pytest.fixture(params=LIBRARIES)
def httpx(request: pytest.FixtureRequest) -> Any:
    """Each HTTP library that is here."""
    return importlib.import_module(request.param)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    steplog.install(home=folder, durability="process", interceptors=["http"], http=["127.0.0.1"])
    yield folder
    steplog.uninstall()


def service(hit: Hit) -> Reply:
    """A REST service that tells what it was asked."""
    if hit.path == "/moved":
        return Reply(302, {"location": "/found?access_token=hidden-8371"}, b"")
    if hit.path == "/file":
        return Reply(200, {"content-type": "application/octet-stream"}, bytes(range(256)) * 40)
    if hit.path == "/events":
        return Reply.sse([{"n": 1}, {"n": 2}])
    if hit.path.startswith("/broken"):
        return Reply.json({"error": "down"}, int(hit.path[-3:]))
    where = hit.path.partition("?")[0] if "bot" not in hit.path else "kept to itself"
    return Reply.json({"method": hit.method, "path": where, "size": len(hit.body)})


def seen(response: Any) -> dict[str, Any]:
    """All that a program can ask of a response."""
    return {
        "class": type(response),
        "status": (response.status_code, response.reason_phrase, response.http_version),
        "content": response.content,
        "headers": [(name, value.partition("?")[0]) for name, value in response.headers.multi_items()],
        "request": (response.request.method, response.url.path),
        "history": [(one.status_code, one.request.method, one.url.path) for one in response.history],
        "next": response.next_request and response.next_request.url.path,
        "elapsed": response.elapsed is not None,
    }


def calls(client: Any) -> dict[str, Callable[[], Any]]:
    return {
        "get": lambda: client.get("/items/42", params={"q": "x", "api_key": KEY}),
        "post": lambda: client.post("/items", json={"name": "tea", "api_key": KEY}),
        "form": lambda: client.post("/items", data={"name": "tea", "password": KEY}),
        "upload": lambda: client.post("/items", files={"file": ("a.bin", b"\0\xff")}, data={"token": KEY}),
        "put": lambda: client.put("/items/42", content=b"raw", headers={"idempotency-key": "k-1"}),
        "delete": lambda: client.delete("/items/42"),
        "redirect": lambda: client.get("/moved", follow_redirects=True),
        "unfollowed": lambda: client.get("/moved"),
        "binary": lambda: client.get("/file", headers={"range": "bytes=0-9"}),
        "not found": lambda: client.get("/broken/404"),
        "failed": lambda: client.get("/broken/500"),
    }


@both_colours
def test_every_request_is_returned_as_it_was(httpx, asynchronous, home, offline):
    def program() -> dict[str, Any]:
        async def body() -> dict[str, Any]:
            kind = httpx.AsyncClient if asynchronous else httpx.Client
            client = kind(base_url=provider.url, headers={"authorization": f"Bearer {KEY}"}, cookies={"c": KEY})
            with steplog.run("r") as run:
                found = {name: seen(await settled(call())) for name, call in calls(client).items()}
            await settled(client.aclose() if asynchronous else client.close())
            counts.append((run.replayed, run.executed))
            return found

        return perform(body)

    counts: list[tuple[int, int]] = []
    with LocalProvider(handler=service) as provider:
        live = program()
        offline(provider)
        returned = program()
    assert returned == live
    assert live["redirect"]["history"] == [(302, "GET", "/moved")]
    assert live["unfollowed"]["next"] == "/found"
    assert counts == [(0, len(live)), (len(live), 0)]


def test_what_is_recorded_says_what_was_asked_and_holds_no_credential(httpx, home, events):
    with LocalProvider(handler=service) as provider, httpx.Client(base_url=provider.url, auth=("ada", KEY)) as client:
        with steplog.run("r"):
            for call in calls(client).values():
                call()
            client.get(f"/bot123456:{KEY[:30]}Ab1/send", params={"X-Amz-Signature": KEY, "session_token": KEY})
    started = [event["data"] for event in events() if event["type"] == "step.started"]
    host = provider.url.removeprefix("http://")
    assert {step["kind"] for step in started} == {"tool_call"}
    assert [(step["target"], step["mode"]) for step in started[:6]] == [
        (f"GET {host}/items/{{id}}", "safe"),
        (f"POST {host}/items", "unsafe"),
        (f"POST {host}/items", "unsafe"),
        (f"POST {host}/items", "unsafe"),
        (f"PUT {host}/items/{{id}}", "keyed"),
        (f"DELETE {host}/items/{{id}}", "unsafe"),
    ]
    assert started[0]["request"]["query"] == [["q", "x"]]
    assert started[1]["request"]["body"] == {"json": {"name": "tea", "api_key": "[redacted]"}}
    kept = b"".join(file.read_bytes() for file in home.rglob("*") if file.is_file())
    assert b"hidden-8371" not in kept
    for secret in (KEY, KEY[:30]):
        assert secret.encode() not in kept


@both_colours
def test_a_stream_is_returned_piece_by_piece(httpx, asynchronous, home, offline):
    def program() -> list[Any]:
        async def body() -> list[Any]:
            with steplog.run("r"):
                if asynchronous:
                    async with httpx.AsyncClient() as client, client.stream("GET", provider.url + "/events") as answer:
                        return [line async for line in answer.aiter_lines()]
                with httpx.stream("GET", provider.url + "/events") as answer:
                    return list(answer.iter_lines())

        return perform(body)

    with LocalProvider(handler=service) as provider:
        live = program()
        offline(provider)
        assert program() == live
    assert [line for line in live if line] == ['data: {"n":1}', 'data: {"n":2}']


def test_functions_of_the_module_are_recorded(httpx, home, offline):
    def program() -> Any:
        with steplog.run("r"):
            return httpx.get(provider.url + "/a").json(), httpx.request("POST", provider.url + "/b", json=[1]).json()

    with LocalProvider(handler=service) as provider:
        live = program()
        offline(provider)
        assert program() == live


def test_authentication_and_hooks_run_once_and_their_outcome_is_returned(httpx, home, offline):
    asked: list[str] = []

    class Login(httpx.Auth):
        requires_response_body = True

        def auth_flow(self, request: Any) -> Iterator[Any]:
            token = yield httpx.Request("POST", provider.url + "/key")
            asked.append(token.json()["path"])
            request.headers["authorization"] = "Bearer " + KEY
            yield request

    def refuse(response: Any) -> None:
        response.read()
        response.raise_for_status()

    def program() -> Any:
        with steplog.run("r"), httpx.Client(auth=Login(), event_hooks={"response": [refuse]}) as client:
            answer = client.get(provider.url + "/a").json()
            with pytest.raises(httpx.HTTPStatusError) as caught:
                client.get(provider.url + "/broken/404")
            return answer, str(caught.value), caught.value.response.status_code, caught.value.request.url.path

    with LocalProvider(handler=service) as provider:
        live = program()
        assert asked == ["/key", "/key"]
        offline(provider)
        assert program() == live
    assert asked == ["/key", "/key"]


def test_the_host_and_what_chooses_the_answer_are_part_of_identity(httpx, home):
    with LocalProvider(handler=service) as one, LocalProvider(handler=service) as other:
        with steplog.run("r") as run, httpx.Client() as client:
            for url in (one.url, other.url):
                for headers in ({}, {"range": "bytes=0-1"}, {"accept": "text/csv"}):
                    client.get(url + "/a", headers=headers)
            keys = {step.request for step in run.state.steps.values()}
    assert len(keys) == 6


def test_what_is_ignored_in_a_body_does_not_count(httpx, home):
    steplog.install(home=home, durability="process", interceptors=[], ignore={"http": ["trace.id"]})
    with LocalProvider(handler=service) as provider, httpx.Client(base_url=provider.url) as client:
        for number in range(2):
            with steplog.run("r"):
                client.post("/items", json={"name": "tea", "trace": {"id": number}})
                client.post("/v1/embeddings", json={"model": "m", "input": "x", "trace": {"id": number}})
        assert len(provider.hits) == 2


@pytest.mark.parametrize("mode", ["safe", "unsafe"])
def test_the_users_word_on_a_mode_counts(mode, httpx, home, events):
    pattern = {"safe": "POST /items/*/notes", "unsafe": "GET /items/**"}[mode]
    steplog.install(home=home, durability="process", interceptors=["http"], modes={"http": {pattern: mode}})
    with LocalProvider(handler=service) as provider, httpx.Client(base_url=provider.url) as client:
        with steplog.run("r"):
            client.post("/items/42/notes", headers={"idempotency-key": "k"}, json={})
            client.get("/items/42/notes")
            client.post("/items", json={})
    modes = [event["data"]["mode"] for event in events() if event["type"] == "step.started"]
    assert modes == {"safe": ["safe", "safe", "unsafe"], "unsafe": ["keyed", "unsafe", "unsafe"]}[mode]


def test_the_users_word_on_a_model_call_of_an_unknown_client_counts(httpx, net, events):
    steplog.install(interceptors=["http"], modes={"http": {"POST /v1/chat/completions": "unsafe"}}, home=net)
    with LocalProvider(handler=lambda _hit: Reply.json(chat())) as provider, steplog.run("r"):
        httpx.post(provider.url + "/v1/chat/completions", json=MESSAGES)
    assert [event["data"]["mode"] for event in events() if event["type"] == "step.started"] == ["unsafe"]


def test_other_parameters_are_drift_and_the_message_names_them(httpx, home):
    with LocalProvider(handler=service) as provider, httpx.Client(base_url=provider.url) as client:
        with pytest.raises(RuntimeError), steplog.run("r"):
            client.get("/search", params={"q": "tea"})
            raise RuntimeError
        with pytest.raises(RunStopped, match="query") as stopped, steplog.run("r"):
            client.get("/search", params={"q": "coffee"})
    assert "coffee" in str(stopped.value)
    assert len(provider.hits) == 1


def test_a_failure_that_ended_the_run_is_tried_again(httpx, home):
    with LocalProvider(handler=lambda _hit: Reply.json({"n": len(provider.hits)})) as provider:
        provider.inject(Fault("status", status=503))

        def program() -> Any:
            with steplog.run("r"), httpx.Client() as client:
                response = client.get(provider.url + "/a")
                response.raise_for_status()
                return response.json()

        with pytest.raises(httpx.HTTPStatusError):
            program()
        assert program() == {"n": 2}
        assert program() == {"n": 2}


@pytest.mark.parametrize("fault", [Fault("status", status=502), Fault("drop")], ids=["status", "drop"])
def test_a_change_that_may_have_happened_is_not_made_again(fault, httpx, home):
    with LocalProvider(handler=service) as provider:
        provider.inject(fault)

        def program() -> None:
            with steplog.run("r"), httpx.Client() as client:
                client.post(provider.url + "/orders", json={}).raise_for_status()

        for _ in range(2):
            with pytest.raises((httpx.HTTPStatusError, httpx.RemoteProtocolError)):
                program()
        assert len(provider.hits) == 1


def test_a_change_that_was_refused_or_never_left_is_made_again(httpx, home):
    with LocalProvider(handler=service) as provider:
        provider.inject(Fault("status", status=429))

        def program(url: str) -> Any:
            with steplog.run("r"), httpx.Client() as client:
                response = client.post(url + "/orders", json={})
                response.raise_for_status()
                return response.status_code

        with pytest.raises(httpx.HTTPStatusError):
            program(provider.url)
        assert program(provider.url) == 200


CREDENTIALS = [
    ("POST", "/oauth/token", {"data": {"grant_type": "client_credentials"}}),
    ("POST", "/anything", {"json": {"grant_type": "refresh_token"}}),
    ("GET", "/.well-known/openid-configuration", {}),
    ("POST", "/v1/traces", {"content": b"spans"}),
    ("POST", "/v1/traces/ingest", {"json": {"data": []}}),
]


def test_credential_and_telemetry_traffic_passes_by(httpx, home, events):
    with LocalProvider(handler=service) as provider, httpx.Client(base_url=provider.url) as client:
        with steplog.run("r"):
            for method, path, options in CREDENTIALS:
                client.request(method, path, **options)
        assert len(provider.hits) == len(CREDENTIALS)
    assert [event["type"] for event in events() if event["type"].startswith("step.")] == []


def test_other_hosts_pass_by(httpx, home, events, monkeypatch):
    with LocalProvider(handler=service) as provider:
        port = provider.url.rpartition(":")[2]
        steplog.uninstall()
        steplog.install(home=home, durability="process", interceptors=[], http=[f"127.0.0.2:{port}", "*.example.com"])
        with steplog.run("r"):
            httpx.get(provider.url + "/a")
    assert [event["type"] for event in events() if event["type"].startswith("step.")] == []


def test_a_request_outside_a_run_is_told_of(httpx, home, caplog):
    with LocalProvider(handler=service) as provider:
        assert httpx.get(provider.url + "/a").status_code == 200
        assert "tool_call GET /a was called outside any run" in caplog.text
        steplog.install(home=home, durability="process", interceptors=[], strict=True)
        with pytest.raises(NotInRun):
            httpx.get(provider.url + "/a")
    assert len(provider.hits) == 1


MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
MODEL_CALLS = {
    "/v1/messages": {"model": "claude-x", "max_tokens": 9, **MESSAGES},
    "/v1/responses": {"model": "gpt-x", "input": "hi"},
    "/openai/deployments/gpt-x/chat/completions": MESSAGES,
    "/v1/embeddings": {"model": "e", "input": ["hi"]},
    "/v1beta/models/gemini-x:generateContent": {"contents": []},
    "/v1beta/models/gemini-x:streamGenerateContent": {"contents": []},
    "/model/claude-x/converse": {"messages": []},
    "/model/arn%3Aaws%3Abedrock%3Ax/invoke": {"prompt": ""},
    "/v2/chat": {"model": "command", **MESSAGES},
    "/v1/rerank": {"model": "r", "query": "q", "documents": []},
    "/api/chat": {"model": "llama", **MESSAGES},
}
NO_MODEL_CALLS = {
    "/v1/messages": {"to": "ada", "text": "hi"},
    "/v1/responses": {"survey": 1},
    "/embeddings": {"name": "x"},
    "/api/chat": {"text": "hi"},
    "/v1/items": {"model": "gpt-x", **MESSAGES},
}


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Path]:
    """The wire without any host."""
    folder = tmp_path / "home"
    steplog.install(home=folder, durability="process", interceptors=["http"])
    yield folder
    steplog.uninstall()


@both_colours
def test_a_model_call_of_an_unknown_client_is_a_step(httpx, asynchronous, net, offline):
    def program() -> tuple[Any, Any]:
        async def body() -> Any:
            client = httpx.AsyncClient() if asynchronous else httpx.Client()
            with steplog.run("r") as run:
                found = [
                    (await settled(client.post(provider.url + path, json=tree))).json()
                    for path, tree in MODEL_CALLS.items()
                ]
            await settled(client.aclose() if asynchronous else client.close())
            steps = [(step.kind, step.mode) for step in run.state.steps.values()]
            return found, steps

        return perform(body)

    with LocalProvider(handler=lambda hit: Reply.json(chat(hit.path))) as provider:
        live = program()
        offline(provider)
        assert program() == live
    assert live[1] == [("llm_call", "safe")] * len(MODEL_CALLS)


def test_what_only_looks_like_a_model_call_is_not_one(httpx, net):
    with LocalProvider(handler=service) as provider, httpx.Client(base_url=provider.url) as client:
        with steplog.run("r") as run:
            for path, tree in NO_MODEL_CALLS.items():
                client.post(path, json=tree)
            for path in MODEL_CALLS:
                client.get(path)
            client.post("/v1/messages", content=iter([b"{}"]), headers={"content-length": "2"})
            assert run.state.steps == {}
    assert len(provider.hits) == len(NO_MODEL_CALLS) + len(MODEL_CALLS) + 1


def test_a_model_call_to_a_listed_host_is_a_model_call_with_its_usage(httpx, home, events):
    with LocalProvider(handler=lambda _hit: Reply.sse(chat_events("a", "b"))) as provider, steplog.run("r"):
        with httpx.stream("POST", provider.url + "/v1/chat/completions", json={"model": "m", **MESSAGES}) as answer:
            answer.read()
    started, finished = (event["data"] for event in events() if event["type"].startswith("step."))
    assert (started["kind"], started["target"]) == ("llm_call", "m")
    assert finished["usage"]["total"] == 12
    assert finished["exchanges"][0]["end"] == "terminal"


def test_a_response_of_the_provider_in_a_conversation_changes_state(httpx, net):
    with LocalProvider(handler=service) as provider, steplog.run("r") as run:
        httpx.post(provider.url + "/v1/responses", json={"model": "m", "input": "x", "conversation": "conv_1"})
        httpx.get(provider.url + "/v1/responses/resp_1")
        httpx.post(provider.url + "/v1/responses/resp_1/cancel")
        assert [step.mode for step in run.state.steps.values()] == ["unsafe", "safe", "unsafe"]


def test_a_broken_answer_is_raised_again(httpx, home, offline):
    def program() -> str:
        with steplog.run("r"), pytest.raises(httpx.RemoteProtocolError) as caught:
            httpx.get(provider.url + "/file")
        return str(caught.value)

    with LocalProvider(handler=service) as provider:
        provider.inject(Fault("drop", after=1))
        live = program()
        offline(provider)
        assert program() == live


def test_show_tells_what_was_asked_and_answered(httpx, home):
    with LocalProvider(handler=service) as provider, steplog.run("r") as run:
        httpx.post(provider.url + "/items", json={"name": "tea"})
        (step,) = run.state.steps
    done = CliRunner().invoke(show, ["r", step, "--home", str(home), "--json"], standalone_mode=False)
    shown = json.loads(done.output)
    assert shown["input"]["body"] == {"name": "tea"}
    assert shown["output"][0]["body"] == {"method": "POST", "path": "/items", "size": 14}
