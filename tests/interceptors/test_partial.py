"""A stream that takes its time is written down while it passes: once, whole, in the chunks in which it came."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import steplog
from steplog._runtime.pack import form_bytes
from steplog.errors import DecodeError
from steplog.plugins import Body
from steplog.stores.files import FileStore
from steplog.testing import LocalProvider
from steplog.testing.provider import Fault, Reply
from steplog_interceptors._call import LogicalCall
from steplog_interceptors._pieces import joined
from steplog_interceptors._recording import StreamRecord
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    answers,
    anthropic_client,
    chat_events,
    chunk_lengths,
    http_of,
    listed,
    message_events,
    openai_client,
    perform,
    settled,
)
from tests.support.sdk_calls import describe

WORDS = ("alpha", "beta", "gamma", "omega")
SDKS = {
    "openai": (openai_client, lambda c: c.chat.completions.create(stream=True, **ASK), Reply.sse(chat_events(*WORDS))),
    "anthropic": (
        anthropic_client,
        lambda c: c.messages.create(stream=True, **ASK_CLAUDE),
        Reply.sse(message_events(*WORDS)),
    ),
}
both_sdks = pytest.mark.parametrize("sdk", SDKS)
both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])

Events = Callable[..., list[dict[str, Any]]]


def in_run(make: Any, open_: Any, use: Any, url: str, *, asynchronous: bool) -> Any:
    """Open a stream in run `r` and use it."""

    async def body() -> Any:
        client = make(url, asynchronous=asynchronous)
        try:
            async with steplog.run("r"):
                return await use(await settled(open_(client)))
        finally:
            await settled(client.close())

    return perform(body)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def progressed(events: Events) -> list[dict[str, Any]]:
    return [event["data"] for event in events(notes=True) if event["type"] == "step.progressed"]


@both_colours
@both_sdks
def test_what_has_passed_is_in_the_log_while_the_stream_goes_on_and_stands_there_once(
    sdk, asynchronous, home, events, offline
):
    make, open_, reply = SDKS[sdk]
    with LocalProvider(handler=answers(reply)) as provider:
        provider.inject(Fault("hang", after=4))

        async def use(stream: Any) -> Any:
            raw = stream.response.iter_raw() if not asynchronous else stream.response.aiter_raw()
            found = [await anext(raw) if asynchronous else next(raw) for _ in range(4)]
            await until(lambda: any(b"alpha" in json.dumps(note).encode() for note in progressed(events)))
            provider.release()
            return found + await listed(raw)

        live = in_run(make, open_, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, open_, use, provider.url, asynchronous=asynchronous) == live
    assert live == reply.parts()
    assert chunk_lengths(events) == [len(part) for part in live]
    log = (home / "runs/r/events.jsonl").read_bytes()
    assert [log.count(word.encode()) for word in WORDS] == [1] * len(WORDS)
    head = progressed(events)[0]["head"]
    assert (head["status"], ["content-type", "text/event-stream; charset=utf-8"] in head["headers"]) == (200, True)
    finished = next(event["data"] for event in events() if event["type"] == "step.finished")
    assert finished["usage"]["total"] == (12 if sdk == "openai" else 17)


@both_colours
def test_a_large_stream_takes_its_size_on_disk_and_little_memory(asynchronous, home, events, offline):
    words = random.Random(7)  # text that cannot be compressed by much, not a secret
    sent = chat_events(*(words.randbytes(3000).hex() for _ in range(2000)))
    reply = Reply.sse(sent)
    held: list[int] = []

    async def use(stream: Any) -> int:
        tee = stream.response.stream
        if not hasattr(tee, "_record"):
            return sum([len(event.model_dump_json()) async for event in stream] if asynchronous else _sizes(stream))
        total = 0
        if asynchronous:
            async for event in stream:
                held.append(tee._record._size - tee._record._written)
                total += len(event.model_dump_json())
        else:
            for event in stream:
                held.append(tee._record._size - tee._record._written)
                total += len(event.model_dump_json())
        return total

    make, open_, _ = SDKS["openai"]
    with LocalProvider(handler=answers(reply)) as provider:
        live = in_run(make, open_, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, open_, use, provider.url, asynchronous=asynchronous) == live
    size = len(reply.body)
    assert size > 12_000_000
    assert max(held) < 10_000_000
    assert sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) < size
    assert max(len(line) for line in (home / "runs/r/events.jsonl").read_bytes().splitlines()) < 100_000
    assert sum(chunk_lengths(events)) == size


def _sizes(stream: Any) -> list[int]:
    return [len(event.model_dump_json()) for event in stream]


class Ticket(SimpleNamespace):
    """Takes notes in place of the log."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.outcome: dict[str, Any] = {}
        self.earlier = None
        super().__init__(
            call=SimpleNamespace(mode="safe"), notes=SimpleNamespace(put=self.written.append, later=lambda *_: None)
        )

    def on_close(self, callback: Any) -> None:
        """Nothing closes here."""

    def finish(self, _outcome: str, detail: dict[str, Any], **_: Any) -> None:
        self.outcome = detail


def record_of(content_type: str, encoding: str = "") -> tuple[StreamRecord, Ticket]:
    call, ticket = LogicalCall(), Ticket()
    call.ticket = ticket  # type: ignore[assignment]
    headers = {"content-type": content_type, "content-encoding": encoding}
    return StreamRecord(call, {"status": 200, "headers": []}, None, 0.0, SimpleNamespace(headers=headers)), ticket


def pieces_of(ticket: Ticket) -> list[tuple[bytes, list[int]]]:
    exchange = ticket.outcome["exchanges"][0]
    body = exchange["body"]
    rest = body.data if isinstance(body, Body) else body["rest"].data
    return [(note["body"].data, note["chunks"]) for note in ticket.written] + [(rest, exchange["chunks"])]


CHUNKS = st.lists(st.sampled_from([b"", b"a", b"data: x\n\n", b"\n", b"\r\n\r\n", b"x" * 5000, b"b\n\nc"]), max_size=12)


@given(CHUNKS, st.sets(st.integers(0, 11)), st.sampled_from(["text/event-stream", "text/plain"]), st.booleans())
def test_wherever_pieces_are_cut_the_chunks_are_those_that_came(chunks, cuts, content_type, encoded):
    record, ticket = record_of(content_type, "br, unknown" if encoded else "")
    for number, chunk in enumerate(chunks):
        record.take(chunk, 0.0)
        if number in cuts:
            record._write_down()
    record.finish("eof")
    assert list(joined(pieces_of(ticket))) == chunks
    assert len(ticket.written) <= len(cuts)


def test_a_secret_is_not_cut_in_two():
    secret = b"sk-proj-" + b"a1B2" * 10
    record, ticket = record_of("text/event-stream")
    for chunk in (b"data: one\n\ndata: the key is " + secret[:20], secret[20:] + b"\n\ndata: two", b"\n\n"):
        record.take(chunk, 0.0)
        record._write_down()
    assert [note["body"].data for note in ticket.written] == [
        b"data: one\n\n",
        b"data: the key is " + secret + b"\n\n",
        b"data: two\n\n",
    ]

    record, ticket = record_of("text/plain")
    for chunk in (b"x" * 9000 + secret[:20], secret[20:] + b"y" * 9000):
        record.take(chunk, 0.0)
        record._write_down()
    record.finish("eof")
    assert any(secret in data for data, _ in pieces_of(ticket))


def test_an_event_of_megabytes_is_not_looked_through_again_and_again(monkeypatch):
    record, _ = record_of("text/event-stream")
    looked: list[int] = []
    cut = StreamRecord._cut
    monkeypatch.setattr(StreamRecord, "_cut", lambda self, data: (looked.append(len(data)), cut(self, data))[1])
    record._call.ticket.notes.later = lambda callback, seconds: callback() if seconds == 0 else None
    for _ in range(1000):
        record.take(b"x" * 4096, 0.0)
    assert sum(looked) < 4 * 1000 * 4096


def test_streams_that_nobody_reads_leave_nothing_behind(home):
    library = http_of(__import__("openai"))
    body = b"".join(SDKS["openai"][2].parts())
    headers = {"content-type": "text/event-stream"}

    def handler(_request: Any) -> Any:
        return library.Response(200, headers=headers, stream=library.ByteStream(body))

    def left() -> dict[str, int]:
        gc.collect()
        names = [type(thing).__name__ for thing in gc.get_objects()]
        return {name: names.count(name) for name in ("StreamRecord", "SyncTee", "LogicalCall", "Stream", "Ticket")}

    with openai_client("http://127.0.0.1:9", http_client=library.Client(transport=library.MockTransport(handler))) as c:
        for how in ("dropped", "left"):
            with steplog.run(how) as run:
                for number in range(1000):
                    asked = {**ASK, "messages": [{"role": "user", "content": str(number)}]}
                    stream = c.chat.completions.create(stream=True, **asked)
                    if how == "left":
                        next(stream)
                    del stream
                    if number == 100:
                        first = left()
                before_the_end = left()
                # What is not needed any more goes with the next call, not with the end of the run.
                assert all(count <= first[name] + 100 for name, count in before_the_end.items())
                assert before_the_end["StreamRecord"] < 200
                assert len(run.under_way) < 200


@both_sdks
def test_a_reader_whose_sibling_failed_reads_anew_on_resume(sdk, home, events):
    make, open_, reply = SDKS[sdk]
    failing = True

    async def body() -> Any:
        found: list[Any] = []
        begun = asyncio.Event()

        async def read() -> None:
            async for item in await open_(client):
                found.append(item)
                begun.set()

        async def sibling() -> None:
            await begun.wait()
            if failing:
                raise ValueError("the sibling")

        async with make(provider.url, asynchronous=True) as client, steplog.run("r"), asyncio.TaskGroup() as group:
            group.create_task(read())
            group.create_task(sibling())
        return found

    with LocalProvider(handler=answers(reply)) as provider:
        provider.inject(Fault("hang", after=2))
        with pytest.raises(ExceptionGroup):
            perform(body)
        assert not [event for event in events() if event["type"] == "step.finished"]
        provider.release()
        failing = False
        assert len(perform(body)) > len(WORDS)
        assert len(provider.hits) == 2
    attempts = [event["data"].get("attempt", 1) for event in events() if event["type"] == "step.started"]
    assert attempts == [1, 2]


@both_colours
@both_sdks
def test_two_readers_of_one_stream_share_its_items_live_and_replayed(sdk, asynchronous, home, offline):
    make, open_, reply = SDKS[sdk]

    async def use(stream: Any) -> Any:
        found: list[Any] = []
        if asynchronous:
            turn = asyncio.Lock()

            async def read() -> None:
                while True:
                    async with turn:
                        try:
                            found.append(await anext(stream))
                        except StopAsyncIteration:
                            return
                    await asyncio.sleep(0)

            await asyncio.gather(read(), read())
        else:
            taking = threading.Lock()

            def read_in_thread() -> None:
                while True:
                    with taking:
                        try:
                            found.append(next(stream))
                        except StopIteration:
                            return

            threads = [threading.Thread(target=read_in_thread) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return describe(found)

    with LocalProvider(handler=answers(reply)) as provider:
        live = in_run(make, open_, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, open_, use, provider.url, asynchronous=asynchronous) == live
    assert len(live) > len(WORDS)


@both_colours
@both_sdks
def test_an_error_of_the_reader_that_the_agent_handles_is_no_error_of_the_stream(sdk, asynchronous, home, offline):
    make, open_, reply = SDKS[sdk]

    async def use(stream: Any) -> Any:
        found = []
        with pytest.raises(ValueError, match="enough"):
            if asynchronous:
                async with stream:
                    async for item in stream:
                        found.append(item)
                        if len(found) == 2:
                            raise ValueError("enough")
            else:
                with stream:
                    for item in stream:
                        found.append(item)
                        if len(found) == 2:
                            raise ValueError("enough")
        return describe(found)

    with LocalProvider(handler=answers(reply)) as provider:
        live = in_run(make, open_, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, open_, use, provider.url, asynchronous=asynchronous) == live


@both_colours
@both_sdks
def test_events_that_are_no_json_fail_again_in_the_same_place(sdk, asynchronous, home, offline):
    make, open_, reply = SDKS[sdk]
    first = reply.parts()[0]
    broken = Reply(200, reply.headers, first + first.replace(b"{", b"{{") + first, streamed=True)

    async def use(stream: Any) -> Any:
        found = []
        try:
            while True:
                found.append(await anext(stream) if asynchronous else next(stream))
        except (ValueError, RuntimeError) as error:
            return describe(found), type(error), str(error)

    with LocalProvider(handler=answers(broken)) as provider:
        live = in_run(make, open_, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, open_, use, provider.url, asynchronous=asynchronous) == live
    assert len(live[0]) == 1


def test_a_run_that_was_left_open_keeps_what_had_arrived(home, events):
    make, open_, reply = SDKS["openai"]
    with LocalProvider(handler=answers(reply)) as provider:
        client = make(provider.url)
        with pytest.raises(KeyboardInterrupt), steplog.run("r"):
            stream = open_(client)
            next(stream)
            raise KeyboardInterrupt
        assert "alpha" in json.dumps(progressed(events))
        with pytest.raises(ValueError, match="oops"), steplog.run("again"):
            stream = open_(client)
            next(stream)
            raise ValueError("oops")
    pieces = [event["data"] for event in events("again", notes=True) if event["type"] == "step.progressed"]
    assert "alpha" in json.dumps(pieces)


def test_a_release_that_knows_nothing_of_pieces_refuses_the_body_instead_of_returning_its_end(home, events):
    make, open_, reply = SDKS["openai"]
    with LocalProvider(handler=answers(reply)) as provider:
        provider.inject(Fault("hang", after=2))

        async def use(stream: Any) -> None:
            next(stream)
            await until(lambda: bool(progressed(events)))
            provider.release()
            list(stream)

        in_run(make, open_, use, provider.url, asynchronous=False)
    finished = next(event for event in events() if event["type"] == "step.finished")
    form = finished["data"]["exchanges"][0]["body"]
    with pytest.raises(DecodeError, match="unknown form"):
        form_bytes(form, FileStore(str(home)).bodies)
