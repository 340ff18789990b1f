"""The requests library: the same promises as for httpx."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import steplog
from steplog._runtime.resolve import resolve
from steplog.errors import NotInRun, OutcomeUnknown, RunStopped, StepFailed
from steplog.stores.files import FileStore
from steplog.testing import LocalProvider
from steplog.testing.provider import Fault, Reply
from tests.interceptors.support import KEY, RawServer, chat, chat_events
from tests.interceptors.test_http import CREDENTIALS, MESSAGES, service

requests = pytest.importorskip("requests", reason="requests is not installed")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    steplog.install(home=folder, durability="process", interceptors=["requests"], http=["127.0.0.1"])
    yield folder
    steplog.uninstall()


def seen(response: Any) -> dict[str, Any]:
    return {
        "class": type(response),
        "status": (response.status_code, response.reason, response.ok),
        "content": response.content,
        "text": response.text,
        "encoding": response.encoding,
        "headers": {name: value.partition("?")[0] for name, value in response.headers.items()},
        "request": (response.request.method, response.url.partition("?")[0]),
        "history": [(one.status_code, one.url.partition("?")[0]) for one in response.history],
    }


def calls(url: str) -> dict[str, Callable[[], Any]]:
    return {
        "get": lambda: requests.get(url + "/items/42", params={"q": "x", "api_key": KEY}),
        "post": lambda: requests.post(url + "/items", json={"name": "tea", "api_key": KEY}),
        "form": lambda: requests.post(url + "/items", data={"name": "tea", "password": KEY}),
        "upload": lambda: requests.post(url + "/items", files={"file": ("a.bin", b"\0\xff")}),
        "generator": lambda: requests.post(url + "/items", data=iter([b"a", b"bc"])),
        "delete": lambda: requests.delete(url + "/items/42", auth=("ada", KEY)),
        "redirect": lambda: requests.get(url + "/moved"),
        "unfollowed": lambda: requests.get(url + "/moved", allow_redirects=False),
        "binary": lambda: requests.get(url + "/file", headers={"range": "bytes=0-9"}),
        "failed": lambda: requests.get(url + "/broken/500"),
    }


def test_every_request_is_returned_as_it_was(home, offline):
    def program() -> tuple[dict[str, Any], int, int]:
        with steplog.run("r") as run:
            found = {name: seen(call()) for name, call in calls(provider.url).items()}
        return found, run.replayed, run.executed

    with LocalProvider(handler=service) as provider:
        live = program()
        offline(provider)
        returned = program()
    assert returned[0] == live[0]
    assert live[0]["redirect"]["history"] == [(302, provider.url + "/moved")]
    assert b'"size":3' in live[0]["generator"]["content"]
    assert (live[1:], returned[1:]) == ((0, len(live[0])), (len(live[0]), 0))
    kept = b"".join(file.read_bytes() for file in home.rglob("*") if file.is_file())
    assert KEY.encode() not in kept
    assert b"hidden-8371" not in kept


def test_a_stream_is_given_in_pieces(home, offline):
    def program() -> list[bytes]:
        with steplog.run("r"), requests.get(provider.url + "/events", stream=True) as response:
            return [line for line in response.iter_lines() if line]

    with LocalProvider(handler=service) as provider:
        live = program()
        offline(provider)
        assert program() == live == [b'data: {"n":1}', b'data: {"n":2}']


PAYLOAD = b"0123456789" * 50
CODINGS = {"": bytes, "gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("coding", CODINGS)
def test_the_raw_answer_reads_as_without_steplog(coding, home, offline):
    packed = CODINGS[coding](PAYLOAD)
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(packed)}\r\n" + (
        f"content-encoding: {coding}\r\n" if coding else ""
    )

    def decoded(data: bytes) -> bytes:
        return {"": bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}[coding](data)

    def ask(*, stream: bool) -> Any:
        return requests.post(provider.url + "/file", data=b"x", stream=stream)

    def program() -> list[Any]:
        copied = io.BytesIO()
        with ask(stream=True) as response:
            shutil.copyfileobj(response.raw, copied)
        found: list[Any] = [type(response.raw), decoded(copied.getvalue()), response.headers]
        with ask(stream=True) as response:
            found += [response.raw.read(10, decode_content=True), response.raw.status, response.raw.tell() > 0]
        with ask(stream=True) as response:
            found += [b"".join(response.raw.stream(64, decode_content=True)), response.raw.read()]
        with ask(stream=True) as response:
            found += [list(response.iter_content(100))]
        response = ask(stream=False)
        return [*found, response.raw.read(), response.content]

    def recorded() -> list[Any]:
        with steplog.run("r"):
            return program()

    with RawServer(head.encode() + b"\r\n" + packed) as provider:
        steplog.uninstall()
        bare = program()
        steplog.install(home=home, durability="process", interceptors=["requests"], http=["127.0.0.1"])
        live = recorded()
        offline(provider)
        returned = recorded()
    assert bare[1] == bare[6] == bare[-1] == PAYLOAD
    assert live == bare
    assert returned == bare


@pytest.mark.parametrize("body", [lambda: io.BytesIO(b"abc"), lambda: iter([b"a", b"bc"])], ids=["file", "generator"])
def test_an_upload_that_is_led_elsewhere_is_sent_again(body, home, offline):
    def answer(hit: Any) -> Reply:
        return Reply(307, {"location": "/found"}, b"") if hit.path == "/moved" else service(hit)

    def program() -> Any:
        with steplog.run("r"):
            return requests.post(provider.url + "/moved", data=body()).json()

    with LocalProvider(handler=answer) as provider:
        live = program()
        offline(provider)
        assert program() == live == {"method": "POST", "path": "/found", "size": 3}


@pytest.mark.parametrize(
    "how, error", [({"how": "unknown"}, OutcomeUnknown), ({"how": "failed", "message": "no"}, StepFailed)]
)
def test_the_word_of_an_operator_is_raised_as_what_it_is(how, error, home, events):
    def program() -> None:
        with steplog.run("r"):
            requests.post(provider.url + "/pay", json={})

    with LocalProvider(handler=service) as provider:
        program()
        # As after a kill: the request has left, and nothing is known of its answer.
        log = home / "runs" / "r" / "events.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        kept = next(at for at, line in enumerate(lines) if json.loads(line)["type"] == "step.started")
        log.write_bytes(b"".join(lines[: kept + 1]))
        with pytest.raises(RunStopped):
            program()
        step = next(event["step"] for event in events() if event["type"] == "step.started")
        resolve(FileStore(str(home)), "r", step, **how)
        for _ in range(2):
            with pytest.raises(StepFailed) as raised:
                program()
            assert type(raised.value) is error
        assert len(provider.hits) == 1


def test_a_model_call_is_one(tmp_path, offline):
    steplog.install(home=tmp_path / "home", durability="process", interceptors=["requests"])

    def program() -> Any:
        with steplog.run("r") as run:
            answer = requests.post(provider.url + "/v1/chat/completions", json={"model": "m", **MESSAGES})
            (step,) = run.state.steps.values()
        return answer.json(), step.kind, step.mode, step.finished["usage"]["total"]

    try:
        with LocalProvider(handler=lambda _hit: Reply.json(chat())) as provider:
            live = program()
            offline(provider)
            assert program() == live
    finally:
        steplog.uninstall()
    assert live[1:] == ("llm_call", "safe", 12)


def test_credential_and_telemetry_traffic_passes_by(home):
    with LocalProvider(handler=service) as provider, steplog.run("r") as run:
        for method, path, options in CREDENTIALS:
            renamed = {{"content": "data"}.get(name, name): value for name, value in options.items()}
            requests.request(method, provider.url + path, **renamed)
        assert run.state.steps == {}
        assert len(provider.hits) == len(CREDENTIALS)


@pytest.mark.parametrize("fault", [Fault("status", status=502), Fault("drop")], ids=["status", "drop"])
def test_a_change_that_may_have_happened_is_not_made_again(fault, home):
    with LocalProvider(handler=service) as provider:
        provider.inject(fault)

        def program() -> None:
            with steplog.run("r"):
                requests.post(provider.url + "/orders", json={}).raise_for_status()

        for _ in range(2):
            with pytest.raises(requests.RequestException):
                program()
        assert len(provider.hits) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_that_never_left_is_made_again(method, home):
    def program(url: str) -> int:
        with steplog.run("r"):
            return int(requests.request(method, url + "/a").status_code)

    closed = LocalProvider(handler=service)
    port = int(closed.url.rpartition(":")[2])
    closed.close()
    with pytest.raises(requests.ConnectionError):
        program(closed.url)
    with LocalProvider(handler=service, port=port) as provider:
        assert program(provider.url) == 200


@pytest.mark.parametrize("name", ["requests", "http"])
def test_the_users_word_counts(name, home, events):
    patterns = {"POST /items": "safe"}
    steplog.install(
        home=home, durability="process", interceptors=["requests"], modes={name: patterns}, ignore={name: ["trace"]}
    )
    with LocalProvider(handler=service) as provider:
        for trace in ("a", "b"):
            with steplog.run("r"):
                requests.post(provider.url + "/items", json={"trace": trace})
        assert len(provider.hits) == 1
    started = [event["data"] for event in events() if event["type"] == "step.started"]
    assert [step["mode"] for step in started] == ["safe"]


def test_an_exception_is_raised_again_with_its_class(home, offline):
    def program() -> tuple[type, str]:
        with steplog.run("r"), pytest.raises(requests.RequestException) as caught:
            requests.get(provider.url + "/a")
        return type(caught.value), str(caught.value)

    with LocalProvider(handler=service) as provider:
        provider.inject(Fault("drop"))
        live = program()
        offline(provider)
        assert program() == live


def test_a_response_can_be_pickled(home):
    with LocalProvider(handler=service) as provider:
        for _ in range(2):
            with steplog.run("r"):
                response = requests.get(provider.url + "/broken/404")
            assert pickle.loads(pickle.dumps(response)).status_code == 404


def test_outside_a_run_it_is_told_and_in_strict_mode_refused(home, caplog):
    with LocalProvider(handler=lambda _hit: Reply.sse(chat_events("a"))) as provider:
        assert requests.get(provider.url + "/a").status_code == 200
        assert "tool_call GET /a was called outside any run" in caplog.text
        steplog.install(home=home, durability="process", interceptors=[], strict=True)
        with pytest.raises(NotInRun):
            requests.get(provider.url + "/a")
        assert len(provider.hits) == 1


SECRET = "gw7f3a9c2e11d04b55"
BOT = f"/bot99:AAzz{SECRET}QqWw"


@pytest.mark.parametrize("path", [f"/x?api_key={SECRET}", BOT + "/send"])
@pytest.mark.parametrize("how", ["refused", "dropped", "unreachable", "moved", "fine"])
def test_no_url_is_stored_with_its_credentials(path, how, home, offline):
    def answer(hit: Any) -> Reply:
        if how == "moved" and not hit.path.startswith("/to"):
            return Reply(307, {"location": "/to" + hit.path}, b"")
        return Reply.json({}, 200 if how in ("moved", "fine") else 401)

    def program() -> tuple[str, list[str]]:
        with steplog.run("r"):
            response = requests.get(provider.url + path)
            past = [one.headers["location"] for one in response.history]
            # A redirect to a URL with a credential in its query is recorded without it.
            found = response.url.partition("?")[0] if past else response.url
            response.raise_for_status()
        return found, [location.partition("?")[0] for location in past]

    def told() -> Any:
        try:
            return program()
        except requests.RequestException as error:
            return str(error)

    with LocalProvider(handler=answer) as provider:
        if how == "dropped":
            provider.inject(Fault("drop"), Fault("drop"))
        if how == "unreachable":
            provider.close()
        told()
        kept = b"".join(file.read_bytes() for file in home.rglob("*") if file.is_file())
        assert SECRET.encode() not in kept
        if how in ("moved", "fine"):
            offline(provider)
            live = provider.url + path if how == "fine" else provider.url + "/to" + path.partition("?")[0]
            assert told()[0] == live


def test_the_message_of_an_exception_is_the_same_on_a_resume(home, offline):
    def program() -> str:
        with steplog.run("r"), pytest.raises(requests.ConnectionError) as caught:
            requests.get(f"{closed.url}{BOT}/send?api_key={SECRET}")
        return str(caught.value).partition("(Caused by")[0]

    closed = LocalProvider(handler=service)
    closed.close()
    live = program()
    assert SECRET + "QqWw/send?api_key=" + SECRET in live
    assert program() == live
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in home.rglob("*") if file.is_file())


def test_a_fork_changes_what_is_asked(home):
    def play(run: str, url: str) -> Any:
        with steplog.run(run):
            return requests.post(url + "/items", json={"name": "tea", "count": 1}).json()

    with LocalProvider(handler=lambda hit: Reply.json(hit.json)) as provider:
        play("r", provider.url)
        forked = steplog.fork("r", at=1, set={"name": "coffee"}, live_tools=True)
        assert play(forked, provider.url) == {"name": "coffee", "count": 1}
        assert play(forked, provider.url) == {"name": "coffee", "count": 1}
        assert [hit.json["name"] for hit in provider.hits] == ["tea", "coffee"]
        with pytest.raises(steplog.InvalidArgument, match="asks no model"):
            steplog.fork("r", at=1, model="gpt-5")
