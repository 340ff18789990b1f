"""The events of a run on their way into its log: sealed, written with their bodies, and folded into the state.

State moves only after the bytes are where the level promises. So what `decide` sees is never more than what a crash
would leave.

After a failure the chain does not advance, and what was in the batch fails for everyone who waits for it. A failure
after which the end of the log is unknown (a signal in the middle of the write), or after which the program has gone on
with something that is missing in the log, closes the log for good: guessing could give two events one number.
"""

from __future__ import annotations

import os
import threading
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog._kernel.events import LOG_WEAKENED, Event
from steplog._kernel.fold import RunState, StepState, apply, begin, end
from steplog._kernel.line import MAX_LINE, Mark
from steplog._runtime import process
from steplog._runtime.group import Entry, Group, reentered
from steplog.errors import EncodeError, ForkedWriter, LeaseLost, LogFailed, StoreError

if TYPE_CHECKING:
    from steplog._kernel.line import Chain
    from steplog.stores.base import BodyStore, Writer

# Checked on submission, so that one event that is too long cannot fail the batch that it would have been part of. The
# rest of the line (type, step, seals) takes far less than the difference.
_MAX_DATA: Final = MAX_LINE - 4096


class Commit(Group):
    """The only path to a run's writer; safe to use from any thread or task of the process that opened it."""

    def __init__(self, run_id: str, writer: Writer, chain: Chain, state: RunState, bodies: BodyStore) -> None:
        super().__init__(run_id)
        self.state = state
        self._writer = writer
        # A store may have writers that know nothing of levels.
        self._watched: Any = writer if hasattr(writer, "weakness") else None
        self._chain = chain
        self._bodies = bodies
        # Around every change of the state; re-entrant for a signal handler that looks at it.
        self._applying = threading.RLock()
        # Pieces of streams are stored without a sync; the outcome that builds on them must not be durable before them.
        self._bodies_unsynced = False
        self._flush_due = False
        self._weakness: Any = None

    def submit(self, entry: Entry) -> Entry:
        """Put an entry in line, and return it. It is written by whoever leads next."""
        self.check_usable()
        if len(entry.data) > _MAX_DATA:
            message = (
                f"run {self._run_id}: a {entry.type} event of {len(entry.data):,} bytes does not fit in a line of the "
                f"log. Nothing was written. Return less from the step, or return a reference to where it is kept."
            )
            raise EncodeError(message, run_id=self._run_id, step=entry.step, path="data", type_name=entry.type)
        entry.commit = self
        self._pending.append(entry)
        return entry

    def write(self, entry: Entry) -> None:
        """Put an entry in line and return when the program may go on; for a thread. Raises as `submit` and `wait`.

        It is what those two do, the short way where nobody else appends, which is most of the time.
        """
        pending = self._pending
        if (
            (self._broken or self._closed or self._under_way)
            or process.pid != self._pid
            or len(entry.data) > _MAX_DATA
            or entry.bodies
            or self._leading.locked()
        ):
            self.wait(self.submit(entry))
            return
        entry.commit = self
        pending.append(entry)
        thread = get_ident()
        try:
            # As in `_write_as_leader`: no interruption can come between these two lines.
            with self._leading:
                self._leader = thread
                try:
                    if len(pending) == 1 and not (entry.done or self._under_way):
                        self._write_alone(entry)
                finally:
                    self._leader = 0
        finally:
            if pending:
                self._hand_on()
        if not entry.done:
            self.wait(entry)
        elif entry.error is not None:
            raise entry.error

    def _write_alone(self, entry: Entry) -> None:
        """What `_write_batch` does, with the only one that is in line."""
        error = self._broken
        try:
            if error is None:
                self._append_one(entry)
        except StoreError as failed:
            error = failed
        except LeaseLost as failed:
            error = self._broken = failed
        except BaseException as failed:
            error = self._broken = self._interrupted(f"by {type(failed).__name__}")
            raise
        finally:
            # No call may stand between the append and these lines: an interruption would have it written once more.
            entry.error = error
            entry.done = True
        del self._pending[:1]

    def _append_one(self, entry: Entry) -> None:
        facts, state, chain = entry.facts, self.state, self._chain
        begins = facts if type(facts) is StepState and facts.id not in state.steps else None
        if (begins is None and facts is not True) or self._bodies_unsynced:
            self._write([entry])
            return
        seq, before = chain.seq, chain.prev
        ts = timestamp()
        try:
            line = chain.seal(entry.type, entry.step, ts, entry.data)
            self._writer.append((line,), seq, sync=entry.sync)
        except StoreError:
            chain.rewind(Mark(seq, chain.epoch, before))
            raise
        with self._applying:
            if begins is None:
                end(state, entry.step or "", entry.data, seq, ts, chain.prev)
            else:
                begin(state, begins, entry.data, seq, ts, chain.prev)
        writer = self._watched
        if writer is not None and (writer.interval is not None or writer.weakness is not self._weakness):
            self._look_after(writer)

    def check_usable(self) -> None:
        """Refuse a caller that must not, or can no longer, write.

        Raises:
            ForkedWriter, ReenteredWriter, LogFailed, StoreError: as their messages say.
        """
        if (
            self._broken is None
            and not self._closed
            and process.pid == self._pid
            and not (self._leader == get_ident() and self._leading.locked())
        ):
            return
        raise self._refusal()

    def _refusal(self) -> StoreError | LogFailed:
        if process.pid != self._pid:
            message = (
                f"run {self._run_id}: a forked child tried to write to the log of its parent.\n"
                f"Only process {self._pid} may write. Start the child with the spawn method, or give it its own run."
            )
            return ForkedWriter(message, run_id=self._run_id)
        if self._leads():
            return reentered(self._run_id)
        if self._broken is not None:
            message = (
                f"run {self._run_id}: its log cannot be written any more in this process: {self._broken}\n"
                f"Everything acknowledged before is safe. Mend the cause and run: steplog resume {self._run_id}"
            )
            failed = LogFailed(message, run_id=self._run_id)
            failed.__cause__ = self._broken
            return failed
        message = f"run {self._run_id} is closed; an effect tried to record itself after the run had ended."
        return StoreError(message, run_id=self._run_id)

    def snapshot(self) -> RunState:
        """A consistent copy of the state."""
        if os.getpid() != self._pid:
            # Nobody changes it here, and the lock may have been held by a thread that this child does not have.
            return self.state.copy()
        self._write_plain()
        with self._applying:
            return self.state.copy()

    def save(self) -> None:
        """Have the store keep what the log folds to, where it can. Nothing depends on it."""
        save = getattr(self._writer, "save", None)
        if save is not None and os.getpid() == self._pid:
            with self._applying:
                save(self.state)

    def close(self) -> None:
        """Write what is pending, end the committer and release the writer."""
        if os.getpid() != self._pid:
            self._writer.close()
            return
        if self._leads():
            raise reentered(self._run_id)
        self._closed = True
        self._committer.close()
        try:
            self._lead()
        finally:
            with self._leading:
                try:
                    self._flush_held()
                finally:
                    self._writer.close()

    def _syncs(self) -> bool:
        return getattr(self._writer, "durable", True)

    def _write(self, batch: list[Entry]) -> None:
        if not self._bodies_unsynced and len(batch) == 1 and not batch[0].bodies:
            self._append(batch, sync=batch[0].sync)
            return
        sync = any(entry.sync for entry in batch)
        bodies = [body for entry in batch for body in entry.bodies]
        sync_bodies = sync and self._syncs()
        if not bodies and not (sync_bodies and self._bodies_unsynced):
            self._append(batch, sync=sync)
            return
        with self._bodies.held():
            self._bodies.put(bodies, sync=sync_bodies)
            self._bodies_unsynced = not sync_bodies
            self._append(batch, sync=sync)

    def _append(self, batch: list[Entry], *, sync: bool) -> None:
        chain = self._chain
        first, epoch, before = chain.seq, chain.epoch, chain.prev
        ts = timestamp()
        state, steps = self.state, self.state.steps
        lines: list[bytes] = []
        events: list[Any] = []
        try:
            for entry in batch:
                prev = chain.prev
                lines.append(chain.seal(entry.type, entry.step, ts, entry.data))
                facts = entry.facts
                if facts is True or (type(facts) is StepState and facts.id not in steps):
                    events.append(chain.prev)
                else:
                    # Of values that never change or from the bytes, so that the state shares nothing with the program.
                    known = facts if isinstance(facts, dict) and state.source is not None else None
                    data = orjson.loads(entry.data) if known is None else known
                    events.append(Event(chain.seq - 1, entry.type, entry.step, epoch, ts, data, prev, chain.prev))
            self._writer.append(lines, first, sync=sync)
        except StoreError:
            chain.rewind(Mark(first, epoch, before))
            raise
        with self._applying:
            for seq, (entry, event) in enumerate(zip(batch, events, strict=True), first):
                facts = entry.facts
                if type(event) is not str:
                    apply(state, event)
                elif type(facts) is StepState:
                    begin(state, facts, entry.data, seq, ts, event)
                else:
                    end(state, entry.step or "", entry.data, seq, ts, event)
        writer = self._watched
        if writer is not None and (writer.interval is not None or writer.weakness is not self._weakness):
            self._look_after(writer)

    def _look_after(self, writer: Any) -> None:
        """Have what was appended synced in a while, at level `interval`; have the log say that it is weaker."""
        interval = getattr(writer, "interval", None)
        if interval is not None and not self._flush_due:
            self._flush_due = True
            self.call_later(self._flush, interval)
        weakness = getattr(writer, "weakness", None)
        if weakness is not None and weakness != self._weakness:
            self._weakness = weakness
            entry = Entry(LOG_WEAKENED, None, orjson.dumps(weakness._asdict()), [], sync=False)
            entry.commit = self
            self._pending.append(entry)

    def _flush(self) -> None:
        self._flush_due = False
        try:
            with self._leading:
                self._flush_held()
        except (StoreError, LeaseLost) as error:
            # Nobody waits for it; the next who appends is told.
            self._broken = self._broken or error
        finally:
            self._hand_on()

    def _flush_held(self) -> None:
        writer: Any = self._writer
        if getattr(writer, "interval", None) is None or self._broken is not None:
            return
        if self._bodies_unsynced:
            self._bodies.put((), sync=True)
            self._bodies_unsynced = False
        writer.flush()


_newest: tuple[int, str] = (0, "")


def timestamp() -> str:
    """The present time as ISO 8601 in UTC with milliseconds, for people."""
    global _newest  # noqa: PLW0603  # a one-entry cache: formatting the date costs more than sealing the line
    known = _newest
    now = int(time.time() * 1000)
    if now == known[0]:
        return known[1]
    seconds, part = divmod(now, 1000)
    text = known[1]
    if seconds != known[0] // 1000:
        text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(seconds))
    text = f"{text[:20]}{part:03d}Z"
    _newest = (now, text)
    return text
