"""What a program asks of a real MCP server, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import steplog
from steplog.errors import RunStopped
from tests.support.processes import environment, wait_for

mcp = pytest.importorskip("mcp", reason="the mcp SDK is not installed")
from mcp import ClientSession, StdioServerParameters  # noqa: E402
from mcp.client import streamable_http  # noqa: E402
from mcp.client.stdio import stdio_client  # noqa: E402

SERVER = Path(__file__).with_name("mcp_server.py")
Error: Any = getattr(mcp, "MCPError", None) or mcp.McpError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Shop:
    """The server, and sessions with it. What its tools did is in a file."""

    def __init__(self, folder: Path) -> None:
        self.effects = folder / "effects"
        self.url: str | None = None

    def happened(self) -> list[str]:
        return self.effects.read_text().splitlines() if self.effects.exists() else []

    @asynccontextmanager
    async def session(self, *, listed: bool = True, **options: Any) -> AsyncIterator[ClientSession]:
        if self.url is None:
            words = [str(SERVER), str(self.effects)]
            opened = stdio_client(StdioServerParameters(command=sys.executable, args=words))
        else:
            client = getattr(streamable_http, "streamable_http_client", None) or streamable_http.streamablehttp_client
            opened = client(self.url)
        async with opened as streams, ClientSession(streams[0], streams[1], **options) as session:
            await session.initialize()
            if listed:
                await session.list_tools()
            yield session


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    steplog.install(home=folder, durability="process", interceptors=["mcp", "http"], http=["127.0.0.1"])
    yield folder
    steplog.uninstall()


@pytest.fixture(params=["stdio", "http"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    if request.param == "stdio":
        yield shop
        return
    port = tmp_path / "port"
    process = subprocess.Popen([sys.executable, str(SERVER), str(shop.effects), str(port)], env=environment())
    try:
        wait_for(port, process)
        shop.url = f"http://127.0.0.1:{port.read_text()}/mcp"
        yield shop
    finally:
        process.kill()
        process.wait(30)


@pytest.fixture
def stdio(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def dumped(result: Any) -> tuple[type, dict[str, Any], set[str]]:
    return type(result), result.model_dump(), set(result.model_fields_set)


def steps(run: steplog.Run) -> list[tuple[str, str, str]]:
    return [(step.kind, step.target, step.mode) for step in run.state.steps.values()]


def test_what_a_server_gave_is_returned_and_it_is_not_asked_again(home, shop):
    seen: list[list[Any]] = []

    async def on_progress(*told: Any) -> None:
        seen[-1].append(told)

    async def program() -> Any:
        seen.append([])
        with steplog.run("r") as run:
            async with shop.session() as session:
                found = [
                    await session.call_tool("look", {"order": "a"}),
                    await session.call_tool("cancel", {"order": "a"}),
                    await session.call_tool("refund", {"order": "a"}, progress_callback=on_progress),
                    await session.call_tool("refund", {"order": "bad"}),
                    await session.read_resource("orders://a"),
                    await session.get_prompt("greet", {"name": "Ada"}),
                ]
            return [dumped(result) for result in found], steps(run)

    live, recorded = asyncio.run(program())
    happened = shop.happened()
    assert asyncio.run(program()) == (live, recorded)
    assert shop.happened() == happened
    assert len(happened) == 6
    assert recorded == [
        ("tool_call", "look", "safe"),
        ("tool_call", "cancel", "keyed"),
        ("tool_call", "refund", "unsafe"),
        ("tool_call", "refund", "unsafe"),
        ("tool_call", "resources/read orders://a", "safe"),
        ("tool_call", "prompts/get greet", "safe"),
    ]
    assert seen[0] == seen[1]
    assert [told[0] for told in seen[0]] == [1, 2]
    # The tool has seen the key that any other attempt would have carried.
    assert happened[1].startswith("cancel a r:s_")


def test_an_error_of_the_protocol_is_raised_again(home, stdio):
    async def program() -> Any:
        with steplog.run("r"):
            async with stdio.session() as session:
                with pytest.raises(Error) as caught:
                    await session.read_resource("nothing://here")
                return type(caught.value), str(caught.value), caught.value.error

    assert asyncio.run(program()) == asyncio.run(program())


def test_a_tool_whose_mode_is_not_known_is_not_repeated(home, stdio):
    async def program() -> Any:
        with steplog.run("r") as run:
            async with stdio.session(listed=False) as session:
                await session.call_tool("look", {"order": "a"})
            return steps(run)

    assert asyncio.run(program()) == [("tool_call", "look", "unsafe")]


@pytest.mark.parametrize("handled", [True, False], ids=["handled", "unhandled"])
def test_a_tool_that_may_have_done_its_work_is_not_asked_again(handled, home, stdio):
    """The server dies after the refund and before its answer."""

    async def program() -> str:
        with steplog.run("r"):
            async with stdio.session() as session:
                try:
                    await session.call_tool("refund", {"order": "lost"})
                except Error as error:
                    if not handled:
                        raise
                    return str(error)
        return "unreachable"

    def outcome() -> Any:
        try:
            return asyncio.run(program())
        except BaseException as error:
            return flat(error)

    first = outcome()
    assert first == outcome()
    assert "closed" in str(first).lower()
    assert stdio.happened() == ["refund lost"]


def flat(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def test_a_step_left_by_a_dead_process_halts_and_is_settled_by_hand(home, stdio, tmp_path):
    program = f"""
import asyncio, os, signal, sys
import steplog
from tests.interceptors.test_mcp import Shop

async def main():
    with steplog.run("r"):
        async with Shop(__import__("pathlib").Path({str(tmp_path)!r})).session() as session:
            asyncio.get_running_loop().call_later(30, os._exit, 3)
            async def die(*told):
                os.kill(os.getpid(), signal.SIGKILL)
            print((await session.call_tool("refund", {{"order": "a"}}, progress_callback=die)).content[0].text)

steplog.install(home={str(home)!r}, interceptors=["mcp"])
asyncio.run(main())
"""
    words = [sys.executable, "-c", program]
    killed = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    assert stdio.happened() == ["refund a"]
    with pytest.raises(RunStopped) as stopped:
        stopped_by(lambda: asyncio.run(refunds(stdio)))
    assert stopped.value.reason == "indeterminate"
    resolve = next(line for line in stopped.value.commands if "--done" in line)
    step = resolve.split()[3]
    settle = [sys.executable, "-m", "steplog", "resolve", "r", step, "--done", '"by hand"', "--home", str(home)]
    assert subprocess.run(settle, env=environment(), capture_output=True, check=False).returncode == 0
    assert asyncio.run(refunds(stdio)) == "by hand"
    assert stdio.happened() == ["refund a"]


def stopped_by(program: Callable[[], Any]) -> Any:
    try:
        return program()
    except BaseExceptionGroup as group:
        raise next(one for one in group.exceptions if isinstance(one, RunStopped)) from None


async def refunds(shop: Shop) -> str:
    with steplog.run("r"):
        async with shop.session() as session:
            return str((await session.call_tool("refund", {"order": "a"})).content[0].text)


def test_another_server_is_another_call(home, stdio, monkeypatch):
    from steplog_interceptors import mcp as interceptor

    async def program() -> int:
        with steplog.run("r") as run:
            async with stdio.session() as session:
                await session.call_tool("look", {"order": "a"})
                monkeypatch.setattr(interceptor, "_server", lambda _session: "another")
                await session.call_tool("look", {"order": "a"})
            return len({step.request for step in run.state.steps.values()})

    assert asyncio.run(program()) == 2


def test_outside_a_run_and_after_uninstalling_nothing_is_recorded(home, stdio):
    async def program() -> list[Any]:
        async with stdio.session() as session:
            first = await session.call_tool("look", {"order": "a"})
            steplog.uninstall()
            with steplog.run("r") as run:
                second = await session.call_tool("look", {"order": "a"})
                return [first.content == second.content, run.executed]

    assert asyncio.run(program()) == [True, 0]


def test_servers_of_one_name_are_told_apart_by_how_they_are_reached(home: Path, tmp_path: Path) -> None:
    def server(name: str, **env: str) -> Any:
        return stdio_client(
            StdioServerParameters(command=sys.executable, args=[str(SERVER), str(tmp_path / name)], env=env)
        )

    async def program() -> list[str]:
        answers = []
        for opened in (server("north"), server("south"), server("south", KEY="another"), server("north")):
            async with opened as streams, ClientSession(streams[0], streams[1]) as session:
                await session.initialize()
                result: Any = await session.call_tool("own", {})
                answers.append(result.content[0].text)
        return answers

    with steplog.run("r"):
        assert asyncio.run(program()) == ["north", "south", "south", "north"]

    log = [json.loads(line) for line in (home / "runs" / "r" / "events.jsonl").read_text().splitlines()]
    accounts = [one["data"].get("account") for one in log if one["type"] == "step.started"]
    assert accounts[0] == accounts[3]
    assert len(set(accounts)) == 3


def test_a_fork_changes_what_a_tool_is_given(home, stdio):
    async def program(run: str) -> None:
        with steplog.run(run):
            async with stdio.session() as session:
                await session.call_tool("refund", {"order": "a"})

    asyncio.run(program("r"))
    forked = steplog.fork("r", at=1, set={"arguments.order": "b"}, live_tools=True)
    asyncio.run(program(forked))
    asyncio.run(program(forked))
    assert stdio.happened() == ["refund a", "refund b"]
    with pytest.raises(steplog.InvalidArgument, match="asks no model"):
        steplog.fork("r", at=1, model="gpt-5")


def test_a_replay_of_a_program_with_a_server_calls_none_of_its_tools(home, shop):
    async def program() -> str:
        with steplog.run("r"):
            async with shop.session() as session:
                return str((await session.call_tool("refund", {"order": "a"})).content[0].text)

    said = asyncio.run(program())
    allowed = [Path(sys.executable).name] if shop.url is None else [shop.url.split("/")[2]]
    with steplog.replay("r", allow=allowed) as replayed:
        assert asyncio.run(program()) == said
    assert replayed.identical, replayed.divergence
    assert shop.happened() == ["refund a"]
    with pytest.raises((steplog.RunStopped, BaseExceptionGroup)), steplog.replay("r") as replayed:
        asyncio.run(program())
    assert replayed.divergence.kind == "unrecorded"
