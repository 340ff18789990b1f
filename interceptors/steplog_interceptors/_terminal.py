"""Find the end of an event stream in the bytes that pass, before the connection says so.

Readers stop at the protocol's own end mark: the openai SDK closes a stream at `[DONE]` without reading on, so the end
of the connection is often never seen. The event that carries the mark must have passed whole, including the blank line
that makes a reader act on it.
"""

from __future__ import annotations

from typing import Any, Final

from steplog_interceptors._derive import inflater

_MARKS: Final = frozenset(
    {
        b"event:message_stop",
        b"event:response.completed",
        b"event:response.failed",
        b"event:response.incomplete",
        b"event:response.cancelled",
    }
)
_DONE_MARK: Final = b"data:[DONE]"
# The second one is how OpenAI's chat API and those that follow it say it.
_ERROR_MARKS: Final = (b"event:error", b'data:{"error"')
# Longer than any mark: what a line begins with decides, so a long line need not be kept.
_KEPT: Final = 64


class EndMark:
    """Watches the raw bytes of one response body.

    Args:
        content_type: value of the response's header; anything but an event stream has no end mark.
        encoding: its content encoding; one that cannot be undone incrementally hides the mark until the body ends.

    Attributes:
        failed: the stream ended with an error event.
    """

    def __init__(self, content_type: str, encoding: str) -> None:
        self.failed = False
        self._marked = False
        self._rest = b""
        self._inflater: Any = None
        self._blind = "event-stream" not in content_type.lower()
        name = encoding.strip().lower()
        if name not in ("", "identity"):
            self._inflater = inflater(name)
            self._blind = self._blind or self._inflater is None

    def feed(self, chunk: bytes) -> bool:
        """Take the next raw bytes; True when the stream's last event has passed whole."""
        if self._blind:
            return False
        if self._inflater is not None:
            chunk = self._inflater.decompress(chunk)
        data = self._rest + chunk
        # A line end at the very end may be the first half of CR LF.
        cut = max(data.rfind(b"\n", 0), data.rfind(b"\r", 0, len(data) - 1)) + 1
        self._rest = data[cut:]
        if len(self._rest) > _KEPT and not self._rest.endswith(b"\r"):
            self._rest = self._rest[:_KEPT]
        return any(self._line(line) for line in data[:cut].splitlines())

    def _line(self, line: bytes) -> bool:
        if not line:
            return self._marked
        mark = line[:_KEPT].replace(b" ", b"", 1)
        if mark.startswith(_ERROR_MARKS):
            self.failed = True
        self._marked = self._marked or self.failed or mark in _MARKS or mark.startswith(_DONE_MARK)
        return False
