"""Streams: nothing is held back, what was read is on disk before its end is seen, and replay reads the same bytes."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import threading
from typing import Any

import anthropic
import openai
import pytest

import steplog
from steplog import plugins
from steplog._runtime.recorder import Recorder
from steplog.errors import DriftDetected, Interrupt, RunStopped
from steplog.testing import LocalProvider
from steplog.testing.provider import Fault, Reply
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    RawServer,
    answers,
    anthropic_client,
    chat,
    chat_events,
    chunk_lengths,
    http_of,
    lets_go_of_streams,
    listed,
    message_events,
    open_records,
    openai_client,
    perform,
    settled,
)
from tests.support.sdk_calls import describe, describe_error

WORDS = ("one", "two", "three", "four")
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


async def some(stream: Any, count: int) -> list[Any]:
    """The first items, leaving the stream open."""
    found: list[Any] = []
    if hasattr(stream, "__aiter__"):
        while len(found) < count:
            found.append(await stream.__anext__())
    else:
        while len(found) < count:
            found.append(next(stream))
    return found


def in_run(make: Any, open_: Any, use: Any, url: str, *, asynchronous: bool, run: str = "r") -> Any:
    """Open a stream in a run and use it; what it gave, or the error that the SDK raised."""

    async def body() -> Any:
        client = make(url, asynchronous=asynchronous)
        try:
            async with steplog.run(run):
                try:
                    return await use(await settled(open_(client)))
                except (openai.OpenAIError, anthropic.AnthropicError) as error:
                    return describe_error(error)
        finally:
            await settled(client.close())

    return perform(body)


def last_step(events: Any, run: str = "r") -> dict[str, Any]:
    return [event["data"] for event in events(run) if event["type"] == "step.finished"][-1]


@both_colours
@both_sdks
def test_a_chunk_reaches_its_reader_before_the_next_is_sent(sdk, asynchronous, home):
    make, open_, reply = SDKS[sdk]
    with LocalProvider(handler=answers(reply)) as provider:
        provider.inject(Fault("hang", after=2))

        async def use(stream: Any) -> Any:
            first = await some(stream, 1)  # would never return if the stream were buffered
            provider.release()
            return first + await listed(stream)

        items = in_run(make, open_, use, provider.url, asynchronous=asynchronous)
    assert len(items) > len(WORDS)


@both_colours
def test_the_step_is_on_disk_before_the_end_of_the_stream_is_seen(asynchronous, home, events):
    make, open_, reply = SDKS["anthropic"]
    finished: list[bool] = []

    async def use(stream: Any) -> None:
        while True:
            (item,) = await some(stream, 1)
            finished.append(any(event["type"] == "step.finished" for event in events()))
            if item.type == "message_stop":
                return

    with LocalProvider(handler=answers(reply)) as provider:
        in_run(make, open_, use, provider.url, asynchronous=asynchronous)
    assert finished[-1] is True
    assert not any(finished[:-1])
    assert last_step(events)["exchanges"][0]["end"] == "terminal"


@both_colours
@both_sdks
def test_the_chunks_arrive_in_the_pieces_in_which_they_were_sent(sdk, asynchronous, home, offline):
    make, open_, reply = SDKS[sdk]

    async def use(stream: Any) -> list[bytes]:
        raw = stream.response
        return [piece async for piece in raw.aiter_raw()] if asynchronous else list(raw.iter_raw())

    with LocalProvider(handler=answers(reply)) as provider:
        live = in_run(make, open_, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, open_, use, provider.url, asynchronous=asynchronous) == live
    assert len(live) == len(reply.parts())


@both_colours
@both_sdks
@pytest.mark.parametrize("how", ["close", "context manager"])
def test_a_stream_that_was_left_early_gives_the_same_items_again(how, sdk, asynchronous, home, offline, events):
    make, open_, reply = SDKS[sdk]

    async def use(stream: Any) -> Any:
        if how == "close":
            found = await some(stream, 2)
            await settled(stream.close())
        elif asynchronous:
            async with stream:
                found = await some(stream, 2)
        else:
            with stream:
                found = await some(stream, 2)
        return describe(found)

    with LocalProvider(handler=answers(reply)) as provider:
        live = in_run(make, open_, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, open_, use, provider.url, asynchronous=asynchronous) == live
    assert (last_step(events)["exchanges"][0]["end"], len(chunk_lengths(events))) == ("closed_early", 2)


@both_colours
@both_sdks
def test_reading_further_than_the_recording_halts(sdk, asynchronous, home, offline):
    make, open_, reply = SDKS[sdk]

    async def leave(stream: Any) -> None:
        await some(stream, 2)
        await settled(stream.close())

    with LocalProvider(handler=answers(reply)) as provider:
        in_run(make, open_, leave, provider.url, asynchronous=asynchronous)
        offline(provider)
        with pytest.raises(RunStopped) as stopped:
            in_run(make, open_, listed, provider.url, asynchronous=asynchronous)
    assert isinstance(stopped.value.__cause__, DriftDetected)
    assert "reads further" in str(stopped.value.__cause__)


def test_a_body_that_was_read_in_part_is_not_returned_as_a_whole(home, offline):
    def partly(client: Any) -> None:
        with client.chat.completions.with_streaming_response.create(**ASK) as response:
            assert len(next(response.iter_bytes(10))) == 10

    with LocalProvider(handler=answers(chat("x" * 200_000))) as provider:
        client = openai_client(provider.url)
        with steplog.run("r"):
            partly(client)
        offline(provider)
        with steplog.run("r"):
            partly(client)
        with pytest.raises(RunStopped, match="reads further"), steplog.run("r"):
            client.chat.completions.create(**ASK)


@both_colours
@both_sdks
def test_a_stream_that_broke_breaks_again_at_the_same_place(sdk, asynchronous, home, offline, events):
    make, open_, reply = SDKS[sdk]
    library = http_of(openai if sdk == "openai" else anthropic)

    async def use(stream: Any) -> Any:
        found = []
        try:
            while True:
                found += await some(stream, 1)
        except (library.RemoteProtocolError, library.ReadError) as error:  # what older releases let through
            return describe(found), type(error), str(error)
        except (openai.APIError, anthropic.APIError) as error:
            return describe(found), describe_error(error)

    with LocalProvider(handler=answers(reply)) as provider:
        provider.inject(Fault("drop", after=2))
        live = in_run(make, open_, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, open_, use, provider.url, asynchronous=asynchronous) == live
    assert len(live[0]) == 2
    step = last_step(events)
    assert (step["outcome"], step["exchanges"][0]["end"]) == ("failed", "error")
    assert step["exchanges"][0]["error"]["class"] in ("RemoteProtocolError", "ReadError")


@both_colours
@both_sdks
def test_a_stream_that_ends_in_an_error_event_raises_it_again(sdk, asynchronous, home, offline):
    make, open_, _ = SDKS[sdk]
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "try later"}}
    first = "event: ping\ndata: {}\n\n" if sdk == "anthropic" else f"data: {json.dumps(chat_events('one')[0])}\n\n"
    reply = Reply.sse(first + f"event: error\ndata: {json.dumps(error)}\n\n")

    with LocalProvider(handler=answers(reply)) as provider:
        live = in_run(make, open_, listed, provider.url, asynchronous=asynchronous)
        offline(provider)
        assert in_run(make, open_, listed, provider.url, asynchronous=asynchronous) == live
    assert "try later" in live["text"]


@both_colours
@both_sdks
def test_an_error_event_that_ended_the_run_is_tried_again(sdk, asynchronous, home):
    make, open_, reply = SDKS[sdk]
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "try later"}}
    broken = Reply.sse(f"event: error\ndata: {json.dumps(error)}\n\n")

    async def body() -> Any:
        client = make(provider.url, asynchronous=asynchronous)
        try:
            async with steplog.run("r"):
                return await listed(await settled(open_(client)))
        finally:
            await settled(client.close())

    with LocalProvider(handler=answers(broken, reply)) as provider:
        with pytest.raises((openai.APIError, anthropic.APIError)):
            perform(body)
        assert len(perform(body)) > len(WORDS)


@both_colours
@both_sdks
def test_a_stream_that_nobody_read_replays_without_the_provider(sdk, asynchronous, home, offline, events):
    make, open_, reply = SDKS[sdk]
    kept = []

    async def use(stream: Any) -> None:
        kept.append(stream)  # so that it is open, not dropped, when the run ends

    with LocalProvider(handler=answers(reply)) as provider:
        in_run(make, open_, use, provider.url, asynchronous=asynchronous)
        offline(provider)
        in_run(make, open_, use, provider.url, asynchronous=asynchronous)
    assert last_step(events)["exchanges"][0]["end"] == "abandoned"
    assert last_step(events)["exchanges"][0]["chunks"] == []


def test_a_stream_that_is_open_when_the_run_fails_is_read_anew_on_resume(home, events):
    make, open_, reply = SDKS["openai"]
    with LocalProvider(handler=answers(reply)) as provider:
        client = make(provider.url)
        with pytest.raises(ValueError, match="oops"), steplog.run("r"):
            stream = open_(client)
            next(stream)
            raise ValueError("oops")
        assert not [event for event in events() if event["type"] == "step.finished"]
        with steplog.run("r"):
            assert len(list(open_(client))) == len(WORDS) + 2
        assert len(provider.hits) == 2
        stream.close()


def test_a_stream_that_was_dropped_is_concluded_outside_the_collector(home, events, offline):
    def program(url: str) -> str:
        with steplog.run("r"):
            client = openai_client(url)
            for _chunk in client.chat.completions.create(stream=True, **ASK):
                break
            gc.collect()
            return client.chat.completions.create(**ASK).choices[0].message.content

    def handler(hit: Any) -> Reply:
        return SDKS["openai"][2] if hit.json.get("stream") else Reply.json(chat())

    with LocalProvider(handler=handler) as provider:
        live = program(provider.url)
        offline(provider)
        assert program(provider.url) == live
    steps = [event for event in events() if event["type"].startswith("step.")]
    ends = [e.get("end") for event in steps for e in event["data"].get("exchanges", ())]
    # Newer releases close a stream whose reader is gone; older ones only let go of it.
    assert ends == ["abandoned" if lets_go_of_streams() else "closed_early", None]


@both_colours
@both_sdks
def test_an_interruption_in_mid_stream_leaves_the_step_open(sdk, asynchronous, home, events):
    make, open_, reply = SDKS[sdk]

    async def stop(stream: Any) -> None:
        async def read() -> None:
            await some(stream, 1)
            raise KeyboardInterrupt

        if asynchronous:
            async with stream:
                await read()
        else:
            with stream:
                await read()

    with LocalProvider(handler=answers(reply)) as provider:
        with pytest.raises(KeyboardInterrupt):
            in_run(make, open_, stop, provider.url, asynchronous=asynchronous)
        assert not [event for event in events() if event["type"] == "step.finished"]
        assert len(in_run(make, open_, listed, provider.url, asynchronous=asynchronous)) > len(WORDS)
    assert last_step(events)["attempt"] == 2


@both_sdks
def test_a_cancelled_reader_leaves_the_step_open(sdk, home, events):
    make, open_, reply = SDKS[sdk]
    with LocalProvider(handler=answers(reply)) as provider:
        provider.inject(Fault("hang", after=2))

        async def use(stream: Any) -> None:
            await some(stream, 1)
            reader = asyncio.ensure_future(listed(stream))
            await asyncio.sleep(0.05)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader

        in_run(make, open_, use, provider.url, asynchronous=True)
        assert not [event for event in events() if event["type"] == "step.finished"]


@both_sdks
def test_a_read_that_timed_out_leaves_the_step_open_although_the_stream_is_closed(sdk, home, events):
    make, open_, reply = SDKS[sdk]
    with LocalProvider(handler=answers(reply)) as provider:
        provider.inject(Fault("hang", after=2))

        async def use(stream: Any) -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(listed(stream.response.stream), 0.1)  # as a middleware reads it
            await stream.close()

        in_run(make, open_, use, provider.url, asynchronous=True)
        assert not [event for event in events() if event["type"] == "step.finished"]


@both_sdks
def test_a_call_that_timed_out_times_out_again_without_the_provider(sdk, home, events):
    make, open_, reply = SDKS[sdk]
    went_on = []

    async def body() -> None:
        async with make(provider.url, asynchronous=True) as client, steplog.run("r"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(open_(client), 0.2)
            steplog.step("fallback", lambda: went_on.append(1))

    with LocalProvider(handler=answers(reply)) as provider:
        provider.inject(Fault("hang"))
        perform(body)
        perform(body)
        assert len(provider.hits) == 1
    outcomes = [event["data"].get("outcome") for event in events() if event["type"] == "step.finished"]
    assert outcomes == ["cancelled", "done"]
    assert went_on == [1]


@both_sdks
def test_a_call_whose_cancellation_ended_the_run_is_made_again(sdk, home):
    make, open_, reply = SDKS[sdk]

    async def body() -> None:
        async with make(provider.url, asynchronous=True) as client, steplog.run("r"):
            await asyncio.wait_for(open_(client), seconds)

    with LocalProvider(handler=answers(reply)) as provider:
        provider.inject(Fault("hang"))
        seconds = 0.2
        with pytest.raises(TimeoutError):
            perform(body)
        seconds = 20.0
        perform(body)
        assert len(provider.hits) == 2


@both_colours
def test_a_halt_while_a_stream_is_read_leaves_the_stream_open(asynchronous, home, events):
    make, open_, reply = SDKS["openai"]

    class Halted(Interrupt):
        reason = "indeterminate"

    async def use(stream: Any) -> None:
        if asynchronous:
            async with stream:
                await some(stream, 1)
                raise Halted("a tool is in doubt")
        with stream:
            await some(stream, 1)
            raise Halted("a tool is in doubt")

    with LocalProvider(handler=answers(reply)) as provider:
        with pytest.raises(RunStopped):
            in_run(make, open_, use, provider.url, asynchronous=asynchronous)
    assert not [event for event in events() if event["type"] == "step.finished"]


def test_a_stream_can_be_read_in_another_thread_and_after_the_run(home, events, caplog):
    make, open_, reply = SDKS["openai"]
    found: list[Any] = []
    with caplog.at_level(logging.WARNING), LocalProvider(handler=answers(reply)) as provider:
        with steplog.run("r"):
            threaded = open_(make(provider.url))
            thread = threading.Thread(target=lambda: found.extend(threaded))
            thread.start()
            thread.join()
            late = open_(make(provider.url))
        assert len(list(late)) == len(found) == len(WORDS) + 2
    assert [e["data"]["exchanges"][0]["end"] for e in events() if e["type"] == "step.finished"] == [
        "terminal",
        "abandoned",
    ]
    assert caplog.records == []


def test_a_compressed_stream_is_recorded_as_it_came(home, events, offline):
    reply = SDKS["openai"][2]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\n"
    packed = gzip.compress(reply.body)
    with RawServer(head, packed[:60], packed[60:]) as server:
        live = in_run(*SDKS["openai"][:2], listed, server.url, asynchronous=False)
        offline(server)
        assert in_run(*SDKS["openai"][:2], listed, server.url, asynchronous=False) == live
    step = last_step(events)
    assert step["exchanges"][0]["end"] == "terminal"
    assert ["content-encoding", "gzip"] in step["exchanges"][0]["headers"]
    assert step["usage"]["total"] == 12


def test_a_refused_stream_is_recorded_whole(home, events, offline):
    make, open_, _ = SDKS["openai"]
    reply = Reply.json({"error": {"message": "no such model"}}, 404)
    with LocalProvider(handler=answers(reply)) as provider:
        live = in_run(make, open_, listed, provider.url, asynchronous=False)
        offline(provider)
        assert in_run(make, open_, listed, provider.url, asynchronous=False) == live
    assert last_step(events)["exchanges"][0]["body"]["json"]["error"]["message"] == "no such model"


def test_nothing_is_written_from_inside_the_collector(home, monkeypatch):
    make, open_, reply = SDKS["openai"]
    conclude, inside = Recorder.conclude, []

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        inside.append(plugins.collecting())
        return conclude(self, *args, **kwargs)

    monkeypatch.setattr(Recorder, "conclude", noting)
    with LocalProvider(handler=answers(reply)) as provider, steplog.run("r"):
        stream = open_(make(provider.url))
        next(stream)
        del stream
        gc.collect()
        assert inside == []
        list(open_(make(provider.url)))
    assert inside == [False, False]


def test_open_streams_do_not_pile_up(home):
    make, open_, reply = SDKS["openai"]
    earlier = open_records()
    with LocalProvider(handler=answers(reply)) as provider, steplog.run("r"):
        client = make(provider.url)
        for _ in range(20):
            open_(client)
        gc.collect()
        client.chat.completions.with_raw_response.create(**ASK)
        # Asked before the run closes, because that concludes the rest.
        assert [record for record in open_records() if record not in earlier] == []
