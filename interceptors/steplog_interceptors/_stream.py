"""Bodies that are read after `send` has returned: recorded as they pass, and given again as they passed.

Live, a chunk reaches its reader at once and unchanged. The step is finished, on disk, before the chunk that completes
the stream is handed on; a stream that its reader left early is recorded with exactly the bytes that were handed over.

A body ends in one of these ways (`end` in the log):

    terminal      the protocol's own end mark has passed
    length        all bytes that `content-length` announced have passed
    eof           the connection ended
    closed_early  the reader stopped before that
    abandoned     nobody read on, and nobody closed it, until the run ended
    error         the transport failed; the failure is an outcome like any other

A reader that was interrupted (cancelled, Ctrl-C, a halted run) leaves the step open: it is an orphan, as if the process
had died there.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from steplog import plugins
from steplog.plugins import Body
from steplog_interceptors._call import LogicalCall
from steplog_interceptors._exchange import Exchange, Library, failure
from steplog_interceptors._terminal import EndMark

# Recordings whose reader is gone. A reader can die inside the garbage collector, in the middle of anything, so they are
# concluded at the next opportunity and not there and then.
_dropped: Final[deque[StreamRecord]] = deque()


class StreamRecord:
    """The recording of one streamed body."""

    def __init__(self, call: LogicalCall, exchange: Exchange, name: str | None, waited: float, response: Any) -> None:
        headers = response.headers
        self._call = call
        self._exchange = exchange
        self._name = name
        self._waited = waited
        self._chunks: list[bytes] = []
        self._size = 0
        self._mark = EndMark(headers.get("content-type", ""), headers.get("content-encoding", ""))
        length = headers.get("content-length", "")
        self._expected = int(length) if length.isdecimal() else None
        self._dropped_as: str | None = None
        self.over = False
        if call.ticket is not None:
            call.ticket.on_close(self._on_close)

    def take(self, chunk: bytes, seconds: float) -> str | None:
        """Note a chunk that is about to be handed over; says how the stream ends if this chunk completes it."""
        self._waited += seconds
        if self.over:
            return None
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._mark.feed(chunk):
            return "terminal"
        return "length" if self._size == self._expected else None

    def note_raised(self) -> None:
        """The reader is closing: if it does so because of an error that the stream held, that error is this step's."""
        if self.failed:
            blame(self._call)

    @property
    def failed(self) -> bool:
        """Whether the stream has ended with an error event."""
        return self.over and self._mark.failed

    def leave_open(self) -> None:
        """The reader was interrupted: the step stays an orphan."""
        self.over = True

    def conclude(self, end: str, error: BaseException | None = None) -> tuple[str, dict[str, Any]] | None:
        """Outcome and detail to record, or None when that has happened."""
        if self.over:
            return None
        self.over = True
        return "failed" if error is not None or self._mark.failed else "done", self._detail(end, error)

    def _detail(self, end: str, error: BaseException | None = None) -> dict[str, Any]:
        exchange = self._exchange | {"body": Body(b"".join(self._chunks)), "chunks": list(map(len, self._chunks))}
        exchange["end"] = end
        if error is not None:
            exchange["error"] = failure(error)
        self._chunks = []
        self._call.add(exchange, self._name, self._waited)
        return self._call.detail()

    def finish(self, end: str, error: BaseException | None = None) -> None:
        """Record the end of the stream, durably."""
        concluded = self.conclude(end, error)
        if concluded is not None and self._call.ticket is not None:
            self._call.ticket.finish(*concluded, error=error, waited=self._call.waited)

    async def finish_async(self, end: str, error: BaseException | None = None) -> None:
        """The same from a task."""
        concluded = self.conclude(end, error)
        if concluded is not None and self._call.ticket is not None:
            await self._call.ticket.finish_async(*concluded, error=error, waited=self._call.waited)

    def drop(self, end: str) -> None:
        """The reader is gone; conclude later."""
        if self.over:
            return
        if self._dropped_as is None:
            _dropped.append(self)
        # The collector finalizes in any order, so the body may go before the generator that closes it.
        if self._dropped_as != "closed_early":
            self._dropped_as = end

    def settle(self) -> None:
        """Conclude a dropped recording."""
        self.finish(self._dropped_as or "abandoned")

    def _on_close(self) -> dict[str, Any] | None:
        # A run that fails or stops may come back and read this stream whole; one that ends well will not.
        if self.over or sys.exception() is not None:
            return None
        self.over = True
        return self._detail(self._dropped_as or "abandoned")


def take_dropped() -> list[StreamRecord]:
    """The recordings to conclude; each is given out once."""
    found = []
    while _dropped:
        try:
            found.append(_dropped.popleft())
        except IndexError:  # another thread was faster
            break
    return found


def interrupted() -> bool:
    """Whether the code that is executing runs because of an interruption, not because its reader has had enough."""
    error = sys.exception()
    while isinstance(error, GeneratorExit):
        # A generator that is closed while an exception passes has that exception as the context of its own.
        error = error.__context__
    return error is not None and not isinstance(error, Exception)


def blame(call: LogicalCall) -> None:
    """Lay the exception that is passing here, if any, on the call's step: a run that it ends will retry that step."""
    error = sys.exception()
    if call.ticket is not None and isinstance(error, Exception):
        call.ticket.blame(error)


class _Tee:
    """What the tees of both colours share; `_stream` is the live body."""

    def __init__(self, stream: Any, record: StreamRecord) -> None:
        self._stream = stream
        self._record = record
        self._source: Any = None

    def __getattr__(self, name: str) -> Any:
        # The SDKs and httpx2 read attributes off a response's stream (`elapsed`, an observer of spans).
        if name in ("_stream", "_record", "_source"):
            raise AttributeError(name)
        return getattr(self._stream, name)

    def __del__(self) -> None:
        record = self.__dict__.get("_record")
        if record is not None:
            record.drop("abandoned")


class SyncTee(_Tee):
    """Mixed with the library's `SyncByteStream`. Iterating again goes on where the last reader stopped."""

    def __iter__(self) -> Iterator[bytes]:
        if self._source is None:
            self._source = iter(self._stream)
        return self

    def __next__(self) -> bytes:
        record = self._record
        began = time.perf_counter()
        try:
            chunk: bytes = next(self._source)
        except StopIteration:
            record.finish("eof")
            raise
        except Exception as error:
            record.finish("error", error)
            raise
        except BaseException:
            record.leave_open()
            raise
        end = record.take(chunk, time.perf_counter() - began)
        if end is not None:
            record.finish(end)
        return chunk

    def close(self) -> None:
        """Close the live body, then record that its reader stopped here, if it had not ended."""
        record = self._record
        record.note_raised()
        if interrupted():
            record.leave_open()
        try:
            self._stream.close()
        finally:
            if plugins.collecting():
                record.drop("closed_early")
            else:
                record.finish("closed_early")


class AsyncTee(_Tee):
    """Mixed with the library's `AsyncByteStream`. Iterating again goes on where the last reader stopped."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        if self._source is None:
            self._source = self._stream.__aiter__()
        return self

    async def __anext__(self) -> bytes:
        record = self._record
        began = time.perf_counter()
        try:
            chunk: bytes = await self._source.__anext__()
        except StopAsyncIteration:
            await record.finish_async("eof")
            raise
        except Exception as error:
            await record.finish_async("error", error)
            raise
        except BaseException:
            record.leave_open()
            raise
        end = record.take(chunk, time.perf_counter() - began)
        if end is not None:
            await record.finish_async(end)
        return chunk

    async def aclose(self) -> None:
        """Close the live body, then record that its reader stopped here, if it had not ended."""
        record = self._record
        record.note_raised()
        if interrupted():
            record.leave_open()
        try:
            source = self._source
            if hasattr(source, "aclose") and not getattr(source, "ag_running", False):
                await source.aclose()
            await self._stream.aclose()
        finally:
            await record.finish_async("closed_early")


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
            recorded=f"left after {sum(exchange.get('chunks', ()))} bytes",
            found="reads on",
        )


class _Replay:
    """A recorded body: the same chunks, the same end."""

    def __init__(
        self, call: LogicalCall, library: Library, exchange: Exchange, chunks: list[bytes], request: Any
    ) -> None:
        self._call = call
        self._library = library
        self._exchange = exchange
        self._request = request
        self._chunks = deque(chunks)
        self._end = exchange.get("end", "eof")
        self._handed_over = False

    def _next(self) -> bytes | None:
        if not self._chunks:
            self._at_end()
            return None
        chunk = self._chunks.popleft()
        if not self._chunks and self._end in ("terminal", "length"):
            self._hand_over()
        return chunk

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

    def _hand_over(self, error: BaseException | None = None) -> None:
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


@functools.cache
def mixed(kind: type, base: type) -> Any:
    """The class of a body for one library: it checks `isinstance(body, SyncByteStream)`."""
    return type(kind.__name__, (kind, base), {})
