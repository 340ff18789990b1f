"""What steplog relies on in an SDK's own code.

A new release that changes one of these still imports, and some of its calls go unrecorded. Then a test here fails and
says what to look at, before a user finds out.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from steplog.testing import LocalProvider
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    answers,
    anthropic_client,
    chat,
    message,
    openai_client,
    perform,
    settled,
)

both_sdks = pytest.mark.parametrize("name", ["openai", "anthropic"])
both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])

# Every place in the SDKs' code that sends or sleeps, and why it is in order. `*` matches anything.
KNOWN: list[tuple[str, str, str]] = [
    ("_base_client.py", "self._client.send", "the funnel: inside `request`, recorded"),
    ("_base_client.py", "self._sleep_for_retry", "patched"),
    ("_base_client.py", "time.sleep", "inside `_sleep_for_retry`"),
    ("_base_client.py", "anyio.sleep", "inside `_sleep_for_retry`"),
    ("_resource.py", "*.sleep", "inside `_sleep`, patched"),
    ("*", "*._sleep", "patched"),
    # openai
    ("_httpx2.py", "httpx2.*Client", "builds the client that `_base_client` sends with"),
    ("_send_queue.py", "send", "a queue in memory, for websockets"),
    ("_websocket_connection.py", "*", "websockets"),
    ("auth/_*.py", "*", "credentials: not part of a call"),
    ("cli/*", "*", "the SDK's own command line, not the agent"),
    ("lib/realtime_translation.py", "*", "websockets"),
    ("lib/responses_websocket/_session.py", "connection.send", "websockets"),
    ("lib/responses_tool_runner.py", "requests.get", "a dictionary of that name"),
    ("resources/beta/realtime/realtime.py", "*", "websockets"),
    ("resources/beta/responses/responses.py", "*", "websockets"),
    ("resources/live/*.py", "*", "websockets"),
    ("resources/realtime/realtime.py", "*", "websockets"),
    ("resources/realtime/translations/translations.py", "*", "websockets"),
    ("resources/responses/responses.py", "*", "websockets"),
    # anthropic
    ("lib/credentials/_*.py", "*", "credentials: not part of a call"),
    ("lib/environments/_poller.py", "*.sleep", "a worker that waits for work; it is no agent's call"),
    ("lib/tools/_beta_session_runner.py", "*", "queues in memory, `events.send` of the SDK, and a worker's pauses"),
    ("lib/tools/agent_toolset.py", "stdin.send", "a pipe to a local process"),
]


def package(name: str) -> Path:
    """The folder of an installed SDK."""
    file = importlib.import_module(name).__file__
    assert file is not None
    return Path(file).parent


def sinks(tree: ast.AST) -> Iterator[str]:
    """The calls in a module that send or sleep, by how they are written."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        owner, _, leaf = called.rpartition(".")
        if (
            leaf in {"send", "handle_request", "handle_async_request", "urlopen", "connect", "ws_connect", "sleep"}
            or leaf in {"_sleep", "_sleep_for_retry", "create_connection"}
            or (leaf in {"Client", "AsyncClient"} and "httpx" in owner)
            or (leaf in {"get", "post", "put", "patch", "delete", "request", "stream"} and _is_http(owner))
        ):
            yield called


def _is_http(owner: str) -> bool:
    return owner in {"httpx", "httpx2", "requests", "aiohttp"} or owner.endswith(("self._client._client", "._http"))


def test_the_scan_finds_what_it_is_for():
    found = list(
        sinks(ast.parse("self._client.send(r)\nhttpx2.post(u)\nwith connect(u): pass\ntime.sleep(1)\nx.get(1)"))
    )
    assert found == ["self._client.send", "httpx2.post", "time.sleep", "connect"]


@both_sdks
def test_an_sdk_sends_and_sleeps_only_where_it_is_known_to(name):
    root = package(name)
    unknown = [
        f"{file.relative_to(root)}: {called}"
        for file in sorted(root.rglob("*.py"))
        for called in sinks(ast.parse(file.read_bytes()))
        if not any(fnmatch(str(file.relative_to(root)), where) and fnmatch(called, what) for where, what, _ in KNOWN)
    ]
    version = importlib.import_module(name).__version__
    assert unknown == [], (
        f"{name} {version} sends or sleeps in places that steplog does not know. Read each one: if it goes through "
        f"`request` of the base client, or is no call of an agent, add it to KNOWN with the reason; else the "
        f"interceptor has to learn it, because such a call is not recorded."
    )


@both_sdks
def test_the_base_client_has_one_place_that_sends(name):
    tree = ast.parse((package(name) / "_base_client.py").read_bytes())
    holders = [
        (cls.name, function.name)
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef)
        for function in cls.body
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if "self._client.send" in list(sinks(function))
    ]
    assert sorted({cls for cls, _ in holders}) == ["AsyncAPIClient", "SyncAPIClient"]
    assert len(holders) == 2, f"the funnel of {name} has become {holders}; each must be inside `request`"


@both_sdks
@pytest.mark.parametrize("colour", ["Sync", "Async"])
def test_request_takes_what_the_wrapper_reads(name, colour):
    base = getattr(importlib.import_module(f"{name}._base_client"), f"{colour}APIClient")
    parameters = inspect.signature(base.request).parameters
    assert list(parameters)[:3] == ["self", "cast_to", "options"], (
        "the wrapper finds `options` by name or as the second"
    )
    assert {"stream", "stream_cls"} <= set(parameters)
    assert inspect.iscoroutinefunction(base.request) == (colour == "Async")


@both_sdks
def test_pauses_can_be_left_out(name):
    clients = importlib.import_module(f"{name}._base_client")
    resources = importlib.import_module(f"{name}._resource")
    for colour in ("Sync", "Async"):
        assert "_sleep_for_retry" in vars(getattr(clients, f"{colour}APIClient"))
        assert "_sleep" in vars(getattr(resources, f"{colour}APIResource"))


@both_sdks
def test_every_error_is_made_with_its_request(name):
    errors = importlib.import_module(f"{name}._exceptions")
    assert "__init__" in vars(errors.APIError)
    assert "request" in inspect.signature(errors.APIError).parameters


class Counted(Exception):
    """`request` was reached."""


@both_sdks
@both_colours
@pytest.mark.parametrize("verb", ["get", "post", "put", "patch", "delete", "get_api_list"])
def test_every_verb_goes_through_request(verb, name, asynchronous, monkeypatch):
    async def body() -> None:
        client = (openai_client if name == "openai" else anthropic_client)(
            "http://127.0.0.1:9", asynchronous=asynchronous
        )
        base = importlib.import_module(f"{name}._base_client")

        def request(self: Any, *args: Any, **kwargs: Any) -> Any:
            raise Counted

        pages = importlib.import_module(f"{name}.pagination")
        page = getattr(pages, ("Async" if asynchronous else "Sync") + ("CursorPage" if name == "openai" else "Page"))
        options = {"model": importlib.import_module(f"{name}._models").BaseModel, "page": page}
        kwargs = options if verb == "get_api_list" else {"cast_to": object}
        with monkeypatch.context() as patch:
            patch.setattr(getattr(base, ("Async" if asynchronous else "Sync") + "APIClient"), "request", request)
            with pytest.raises(Counted):
                call = getattr(client, verb)("/x", **kwargs)
                # A list in the asynchronous colour is a paginator, which asks when it is awaited.
                await settled(call)
        await settled(client.close())

    perform(body)


@both_sdks
@both_colours
def test_requests_carry_the_mark_by_which_they_are_known(name, asynchronous):
    async def body() -> None:
        if name == "openai":
            client = openai_client(provider.url, asynchronous=asynchronous)
            await settled(client.chat.completions.create(**ASK))
        else:
            client = anthropic_client(provider.url, asynchronous=asynchronous)
            await settled(client.messages.create(**ASK_CLAUDE))
        await settled(client.close())

    with LocalProvider(handler=answers(chat() if name == "openai" else message())) as provider:
        perform(body)
    headers = provider.hits[0].headers
    assert headers["x-stainless-lang"] == "python", f"{name} no longer marks its requests; _wire.py looks for the mark"
    # Requests outside an announced call are told apart by it.
    assert headers["user-agent"].partition("/")[0].lower().removeprefix("async") == name


def test_every_patch_finds_its_place():
    code = (
        "import logging, sys; logging.basicConfig(stream=sys.stdout, level='WARNING')\n"
        "import steplog; steplog.install(); import openai, anthropic\n"
        "import openai._client, openai._resource, anthropic._client, anthropic._resource"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
