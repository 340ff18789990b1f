"""Bodies that are read after `send` has returned, live: each chunk is noted and handed over, at once and unchanged.

The step is finished, on disk, before the chunk that completes the stream is handed on; a stream that its reader left
early is recorded with exactly the bytes that were handed over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from steplog.plugins import collecting, interrupted
from steplog_interceptors._recording import StreamRecord


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


def _for_later() -> bool:
    """Whether to conclude a closed body later: inside the collector, or while an exception passes.

    Where the exception ends the run, its reader was interrupted and will read it anew. A loop without a `with` closes
    its generators before the exception that leaves it can be seen from here; then it is a `GeneratorExit` that passes.
    """
    return collecting() or sys.exception() is not None


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
            broken = record.cut_short()
            if broken is not None:
                record.finish("error", broken)
                raise broken from None
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
        elif record.job is not None:
            record.note_job()
        elif record.behind:
            record.catch_up()
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
            if _for_later():
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
            broken = record.cut_short()
            if broken is not None:
                await record.finish_async("error", broken)
                raise broken from None
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
        elif record.job is not None:
            await record.note_job_async()
        elif record.behind:
            import asyncio  # a program without tasks does not pay for it

            await asyncio.to_thread(record.catch_up)
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
            if _for_later():
                record.drop("closed_early")
            else:
                await record.finish_async("closed_early")
