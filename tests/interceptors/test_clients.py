"""Every kind of client of the SDKs: recorded with credentials, replayed without, and nothing of them on disk."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sqlite3
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import zstandard

import steplog
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    RELEASES,
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
from tests.support.sdk_calls import describe

both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])

# Part of every credential in this file, in no shape that redaction knows.
SECRET = "opaque-credential"


class Idp:
    """An identity provider: every token is another one, and when it is down, asking is an error."""

    def __init__(self) -> None:
        self.asked = 0
        self.down = False

    def token(self) -> str:
        """The next token."""
        self.asked += 1
        if self.down:
            raise ConnectionError("the identity provider does not answer")
        return f"{SECRET}-{self.asked}"

    async def token_async(self) -> str:
        """The same for a task."""
        return self.token()


class Place:
    """What a test's clients are made from: the provider's address, a colour, and an identity provider."""

    def __init__(self, url: str, idp: Idp, *, asynchronous: bool) -> None:
        self.url = url
        self.idp = idp
        self.asynchronous = asynchronous

    @property
    def token(self) -> Callable[[], Any]:
        """The identity provider as a callable of this colour."""
        return self.idp.token_async if self.asynchronous else self.idp.token

    def make(self, module: str, name: str, **options: Any) -> Any:
        """A client of one of the SDKs; skips the test where the release does not have it."""
        try:
            cls = getattr(importlib.import_module(module), "Async" + name if self.asynchronous else name)
        except (ImportError, AttributeError):
            pytest.skip(f"{RELEASES} has no {name}")
        unknown = set(options) - set(inspect.signature(cls.__init__).parameters)
        if unknown:
            pytest.skip(f"{name} of {RELEASES} takes no {', '.join(sorted(unknown))}")
        return cls(**{"max_retries": 1, **options})

    def azure(self, **options: Any) -> Any:
        """A client of Azure."""
        return self.make("openai", "AzureOpenAI", azure_endpoint=self.url, api_version="2024-10-21", **options)

    def azure_with_key_callable(self) -> Any:
        """A client of Azure that asks for its key."""
        if not hasattr(openai.AzureOpenAI, "_configure_realtime_with_api_key"):
            pytest.skip(f"{RELEASES} never asks a key callable of an Azure client")
        return self.azure(api_key=self.token)

    def foundry(self, **options: Any) -> Any:
        """A client of Anthropic's models on Azure."""
        return self.make("anthropic", "AnthropicFoundry", base_url=self.url, **options)

    def bedrock(self, **options: Any) -> Any:
        """A client of OpenAI's models on Bedrock."""
        return self.make("openai.lib.bedrock", "BedrockOpenAI", base_url=self.url, aws_region="eu-west-1", **options)

    def runtime(self, provider: str, **options: Any) -> Any:
        """A client with one of openai's `provider=` runtimes."""
        factory = getattr(_module(f"openai.providers.{provider}", f"provider={provider}"), provider)
        return self.make("openai", "OpenAI", provider=factory(base_url=self.url + "/openai/v1", **options))

    def claude_on(self, module: str, name: str, **options: Any) -> Any:
        """A client of Anthropic's models in another cloud."""
        return self.make(f"anthropic.lib.{module}", name, base_url=self.url, **options)

    def exchanging(self) -> Any:
        """A client that exchanges a token of its platform for one of OpenAI's."""
        identity = {
            "identity_provider_id": "idp_1",
            "service_account_id": "sa_1",
            "provider": {"token_type": "jwt", "get_token": self.idp.token},
        }
        client = self.make("openai", "OpenAI", base_url=self.url + "/v1", workload_identity=identity)
        client._workload_identity_auth.token_exchange_url = self.url + "/token"
        return client

    def credentials(self) -> Any:
        """A client of anthropic's credential providers."""
        token = _module("anthropic.lib.credentials", "credentials=").AccessToken
        return self.make(
            "anthropic", "Anthropic", base_url=self.url, credentials=lambda **_: token(self.idp.token(), expires_at=0)
        )


def _module(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return pytest.skip(f"{RELEASES} has no {what}")


def google(idp: Idp) -> Any:
    """Credentials of google-auth that ask the identity provider."""
    credentials = pytest.importorskip("google.auth.credentials", reason="needs google-auth")
    pytest.importorskip("requests", reason="google-auth sends through requests")

    class Credentials(credentials.Credentials):
        def refresh(self, _request: Any) -> None:
            self.token = idp.token()

    return Credentials()


def aws(place: Place) -> dict[str, str]:
    """Keys with which requests are signed; botocore does it."""
    pytest.importorskip("boto3", reason="needs boto3")
    return {"aws_access_key": SECRET + "-id", "aws_secret_key": SECRET + "-key", "aws_session_token": SECRET + "-s"}


def aws_of_openai(place: Place) -> dict[str, str]:
    """The same, as the openai SDK calls them."""
    pytest.importorskip("botocore", reason="needs botocore")
    return {
        "aws_access_key_id": SECRET + "-id",
        "aws_secret_access_key": SECRET + "-key",
        "aws_session_token": SECRET + "-session",
    }


def ask(client: Any, **options: Any) -> Any:
    """The client's usual call, of either SDK."""
    if isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        return client.chat.completions.create(**ASK, **options)
    return client.messages.create(**ASK_CLAUDE, **options)


CLIENTS: dict[str, Callable[[Place], Any]] = {
    "openai, key": lambda p: p.make("openai", "OpenAI", base_url=p.url + "/v1", api_key=SECRET),
    "openai, callable": lambda p: p.make("openai", "OpenAI", base_url=p.url + "/v1", api_key=p.token),
    "openai, account": lambda p: p.make(
        "openai", "OpenAI", base_url=p.url + "/v1", api_key=SECRET, organization=SECRET + "-o", project=SECRET + "-p"
    ),
    "openai, exchanged identity": Place.exchanging,
    "openai, vertex, callable": lambda p: p.runtime("vertex", token_provider=p.token),
    "openai, vertex, google-auth": lambda p: p.runtime("vertex", credentials=google(p.idp)),
    "openai, bedrock, key": lambda p: p.runtime("bedrock", region="eu-west-1", api_key=SECRET),
    "openai, bedrock, callable": lambda p: p.runtime("bedrock", region="eu-west-1", token_provider=p.token),
    "azure, key": lambda p: p.azure(api_key=SECRET),
    "azure, key callable": lambda p: p.azure_with_key_callable(),
    "azure, token": lambda p: p.azure(azure_ad_token=SECRET),
    "azure, token callable": lambda p: p.azure(azure_ad_token_provider=p.token),
    "azure, deployment": lambda p: p.azure(azure_deployment="my-gpt", azure_ad_token_provider=p.idp.token),
    "bedrock, key": lambda p: p.bedrock(api_key=SECRET),
    "bedrock, callable": lambda p: p.bedrock(bedrock_token_provider=p.token),
    "bedrock, signed": lambda p: p.bedrock(**aws_of_openai(p)),
    "anthropic, key": lambda p: p.make("anthropic", "Anthropic", base_url=p.url, api_key=SECRET),
    "anthropic, token": lambda p: p.make("anthropic", "Anthropic", base_url=p.url, auth_token=SECRET),
    "anthropic, credentials": Place.credentials,
    "claude, bedrock, key": lambda p: p.claude_on(
        "bedrock._client", "AnthropicBedrock", aws_region="eu-west-1", api_key=SECRET
    ),
    "claude, bedrock, signed": lambda p: p.claude_on(
        "bedrock._client", "AnthropicBedrock", aws_region="eu-west-1", **aws(p)
    ),
    "claude, mantle, key": lambda p: p.claude_on(
        "bedrock._mantle", "AnthropicBedrockMantle", aws_region="eu-west-1", api_key=SECRET
    ),
    "claude, mantle, signed": lambda p: p.claude_on(
        "bedrock._mantle", "AnthropicBedrockMantle", aws_region="eu-west-1", **aws(p)
    ),
    "claude, aws, key": lambda p: p.claude_on(
        "aws._client", "AnthropicAWS", aws_region="eu-west-1", workspace_id=SECRET, api_key=SECRET
    ),
    "claude, aws, signed": lambda p: p.claude_on(
        "aws._client", "AnthropicAWS", aws_region="eu-west-1", workspace_id=SECRET, **aws(p)
    ),
    "claude, vertex, token": lambda p: p.claude_on(
        "vertex._client", "AnthropicVertex", region="eu", project_id="p", access_token=SECRET
    ),
    "claude, vertex, google-auth": lambda p: p.claude_on(
        "vertex._client", "AnthropicVertex", region="eu", project_id="p", credentials=google(p.idp)
    ),
    "claude, google cloud, callable": lambda p: p.claude_on(
        "google_cloud._client", "AnthropicGoogleCloud", project="p", workspace_id=SECRET, token_provider=p.token
    ),
    "claude, google cloud, google-auth": lambda p: p.claude_on(
        "google_cloud._client", "AnthropicGoogleCloud", project="p", workspace_id=SECRET, credentials=google(p.idp)
    ),
    "claude, foundry, key": lambda p: p.foundry(api_key=SECRET),
    "claude, foundry, callable": lambda p: p.foundry(azure_ad_token_provider=p.token),
}


def answer(hit: Hit) -> Reply:
    """What any of these clients wants to hear."""
    if hit.path == "/token":
        return Reply.json({"access_token": SECRET + "-exchanged", "expires_in": 3600, "token_type": "Bearer"})
    if "invoke-with-response-stream" in hit.path:
        return Reply(
            200, {"content-type": "application/vnd.amazon.eventstream"}, event_frames(message_events("a", "b"))
        )
    stream = "streamRawPredict" in hit.path or bool(hit.json.get("stream"))
    if "messages" in hit.json and "max_tokens" in hit.json:
        return Reply.sse(message_events("a", "b")) if stream else Reply.json(message())
    return Reply.sse(chat_events("a", "b")) if stream else Reply.json(chat())


def event_frames(events: str) -> bytes:
    """Events in the binary frames of AWS: lengths, checksums, headers, and the event as base64 in JSON."""
    import base64

    frames = b""
    for line in events.splitlines():
        if line.startswith("data: "):
            payload = json.dumps({"bytes": base64.b64encode(line[6:].encode()).decode()}).encode()
            frames += event_frame(payload)
    return frames


def event_frame(payload: bytes, kind: bytes = b"event", name: bytes = b"chunk") -> bytes:
    """One frame."""
    pairs = ((b":message-type", kind), (b":event-type", name), (b":content-type", b"application/json"))
    headers = b"".join(bytes([len(k)]) + k + b"\x07" + struct.pack(">H", len(v)) + v for k, v in pairs)
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    frame = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return frame + struct.pack(">I", zlib.crc32(frame))


def everything_on_disk(home: Path) -> bytes:
    """Every byte below a directory, and every body in its store without its compression."""
    found = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    for path in home.rglob("*.db"):
        with sqlite3.connect(path) as db:
            for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for row in db.execute(f"SELECT * FROM {table}"):
                    found += [inflated(bytes(value, "utf-8") if isinstance(value, str) else value)
                              for value in row if isinstance(value, str | bytes)]  # fmt: skip
        db.close()
    return b"\n".join(found)


def inflated(data: bytes) -> bytes:
    """The data, unpacked where it is packed."""
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes from the environment, and nobody looks for the metadata of a cloud's machine."""
    import os

    for name in list(os.environ):
        if name.startswith(("OPENAI_", "ANTHROPIC_", "AZURE_", "AWS_", "GOOGLE_", "CLOUD_ML_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


def in_run(make: Callable[[Place], Any], place: Place, use: Callable[[Any], Any]) -> Any:
    """What one use of a fresh client in run `r` gives, described."""

    async def body() -> Any:
        client = make(place)
        try:
            async with steplog.run("r"):
                got = await settled(use(client))
                return describe(await listed(got) if hasattr(got, "response") else got)
        finally:
            await settled(client.close())

    return perform(body)


@pytest.fixture
def no_cloud(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, no cloud library may sign, look for credentials or refresh them."""

    def forbidden(*_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("a replayed call uses a cloud library")

    def cut() -> None:
        for module, names in {
            "boto3": ("Session",),
            "botocore.auth": ("SigV4Auth",),
            "botocore.session": ("Session",),
            "google.auth": ("default",),
            "google.auth.transport.requests": ("Request",),
        }.items():
            try:
                found = importlib.import_module(module)
            except ImportError:
                continue
            for name in names:
                monkeypatch.setattr(found, name, forbidden)

    return cut


@both_colours
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_replays_without_its_credentials(name, stream, asynchronous, home, offline, events, no_cloud):
    def use(client: Any) -> Any:
        return ask(client, stream=True) if stream else ask(client)

    if stream and name.startswith("claude, bedrock"):
        pytest.importorskip("botocore", reason="the SDK reads event frames with botocore")
    idp = Idp()
    with LocalProvider(handler=answer) as provider:
        place = Place(provider.url, idp, asynchronous=asynchronous)
        live = in_run(CLIENTS[name], place, use)
        sent = str([(hit.path, hit.headers) for hit in provider.hits if hit.path != "/token"])
        assert SECRET in sent or "signed" in name
        assert "Credential=" in sent or "signed" not in name
        assert "steplog" not in sent
        offline(provider)
        no_cloud()
        idp.down, asked = True, idp.asked
        assert in_run(CLIENTS[name], place, use) == live
        assert live
        assert idp.asked == asked
    told = ("step.started", "step.finished")
    kinds = [event["data"].get("outcome") for event in events() if event["type"] in told]
    assert kinds == [None, "done"]
    assert SECRET.encode() not in everything_on_disk(home)


WITH_CALLABLE = [name for name in CLIENTS if "callable" in name or "google-auth" in name or "identity" in name]


@both_colours
@pytest.mark.parametrize("name", WITH_CALLABLE)
def test_a_failure_to_get_a_token_is_the_sdks_own_live_and_replayed(name, asynchronous, home, offline):
    def fails(where: str) -> tuple[str, str]:
        async def body() -> tuple[str, str]:
            client = CLIENTS[name](place)
            try:
                if where == "outside":
                    with pytest.raises(Exception, match=r".") as caught:
                        await settled(ask(client))
                else:
                    async with steplog.run("r"):
                        with pytest.raises(Exception, match=r".") as caught:
                            await settled(ask(client))
                return type(caught.value).__qualname__, str(caught.value)
            finally:
                await settled(client.close())

        return perform(body)

    idp = Idp()
    idp.down = True
    with LocalProvider(handler=answer) as provider:
        place = Place(provider.url, idp, asynchronous=asynchronous)
        plain = fails("outside")
        assert fails("inside") == plain
        assert [hit for hit in provider.hits if hit.path != "/token"] == []
        offline(provider)
        idp.down, asked = False, idp.asked
        assert fails("inside") == plain
        assert idp.asked == asked


@both_colours
def test_what_an_error_of_an_identity_provider_quotes_is_written_nowhere(asynchronous, home):
    """Grants have no shape that a rule could know; ids and addresses are of use to whoever looks for the reason."""
    grant, trace = "Zq9w7xk2/" + "p4Lm8vTn3R==", "4f2b1c3d-0000-4111-8222-333344445555"

    def refuse() -> str:
        try:
            raise KeyError(f"no grant {grant}")
        except KeyError as cause:
            raise ConnectionError(f"{grant} is expired at https://idp.example/token, trace {trace}") from cause

    async def refuse_async() -> str:
        return refuse()

    async def body() -> str:
        client = place.make("openai", "OpenAI", api_key=refuse_async if asynchronous else refuse, max_retries=0)
        async with steplog.run("r"):
            with pytest.raises(ConnectionError, match="is expired") as caught:
                await settled(ask(client))
            # The program itself has it; what ends the run is recorded a second time.
            raise caught.value

    with LocalProvider(handler=answer) as provider:
        place = Place(provider.url, Idp(), asynchronous=asynchronous)
        with pytest.raises(ConnectionError) as caught:
            perform(body)
    assert grant in str(caught.value)
    kept = everything_on_disk(home)
    for part in (grant, *grant.split("/")):
        assert part.encode() not in kept
    assert f"[redacted] is expired at https://idp.example/token, trace {trace}".encode() in kept


@both_colours
@pytest.mark.parametrize("name", WITH_CALLABLE)
def test_every_attempt_is_sent_with_a_fresh_credential_and_replayed_without(name, asynchronous, home, offline):
    first = [rate_limited()]

    def flaky(hit: Hit) -> Reply:
        return first.pop() if hit.path != "/token" and first else answer(hit)

    idp = Idp()
    with LocalProvider(handler=flaky) as provider:
        place = Place(provider.url, idp, asynchronous=asynchronous)
        live = in_run(CLIENTS[name], place, ask)
        sent = [str(hit.headers) for hit in provider.hits if hit.path != "/token"]
        assert len(sent) == 2
        assert all(SECRET in headers and "steplog" not in headers for headers in sent)
        offline(provider)
        idp.down, asked = True, idp.asked
        assert in_run(CLIENTS[name], place, ask) == live
        assert idp.asked == asked


@both_colours
def test_a_refused_exchanged_token_is_fetched_anew(asynchronous, home, offline, events):
    idp = Idp()
    refused: list[str] = []

    def handler(hit: Hit) -> Reply:
        if hit.path == "/token":
            return Reply.json({"access_token": f"{SECRET}-{len(refused)}", "expires_in": 3600, "token_type": "Bearer"})
        if not refused:
            refused.append(dict(hit.headers)["authorization"])
            return Reply.json({"error": {"message": "expired"}}, 401)
        return Reply.json(chat())

    with LocalProvider(handler=handler) as provider:
        place = Place(provider.url, idp, asynchronous=asynchronous)
        live = in_run(Place.exchanging, place, ask)
        assert [hit.path for hit in provider.hits].count("/token") == 2
        offline(provider)
        idp.down = True
        assert in_run(Place.exchanging, place, ask) == live
    assert [len(e["data"]["exchanges"]) for e in events() if e["type"] == "step.finished"] == [2]


@both_colours
def test_a_key_that_a_step_gives_is_asked_for_again(asynchronous, home, offline):
    minted: list[str] = []

    @steplog.step(mode="unsafe")
    def mint() -> str:
        minted.append("key-1")
        return minted[-1]

    async def mint_async() -> str:
        return mint()

    @steplog.step(mode="unsafe")
    def afterwards() -> int:
        return 1

    def use(client: Any) -> Any:
        return ask(client)

    def program() -> Any:
        async def body() -> Any:
            key = mint_async if asynchronous else mint
            client = openai_client(provider.url, asynchronous=asynchronous, api_key=key)
            async with steplog.run("r", on_drift="halt") as run:
                got = describe(await settled(use(client)))
                afterwards()
                counts = run.replayed, run.executed
            await settled(client.close())
            return got, counts

        return perform(body)

    with LocalProvider(handler=answer) as provider:
        live, counts = program()
        assert counts == (0, 3)
        offline(provider)
        assert program() == (live, (3, 0))
    assert minted == ["key-1"]


def test_a_header_of_the_program_takes_the_place_of_the_token(home):
    idp = Idp()
    with LocalProvider(handler=answer) as provider, steplog.run("r"):
        client = openai_client(provider.url, api_key=idp.token)
        client.chat.completions.create(**ASK, extra_headers={"Authorization": "Bearer mine"})
        assert dict(provider.hits[0].headers)["authorization"] == "Bearer mine"


@both_colours
def test_an_empty_key_is_refused_as_without_steplog(asynchronous, home):
    def nothing() -> str:
        return ""

    async def nothing_async() -> str:
        return ""

    async def fail() -> str:
        key = nothing_async if asynchronous else nothing
        client = openai_client("http://127.0.0.1:9", asynchronous=asynchronous, api_key=key)
        try:
            with pytest.raises(Exception, match=r".") as caught:
                await settled(ask(client))
            return repr(caught.value)
        finally:
            await settled(client.close())

    async def fail_inside() -> str:
        async with steplog.run("r"):
            return await fail()

    assert perform(fail_inside) == perform(fail)


def test_a_mock_transport_with_an_x509_identity_replays_without_the_exchange(home, offline, events):
    auth = pytest.importorskip("openai.auth", reason=f"{RELEASES} has no workload identity")
    if not hasattr(auth, "X509WorkloadIdentity"):
        pytest.skip(f"{RELEASES} has no X.509 identity")
    http = http_of(openai)
    down: list[bool] = []
    asked: list[str] = []

    def handle(request: Any) -> Any:
        asked.append(request.url.host)
        if down:
            raise http.ConnectError("offline", request=request)
        if "token" in request.url.path:
            return http.Response(200, json={"access_token": SECRET, "expires_in": 3600, "token_type": "Bearer"})
        return http.Response(200, json=chat())

    def program() -> Any:
        with http.Client(transport=http.MockTransport(handle)) as inner:
            identity = {"type": "x509", "identity_provider_id": "idp_1", "service_account_id": "sa_1"}
            client = openai.OpenAI(workload_identity=identity, http_client=inner, max_retries=0)
            with steplog.run("r"):
                return describe(ask(client))

    live = program()
    assert len(asked) == 2
    down.append(True)
    assert program() == live
    assert SECRET.encode() not in everything_on_disk(home)


@both_colours
def test_a_refused_token_of_anthropic_is_fetched_anew(asynchronous, home, offline, events):
    refused: list[str] = []

    def handler(_hit: Hit) -> Reply:
        if not refused:
            refused.append("once")
            return Reply.json({"type": "error", "error": {"type": "authentication_error", "message": "expired"}}, 401)
        return Reply.json(message())

    idp = Idp()
    with LocalProvider(handler=handler) as provider:
        place = Place(provider.url, idp, asynchronous=asynchronous)
        live = in_run(Place.credentials, place, ask)
        assert len(provider.hits) == 2
        assert idp.asked == 2
        offline(provider)
        idp.down = True
        assert in_run(Place.credentials, place, ask) == live
    assert [len(e["data"]["exchanges"]) for e in events() if e["type"] == "step.finished"] == [2]


async def test_identical_calls_of_which_one_is_recorded_fetch_one_token(home):
    idp = Idp()
    with LocalProvider(handler=answer) as provider:
        for count in (1, 3):
            client = openai_client(provider.url, asynchronous=True, api_key=idp.token_async)
            async with steplog.run("r", on_drift="run") as run:
                await asyncio.gather(*(ask(client) for _ in range(count)))
            await client.close()
            assert run.replayed == (0 if count == 1 else 1)
        sent = [dict(hit.headers)["authorization"] for hit in provider.hits]
    assert sorted(sent) == [f"Bearer {SECRET}-{number}" for number in (1, 2, 3)]


async def test_a_token_that_the_program_stopped_waiting_for_is_given_up_again(home, offline, events):
    hangs = [True]

    async def key() -> str:
        if hangs[0]:
            await asyncio.Event().wait()
        return SECRET

    async def program() -> Any:
        slow = openai_client(provider.url, asynchronous=True, api_key=key)
        other = openai_client(provider.url, asynchronous=True)
        try:
            async with steplog.run("r"):
                try:
                    return await asyncio.wait_for(ask(slow), 0.2)
                except TimeoutError:
                    return describe(await other.moderations.create(input="instead"))
        finally:
            await slow.close()
            await other.close()

    moderated = {"id": "m", "model": "m", "results": []}
    with LocalProvider(handler=lambda _hit: Reply.json(moderated)) as provider:
        live = await program()
        assert [hit.path for hit in provider.hits] == ["/v1/moderations"]
        hangs[0] = False
        offline(provider)
        assert await program() == live
