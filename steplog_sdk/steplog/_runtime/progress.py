"""What is known of a step before it has ended: the name of a job at the provider, the pieces of a stream so far.

A note is an event of its own, `step.progressed`. One that the program may act on (the name of a job) is waited for like
any other record. Pieces of a stream are not: the committer thread collects and writes them, without a sync, while their
reader goes on. The outcome of the step says how many notes it builds on, so that one that was lost is noticed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel import events as ev
from steplog._runtime.pack import INLINE_LIMIT, Sink
from steplog.errors import EncodeError, LeaseLost, LogFailed, StoreError

if TYPE_CHECKING:
    from steplog._runtime.drive import Steps
    from steplog._runtime.group import Entry
    from steplog._runtime.ticket import Ticket

log: Final = logging.getLogger("steplog")


class Notes:
    """The notes of one attempt.

    Attributes:
        count: how many were put in line.
        redacted: how many secrets were taken out of them.
    """

    __slots__ = ("_failed", "_lock", "_ticket", "_unwritten", "count", "redacted")

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._lock = threading.Lock()
        self._failed: BaseException | None = None
        # Those of which it is not known whether they are in the log; what is written need not be kept.
        self._unwritten: deque[Entry] = deque()
        self.count = 0
        self.redacted = 0

    def _submit(self, data: dict[str, Any], *, sync: bool) -> Entry | None:
        """Put a note in line without waiting for it. None where nobody would miss it: the step has ended."""
        ticket = self._ticket
        if ticket.finished or ticket.recorder.closed:
            return None
        recorder = ticket.recorder
        sink = Sink(recorder.redactor, recorder.journal.store.bodies.name, INLINE_LIMIT)
        line = sink.event(lambda into: into.line({"attempt": ticket.attempt, **data}), recorder.journal.store.bodies)
        with self._lock:
            entry = recorder.journal.submit(ev.STEP_PROGRESSED, ticket.step, line, sink.bodies, sync=sync)
            self.count += 1
            self.redacted += sink.redacted
            self._forget_written()
            self._unwritten.append(entry)
        return entry

    def write(self, data: dict[str, Any], *, sync: bool) -> Steps[None]:
        """Write a note; the caller may act on it when this returns."""
        try:
            entry = self._submit(data, sync=sync)
            if entry is not None:
                yield entry
        except (StoreError, LogFailed, LeaseLost) as failed:
            raise self._ticket.recorder.unwritten(self._ticket, failed, begun=True) from failed

    def put(self, data: dict[str, Any]) -> None:
        """Put a note in line; it is written soon, without a sync. What fails here fails the step when it ends."""
        try:
            if self._submit(data, sync=False) is not None:
                self._ticket.recorder.journal.flush_soon()
        except (EncodeError, StoreError, LogFailed, LeaseLost) as failed:
            self._failed = failed
            log.debug("run %s: a note on step %s was not written: %s", self._ticket.run_id, self._ticket.step, failed)

    def later(self, callback: Callable[[], None], seconds: float) -> None:
        """Have the committer thread call back in so many seconds; what it notes is then written. Never waits."""
        self._ticket.recorder.journal.call_later(callback, seconds)

    def catch_up(self) -> None:
        """Return when all that was put in line is in the log. Waits for the disk, so not for an event loop."""
        with self._lock:
            last = self._unwritten[-1] if self._unwritten else None
        if last is None:
            return
        try:
            self._ticket.recorder.journal.wait_written(last)
        except (StoreError, LogFailed, LeaseLost) as failed:
            self._failed = failed

    def check(self) -> None:
        """Raise what kept a note out of the log, if anything did."""
        with self._lock:
            self._forget_written()
        if self._failed is not None:
            raise self._failed

    def _forget_written(self) -> None:
        waiting = self._unwritten
        while waiting and waiting[0].done:
            self._failed = self._failed or waiting.popleft().error
