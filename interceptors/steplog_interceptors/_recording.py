"""The recording of a streamed body: written down while it passes, and finished with its end.

A body ends in one of these ways (`end` in the log):

    terminal      the protocol's own end mark has passed
    length        all bytes that `content-length` announced have passed
    eof           the connection ended
    closed_early  the reader stopped before that
    abandoned     nobody read on, and nobody closed it, until the run ended
    error         the transport failed; the failure is an outcome like any other

A reader that was interrupted (cancelled, Ctrl-C, a halted run) leaves the step open: it is an orphan, as if the process
had died there.

What has passed of a body that takes its time is in the log before it has ended, so that it can be looked at after a
crash and need not be kept in memory. The committer thread writes it; what it has written is not written again at the
end.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from steplog import plugins
from steplog.plugins import Body
from steplog_interceptors._call import LogicalCall
from steplog_interceptors._encoding import inflater
from steplog_interceptors._exchange import Exchange, failure
from steplog_interceptors._pieces import Piece, body_form
from steplog_interceptors._terminal import EndMark

# What has passed is written down after this many seconds; then after twice as long, and so on up to the most.
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 1.0
# Or when this much has passed, and a sixteenth of all that passed before, so that a long stream is not cut into dust.
_LEAST_PIECE: Final = 16 << 10
_LARGEST_PIECE: Final = 1 << 20
# A reader that is faster than the disk must not fill the memory.
_MOST_HELD: Final = 8 << 20
# The lengths of so many chunks fit into a line of the log with ease.
_MOST_CHUNKS: Final = 1 << 14
# Longer than any secret that is looked for: so much of what was written down is looked at again with what follows.
_BEFORE: Final = 8192


class StreamRecord:
    """The recording of one streamed body.

    Attributes:
        over: its outcome is recorded, or left open for good.
        behind: so much has passed that is not written down yet that its reader has to wait for it.
        job: the name of the job that this stream tells of, until it is noted.
        broken: class of the exception for a connection that ended too early, for a job's stream.
    """

    def __init__(self, call: LogicalCall, exchange: Exchange, name: str | None, waited: float, response: Any) -> None:
        headers = response.headers
        self._call = call
        self._exchange = exchange
        self._name = name
        self._number = len(call.exchanges)
        self._waited = waited
        # The reader's thread appends; whoever writes a piece down takes from the other end, holding the lock.
        self._chunks: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._begun = 0  # how much of the first chunk there is written down already
        self._pieces = 0
        self._size = 0
        self._written = 0
        self._fruitless = 0
        self._wait = _FIRST_WAIT
        self._due = self._urgent = False
        encoding = headers.get("content-encoding", "")
        # The marks are those of model providers; what another service writes into its events is no end.
        self._mark = EndMark(headers.get("content-type", "") if call.kind == "llm_call" else "", encoding)
        self._plain = encoding.strip().lower() in ("", "identity")
        self._events = "event-stream" in headers.get("content-type", "").lower()
        self._decode = None if self._plain else inflater(encoding)
        self._before = b""
        # A job goes on when its stream breaks off, so only its own word is its end.
        self._of_job = call.attaches and "event-stream" in headers.get("content-type", "").lower()
        self.broken: Callable[[str], Exception] = EOFError
        length = headers.get("content-length", "")
        self._expected = int(length) if length.isdecimal() else None
        self._dropped_as: str | None = None
        self._looked = False
        self.job: dict[str, Any] | None = None
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
        ended = self._mark.feed(chunk)
        if not self._looked and self._mark.first is not None:
            self._looked = True
            self.job = self._call.job_of(self._mark.first)
        if ended:
            self._call.job_ended()
            return "terminal"
        if self._size == self._expected and not self._of_job:
            return "length"
        self._plan()
        return None

    # while it passes -------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Have what has passed written down soon, by another thread: the reader never waits for that."""
        ticket = self._call.ticket
        if ticket is None:
            return
        if not self._due:
            self._due = True
            ticket.notes.later(self._write_down, self._wait)
        elif not self._urgent:
            waiting = self._size - self._written
            if waiting >= self._piece_size() or len(self._chunks) >= max(_MOST_CHUNKS, self._fruitless):
                self._urgent = True
                ticket.notes.later(self._write_down, 0)

    def _piece_size(self) -> int:
        return max(min(max(self._size // 16, _LEAST_PIECE), _LARGEST_PIECE), self._fruitless)

    def _write_down(self) -> None:
        with plugins.guard("write down a part of a stream"), self._lock:
            self._due = self._urgent = False
            self._wait = min(self._wait * 2, _LONGEST_WAIT)
            if not self.over:
                self._note_piece(everything=False)

    def _note_piece(self, *, everything: bool) -> None:
        data, lengths = self._collect(everything=everything)
        # An event that takes megabytes is looked through again only when it has grown as much again.
        self._fruitless = 0 if data else 2 * (self._size - self._written)
        ticket = self._call.ticket
        if not data or ticket is None:
            return
        head = {} if self._pieces else {"head": self._exchange}
        self._pieces += 1
        ticket.notes.put({"exchange": self._number, "body": self._body(data), "chunks": lengths, **head})

    def _collect(self, *, everything: bool) -> Piece:
        """Take what can be written down, and the lengths of the chunks that end in it."""
        taken = [self._chunks.popleft() for _ in range(len(self._chunks))]
        data = b"".join(taken)
        cut = len(data) if everything else self._cut(data)
        if not cut and not everything:
            self._chunks.extendleft(reversed(taken))
            return b"", []
        lengths = []
        end = 0
        for number, chunk in enumerate(taken):
            end += len(chunk)
            if end > cut:
                kept = min(end - cut, len(chunk))
                self._begun += len(chunk) - kept
                self._chunks.extendleft(reversed([chunk[len(chunk) - kept :], *taken[number + 1 :]]))
                break
            lengths.append(self._begun + len(chunk))
            self._begun = 0
        self._written += cut
        return data[:cut], lengths

    def _cut(self, data: bytes) -> int:
        if not self._plain:
            # What compressed bytes say shows at their end only; so they are held back as long as memory allows.
            return len(data) if len(data) > _MOST_HELD else 0
        return plugins.safe_cut(data, events=self._events)

    def _body(self, data: bytes) -> Body:
        """Bytes that are about to be written down, with all that is needed to look for secrets in them."""
        plain = None
        if self._decode is not None:
            try:
                plain = self._decode(data)
            except Exception as error:  # noqa: BLE001 - whatever a decoder raises at bytes that are not what they claim
                plugins.log.debug("a body could not be decoded: %r", error)
                self._decode = None
        before, self._before = self._before, (self._before + (data if plain is None else plain))[-_BEFORE:]
        return Body(data, plain, before, self._events)

    @property
    def behind(self) -> bool:
        waiting = self._size - self._written
        return waiting > max(_MOST_HELD, self._fruitless) and not self.over and self._call.ticket is not None

    def catch_up(self) -> None:
        """Write down what has passed, and wait until it is written. Not for an event loop."""
        self._write_down()
        if self._call.ticket is not None:
            self._call.ticket.notes.catch_up()

    def note_job(self) -> None:
        """Write the name of the job down, before the reader can act on it."""
        job, self.job = self.job, None
        if self._call.ticket is not None:
            self._call.ticket.progress({"job": job})

    async def note_job_async(self) -> None:
        """The same from a task."""
        job, self.job = self.job, None
        if self._call.ticket is not None:
            await self._call.ticket.progress_async({"job": job})

    # its end ---------------------------------------------------------------------------------------------------------

    def note_raised(self) -> None:
        """The reader is closing: if it does so because of an error that the stream held, that error is this step's."""
        if self.failed:
            blame(self._call)

    @property
    def failed(self) -> bool:
        """Whether the last event of the stream so far is an error."""
        return self._mark.failed

    def raised(self) -> plugins.Ticket | None:
        """The SDK is making an exception of the stream: the step, recorded, if an error in the stream is the reason.

        Older releases do not close the stream then, and the program must not see a failure that is not on disk.
        """
        if not self.failed:
            return None
        self.finish("closed_early")
        return self._call.ticket

    def cut_short(self) -> Exception | None:
        """The connection has ended: the failure that this is, where a job's stream has not told of the job's end."""
        if self.over or not self._of_job or self._mark.blind or self._mark.failed:
            return None
        return self.broken(
            "the provider closed the connection before the job's last event (response.completed, .failed, .incomplete "
            "or .cancelled); a resumed run asks it for the rest"
        )

    def leave_open(self) -> None:
        """The reader was interrupted: the step stays an orphan, with what has passed."""
        if plugins.collecting():
            # This thread may hold a lock of the recorder, and whoever has this record's lock may be waiting for it.
            self.over = True
            return
        with self._lock:
            if not self.over:
                self._note_piece(everything=True)
                self.over = True

    def conclude(self, end: str, error: Exception | None = None) -> tuple[str, dict[str, Any]] | None:
        """Outcome and detail to record, or None when that has happened."""
        with self._lock:
            if self.over:
                return None
            self.over = True
            failed = error is not None or self._mark.failed
            return "failed" if failed else "done", self._detail(end, error, failed=failed)

    def _detail(self, end: str, error: Exception | None = None, *, failed: bool = False) -> dict[str, Any]:
        rest, lengths = self._collect(everything=True)
        exchange = dict(self._exchange)
        exchange["body"] = body_form(self._number, self._body(rest), pieces=self._pieces > 0)
        exchange["chunks"] = lengths
        exchange["end"] = end
        if error is not None:
            exchange["error"] = failure(error)
        self._mark.close()
        self._call.add(exchange, self._name, self._waited)
        return self._call.detail(told=self._mark.found, failed=failed)

    def finish(self, end: str, error: Exception | None = None) -> None:
        """Record the end of the stream, durably."""
        concluded = self.conclude(end, error)
        if concluded is not None and self._call.ticket is not None:
            self._call.ticket.finish(*concluded, error=error, waited=self._call.waited)

    async def finish_async(self, end: str, error: Exception | None = None) -> None:
        """The same from a task."""
        concluded = self.conclude(end, error)
        if concluded is not None and self._call.ticket is not None:
            await self._call.ticket.finish_async(*concluded, error=error, waited=self._call.waited)

    def drop(self, end: str) -> None:
        """The reader is gone; conclude later."""
        if self.over:
            return
        if self._dropped_as is None and self._call.ticket is not None:
            self._call.ticket.leave(self._conclude_left)
        # The collector finalizes in any order, so the body may go before the generator that closes it.
        if self._dropped_as != "closed_early":
            self._dropped_as = end

    def _conclude_left(self) -> plugins.Conclusion | None:
        concluded = self.conclude(self._dropped_as or "abandoned")
        return None if concluded is None else (*concluded, None, self._call.waited)

    def _on_close(self) -> dict[str, Any] | None:
        with self._lock:
            if self.over:
                return None
            if sys.exception() is not None:
                # A run that fails or stops may come back and read this stream whole; one that ends well will not.
                self._note_piece(everything=True)
                return None
            self.over = True
            return self._detail(self._dropped_as or "abandoned")


def blame(call: LogicalCall) -> None:
    """Lay the exception that is passing here, if any, on the call's step: a run that it ends will retry that step."""
    error = sys.exception()
    if call.ticket is not None and isinstance(error, Exception):
        call.ticket.blame(error)
