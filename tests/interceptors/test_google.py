"""The google-genai SDK against a local server, and without one."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import steplog
from steplog.errors import NotInRun
from steplog.testing import LocalProvider
from steplog.testing.provider import Fault, Hit, Reply
from tests.interceptors.support import KEY, perform, settled
from tests.support.recorded import SHARED, WHY_ABSENT

genai = pytest.importorskip("google.genai", reason="the google-genai SDK is not installed")
from google.genai import errors, types  # noqa: E402

both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

ANSWER = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "hello"}]}, "finishReason": "STOP", "index": 0}],
    "usageMetadata": {
        "promptTokenCount": 9,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 2,
        "totalTokenCount": 14,
    },
    "modelVersion": "gemini-x-001",
}
FILE = {"file": {"name": "files/abc-1", "uri": "https://files.example/abc-1", "mimeType": "text/plain"}}


def gemini(hit: Hit) -> Reply:
    path = hit.path.partition("?")[0]
    if path.endswith(":streamGenerateContent"):
        return Reply.sse([ANSWER, ANSWER])
    if path.endswith(":countTokens"):
        return Reply.json({"totalTokens": 7})
    if path.endswith(":batchEmbedContents"):
        return Reply.json({"embeddings": [{"values": [0.5, 0.25]}]})
    if path.startswith("/upload") and "upload_id" not in hit.path:
        return Reply.json({}, x_goog_upload_url=f"http://{hit.headers['host']}/upload/v1beta/files?upload_id=u1")
    if path.startswith("/upload"):
        return Reply.json(FILE, x_goog_upload_status="final")
    if ":download" in path:
        return Reply(200, {"content-type": "text/plain"}, b"content of the file")
    if "/files/" in path:
        return Reply.json(FILE["file"])
    return Reply.json(ANSWER)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    folder = tmp_path / "home"
    steplog.install(home=folder, durability="process", interceptors=["google-genai"])
    yield folder
    steplog.uninstall()


def client_of(url: str, **options: Any) -> Any:
    return genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=url, **options))


async def streamed(client: Any, *, asynchronous: bool) -> list[Any]:
    if asynchronous:
        stream = await client.models.generate_content_stream(model="gemini-x", contents="hi")
        return [chunk.model_dump() async for chunk in stream]
    return [chunk.model_dump() for chunk in client.models.generate_content_stream(model="gemini-x", contents="hi")]


def calls(client: Any) -> dict[str, Callable[[], Any]]:
    models = client.models
    return {
        "generate": lambda: models.generate_content(model="gemini-x", contents="hi"),
        "count": lambda: models.count_tokens(model="gemini-x", contents="hi"),
        "embed": lambda: models.embed_content(model="embed-x", contents="hi"),
        "upload": lambda: client.files.upload(file=io.BytesIO(b"text"), config={"mime_type": "text/plain"}),
        "get": lambda: client.files.get(name="files/abc-1"),
    }


@both_colours
def test_every_call_is_returned_as_it_was(asynchronous, home, offline):
    def program() -> Any:
        async def body() -> Any:
            client = client_of(provider.url)
            used = client.aio if asynchronous else client
            with steplog.run("r") as run:
                found = {name: (await settled(call())).model_dump() for name, call in calls(used).items()}
                found["stream"] = await streamed(used, asynchronous=asynchronous)
                steps = [(step.kind, step.target, step.mode) for step in run.state.steps.values()]
            await client.aio.aclose()
            client.close()
            return found, steps, run.replayed

        return perform(body)

    with LocalProvider(handler=gemini) as provider:
        live = program()
        assert not provider.unmatched
        offline(provider)
        returned = program()
    assert returned[:2] == live[:2]
    assert (live[2], returned[2]) == (0, len(live[1]))
    assert [target for _, target, _ in live[1]] == [
        *("gemini-x", "gemini-x", "embed-x"),
        *("POST /upload/v1/files", "POST /upload/v1beta/files"),
        *("GET /v1/files/abc-1", "gemini-x"),
    ]
    assert [mode for _, _, mode in live[1]] == ["safe"] * 3 + ["unsafe"] * 2 + ["safe"] * 2


@both_colours
def test_retries_are_exchanges_of_one_step_and_replay_without_their_pauses(asynchronous, home, offline):
    retry = types.HttpRetryOptions(attempts=3, initial_delay=0.0, jitter=0.0, max_delay=0.0)

    def program(options: Any) -> Any:
        async def body() -> Any:
            client = client_of(provider.url, retry_options=options)
            used = client.aio if asynchronous else client
            with steplog.run("r") as run:
                found = (await settled(used.models.generate_content(model="gemini-x", contents="hi"))).model_dump()
            await client.aio.aclose()
            client.close()
            return found, run.replayed, run.executed

        return perform(body)

    with LocalProvider(handler=gemini) as provider:
        provider.inject(Fault("status", status=503, times=2))
        live = program(retry)
        assert len(provider.hits) == 3
        offline(provider)
        slow = types.HttpRetryOptions(attempts=3, initial_delay=600.0)
        began = time.monotonic()
        returned = program(slow)
        assert time.monotonic() - began < 300
    assert (live[1:], returned[1:]) == ((0, 1), (1, 0))
    assert returned[0] == live[0]


@both_colours
def test_an_error_is_raised_again(asynchronous, home, offline):
    def program() -> Any:
        async def body() -> Any:
            client = client_of(provider.url)
            used = client.aio if asynchronous else client
            with steplog.run("r"), pytest.raises(errors.ClientError) as caught:
                await settled(used.models.generate_content(model="gemini-x", contents="hi"))
            await client.aio.aclose()
            client.close()
            return type(caught.value), caught.value.code, caught.value.details

        return perform(body)

    with LocalProvider(handler=gemini) as provider:
        provider.inject(Fault("status", status=400))
        live = program()
        offline(provider)
        assert program() == live


def test_usage_is_told(home):
    with LocalProvider(handler=gemini) as provider, steplog.run("r") as run:
        client = client_of(provider.url)
        client.models.generate_content(model="gemini-x", contents="hi")
        client.close()
        (step,) = run.state.steps.values()
    assert step.finished["usage"] == {"input": 9, "output": 5, "reasoning": 2, "total": 14}
    assert (step.finished["model"], step.finished["finish"]) == ("gemini-x-001", "STOP")


def test_a_client_that_was_made_before_install_is_recorded(home, offline):
    steplog.uninstall()

    def program(client: Any) -> Any:
        with steplog.run("r") as run:
            text = client.models.generate_content(model="gemini-x", contents="hi").text
        return text, run.replayed + run.executed

    with LocalProvider(handler=gemini) as provider:
        client = client_of(provider.url)
        steplog.install(home=home, durability="process", interceptors=["google-genai"])
        live = program(client)
        offline(provider)
        assert program(client) == live == ("hello", 1)
        client.close()


def test_vertex_replays_without_credentials(home, offline):
    from google.auth.credentials import AnonymousCredentials, Credentials

    class Fetched(Credentials):
        fetched = 0

        def refresh(self, _request: Any) -> None:
            type(self).fetched += 1
            self.token = KEY

    def program(credentials: Any) -> str:
        client = genai.Client(
            vertexai=True,
            project="p",
            location="l",
            credentials=credentials,
            http_options=types.HttpOptions(base_url=provider.url),
        )
        with steplog.run("r"):
            text = str(client.models.generate_content(model="gemini-x", contents="hi").text)
        client.close()
        return text

    with LocalProvider(handler=gemini) as provider:
        live = program(Fetched())
        assert provider.hits[0].headers["authorization"] == f"Bearer {KEY}"
        offline(provider)
        assert program(AnonymousCredentials()) == live
    assert Fetched.fetched == 1
    assert not [file for file in home.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


def test_a_client_that_cannot_be_recorded_is_refused_before_it_sends(home):
    aiohttp = pytest.importorskip("aiohttp")

    async def body() -> None:
        async with aiohttp.ClientSession() as session:
            client = client_of(provider.url, aiohttp_client=session)
            with steplog.run("r"), pytest.raises(NotInRun, match="aiohttp"):
                await client.aio.models.generate_content(model="gemini-x", contents="hi")
            client.close()

    with LocalProvider(handler=gemini) as provider:
        perform(body)
        assert provider.hits == []


@pytest.mark.skipif(not SHARED.exists(), reason=WHY_ABSENT)
@pytest.mark.parametrize("name", ["generate", "stream", "error-429"])
@both_colours
def test_real_traffic_is_returned_as_it_was(name, asynchronous, home, offline):
    tree = json.loads((SHARED / f"google/{name}.json").read_text())
    answer = tree["response"]
    reply = Reply.json(answer["body"], answer["status"]) if answer["body_type"] == "json" else Reply.sse(answer["body"])

    def program() -> Any:
        async def body() -> Any:
            client = client_of(provider.url)
            used = client.aio if asynchronous else client
            with steplog.run("r"):
                try:
                    if name == "stream":
                        found = await streamed(used, asynchronous=asynchronous)
                    else:
                        asked = used.models.generate_content(model="gemini-x", contents="hi")
                        found = (await settled(asked)).model_dump()
                except Exception as error:  # also where the SDK cannot parse what another client was sent
                    found = repr(error)
            await client.aio.aclose()
            client.close()
            return found

        return perform(body)

    with LocalProvider(handler=lambda _hit: reply) as provider:
        live = program()
        offline(provider)
        assert program() == live
    assert live


def test_a_fork_changes_what_is_asked(home):
    def play(run: str, url: str) -> None:
        client = client_of(url)
        with steplog.run(run):
            client.models.generate_content(model="gemini-x", contents="hi")

    with LocalProvider(handler=gemini) as provider:
        play("r", provider.url)
        forked = steplog.fork("r", at=1, set={"contents[0].parts[0].text": "bye"})
        play(forked, provider.url)
        play(forked, provider.url)
        asked = [hit.json["contents"][0]["parts"][0]["text"] for hit in provider.hits]
    assert asked == ["hi", "bye"]
