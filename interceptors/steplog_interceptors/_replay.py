"""Recorded bodies, given again as they passed: the same chunks, the same end."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from steplog.plugins import interrupted
from steplog_interceptors._call import LogicalCall
from steplog_interceptors._exchange import Exchange, Library
from steplog_interceptors._pieces import chunks_of, length_of
from steplog_interceptors._recording import blame


def end_of(call: LogicalCall, library: Library, exchange: Exchange, request: Any) -> None:
    """Do what a recorded body did after its last byte: nothing, when it was complete.

    Raises:
        Exception: the recorded failure of the transport.
        DriftDetected: the recorded reader had left by then, so that nobody knows what came after.
    """
    end = exchange.get("end")
    if end == "error":
        raise library.fail(exchange["error"], request)
    if end in ("closed_early", "abandoned") and call.ticket is not None:
        call.ticket.diverged(
            "The program reads further in a stream than it did when the stream was recorded: there it was left "
            "before its end, and what would have followed was never received.",
            field="stream",
            recorded=f"left after {length_of(call.recorded, exchange)} bytes",
            found="reads on",
        )


class _Replay:
    """A recorded body: the same chunks, the same end."""

    def __init__(self, call: LogicalCall, library: Library, exchange: Exchange, request: Any) -> None:
        self._call = call
        self._library = library
        self._exchange = exchange
        self._request = request
        self._chunks = chunks_of(call.recorded, exchange)
        # One ahead, because the last chunk of a complete stream is handed over as its end.
        self._ahead = next(self._chunks, None)
        self._end = exchange.get("end", "eof")
        self._handed_over = False
        # Two threads may read one body, as they may a live one.
        self._reading = threading.Lock()

    def _next(self) -> bytes | None:
        with self._reading:
            chunk = self._ahead
            if chunk is not None:
                self._ahead = next(self._chunks, None)
                if self._ahead is None and self._end in ("terminal", "length"):
                    self._hand_over()
                return chunk
        self._at_end()
        return None

    def _at_end(self) -> None:
        try:
            end_of(self._call, self._library, self._exchange, self._request)
        except Exception as error:
            self._hand_over(error)
            raise
        self._hand_over()

    def _close(self) -> None:
        if self._handed_over and self._call.recorded.outcome == "failed":
            blame(self._call)
        if not interrupted():
            self._hand_over()

    def _hand_over(self, error: Exception | None = None) -> None:
        ticket = self._call.ticket
        if not self._handed_over and ticket is not None:
            self._handed_over = True
            ticket.replayed(error)


class SyncReplay(_Replay):
    """Mixed with the library's `SyncByteStream`."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk = self._next()
        if chunk is None:
            raise StopIteration
        return chunk

    def close(self) -> None:
        """The reader has had enough, as it had when this was recorded."""
        self._close()


class AsyncReplay(_Replay):
    """Mixed with the library's `AsyncByteStream`."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = self._next()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """The reader has had enough, as it had when this was recorded."""
        self._close()
