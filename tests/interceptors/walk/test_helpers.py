"""What programs do around the SDKs' methods: uploads, binaries, pages, polls, batches, tools and clients."""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import steplog
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    anthropic_client,
    chat,
    complete,
    listed,
    message,
    openai_client,
    perform,
    settled,
)
from tests.interceptors.walk.entered import entered
from tests.interceptors.walk.snapshot import snapshot

AUDIO = bytes(range(256)) * 300
MAKERS = {"openai": openai_client, "anthropic": anthropic_client}
both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])

Program = Callable[[Any], Awaitable[Any]]


@pytest.fixture
def twice(home: Path, offline: Any, no_sleep: Callable[[], None]) -> Callable[..., tuple[Any, list[Hit]]]:
    """Run a program live and again without provider, connection or pause; what it gave, and what the provider saw."""

    def run(sdk: str, program: Program, answer: Callable[[Hit], Reply], asynchronous: bool) -> tuple[Any, list[Hit]]:
        async def once(url: str) -> Any:
            with steplog.run("r"):
                opened = MAKERS[sdk](url, asynchronous=asynchronous)
                try:
                    return await program(opened)
                finally:
                    await settled(opened.close())

        def go(url: str) -> Any:
            return perform(lambda: once(url)) if asynchronous else complete(once(url))

        with LocalProvider(handler=answer) as provider:
            live = go(provider.url)
            hits = list(provider.hits)
            offline(provider)
            no_sleep()
            assert go(provider.url) == live
        return live, hits

    return run


def binary(_hit: Hit) -> Reply:
    return Reply(200, {"content-type": "audio/mpeg", "x-request-id": "req_1"}, AUDIO)


# uploads -------------------------------------------------------------------------------------------------------------


def a_file(hit: Hit) -> Reply:
    return Reply.json({"id": f"file-{hit.number}", "object": "file", "filename": "a.txt", "bytes": len(hit.body)})


@both_colours
@pytest.mark.parametrize("kind", ["bytes", "named", "typed", "buffer", "path", "open"])
def test_a_file_is_uploaded_once_however_it_is_given(kind, asynchronous, twice, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(AUDIO)

    async def program(client: Any) -> Any:
        with path.open("rb") as opened:
            given = {
                "bytes": AUDIO,
                "named": ("a.txt", AUDIO),
                "typed": ("a.txt", AUDIO, "text/plain"),
                "buffer": io.BytesIO(AUDIO),
                "path": path,
                "open": opened,
            }
            return snapshot(await settled(client.files.create(file=given[kind], purpose="batch")))

    _, hits = twice("openai", program, a_file, asynchronous)
    assert len(hits) == 1
    assert AUDIO in hits[0].body


@both_colours
def test_each_part_of_a_large_upload_is_a_step(asynchronous, twice, events):
    def answer(hit: Hit) -> Reply:
        kind = "upload.part" if hit.path.endswith("/parts") else "upload"
        return Reply.json({"id": f"{kind}_{hit.number}", "object": kind, "status": "completed"})

    async def program(client: Any) -> Any:
        uploads = client.uploads.upload_file_chunked
        given = {"filename": "a.bin", "bytes": len(AUDIO), "mime_type": "text/plain", "purpose": "batch"}
        return snapshot(await settled(uploads(file=AUDIO, part_size=len(AUDIO) // 3, **given)))

    _, hits = twice("openai", program, answer, asynchronous)
    assert [hit.path for hit in hits] == [
        "/v1/uploads",
        *["/v1/uploads/upload_1/parts"] * 3,
        "/v1/uploads/upload_1/complete",
    ]
    assert json.loads(hits[-1].body)["part_ids"] == ["upload.part_2", "upload.part_3", "upload.part_4"]
    assert {event["data"]["mode"] for event in events() if event["type"] == "step.started"} == {"unsafe"}


@both_colours
def test_files_that_are_uploaded_side_by_side_find_their_own_answers(asynchronous, twice):
    def answer(hit: Hit) -> Reply:
        if hit.path == "/v1/files":
            number = hit.body.split(b"file number ")[1][:1].decode()
            return Reply.json({"id": f"file-{number}", "object": "file"})
        counts = {"in_progress": 0, "completed": 4, "failed": 0, "cancelled": 0, "total": 4}
        tree = {"id": "vsfb_1", "object": "vector_store.files_batch", "status": "completed", "vector_store_id": "vs_1"}
        return Reply.json({**tree, "file_counts": counts, "created_at": 1})

    async def program(client: Any) -> Any:
        files = [(f"{number}.txt", f"file number {number}".encode()) for number in range(4)]
        batches = client.vector_stores.file_batches
        return snapshot(await settled(batches.upload_and_poll("vs_1", files=files, max_concurrency=3)))

    _, hits = twice("openai", program, answer, asynchronous)
    created = next(hit for hit in hits if hit.path.endswith("/file_batches"))
    assert sorted(created.json["file_ids"]) == [f"file-{number}" for number in range(4)]


# binaries ------------------------------------------------------------------------------------------------------------


SPEECH = {"model": "tts-1", "voice": "alloy", "input": "hello"}


@both_colours
def test_a_binary_answer_is_read_in_every_way(asynchronous, twice, tmp_path):
    async def program(client: Any) -> Any:
        whole = await settled(client.audio.speech.create(**SPEECH))
        path = tmp_path / "a.mp3"
        whole.write_to_file(path)
        pieces = await whole.aiter_bytes(1000) if asynchronous else whole.iter_bytes(1000)
        return [whole.content, path.read_bytes(), whole.read(), await listed(pieces), type(whole).__qualname__]

    live, hits = twice("openai", program, binary, asynchronous)
    assert live[0] == live[1] == live[2] == b"".join(live[3]) == AUDIO
    assert [len(piece) for piece in live[3]][:2] == [1000, 1000]
    assert len(hits) == 1


@both_colours
@pytest.mark.parametrize("use", ["stream_to_file", "iter_bytes", "iter_lines", "read", "early"])
def test_a_binary_answer_is_streamed_in_every_way(use, asynchronous, twice, tmp_path):
    path = tmp_path / "a.mp3"

    async def program(client: Any) -> Any:
        async with entered(client.audio.speech.with_streaming_response.create(**SPEECH)) as raw:
            facts = [raw.status_code, raw.headers["x-request-id"], type(raw).__qualname__]
            if use == "stream_to_file":
                await settled(raw.stream_to_file(path))
                return facts, path.read_bytes()
            if use == "early":
                stream = raw.iter_bytes(100)
                return facts, await anext(stream) if asynchronous else next(stream)
            if use == "read":
                return facts, await settled(raw.read())
            return facts, await listed(raw.iter_lines() if use == "iter_lines" else raw.iter_bytes())

    live, hits = twice("openai", program, binary, asynchronous)
    if use in ("stream_to_file", "read"):
        assert live[1] == AUDIO
    assert len(hits) == 1


@both_colours
def test_a_file_of_anthropic_is_downloaded_once(asynchronous, twice, tmp_path):
    path = tmp_path / "a.bin"

    async def program(client: Any) -> Any:
        found = await settled(client.beta.files.download("file_1"))
        await settled(found.write_to_file(path))
        return type(found).__qualname__, path.read_bytes()

    live, _ = twice("anthropic", program, binary, asynchronous)
    assert live[1] == AUDIO


# pages ---------------------------------------------------------------------------------------------------------------


def three_pages(hit: Hit) -> Reply:
    first = int(hit.path.rpartition("file-")[2] or 0) + 1 if "after=" in hit.path else 1
    data = [{"id": f"file-{number}", "object": "file"} for number in (first, first + 1)]
    return Reply.json({"object": "list", "data": data, "has_more": first < 5})


@both_colours
def test_each_page_is_a_step_and_is_fetched_when_it_is_needed(asynchronous, twice, events):
    async def program(client: Any) -> Any:
        seen = []
        if asynchronous:
            async for file in client.files.list(limit=2):
                seen.append(file.id)
                if file.id == "file-3":
                    break
        else:
            for file in client.files.list(limit=2):
                seen.append(file.id)
                if file.id == "file-3":
                    break
        return seen

    live, hits = twice("openai", program, three_pages, asynchronous)
    assert live == ["file-1", "file-2", "file-3"]
    assert len(hits) == len([event for event in events() if event["type"] == "step.finished"]) == 2


@both_colours
def test_pages_are_turned_by_hand(asynchronous, twice):
    async def program(client: Any) -> Any:
        page = await settled(client.files.list(limit=2))
        seen = [type(page).__qualname__]
        while page.has_next_page():
            seen += [snapshot(page), page.next_page_info().params]
            page = await settled(page.get_next_page())
        return [*seen, snapshot(page)]

    _live, hits = twice("openai", program, three_pages, asynchronous)
    assert len(hits) == 3


# polls and jobs ------------------------------------------------------------------------------------------------------


def in_turn(*trees: dict[str, Any]) -> Callable[[Hit], Reply]:
    queue = list(trees)
    return lambda _hit: Reply.json(queue.pop(0) if len(queue) > 1 else queue[0])


def states(kind: str, *names: str) -> Callable[[Hit], Reply]:
    return in_turn(*({"id": "job_1", "thread_id": "t_1", "object": kind, "status": name} for name in names))


POLLS: dict[str, tuple[Callable[[Any], Any], Callable[[], Callable[[Hit], Reply]], int]] = {
    "runs": (
        lambda c: c.beta.threads.runs.create_and_poll(thread_id="t_1", assistant_id="a_1", poll_interval_ms=1),
        lambda: states("thread.run", "queued", "in_progress", "completed"),
        3,
    ),
    "thread and run": (
        lambda c: c.beta.threads.create_and_run_poll(assistant_id="a_1", poll_interval_ms=1),
        lambda: states("thread.run", "queued", "queued", "completed"),
        3,
    ),
    "vector store file": (
        lambda c: c.vector_stores.files.create_and_poll("file-1", vector_store_id="vs_1", poll_interval_ms=1),
        lambda: states("vector_store.file", "in_progress", "in_progress", "completed"),
        3,
    ),
    "upload": (
        lambda c: c.vector_stores.files.upload_and_poll(vector_store_id="vs_1", file=b"abc", poll_interval_ms=1),
        lambda: states("file", "processed", "in_progress", "in_progress", "completed"),
        4,
    ),
    "file": (
        lambda c: c.files.wait_for_processing("file-1", poll_interval=0.001),
        lambda: states("file", "uploaded", "uploaded", "processed"),
        3,
    ),
}


@pytest.mark.filterwarnings("ignore:The Assistants API:DeprecationWarning")
@both_colours
@pytest.mark.parametrize("name", POLLS)
def test_a_poller_asks_as_often_as_it_did_and_waits_no_more(name, asynchronous, twice):
    poll, answer, requests = POLLS[name]

    async def program(client: Any) -> Any:
        return snapshot(await settled(poll(client)))

    _, hits = twice("openai", program, answer(), asynchronous)
    assert len(hits) == requests


@both_colours
def test_a_batch_is_made_read_cancelled_and_its_results_are_lines(asynchronous, twice, events):
    lines = b"".join(
        json.dumps({"custom_id": f"c{n}", "result": {"type": "expired"}}).encode() + b"\n" for n in range(3)
    )

    def answer(hit: Hit) -> Reply:
        if hit.path.endswith("/results"):
            return Reply(200, {"content-type": "application/x-jsonl"}, lines)
        status = "canceling" if hit.path.endswith("/cancel") else "ended"
        tree = {"id": "msgbatch_1", "type": "message_batch", "processing_status": status}
        return Reply.json({**tree, "results_url": "/v1/messages/batches/msgbatch_1/results"})

    async def program(client: Any) -> Any:
        batches = client.messages.batches
        made = await settled(batches.create(requests=[{"custom_id": "c0", "params": {**ASK_CLAUDE, "stream": False}}]))
        results = await settled(batches.results(made.id))
        found = [snapshot(made), type(results).__qualname__, [snapshot(line) for line in await listed(results)]]
        early = await settled(batches.results(made.id))
        found.append(snapshot(await anext(early) if asynchronous else next(early)))
        await settled(early.close())
        return [*found, snapshot(await settled(batches.cancel(made.id)))]

    live, _hits = twice("anthropic", program, answer, asynchronous)
    assert len(live[2]) == 3
    modes = [event["data"]["mode"] for event in events() if event["type"] == "step.started"]
    assert modes == ["unsafe", "safe", "safe", "safe", "safe", "unsafe"]


# tools ---------------------------------------------------------------------------------------------------------------


def tool_use(hit: Hit) -> Reply:
    if b"tool_result" in hit.body:
        return Reply.json(message("It is -3 in Oslo."))
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
    return Reply.json(message(stop_reason="tool_use", content=[use]))


@both_colours
def test_a_tool_runner_calls_a_recorded_tool_once(asynchronous, twice):
    called = []

    @steplog.step
    def look_up(city: str) -> str:
        called.append(city)
        return f"-3 in {city}"

    if asynchronous:

        @anthropic.beta_async_tool
        async def weather(city: str) -> str:
            """The weather of a city."""
            return look_up(city)
    else:

        @anthropic.beta_tool
        def weather(city: str) -> str:
            """The weather of a city."""
            return look_up(city)

    async def program(client: Any) -> Any:
        runner = client.beta.messages.tool_runner(**ASK_CLAUDE, tools=[weather])
        return [snapshot(turn) for turn in await listed(runner)]

    live, hits = twice("anthropic", program, tool_use, asynchronous)
    assert len(live) == len(hits) == 2
    assert called == ["Oslo"]


@both_colours
def test_the_tool_runner_of_openai_calls_a_recorded_tool_once(asynchronous, twice):
    runners = pytest.importorskip("openai.lib.responses_tool_runner", reason="this release has no tool runner")
    called = []

    @steplog.step
    def look_up(city: str) -> str:
        called.append(city)
        return f"-3 in {city}"

    def execute(given: dict[str, Any]) -> str:
        return look_up(given["city"])

    async def execute_async(given: dict[str, Any]) -> str:
        return look_up(given["city"])

    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    closed = {**schema, "additionalProperties": False}
    tool = {"type": "function", "name": "weather", "description": "The weather.", "parameters": closed, "strict": True}

    def answer(hit: Hit) -> Reply:
        call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "status": "completed"}
        part = {"type": "output_text", "text": "cold", "annotations": [], "logprobs": []}
        text = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        output = [{**call, "arguments": '{"city":"Oslo"}'}] if hit.number == 1 else [text]
        head = {"id": f"resp_{hit.number}", "object": "response", "status": "completed", "model": "gpt-x"}
        rest = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "error": None}
        return Reply.json({**head, **rest, "created_at": 1, "output": output})

    async def program(client: Any) -> Any:
        if asynchronous:
            runner = runners.AsyncResponsesToolRunner(functions=[runners.AsyncRegisteredFunction(tool, execute_async)])
        else:
            runner = runners.ResponsesToolRunner(functions=[runners.RegisteredFunction(tool, execute)])
        return snapshot(await settled(runner.run(client, {"model": "gpt-x", "input": "How cold is it in Oslo?"})))

    _, hits = twice("openai", program, answer, asynchronous)
    assert len(hits) == 2
    assert called == ["Oslo"]


# clients -------------------------------------------------------------------------------------------------------------


@both_colours
@pytest.mark.parametrize("derive", ["with_options", "copy"])
def test_a_client_made_from_another_one_is_recorded(derive, asynchronous, twice):
    async def program(client: Any) -> Any:
        other = getattr(client, derive)(timeout=7, default_headers={"x-team": "a"})
        return snapshot(await settled(other.chat.completions.create(**ASK)))

    _, hits = twice("openai", program, lambda _hit: Reply.json(chat()), asynchronous)
    assert hits[0].headers["x-team"] == "a"


@both_colours
@pytest.mark.parametrize("sdk", MAKERS)
def test_requests_that_no_resource_makes_are_recorded(sdk, asynchronous, twice, events):
    async def program(client: Any) -> Any:
        made = []
        for verb in ("get", "post", "patch", "put", "delete"):
            made.append(await settled(getattr(client, verb)("/v1/things", cast_to=dict[str, Any])))
        return [snapshot(each) for each in made]

    _live, hits = twice(sdk, program, lambda hit: Reply.json({"did": hit.method}), asynchronous)
    assert [hit.method for hit in hits] == ["GET", "POST", "PATCH", "PUT", "DELETE"]
    assert [event["data"]["mode"] for event in events() if event["type"] == "step.started"] == ["safe", *["unsafe"] * 4]


def test_the_client_of_the_module_is_recorded(home, offline, monkeypatch):
    def ask(url: str) -> Any:
        monkeypatch.setattr(openai, "api_key", "sk-test-0123456789abcdefghijklmnop")
        monkeypatch.setattr(openai, "base_url", url + "/v1")
        with steplog.run("r"):
            found = (
                openai.chat.completions.create(**ASK),
                openai.files.list(),
                openai.embeddings.create(model="m", input="a"),
            )
        openai._client.close()
        openai._reset_client()
        return [snapshot(each) for each in found]

    def answer(hit: Hit) -> Reply:
        data = (
            [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}] if hit.path.endswith("embeddings") else []
        )
        return Reply.json(chat() if hit.path.endswith("completions") else {"object": "list", "data": data})

    with LocalProvider(handler=answer) as provider:
        live = ask(provider.url)
        assert len(provider.hits) == 3
        offline(provider)
        assert ask(provider.url) == live
