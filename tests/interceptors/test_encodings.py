"""Encoded streams: stored as they came, looked into where that is possible, never disturbed."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import openai
import pytest
import zstandard

import steplog
from steplog_interceptors._encoding import inflater
from steplog_interceptors._terminal import EndMark
from tests.interceptors.support import (
    ASK,
    RawServer,
    chat,
    chat_events,
    http_of,
    listed,
    openai_client,
    perform,
    settled,
)
from tests.support.sdk_calls import describe

both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def frames(data: bytes) -> bytes:
    """Two frames, one after the other, as a server sends that flushes."""
    pack = zstandard.ZstdCompressor().compress
    return pack(data[:50]) + pack(data[50:])


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", bare_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", frames),
    "one in the other": ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
    "none": ("identity", bytes),
}
EVENTS = "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in chat_events("one", "two")).encode()


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_body_is_decoded_in_whatever_pieces_it_comes(name, size):
    encoding, pack = PACKERS[name]
    packed = pack(EVENTS)
    feed = inflater(encoding.upper())
    assert feed is not None
    assert b"".join(feed(packed[start : start + size]) for start in range(0, len(packed), size)) == EVENTS


@pytest.mark.parametrize("name", PACKERS)
def test_the_end_and_the_usage_are_found_behind_an_encoding(name):
    encoding, pack = PACKERS[name]
    mark = EndMark("text/event-stream", encoding)
    assert mark.feed(pack(EVENTS))
    assert mark.found["usage"] == {"input": 9, "output": 3, "total": 12}
    assert (mark.found["model"], mark.found["finish"]) == ("gpt-x-2026", "stop")


def test_an_encoding_that_nobody_knows_hides_what_is_behind_it():
    assert inflater("gzip, rot13") is None
    assert not EndMark("text/event-stream", "rot13").feed(EVENTS)


def served(asynchronous: bool, url: str, use: Any) -> Any:
    async def body() -> Any:
        client = openai_client(url, asynchronous=asynchronous)
        try:
            async with steplog.run("r"):
                return await use(client)
        finally:
            await settled(client.close())

    return perform(body)


@both_colours
@pytest.mark.parametrize("name", ["gzip", "deflate", "bare deflate", "one in the other"])
def test_an_encoded_stream_is_returned_as_it_came(name, asynchronous, home, events, offline):
    encoding, pack = PACKERS[name]
    packed = pack(EVENTS)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: {encoding}\r\n\r\n".encode()

    async def use(client: Any) -> Any:
        return describe(await listed(await settled(client.chat.completions.create(stream=True, **ASK))))

    with RawServer(head, packed[:40], packed[40:]) as server:
        live = served(asynchronous, server.url, use)
        offline(server)
        assert served(asynchronous, server.url, use) == live
    finished = next(event["data"] for event in events() if event["type"] == "step.finished")
    assert (finished["exchanges"][0]["end"], finished["usage"]["total"]) == ("terminal", 12)


@both_colours
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bytes_that_are_not_what_they_claim_fail_as_without_a_recording(encoding, asynchronous, home, offline):
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: {encoding}\r\n\r\n".encode()
    library = http_of(openai)

    async def use(client: Any) -> Any:
        stream = await settled(client.chat.completions.create(stream=True, **ASK))
        with pytest.raises((library.DecodingError, openai.APIError)) as caught:
            await listed(stream)
        return type(caught.value), str(caught.value)

    with RawServer(head, b"this is no compressed body at all") as server:
        live = served(asynchronous, server.url, use)
        offline(server)
        assert served(asynchronous, server.url, use) == live


@both_colours
def test_an_answer_that_is_read_as_a_stream_tells_its_usage(asynchronous, home, events, offline):
    body = json.dumps(chat()).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    async def use(client: Any) -> Any:
        streaming = client.chat.completions.with_streaming_response.create(**ASK)
        if asynchronous:
            async with streaming as response:
                return [line async for line in response.iter_lines()]
        with streaming as response:
            return list(response.iter_lines())

    with RawServer(head, body[:30], body[30:]) as server:
        live = served(asynchronous, server.url, use)
        offline(server)
        assert served(asynchronous, server.url, use) == live
    finished = next(event["data"] for event in events() if event["type"] == "step.finished")
    assert (finished["exchanges"][0]["end"], finished["usage"]["total"]) == ("length", 12)
    assert finished["model"] == "gpt-x-2026"
