"""SDKs of the same generator, by the example of groq."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import steplog
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from steplog_interceptors import stainless
from tests.interceptors.support import ASK, KEY, answers, chat, chat_events, listed, perform, rate_limited, settled
from tests.support.processes import environment
from tests.support.recorded import SHARED, WHY_ABSENT

groq = pytest.importorskip("groq", reason="the groq SDK is not installed")
both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    steplog.install(home=folder, durability="process", interceptors=["stainless"])
    yield folder
    steplog.uninstall()


def client_of(url: str, *, asynchronous: bool, **options: Any) -> Any:
    kind = groq.AsyncGroq if asynchronous else groq.Groq
    return kind(base_url=url, api_key=KEY, **options)


def program(url: str, *, asynchronous: bool, **options: Any) -> Any:
    async def body() -> Any:
        client = client_of(url, asynchronous=asynchronous)
        with steplog.run("r") as run:
            answer = await settled(client.chat.completions.create(**ASK, **options))
            found = [item.model_dump() for item in await listed(answer)] if options else answer.model_dump()
        await settled(client.close())
        return found, type(answer), (run.replayed, run.executed)

    return perform(body)


@both_colours
def test_a_call_with_its_retries_is_one_step(asynchronous, home, offline):
    with LocalProvider(handler=answers(rate_limited(), rate_limited(), chat())) as provider:
        live = program(provider.url, asynchronous=asynchronous)
        assert len(provider.hits) == 3
        offline(provider)
        returned = program(provider.url, asynchronous=asynchronous)
    assert returned[:2] == live[:2]
    assert (live[2], returned[2]) == ((0, 1), (1, 0))


@both_colours
def test_a_stream_is_returned(asynchronous, home, offline):
    with LocalProvider(handler=answers(Reply.sse(chat_events("a", "b")))) as provider:
        live = program(provider.url, asynchronous=asynchronous, stream=True)
        offline(provider)
        assert program(provider.url, asynchronous=asynchronous, stream=True)[:2] == live[:2]
    assert len(live[0]) == 4


@pytest.mark.skipif(not SHARED.exists(), reason=WHY_ABSENT)
@both_colours
def test_an_error_of_the_real_provider_in_a_stream_is_raised_again(asynchronous, home, offline):
    tree = json.loads((SHARED / "groq/stream-error-event.json").read_text())

    def outcome() -> Any:
        with pytest.raises(groq.APIError) as caught:
            program(provider.url, asynchronous=asynchronous, stream=True)
        return type(caught.value), str(caught.value), caught.value.body

    reply = Reply.sse(tree["response"]["body"])
    with LocalProvider(handler=answers(reply)) as provider:
        live = outcome()
        sent = len(provider.hits)
        assert outcome() == live
        # It ended the run, so the resumed run has tried again.
        assert len(provider.hits) == 2 * sent


@both_colours
def test_a_failure_is_returned_where_the_program_went_on(asynchronous, home, offline):
    def outcome() -> Any:
        async def body() -> Any:
            client = client_of(provider.url, asynchronous=asynchronous, max_retries=0)
            with steplog.run("r"):
                with pytest.raises(groq.BadRequestError) as caught:
                    await settled(client.chat.completions.create(**ASK))
            await settled(client.close())
            return str(caught.value), caught.value.body

        return perform(body)

    with LocalProvider(handler=answers(Reply.json({"error": {"message": "no"}}, 400))) as provider:
        live = outcome()
        offline(provider)
        assert outcome() == live


def test_what_changes_state_is_not_safe(home):
    def handle(hit: Hit) -> Reply:
        return Reply.json({"id": "batch_1", "object": "batch"} if "batches" in hit.path else chat())

    with LocalProvider(handler=handle) as provider, steplog.run("r") as run:
        client = client_of(provider.url, asynchronous=False)
        client.batches.create(completion_window="24h", endpoint="/v1/chat/completions", input_file_id="file_1")
        client.chat.completions.create(**ASK)
        client.close()
        assert [step.mode for step in run.state.steps.values()] == ["unsafe", "safe"]


REGISTERED = """
import steplog
from steplog_interceptors import stainless
{before}
steplog.install(home={home!r}, ignore={{"mine": ["user"]}} if {before!r} else None)
{after}
import mine
request = lambda: mine._base_client.SyncAPIClient.request
print(request().__name__, hasattr(request(), "__wrapped__"))
steplog.uninstall()
print(hasattr(request(), "__wrapped__"))
"""
BASE = """
class SyncAPIClient:
    def request(self): ...
    def _sleep_for_retry(self): ...
class AsyncAPIClient:
    async def request(self): ...
    async def _sleep_for_retry(self): ...
"""


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_one_line_registers_an_sdk_before_or_after_install(before, tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("from mine import _base_client\n")
    (package / "_base_client.py").write_text(BASE)
    line = 'stainless.register("mine")'
    text = REGISTERED.format(before=line if before else "", after="" if before else line, home=str(tmp_path / "home"))
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["request", "True", "False"], done.stderr


def test_the_form_of_an_entry_point_gives_the_same_interceptor():
    point = EntryPoint("groq", "steplog_interceptors.stainless:groq", "steplog.interceptors")
    assert point.load() is stainless.register("groq")
    assert point.load().name == "groq"
