"""What is compared of two answers."""

from __future__ import annotations

from steplog._kernel.shape import tree_of


def test_events_of_a_stream_end_at_line_ends_of_the_protocol_alone():
    """U+2028 may stand raw inside JSON, and ends a line for `str.splitlines`: the event would be passed over."""
    body = 'data: {"text": "a\u2028b\x85c"}\r\n\r\ndata: {"n": 2}\r\rdata: {"n": 3}\n\ndata: [DONE]\n\n'.encode()
    assert tree_of(body, "text/event-stream") == [{"text": "a\u2028b\x85c"}, {"n": 2}, {"n": 3}]
