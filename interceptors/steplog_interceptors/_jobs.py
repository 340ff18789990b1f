"""Work that goes on at a provider whether or not anybody still listens: taken up where it is, not asked for twice.

A streamed answer of this kind names its job in its first event, and that name is on disk before the program sees the
event. When the stream was cut off, the same call of a resumed run does not send its request again: it is given the
events that were recorded, then those that the provider sends after the last of them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from steplog import plugins
from steplog_interceptors._canonical import Wire
from steplog_interceptors._derive import loads
from steplog_interceptors._exchange import Library
from steplog_interceptors._pieces import joined, noted

# What describes a body that is not sent now, or belongs to another attempt.
_NOT_ASKED: Final = frozenset(
    {"content-length", "content-type", "transfer-encoding", "idempotency-key", "accept-encoding"}
)
_BLANKS: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class Question(NamedTuple):
    """How to ask for the rest of a job's events.

    Attributes:
        path: of the GET request.
        query: what is added to the query of the original request.
    """

    path: str
    query: dict[str, str]


@dataclass(frozen=True)
class Jobs:
    """What a provider's jobs are like.

    Attributes:
        is_one: whether a request (its wire form and JSON body) begins a job whose events can be asked for again.
        name: the job that an event names, or None.
        number: the number of an event, after which one can ask for more, or None.
        question: how to ask, given the original path, the job, and the number of the last known event or None.
        told: a stream made of a job's result, where an operator gives that; None where it is no result.
        piece: the piece of the answer that an event begins, and the one that it adds to; None where it does not.
    """

    is_one: Callable[[Wire, Any], bool]
    name: Callable[[dict[str, Any]], dict[str, Any] | None]
    number: Callable[[dict[str, Any]], int | None]
    question: Callable[[str, dict[str, Any], int | None], Question]
    told: Callable[[Any], bytes | None]
    piece: Callable[[dict[str, Any]], tuple[str | None, str | None]]


class Earlier:
    """The events of a job that an earlier attempt received, as far as they are of use.

    Attributes:
        chunks: the whole events, in the chunks in which they came.
        last: the number of the last of them, or None where there is none.
        pieces: the pieces of the answer that they tell of.
    """

    def __init__(self, jobs: Jobs, recorded: plugins.Recorded) -> None:
        self.chunks: list[bytes] = []
        self.last: int | None = None
        self.pieces: set[str] = set()
        number = max((note["exchange"] for note in recorded.progressed if "exchange" in note), default=0)
        heads = [note["head"] for note in recorded.progressed if note.get("exchange") == number and "head" in note]
        if not heads or any(name.lower() == "content-encoding" for name, _ in heads[0]["headers"]):
            # What was compressed cannot be cut between two events; all of it is asked for again.
            return
        chunks = list(joined(noted(recorded, number)))
        body = b"".join(chunks)
        start = cut = 0
        for blank in _BLANKS.finditer(body):
            tree = _tree(body[start : blank.end()])
            start = blank.end()
            found = None if tree is None else jobs.number(tree)
            if tree is not None and found is not None:
                self.last, cut = found, start
                self.pieces.update(filter(None, jobs.piece(tree)))
        # What came after the last numbered event (an error of the connection, say) is no part of the job.
        self.chunks = list(_first(chunks, cut))


class Fresh:
    """Leaves out what is recorded already, and refuses what is not the rest of this job.

    Not every provider heeds after which event it was asked to begin. One that answers with another job's events, or
    leaves some out, would give the program a result that is of two pieces which do not fit.

    Args:
        jobs: what the jobs are like.
        job: the one that was asked for.
        earlier: what is known of it.
        doubt: given why the answer cannot be used, halts the run and returns what to raise.
    """

    def __init__(
        self, jobs: Jobs, job: dict[str, Any], earlier: Earlier, doubt: Callable[[str], BaseException]
    ) -> None:
        self._jobs = jobs
        self._job = job
        self._last = earlier.last
        self._pieces = set(earlier.pieces)
        self._doubt = doubt
        self._joined = earlier.last is None
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What is new in the next chunk and in what was held back of those before it. Raises what `doubt` returns."""
        data = self._held + chunk
        kept: list[bytes] = []
        start = 0
        for blank in _BLANKS.finditer(data):
            event = data[start : blank.end()]
            start = blank.end()
            if self._is_new(event):
                kept.append(event)
        self._held = data[start:]
        return b"".join(kept)

    def _is_new(self, event: bytes) -> bool:
        tree = _tree(event)
        if tree is None:
            return True
        named = self._jobs.name(tree)
        if named is not None and named != self._job:
            raise self._doubt(f"The provider was asked for {_called(self._job)} and answers with {_called(named)}.")
        number = self._jobs.number(tree)
        if number is None:
            return True
        if not self._joined and self._last is not None:
            if number <= self._last:
                return False
            self._check_joint(number, self._last)
            self._joined = True
        self._check_piece(tree)
        return True

    def _check_joint(self, number: int, last: int) -> None:
        if number != last + 1:
            what = f"was asked for the events of {_called(self._job)} after number {last} and goes on with {number}"
            raise self._doubt(f"The provider {what}: those between are missing.")

    def _check_piece(self, tree: dict[str, Any]) -> None:
        begun, of = self._jobs.piece(tree)
        if of is not None and begun is None and self._pieces and of not in self._pieces:
            what = f"was asked for the rest of {_called(self._job)} and goes on with {of}, which was never begun"
            raise self._doubt(f"The provider {what}: it is a piece of another answer.")
        self._pieces.update(filter(None, (begun, of)))

    def rest(self) -> bytes:
        """What is held back, at the end of the stream: the beginning of an event."""
        held, self._held = self._held, b""
        return held


def _called(job: dict[str, Any]) -> str:
    return f"{job.get('kind')} {job.get('id')}"


def _tree(event: bytes) -> dict[str, Any] | None:
    return loads(b"\n".join(line[5:] for line in event.splitlines() if line.startswith(b"data:")))


def _first(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    for chunk in chunks:
        if size <= 0:
            return
        yield chunk[:size]
        size -= len(chunk)


def ask(library: Library, jobs: Jobs, request: Any, job: dict[str, Any], last: int | None) -> Any:
    """The request for the rest of a job's events, in place of the one that would begin it anew."""
    question = jobs.question(request.url.path, job, last)
    url = request.url.copy_with(path=question.path).copy_merge_params(question.query)
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _NOT_ASKED]
    # They are looked at on their way, and follow others that stand uncompressed in the log.
    headers.append(("accept-encoding", "identity"))
    return library.module.Request("GET", url, headers=headers, extensions=request.extensions)


def continues(response: Any, earlier: Earlier) -> bool:
    """Whether an answer can be the rest of a job's events."""
    plain = response.headers.get("content-encoding", "identity").strip().lower() in ("", "identity")
    return "event-stream" in response.headers.get("content-type", "").lower() and (plain or earlier.last is None)


def fresh(jobs: Jobs, ticket: plugins.Ticket, earlier: Earlier, response: Any) -> Fresh | None:
    """What looks at the rest of a job's events; None where they are compressed, and all of them are new."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        return None

    def doubt(why: str) -> BaseException:
        return ticket.doubt(f"{why}\nA resumed run asks again. {ticket.call.lookup}")

    assert ticket.earlier is not None
    return Fresh(jobs, ticket.earlier.job, earlier, doubt)


def lost(response: Any, job: dict[str, Any]) -> str:
    """Why an answer that is not the rest of a job's events leaves it to a person; "" where it is to be asked again."""
    if response.is_success:
        kind = response.headers.get("content-type", "no content type")
        what = f"was asked for the rest of its events and answered with {kind} instead of an event stream"
    elif response.status_code in (404, 410):
        what = f"does not know that name any more (status {response.status_code})"
    else:
        return ""
    return f"The provider was given it as {_called(job)} and {what}: {response.text[:200]}"


class _Continued:
    """A body that begins with recorded chunks and goes on with a live one; compressed where `fresh` is None."""

    def __init__(self, chunks: list[bytes], stream: Any, fresh: Fresh | None) -> None:
        self._chunks = chunks
        self._stream = stream
        self._fresh = fresh

    def __getattr__(self, name: str) -> Any:
        if name in ("_chunks", "_stream", "_fresh"):
            raise AttributeError(name)
        return getattr(self._stream, name)

    def _feed(self, chunk: bytes) -> bytes:
        return chunk if self._fresh is None else self._fresh.feed(chunk)

    def _rest(self) -> bytes:
        return b"" if self._fresh is None else self._fresh.rest()


class SyncContinued(_Continued):
    """Read by the tee, once."""

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        for chunk in self._stream:
            data = self._feed(chunk)
            if data:
                yield data
        rest = self._rest()
        if rest:
            yield rest

    def close(self) -> None:
        """Close the live part."""
        self._stream.close()


class AsyncContinued(_Continued):
    """Read by the tee, once."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        async for chunk in self._stream:
            data = self._feed(chunk)
            if data:
                yield data
        rest = self._rest()
        if rest:
            yield rest

    async def aclose(self) -> None:
        """Close the live part."""
        await self._stream.aclose()
