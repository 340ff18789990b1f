"""Websocket sessions cannot be given back: they are announced in the log, warned of, and never opened twice unseen."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import steplog
from steplog.errors import NotInRun, OutcomeUnknown, RunStopped, StepFailed, Unreplayable
from steplog_interceptors import _websocket
from tests.interceptors.support import RELEASES, openai_client, perform, settled

server = pytest.importorskip("websockets.sync.server", reason="needs websockets (openai[realtime])")

both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


class Echo:
    """A websocket server that notes who connects and sends everything back; it refuses paths with `refused`."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._server = server.serve(self._answer, "127.0.0.1", 0, process_request=self._admit)
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _admit(self, connection: Any, request: Any) -> Any:
        self.paths.append(request.path)
        return connection.respond(503, "not now\n") if "refused" in request.path else None

    def _answer(self, connection: Any) -> None:
        for _ in connection:
            connection.send('{"type":"error","event_id":"e","error":{"type":"t","message":"m"}}')

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()


@pytest.fixture
def echo() -> Iterator[Echo]:
    found = Echo()
    yield found
    found.close()


def talking(echo: Echo, path: str = "", **options: Any) -> Any:
    """A client of the server; the beta takes TLS for granted where no address for websockets is given."""
    url = echo.url + path
    return openai_client(url, websocket_base_url=url.replace("http", "ws") + "/v1", **options)


def _has(client: Any, path: str, **needed: Any) -> Any:
    node = client
    for part in path.split("."):
        node = getattr(node, part, None)
        if node is None:
            pytest.skip(f"{RELEASES} has no {path}")
    if set(needed) - set(inspect.signature(node).parameters):
        pytest.skip(f"{path} of {RELEASES} takes no {', '.join(needed)}")
    return node(**needed)


# name: how a connection manager is made
WAYS: dict[str, Any] = {
    "realtime": lambda c: _has(c, "realtime.connect", model="gpt-live"),
    "realtime, a call": lambda c: _has(c, "realtime.connect", call_id="rtc_1"),
    "realtime translations": lambda c: _has(c, "realtime.translations.connect", model="gpt-live"),
    "beta realtime": lambda c: _has(c, "beta.realtime.connect", model="gpt-live"),
    "responses": lambda c: _has(c, "responses.connect"),
    "beta responses": lambda c: _has(c, "beta.responses.connect"),
    "live": lambda c: _has(c, "live.connect"),
    "live sideband": lambda c: _has(c, "live.sideband.connect", session_id="sess_1"),
    "live forks": lambda c: _has(c, "live.forks.connect", session_id="sess_1"),
}


async def talk(manager: Any, *, by_hand: bool = False) -> None:
    """Connect, say something, hear something, leave."""
    if hasattr(manager, "__aenter__"):
        connection = await (manager.enter() if by_hand else manager.__aenter__())
        await connection._connection.send("{}")
        await connection._connection.recv()
        await connection.close()
    else:
        connection = manager.enter() if by_hand else manager.__enter__()
        connection._connection.send("{}")
        connection._connection.recv()
        connection.close()


def session(echo: Echo, way: str, *, asynchronous: bool, by_hand: bool = False, **options: Any) -> Any:
    """One session in run `r`, and a local step behind it; what that step gave."""

    async def body() -> Any:
        client = talking(echo, asynchronous=asynchronous, **options)
        try:
            async with steplog.run("r"):
                await talk(WAYS[way](client), by_hand=by_hand)
                return steplog.step("after", lambda: 7)
        finally:
            await settled(client.close())

    return perform(body)


@both_colours
@pytest.mark.parametrize("way", WAYS)
def test_a_session_is_announced_and_not_opened_again_unseen(way, asynchronous, home, echo, events, caplog):
    assert session(echo, way, asynchronous=asynchronous) == 7
    assert len(echo.paths) == 1
    started, finished = (event["data"] for event in events()[2:4])
    assert (started["kind"], started["mode"]) == ("llm_call", "unsafe")
    assert started["target"].startswith("websocket /v1/")
    assert "not recorded" in finished["unreplayable"]["why"]
    assert [r.levelname for r in caplog.records if "websocket" in r.getMessage()] == ["WARNING"]

    with pytest.raises(RunStopped) as stopped:
        session(echo, way, asynchronous=asynchronous)
    assert isinstance(stopped.value.__cause__, Unreplayable)
    assert len(echo.paths) == 1
    retry = next(command for command in stopped.value.commands if "--retry" in command)
    resolve(home, retry)
    assert session(echo, way, asynchronous=asynchronous) == 7
    assert len(echo.paths) == 2


def resolve(home: Path, command: str) -> None:
    """Run one of the commands that a stopped run names."""
    words = command.split()[1:]
    if "--home" not in words:
        words += ["--home", str(home)]
    subprocess.run([sys.executable, "-m", "steplog", *words], check=True, capture_output=True)


@pytest.mark.parametrize("how, error", [("--failed", StepFailed), ("--unknown", OutcomeUnknown)])
def test_a_stop_offers_only_what_a_session_can_be_settled_with(how, error, home, echo):
    session(echo, "realtime", asynchronous=False)
    with pytest.raises(RunStopped) as stopped:
        session(echo, "realtime", asynchronous=False)
    assert not any("--done" in command for command in stopped.value.commands)
    command = next(command for command in stopped.value.commands if how in command)
    # A value cannot stand for it; saying so leaves the step to be settled.
    with pytest.raises(subprocess.CalledProcessError) as refused:
        resolve(home, command.partition(how)[0] + "--done {}")
    assert b"--retry" in refused.value.stderr
    resolve(home, command)
    for _ in range(2):
        with pytest.raises(StepFailed) as raised:
            session(echo, "realtime", asynchronous=False)
        assert type(raised.value) is error
    assert len(echo.paths) == 1


@both_colours
def test_a_connection_that_is_opened_by_hand_counts_once(asynchronous, home, echo, events):
    assert session(echo, "realtime", asynchronous=asynchronous, by_hand=True) == 7
    assert [event["data"]["kind"] for event in events() if event["type"] == "step.started"] == ["llm_call", "local"]


@both_colours
@pytest.mark.parametrize("way", WAYS)
def test_strict_opens_no_session_inside_a_run_or_outside(way, asynchronous, home, echo):
    steplog.install(home=home, strict=True, interceptors=())

    async def outside() -> None:
        client = talking(echo, asynchronous=asynchronous)
        try:
            await talk(WAYS[way](client))
        finally:
            await settled(client.close())

    with pytest.raises(NotInRun, match="websocket"):
        session(echo, way, asynchronous=asynchronous)
    with pytest.raises(NotInRun, match="websocket"):
        perform(outside)
    assert echo.paths == []


@both_colours
def test_outside_a_run_a_session_works_as_ever(asynchronous, home, echo):
    async def body() -> None:
        client = talking(echo, asynchronous=asynchronous)
        await talk(WAYS["realtime"](client))
        await settled(client.close())

    perform(body)
    assert len(echo.paths) == 1


@both_colours
def test_a_refused_connection_is_refused_again_without_connecting(asynchronous, home, echo, offline):
    def program() -> tuple[str, str]:
        async def body() -> tuple[str, str]:
            client = talking(echo, "/refused", asynchronous=asynchronous)
            async with steplog.run("r"):
                with pytest.raises(Exception, match=r".") as caught:
                    await talk(WAYS["realtime"](client))
            await settled(client.close())
            return type(caught.value).__qualname__, str(caught.value)

        return perform(body)

    live = program()
    assert "503" in live[1]
    again = program()
    assert len(echo.paths) == 1
    assert live[1] in again[1]


def test_sessions_are_told_apart_and_credentials_are_not_stored(home, echo, events):
    with talking(echo, api_key="opaque-credential") as client, steplog.run("r"):
        for options in ({"model": "a"}, {"model": "b"}, {"model": "b", "extra_query": {"key": "opaque-c", "v": "1"}}):
            with client.realtime.connect(**options):
                pass
    asked = [event["data"]["request"]["params"] for event in events() if event["type"] == "step.started"]
    assert [(one["model"], one.get("v")) for one in asked] == [("a", None), ("b", None), ("b", "1")]
    assert not any(b"opaque" in path.read_bytes() for path in home.rglob("*") if path.is_file())


@pytest.mark.parametrize("host,counts", [("api.openai.com", 1), ("x.openai.azure.com", 1), ("example.com", 0)])
def test_a_session_that_is_opened_past_the_sdk_is_announced_too(host, counts, home, events):
    client = importlib.import_module("websockets.asyncio.client")

    class Connect(client.connect):
        async def create_connection(self) -> Any:
            raise ConnectionRefusedError("no network here")

    async def body() -> None:
        async with steplog.run("r"):
            with pytest.raises(ConnectionRefusedError):
                await Connect(f"wss://{host}/v1/realtime?model=x")

    perform(body)
    started = [event["data"]["target"] for event in events() if event["type"] == "step.started"]
    assert started == ["websocket /v1/realtime"] * counts


def sources() -> Iterator[tuple[str, str]]:
    """Names and texts of all modules of the installed SDKs, but for the types, which only describe."""
    for package in ("openai", "anthropic"):
        root = Path(importlib.import_module(package).__file__).parent
        for file in root.rglob("*.py"):
            parts = file.relative_to(root).with_suffix("").parts
            if parts[0] != "types":
                yield ".".join((package, *parts)), file.read_text()


def test_every_module_of_the_sdks_that_opens_a_websocket_is_known():
    """A new release may open one somewhere else."""
    opens = re.compile(
        r"^\s+from websockets\.(?:sync|asyncio)\.client import connect\b|_connect_websocket\(", re.MULTILINE
    )
    opening = {name for name, text in sources() if opens.search(text)}
    opening -= {"openai._websocket_connection"}  # what the managers are built on
    assert opening
    assert opening <= set(_websocket.MODULES)
    for name in opening:
        assert len(list(_websocket.classes_in(importlib.import_module(name)))) == 2, name


def test_the_sdks_have_no_other_way_to_a_network_than_their_http_client():
    """Sockets, urllib, requests, aiohttp: what is found must be known, and be credential traffic or below `send`."""
    sink = re.compile(
        r"socket\.(?:socket|create_connection)\(|open_connection\(|\burlopen\("
        r"|^\s*(?:import|from) (?:http\.client|urllib3|requests|aiohttp|ftplib|smtplib)\b",
        re.MULTILINE,
    )
    found = {name for name, text in sources() if sink.search(text) and "._vendor." not in name}
    assert found <= {"openai.providers.vertex"}  # google-auth, for a token
