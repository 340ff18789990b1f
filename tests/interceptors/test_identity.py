"""What counts when a request is compared with the log, what a program may exclude, and what is never stored."""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

import steplog
from steplog.errors import DriftDetected, InvalidArgument, RunStopped
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from steplog_interceptors._canonical import canonical, digest, read_wire
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    answers,
    anthropic_client,
    chat,
    http_of,
    message,
    openai_client,
    perform,
    settled,
)
from tests.interceptors.test_clients import everything_on_disk
from tests.support.sdk_calls import describe

both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()


def program(make: Any, url: str, use: Callable[[Any], Any], *, asynchronous: bool = False) -> Any:
    """What one use of a client in run `r` gives, described."""

    async def body() -> Any:
        client = make(url, asynchronous=asynchronous)
        async with steplog.run("r"):
            got = describe(await settled(use(client)))
        await settled(client.close())
        return got

    return perform(body)


# bodies --------------------------------------------------------------------------------------------------------------


class Weather(BaseModel):
    city: str


def once(*items: Any) -> Any:
    """An iterator that gives its items a single time."""
    return iter(items)


def seen(hit: Hit) -> Any:
    """What the provider got, in a form that compares: the JSON, or the parts of a form."""
    form = read_wire(
        http_of(openai).Request("POST", "http://h" + hit.path, headers=dict(hit.headers), content=hit.body), hit.body
    )
    return canonical(form).identity["body"]


VECTOR = {"object": "embedding", "index": 0, "embedding": [0.5]}
ANSWER = {"claude": message(), "chat": chat('{"city":"Oslo"}'), "file": {"id": "file-1", "object": "file"}}
ANSWER |= {
    "embed": {"object": "list", "model": "e", "data": [VECTOR], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
}
ANSWER |= {"image": {"created": 1, "data": []}, "text": {"text": "hi"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}

# name: (client, answer, use, what the provider must have got)
BODIES: dict[str, Any] = {
    "a generator of messages": (
        anthropic_client,
        "claude",
        lambda c: c.messages.create(model="c", max_tokens=9, messages=once(*ASK_CLAUDE["messages"])),
        lambda got: got["json"]["messages"] == ASK_CLAUDE["messages"],
    ),
    "a generator inside a message": (
        anthropic_client,
        "claude",
        lambda c: c.messages.create(
            model="c", max_tokens=9, messages=[{"role": "user", "content": once(IMAGE, {"type": "text", "text": "?"})}]
        ),
        lambda got: len(got["json"]["messages"][0]["content"]) == 2,
    ),
    "a generator of openai messages": (
        openai_client,
        "chat",
        lambda c: c.chat.completions.create(model="gpt-x", messages=once(*ASK["messages"])),
        lambda got: got["json"]["messages"] == ASK["messages"],
    ),
    "an iterator of inputs": (
        openai_client,
        "embed",
        lambda c: c.embeddings.create(model="e", input=once("a", "b")),
        lambda got: got["json"]["input"] == ["a", "b"],
    ),
    "a pydantic format": (
        openai_client,
        "chat",
        lambda c: c.chat.completions.parse(response_format=Weather, **ASK),
        lambda got: got["json"]["response_format"]["json_schema"]["name"] == "Weather",
    ),
    "what is not given": (
        openai_client,
        "chat",
        lambda c: c.chat.completions.create(
            temperature=openai.NOT_GIVEN, stop=getattr(openai, "omit", openai.NOT_GIVEN), n=None, **ASK
        ),
        lambda got: got["json"] == {**ASK, "n": None},
    ),
    "an image by its address": (
        openai_client,
        "chat",
        lambda c: c.chat.completions.create(
            model="gpt-x",
            messages=[
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://h/i.png?sig=1"}}]}
            ],
        ),
        lambda got: got["json"]["messages"][0]["content"][0]["image_url"]["url"] == "https://h/i.png?sig=1",
    ),
    "an image as base64": (
        openai_client,
        "chat",
        lambda c: c.chat.completions.create(
            model="gpt-x",
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}],
                }
            ],
        ),
        lambda got: PIXEL in got["json"]["messages"][0]["content"][0]["image_url"]["url"],
    ),
    "extra fields, query and headers": (
        openai_client,
        "chat",
        lambda c: c.chat.completions.create(
            extra_body={"top_k": 3}, extra_query={"trace": "t"}, extra_headers={"x-mine": "1"}, **ASK
        ),
        lambda got: got["json"] == {**ASK, "top_k": 3},
    ),
    "a file as bytes": (
        openai_client,
        "file",
        lambda c: c.files.create(file=b"abc", purpose="batch"),
        lambda got: "abc" in str(got["multipart"]),
    ),
    "a file object": (
        openai_client,
        "file",
        lambda c: c.files.create(file=io.BytesIO(b"abc" * 3000), purpose="batch"),
        lambda got: [part.get("size") for part in got["multipart"]].count(9000) == 1,
    ),
    "a named file": (
        openai_client,
        "file",
        lambda c: c.files.create(file=("a.jsonl", io.BytesIO(b"abc"), "text/plain"), purpose="batch"),
        lambda got: "a.jsonl" in str(got["multipart"]),
    ),
    "a path": (
        openai_client,
        "file",
        lambda c: c.files.create(file=Path(__file__), purpose="batch"),
        lambda got: Path(__file__).name in str(got["multipart"]),
    ),
    "several images": (
        openai_client,
        "image",
        lambda c: c.images.edit(image=[("a.png", b"\x89PNG1"), ("b.png", b"\x89PNG2")], prompt="both", model="i"),
        lambda got: "a.png" in str(got["multipart"]) and "b.png" in str(got["multipart"]),
    ),
    "a sound": (
        openai_client,
        "text",
        lambda c: c.audio.transcriptions.create(model="w", file=("a.wav", b"RIFF" + bytes(100))),
        lambda got: "a.wav" in str(got["multipart"]),
    ),
    "a file of anthropic": (
        anthropic_client,
        "file",
        lambda c: c.beta.files.upload(file=("a.txt", io.BytesIO(b"abc"), "text/plain")),
        lambda got: "abc" in str(got["multipart"]),
    ),
}


@both_colours
@pytest.mark.parametrize("name", BODIES)
def test_a_body_reaches_the_provider_whole_and_is_recognised_again(name, asynchronous, home, offline):
    make, answer, use, expected = BODIES[name]
    with LocalProvider(handler=answers(ANSWER[answer])) as provider:
        live = program(make, provider.url, use, asynchronous=asynchronous)
        assert len(provider.hits) == 1
        assert expected(seen(provider.hits[0]))
        offline(provider)
        assert program(make, provider.url, use, asynchronous=asynchronous) == live


OTHER: dict[str, tuple[Any, Any]] = {
    "another query": (
        lambda c: c.chat.completions.create(extra_query={"v": "1"}, **ASK),
        lambda c: c.chat.completions.create(extra_query={"v": "2"}, **ASK),
    ),
    "another extra field": (
        lambda c: c.chat.completions.create(extra_body={"top_k": 1}, **ASK),
        lambda c: c.chat.completions.create(extra_body={"top_k": 2}, **ASK),
    ),
    "null instead of nothing": (
        lambda c: c.chat.completions.create(**ASK),
        lambda c: c.chat.completions.create(n=None, **ASK),
    ),
    "another file": (
        lambda c: c.files.create(file=("a", b"x" * 5000), purpose="batch"),
        lambda c: c.files.create(file=("a", b"y" * 5000), purpose="batch"),
    ),
    "another file name": (
        lambda c: c.files.create(file=("a", b"x"), purpose="batch"),
        lambda c: c.files.create(file=("b", b"x"), purpose="batch"),
    ),
    "another argument that is called like a credential": (
        lambda c: c.chat.completions.create(model="gpt-x", messages=[called("one")]),
        lambda c: c.chat.completions.create(model="gpt-x", messages=[called("two")]),
    ),
}


def called(secret: str) -> dict[str, Any]:
    """A message with a field that a program named `token`."""
    return {"role": "user", "content": [{"type": "text", "text": "x", "token": secret}]}


@pytest.mark.parametrize("name", OTHER)
def test_a_difference_that_counts_is_drift(name, home):
    first, second = OTHER[name]
    with LocalProvider(handler=answers(ANSWER["chat"])) as provider:
        program(openai_client, provider.url, first)
        with pytest.raises(RunStopped) as stopped:
            program(openai_client, provider.url, second)
        assert len(provider.hits) == 1
    assert isinstance(stopped.value.__cause__, DriftDetected)


@pytest.mark.parametrize(
    "options",
    [
        {"extra_headers": {"authorization": "Bearer other", "x-trace": "2", "cookie": "a=b"}},
        {"timeout": 3},
        {"extra_query": {"api_key": "k", "sig": "s"}},
        {"extra_headers": {"idempotency-key": "k-2", "openai-organization": "o", "openai-project": "p"}},
    ],
    ids=str,
)
def test_a_difference_that_does_not_count_is_none(options, home, offline):
    with LocalProvider(handler=answers(chat())) as provider:
        live = program(openai_client, provider.url, lambda c: c.chat.completions.create(**ASK))
        offline(provider)
        again = program(openai_client, provider.url, lambda c: c.chat.completions.create(**ASK, **options))
    assert again == live


# ignore --------------------------------------------------------------------------------------------------------------


def volatile(number: int) -> dict[str, Any]:
    """A request of which three fields are another every time."""
    return {
        "model": "gpt-x",
        "messages": [{"role": "user", "content": "hi", "name": f"n{number}"}, {"role": "user", "content": "ho"}],
        "metadata": {"request_id": f"r{number}", "kept": "k"},
        "user": f"u{number}",
    }


PATHS = ["metadata.request_id", "user", "messages[*].name"]


@both_colours
def test_ignored_fields_may_differ_and_are_stored_all_the_same(asynchronous, home, offline, events):
    steplog.install(home=home, interceptors=(), ignore={"openai": PATHS})
    with LocalProvider(handler=answers(chat())) as provider:
        live = program(
            openai_client,
            provider.url,
            lambda c: c.chat.completions.create(**volatile(1)),
            asynchronous=asynchronous,
        )
        assert provider.hits[0].json == volatile(1)
        offline(provider)
        again = program(
            openai_client,
            provider.url,
            lambda c: c.chat.completions.create(**volatile(2)),
            asynchronous=asynchronous,
        )
    assert again == live
    request = events()[2]["data"]["request"]
    assert request["body"]["json"] == volatile(1)
    assert request["ignored"] == PATHS


def test_what_is_ignored_is_not_blamed_for_drift(home):
    steplog.install(home=home, interceptors=(), ignore={"openai": PATHS})
    with LocalProvider(handler=answers(chat())) as provider:
        program(openai_client, provider.url, lambda c: c.chat.completions.create(**volatile(1)))
        changed = volatile(2)
        changed["messages"][1]["content"] = "changed"
        with pytest.raises(RunStopped) as stopped:
            program(openai_client, provider.url, lambda c: c.chat.completions.create(**changed))
    drift = stopped.value.__cause__
    assert (drift.field, drift.recorded, drift.found) == ("messages[1].content", "ho", "changed")


def test_ignoring_another_field_later_is_named_as_the_difference(home):
    with LocalProvider(handler=answers(chat())) as provider:
        program(openai_client, provider.url, lambda c: c.chat.completions.create(**volatile(1)))
        steplog.install(home=home, interceptors=(), ignore={"openai": ["user"]})
        with pytest.raises(RunStopped) as stopped:
            program(openai_client, provider.url, lambda c: c.chat.completions.create(**volatile(1)))
    assert "user" in str(stopped.value.__cause__)


def test_a_setting_for_one_sdk_says_nothing_about_another(home):
    steplog.install(home=home, interceptors=(), ignore={"openai": ["max_tokens"]})
    with LocalProvider(handler=answers(message())) as provider:
        program(anthropic_client, provider.url, lambda c: c.messages.create(**ASK_CLAUDE))
        with pytest.raises(RunStopped):
            program(anthropic_client, provider.url, lambda c: c.messages.create(**{**ASK_CLAUDE, "max_tokens": 9}))


def test_attempts_that_differ_in_what_is_ignored_are_one_request(home, offline):
    class Stamped(openai.OpenAI):
        """Puts an id into every attempt: always the same when it is recorded, another one when it is replayed."""

        stamps = itertools.repeat(0)

        def _prepare_options(self, options: Any) -> Any:
            options.json_data = {**options.json_data, "user": f"u{next(self.stamps)}"}
            return super()._prepare_options(options)

    def make(url: str, *, asynchronous: bool) -> Any:
        assert not asynchronous
        return Stamped(base_url=url + "/v1", api_key="k", max_retries=2)

    steplog.install(home=home, interceptors=(), ignore={"openai": ["user"]})
    busy = Reply.json({"error": {"message": "busy"}}, 429, retry_after="0")
    with LocalProvider(handler=answers(busy, busy, chat())) as provider:
        live = program(make, provider.url, lambda c: c.chat.completions.create(**ASK))
        offline(provider)
        Stamped.stamps = itertools.count(1)
        assert program(make, provider.url, lambda c: c.chat.completions.create(**ASK)) == live


@pytest.mark.parametrize("path", ["", "messages[", "a..b", "messages[-1].name", "$.user", "a b"])
def test_a_bad_path_is_refused_at_install_with_an_example(path, home):
    with pytest.raises(InvalidArgument, match=r"metadata\.request_id|is not a name") as caught:
        steplog.install(home=home, interceptors=(), ignore={"openai": [path]})
    assert "messages[*].name" in str(caught.value) or not path
    assert steplog._runtime.door.PROCESS.settings.ignore == {}


# secrets -------------------------------------------------------------------------------------------------------------

SECRET = "opaque-credential"


def raw(client: Any, path: str, body: dict[str, Any]) -> Any:
    """A request to any endpoint, as the SDK's own low-level method makes it."""
    return client.post(path, body=body, cast_to=object)


# name: (client, path, body); every text that holds SECRET is a credential
REQUESTS: dict[str, Any] = {
    "mcp tool": (
        openai_client,
        "/responses",
        {"model": "m", "input": "x", "tools": [{"type": "mcp", "authorization": SECRET, "headers": {"A": SECRET}}]},
    ),
    "mcp tool of a session": (
        openai_client,
        "/realtime/calls",
        {"session": {"tools": [{"type": "mcp", "authorization": SECRET}]}},
    ),
    "mcp server": (
        anthropic_client,
        "/v1/messages",
        {**ASK_CLAUDE, "mcp_servers": [{"type": "url", "url": "https://s", "authorization_token": SECRET}]},
    ),
    "secrets of a container": (
        openai_client,
        "/containers",
        {"name": "c", "network_policy": {"type": "allowlist", "domain_secrets": [{"domain": "d", "value": SECRET}]}},
    ),
    "secrets of a shell": (
        openai_client,
        "/responses",
        {
            "model": "m",
            "input": "x",
            "tools": [
                {
                    "type": "shell",
                    "environment": {"network_policy": {"domain_secrets": [{"name": "n", "value": SECRET}]}},
                }
            ],
        },
    ),
    "a vault, oauth": (
        anthropic_client,
        "/v1/vaults/vlt_1/credentials",
        {
            "auth": {
                "type": "mcp_oauth",
                "access_token": SECRET,
                "refresh": {
                    "refresh_token": SECRET,
                    "token_endpoint": "https://t",
                    "token_endpoint_auth": {"client_secret": SECRET},
                },
            }
        },
    ),
    "a vault, bearer": (
        anthropic_client,
        "/v1/vaults/vlt_1/credentials",
        {"auth": {"type": "bearer", "token": SECRET}},
    ),
    "a vault, environment": (
        openai_client,
        "/agents/vaults/v/credentials",
        {"auth": {"secret_name": "N", "secret_value": SECRET}},
    ),
    "a repository": (
        anthropic_client,
        "/v1/sessions",
        {"agent": "a", "resources": [{"type": "github_repository", "authorization_token": SECRET}]},
    ),
    "headers of a destination": (
        anthropic_client,
        "/v1/organizations/telemetry_destinations",
        {"url": "https://t", "headers": {"x-any": SECRET}},
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_credential_in_a_request_is_sent_and_not_stored(name, home, offline):
    make, path, body = REQUESTS[name]
    with LocalProvider(handler=answers({"id": "x"})) as provider:
        live = program(make, provider.url, lambda c: raw(c, path, body))
        assert provider.hits[0].json == body
        offline(provider)
        rotated = json.loads(json.dumps(body).replace(SECRET, "rotated"))
        assert program(make, provider.url, lambda c: raw(c, path, rotated)) == live
    assert SECRET.encode() not in everything_on_disk(home)


def test_what_only_looks_like_a_credential_is_kept():
    body = {
        "messages": [{"role": "tool", "content": {"token": "t", "password": "p"}}],
        "tools": [
            {"function": {"parameters": {"properties": {"api_key": {"type": "string"}, "secret": {"const": "a"}}}}}
        ],
        "metadata": {"token": "t"},
        "max_tokens": 3,
    }
    http = http_of(openai)
    request = http.Request("POST", "http://h/v1/chat/completions", json=body)
    form = canonical(read_wire(request, request.read()))
    assert form.redacted == []
    assert form.identity["body"]["json"] == body


ANSWERS: dict[str, Any] = {
    "realtime secret": ("/realtime/client_secrets", {"value": SECRET, "expires_at": 1, "session": {}}),
    "realtime session": ("/realtime/sessions", {"id": "s", "client_secret": {"value": SECRET, "expires_at": 1}}),
    "chatkit session": ("/chatkit/sessions", {"id": "s", "client_secret": SECRET}),
}


@both_colours
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_new_credential_reaches_the_program_is_not_stored_and_is_asked_for_again(
    name, stream, asynchronous, home, events
):
    path, answer = ANSWERS[name]

    async def body() -> Any:
        client = openai_client(provider.url, asynchronous=asynchronous)
        headers = {"X-Stainless-Raw-Response": "stream"} if stream else {}
        try:
            async with steplog.run("r"):
                got = await settled(client.post(path, body={}, cast_to=object, options={"headers": headers}))
                if stream:
                    got = json.loads(await settled(got.read()))
                # Ends here without success, so that the run may go on.
                raise KeyError(str(got == answer))
        finally:
            await settled(client.close())

    with LocalProvider(handler=answers(answer)) as provider:
        for _ in range(2):
            with pytest.raises(KeyError, match="True"):
                perform(body)
        assert len(provider.hits) == 2
    assert SECRET.encode() not in everything_on_disk(home)
    finished = [event["data"] for event in events() if event["type"] == "step.finished"]
    assert finished[0]["redacted"] >= 1


def test_a_new_key_of_an_organization_is_not_stored_and_its_creation_is_not_repeated(home):
    answer = {"object": "organization.admin_api_key", "id": "k", "value": SECRET}
    with LocalProvider(handler=answers(answer)) as provider:
        got = program(openai_client, provider.url, lambda c: raw(c, "/organization/admin_api_keys", {"name": "n"}))
        assert SECRET in str(got)
        with pytest.raises(RunStopped) as stopped:
            program(openai_client, provider.url, lambda c: raw(c, "/organization/admin_api_keys", {"name": "n"}))
        assert len(provider.hits) == 1
    assert stopped.value.reason == "unreplayable"
    assert SECRET.encode() not in everything_on_disk(home)


def test_the_digest_of_equal_requests_is_equal():
    http = http_of(openai)
    one, two = (http.Request("POST", f"http://{host}/v1/x", json={"a": 1}) for host in ("a", "b"))
    assert digest(canonical(read_wire(one, one.read()))) == digest(canonical(read_wire(two, two.read())))
