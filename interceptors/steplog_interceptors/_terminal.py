"""Look into a body while it passes: find its end before the connection says so, and what it tells of itself.

Readers stop at the protocol's own end mark: the openai SDK closes a stream at `[DONE]` without reading on, so the end
of the connection is often never seen. The event that carries the mark must have passed whole, including the blank line
that makes a reader act on it.

Nothing here may disturb the reader: bytes that are not what their headers claim make the watcher blind, nothing else.
"""

from __future__ import annotations

import re
from typing import Any, Final

from steplog import plugins
from steplog_interceptors._derive import loads, read
from steplog_interceptors._encoding import inflater

_MARKS: Final = frozenset(
    {
        b"event:message_stop",
        b"event:response.completed",
        b"event:response.failed",
        b"event:response.incomplete",
        b"event:response.cancelled",
    }
)
_LAST_TYPES: Final = frozenset(mark.removeprefix(b"event:").decode() for mark in _MARKS if b"response." in mark)
_DONE_MARK: Final = b"data:[DONE]"
# Not an end: a reader either raises at an error, and closes, or takes it as a value and reads on for what follows.
# The second one is how OpenAI's chat API and those that follow it say it.
_ERROR_MARKS: Final = (b"event:error", b'data:{"error"')
# Longer than any mark: what a line begins with decides.
_KEPT: Final = 64
# What is longer is not looked into: a line of an event stream (its reader holds it whole as well), or another answer.
_LONGEST_LINE: Final = 16 << 20
_LONGEST_ANSWER: Final = 1 << 20
# Most events are a word each, and parsing them all would cost more than passing them on.
_TELLING: Final = re.compile(
    rb'"(?:usage|usageMetadata|finish_?[rR]eason|stop_?[rR]eason|incomplete_details)"\s*:\s*[{"]'
    rb'|"type"\s*:\s*"response\.(?:completed|failed|incomplete|cancelled)"'
)


class EndMark:
    """Watches the raw bytes of one response body.

    Args:
        content_type: value of the response's header; anything but an event stream has no end mark.
        encoding: its content encoding; one that cannot be undone hides the mark until the body ends.

    Attributes:
        failed: the last event so far is an error.
        first: the first event's tree, once it has passed.
        found: model, usage and finish reason so far, in the names of `_derive`.
    """

    def __init__(self, content_type: str, encoding: str) -> None:
        self.failed = False
        self.first: dict[str, Any] | None = None
        self.found: dict[str, Any] = {}
        self._marked = False
        self._between = True
        # A line that is long arrives in many pieces; joining them each time would cost its length squared.
        self._rest: list[bytes] = []
        self._size = 0
        kind = content_type.lower()
        self._events = "event-stream" in kind
        self._json = "json" in kind
        self._inflate = inflater(encoding)
        self._blind = self._inflate is None or not (self._events or self._json)

    @property
    def blind(self) -> bool:
        """Whether the body cannot be looked into, so that its end mark would not be seen."""
        return self._blind

    def feed(self, chunk: bytes) -> bool:
        """Take the next raw bytes; True when the stream's last event has passed whole."""
        if self._blind:
            return False
        assert self._inflate is not None
        try:
            data = self._inflate(chunk)
            return self._lines(data) if self._events else self._keep(data)
        except Exception as error:  # noqa: BLE001  # a decoder's own; the reader's decoder says the same to the reader
            plugins.log.debug("steplog: a stream is recorded without looking into it: %s", error)
            self._blind = True
            return False

    def close(self) -> None:
        """The body has passed whole."""
        if self._json and not self._blind and self._rest:
            tree = loads(b"".join(self._rest))
            if tree is not None:
                read(tree, self.found)
        self._rest = []
        self._blind = True

    def _keep(self, data: bytes) -> bool:
        self._rest.append(data)
        self._size += len(data)
        if self._size > _LONGEST_ANSWER:
            self._rest, self._blind = [], True
        return False

    def _lines(self, data: bytes) -> bool:
        # A line end at the very end may be the first half of CR LF.
        halved = bool(self._rest) and self._rest[-1].endswith(b"\r")
        if not halved and b"\n" not in data and b"\r" not in data[:-1]:
            self._hold(data)
            return False
        data = b"".join((*self._rest, data))
        cut = max(data.rfind(b"\n", 0), data.rfind(b"\r", 0, len(data) - 1)) + 1
        self._rest, self._size = [], 0
        self._hold(data[cut:])
        ended = False
        for line in data[:cut].splitlines():
            ended = self._line(line) or ended
        return ended

    def _hold(self, data: bytes) -> None:
        if not data:
            return
        self._rest.append(data)
        self._size += len(data)
        if self._size > _LONGEST_LINE:
            # What a line begins with says what it is; its end must be recognisable as one.
            start = b"".join(self._rest)
            self._rest = [start[:_KEPT], start[-1:]]
            self._size = _KEPT

    def _line(self, line: bytes) -> bool:
        if not line:
            self._between = True
            return self._marked
        mark = line[:_KEPT].replace(b" ", b"", 1)
        done = mark.startswith(_DONE_MARK)
        if mark.startswith(_ERROR_MARKS):
            self.failed = True
        elif self._between and mark.startswith((b"event:", b"data:")) and not done:
            self.failed = False
        self._between = False
        self._marked = self._marked or mark in _MARKS or done
        if mark.startswith(b"data:") and (self.first is None or self._marked or _TELLING.search(line)):
            self._read(line[5:])
        return False

    def _read(self, data: bytes) -> None:
        tree = loads(data)
        if tree is None:
            return
        if self.first is None:
            self.first = tree
        # The field `event` may be left out: the SDK goes by the type in the data.
        self._marked = self._marked or tree.get("type") in _LAST_TYPES
        with plugins.guard("read model and usage from a provider's stream"):
            read(tree, self.found)
