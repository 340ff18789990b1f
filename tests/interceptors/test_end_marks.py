"""The end of a stream is found wherever the network cuts it, and nowhere else."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog_interceptors._terminal import EndMark

ENDINGS = {
    "openai": b"data: [DONE]",
    "anthropic": b'event: message_stop\ndata: {"type": "message_stop"}',
    "responses": b'event: response.completed\ndata: {"type": "response.completed"}',
    "incomplete": b'event: response.incomplete\ndata: {"type": "response.incomplete"}',
    "failed": b"event: response.failed\ndata: {}",
    "without spaces": b"data:[DONE]",
}
BODY = b'event: x\ndata: {"text": "data: [DONE] event: message_stop"}\n\n' + b"data: " + b"x" * 300 + b"\n\n"


def fed(data: bytes, cuts: list[int], mark: EndMark) -> int | None:
    """How many bytes had passed when the end was reported."""
    start = 0
    for end in [*sorted({cut for cut in cuts if cut < len(data)}), len(data)]:
        if mark.feed(data[start:end]):
            return end
        start = end
    return None


@given(
    st.sampled_from(sorted(ENDINGS)), st.sampled_from([b"\n", b"\r\n"]), st.lists(st.integers(0, 800)), st.booleans()
)
def test_the_end_is_reported_when_its_event_is_whole(name, newline, cuts, more):
    data = (BODY + ENDINGS[name] + b"\n\n").replace(b"\n", newline)
    tail = b": after the end" if more else b""
    reported = fed(data + tail, cuts, EndMark("text/event-stream; charset=utf-8", ""))
    needed = len(data) if newline == b"\n" else len(data) - 1
    assert reported is not None
    assert reported >= needed
    # Not later than the chunk that completes it, where a lone CR at a cut may need the byte after it.
    boundaries = sorted({cut for cut in cuts if needed <= cut < len(data + tail)} | {len(data + tail)})
    assert reported in boundaries[:2]


@given(st.lists(st.integers(0, 500)))
def test_a_body_without_an_end_mark_has_no_end(cuts):
    assert fed(BODY, cuts, EndMark("text/event-stream", "")) is None


@pytest.mark.parametrize("encoding,pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
@pytest.mark.parametrize("name", ENDINGS)
def test_the_end_is_found_in_a_compressed_stream(name, encoding, pack):
    packed = pack(BODY + ENDINGS[name] + b"\n\n")
    mark = EndMark("text/event-stream", encoding)
    assert fed(packed, [10, 20, 30], mark) is not None
    assert not mark.failed


@pytest.mark.parametrize("content_type,encoding", [("application/json", ""), ("text/event-stream", "rot13")])
def test_other_bodies_end_with_their_connection(content_type, encoding):
    assert not EndMark(content_type, encoding).feed(b"data: [DONE]\n\n")
