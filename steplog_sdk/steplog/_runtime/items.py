"""Iterators that are recorded as they are read, item by item, and given again.

What is recorded is what the reader got. `end` says how it ended: `exhausted`, `last` (the item that completes the
stream has passed), `closed_early`, `abandoned` (nobody read on, and nobody closed it) or `error`. A reader that was
interrupted leaves the step open, as if the process had died there.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self

import orjson

from steplog._kernel.codec import decode, encode
from steplog._runtime.collector import collecting
from steplog._runtime.drive import Steps, run, run_async
from steplog._runtime.outcome import ANYWHERE, failure, raised, unrecordable
from steplog._runtime.ticket import Conclusion, Ticket
from steplog.errors import DecodeError, EncodeError


def interrupted() -> bool:
    """Whether the code that is executing runs because of an interruption, not because its reader has had enough."""
    error = sys.exception()
    while isinstance(error, GeneratorExit):
        # A generator that is closed while an exception passes has that exception as the context of its own.
        error = error.__context__
    return error is not None and not isinstance(error, Exception)


def _for_later() -> bool:
    """Whether to conclude a closed iterator later: inside the collector, or while an exception passes.

    Where the exception ends the run, its reader was interrupted and will read it anew. A loop without a `with` closes
    its generators before the exception that leaves it can be seen from here; then it is a `GeneratorExit` that passes.
    """
    return collecting() or sys.exception() is not None


class _Recording:
    """The items that have passed, and the step that they belong to."""

    def __init__(self, ticket: Ticket, last: Callable[[Any], bool] | None) -> None:
        self.over = False
        self._ticket = ticket
        self._last = last
        # Serialised as they come: the reader may change an item as soon as it has it.
        self._items: list[orjson.Fragment] = []
        self._left = ""
        ticket.on_close(self._on_close)

    def take(self, item: Any) -> Steps[None]:
        """Note an item that is about to be handed over; ends the step where it is the last one."""
        if self.over:
            return
        try:
            tree = encode(item, where=f"result[{len(self._items)}]", classes=ANYWHERE)
        except EncodeError as refused:
            self.over = True
            raise (yield from unrecordable(self._ticket.recorder, self._ticket, refused)) from refused
        self._items.append(orjson.Fragment(orjson.dumps(tree)))
        if self._last is not None and self._last(item):
            yield from self.end("last")

    def end(self, how: str, error: Exception | None = None) -> Steps[None]:
        """Write the end of the step, once."""
        if self.over:
            return
        detail = self._detail(how)
        if error is not None:
            detail["error"] = failure(error)
        outcome = "done" if error is None else "failed"
        yield from self._ticket.recorder.finish(self._ticket, outcome, detail, error=error)

    def _detail(self, how: str) -> dict[str, Any]:
        self.over = True
        items, self._items = self._items, []
        return {"result": items, "end": how}

    def drop(self, how: str) -> None:
        """The reader is gone; conclude later."""
        if not self.over and not self._left:
            self._left = how
            self._ticket.leave(self._conclude_left)

    def _conclude_left(self) -> Conclusion | None:
        return None if self.over else ("done", self._detail(self._left), None, 0.0)

    def _on_close(self) -> dict[str, Any] | None:
        # A run that fails or stops may come back and read this stream whole; one that ends well will not.
        return None if self.over or sys.exception() is not None else self._detail(self._left or "abandoned")


class Items(Iterator[Any]):
    """A live iterator whose items are recorded."""

    def __init__(self, ticket: Ticket, source: Iterator[Any], last: Callable[[Any], bool] | None) -> None:
        self._source = source
        self._recording = _Recording(ticket, last)

    def __next__(self) -> Any:
        recording = self._recording
        try:
            item = next(self._source)
        except StopIteration:
            run(recording.end("exhausted"))
            raise
        except Exception as error:
            run(recording.end("error", error))
            raise
        except BaseException:
            recording.over = True
            raise
        run(recording.take(item))
        return item

    def close(self) -> None:
        """Close the live iterator, then record that its reader stopped here, if it had not ended."""
        recording = self._recording
        if interrupted():
            recording.over = True
        try:
            close = getattr(self._source, "close", None)
            if close is not None:
                close()
        finally:
            if _for_later():
                recording.drop("closed_early")
            else:
                run(recording.end("closed_early"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        recording = self.__dict__.get("_recording")
        if recording is not None:
            recording.drop("abandoned")


class AsyncItems(AsyncIterator[Any]):
    """The same for a task."""

    def __init__(self, ticket: Ticket, source: AsyncIterator[Any], last: Callable[[Any], bool] | None) -> None:
        self._source = source
        self._recording = _Recording(ticket, last)

    async def __anext__(self) -> Any:
        recording = self._recording
        try:
            item = await anext(self._source)
        except StopAsyncIteration:
            await run_async(recording.end("exhausted"))
            raise
        except Exception as error:
            await run_async(recording.end("error", error))
            raise
        except BaseException:
            recording.over = True
            raise
        await run_async(recording.take(item))
        return item

    async def aclose(self) -> None:
        """Close the live iterator, then record that its reader stopped here, if it had not ended."""
        recording = self._recording
        if interrupted():
            recording.over = True
        try:
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()
        finally:
            if _for_later():
                recording.drop("closed_early")
            else:
                await run_async(recording.end("closed_early"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        recording = self.__dict__.get("_recording")
        if recording is not None:
            recording.drop("abandoned")


class _Replayed:
    """The recorded items, and after them what came then."""

    def __init__(self, ticket: Ticket) -> None:
        assert ticket.recorded is not None
        self._ticket = ticket
        self._recorded = ticket.recorded
        items = self._recorded.value("result")
        if "end" not in self._recorded.data and not isinstance(items, list):
            # An operator's answer to a step in doubt is any JSON.
            items = [] if self._recorded.outcome == "failed" else [items]
        self._items = deque(items or ())
        self._end = self._recorded.data.get("end", "exhausted")
        self._handed_over = False

    def item(self) -> tuple[Any] | None:
        """The next item, in a tuple, or None after the last."""
        if not self._items:
            self._finish()
            return None
        try:
            found = decode(self._items.popleft())
        except DecodeError as undecodable:
            raise self._recorded.undecodable(undecodable) from undecodable
        if not self._items and self._end == "last":
            self.hand_over()
        return (found,)

    def _finish(self) -> None:
        if self._recorded.outcome == "failed":
            error = raised(self._ticket)
            self.hand_over(error)
            raise error
        if self._end in ("closed_early", "abandoned"):
            self._ticket.diverged(
                "The program reads further in a stream than it did when the stream was recorded: there it was left "
                "before its end, and what would have followed was never received.",
                field="stream",
                recorded="left before its end",
                found="reads on",
            )
        self.hand_over()

    def hand_over(self, error: BaseException | None = None) -> None:
        """Note that the recorded outcome has been handed over."""
        if not self._handed_over:
            self._handed_over = True
            self._ticket.replayed(error)

    def close(self) -> None:
        """The reader has had enough, as it had when this was recorded."""
        if not interrupted():
            self.hand_over()


class ReplayedItems(Iterator[Any]):
    """A recorded iterator."""

    def __init__(self, ticket: Ticket) -> None:
        self._replayed = _Replayed(ticket)

    def __next__(self) -> Any:
        item = self._replayed.item()
        if item is None:
            raise StopIteration
        return item[0]

    def close(self) -> None:
        """The reader has had enough, as it had when this was recorded."""
        self._replayed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReplayedAsyncItems(AsyncIterator[Any]):
    """The same for a task."""

    def __init__(self, ticket: Ticket) -> None:
        self._replayed = _Replayed(ticket)

    async def __anext__(self) -> Any:
        item = self._replayed.item()
        if item is None:
            raise StopAsyncIteration
        return item[0]

    async def aclose(self) -> None:
        """The reader has had enough, as it had when this was recorded."""
        self._replayed.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
