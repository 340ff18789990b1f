"""A run's log, opened for writing: the claim, the folded state and the appends.

Taking a run is itself an append (`run.claimed` with the next epoch), so in every store a writer that was replaced
collides at its next append and knows it. Nothing else than this module opens a log for writing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog._kernel import events as ev
from steplog._kernel.fork import is_whole, origin_of
from steplog._kernel.line import Chain
from steplog._kernel.state import RunState, StepState
from steplog._runtime.commit import Commit
from steplog._runtime.group import Entry
from steplog._runtime.pack import clean_event
from steplog.errors import StoreError
from steplog.stores.base import folded

if TYPE_CHECKING:
    from steplog._kernel.redact import Redactor
    from steplog._runtime.fingerprint import Fingerprints
    from steplog.stores.base import Store, Writer

# Events of a log whose folding takes longer than anybody would notice.
_LONG: Final = 1_000


class Journal:
    """The log of one run, held by this process.

    Attributes:
        run_id: the run.
        state: the folded state, up to the newest event on disk. Read it under no lock for single steps only;
            `snapshot` gives a consistent copy.
        resumed: whether the log held events before it was opened.
        stop: data of the `run.suspended` in which the log ended before it was opened, or None.
        pid: the process that opened it, which alone may write.
    """

    def __init__(self, store: Store, run_id: str, writer: Writer, state: RunState) -> None:
        self.run_id = run_id
        self.store = store
        self.state = state
        self.resumed = state.seq >= 0
        self.stop = state.ended if state.status == "suspended" else None
        self.pid = os.getpid()
        chain = Chain(run_id, writer.view.events)
        chain.epoch += 1
        self._commit = Commit(run_id, writer, chain, state, store.bodies)
        # Refuses a caller that must not write: raises ForkedWriter, ReenteredWriter, LogFailed or StoreError.
        self.check_usable = self._commit.check_usable
        # Puts an entry in line, as `submit` does with what it makes one of.
        self.put = self._commit.submit
        # Puts an entry in line and returns when the program may go on; for a thread.
        self.write = self._commit.write

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """What stands for secret arguments in the identity of this run's steps.

        Raises:
            KeyMissing: the run began with a key that is not at hand.
        """
        from steplog._runtime.fingerprint import Fingerprints

        origin = origin_of(self.state.created, self.run_id)
        return Fingerprints(origin, self.state.created, getattr(self.store.bodies, "cipher", None))

    @classmethod
    def open(
        cls,
        store: Store,
        run_id: str,
        created: Callable[[], dict[str, Any]],
        redactor: Redactor,
        version: Callable[[], str | None] = lambda: None,
    ) -> Journal:
        """Take a run, creating it where it does not exist.

        Args:
            store: where it lives.
            run_id: its id.
            created: gives the data of `run.created` for a new run.
            redactor: takes secrets out of it; a program's arguments may hold some.
            version: gives the revision of the code that takes it, which is noted where it is another one.

        Raises:
            RunBusy, Corrupt, UnsupportedFormat, StoreError, InvalidArgument: as `Store.open`; StoreError also for a
                fork that was not written to its end.
        """
        writer = store.open(run_id)
        try:
            journal = cls(store, run_id, writer, folded(writer.view))
            _refuse_part(journal.state, run_id)
            if "key" in journal.state.created and writer.recovered is None:
                # Without that key every step with a secret argument would look like another one; so the run is not
                # taken, and its log stays as it is.
                _ = journal.fingerprints
            journal._claim(writer, created, redactor, version)
        except BaseException:
            writer.close()
            raise
        return journal

    def _claim(
        self,
        writer: Writer,
        created: Callable[[], dict[str, Any]],
        redactor: Redactor,
        version: Callable[[], str | None],
    ) -> None:
        if not self.resumed:
            first = {"format": ev.FORMAT, "run_id": self.run_id, **created()}
            cipher = getattr(self.store.bodies, "cipher", None)
            if cipher is not None:
                first["key"] = cipher.key_id.hex()
            self.submit(ev.RUN_CREATED, None, clean_event(redactor, orjson.dumps(first))[0])
        if writer.recovered is not None:
            self.submit(ev.LOG_RECOVERED, None, orjson.dumps(writer.recovered._asdict()))
        # The store's own description of a holder; it is loaded by now, as the run is open.
        from steplog.stores.lock import this_process

        holder = this_process()
        claim: dict[str, Any] = {
            "pid": holder.pid,
            "host": holder.host,
            "boot_id": holder.boot_id,
            "started": holder.since,
        }
        level = getattr(writer, "level", None) or getattr(self.store, "durability", None)
        if level is not None:
            claim["durability"] = level
        now = version() if self.resumed else None
        if now is not None and now != (self.state.claim.get("version") or self.state.created.get("version")):
            claim["version"] = now
        elif self.state.claim.get("version"):
            claim["version"] = self.state.claim["version"]
        self.append(ev.RUN_CLAIMED, None, claim)

    def submit(
        self,
        type_: str,
        step: str | None,
        data: bytes,
        bodies: list[tuple[str, bytes]] | None = None,
        *,
        sync: bool = True,
    ) -> Entry:
        """Put an event in line, without waiting for it. `data` is a JSON object."""
        return self._commit.submit(Entry(type_, step, data, bodies or [], sync=sync))

    def wait(self, entry: Entry) -> None:
        """Return when the program may go on: when the event is on disk if it asked to be, else when it is in line."""
        self._commit.wait(entry)

    def wait_written(self, entry: Entry) -> None:
        """Return when the event is in the log."""
        self._commit.wait_written(entry)

    def step(self, step: str) -> StepState:
        """What the log says of a step that has begun. Its intent may still be in line; then that is written first."""
        if step not in self.state.steps:
            self._commit.flush()
        return self.state.steps[step]

    def flush_soon(self) -> None:
        """Have pending events written without waiting for them."""
        self._commit.flush_soon()

    def call_later(self, callback: Callable[[], None], seconds: float) -> None:
        """Have the committer thread call back, and then write what is pending."""
        self._commit.call_later(callback, seconds)

    def append(self, type_: str, step: str | None, data: dict[str, Any]) -> None:
        """Append one event and wait until it is on disk."""
        self.wait(self.submit(type_, step, orjson.dumps(data)))

    def snapshot(self) -> RunState:
        """A consistent copy of the state."""
        return self._commit.snapshot()

    @property
    def is_long(self) -> bool:
        """Whether `save` may take a while."""
        return self.state.seq >= _LONG

    def save(self) -> None:
        """Have the store keep what spares the next opening of a long log the folding. Nothing depends on it."""
        self._commit.save()

    def close(self) -> None:
        """Write what is pending and release the run. Idempotent."""
        self._commit.close()
        self.store.bodies.rest()


def _refuse_part(state: RunState, run_id: str) -> None:
    if not is_whole(state):
        message = (
            f"run {run_id} is a fork whose making was cut off: a part of what it begins with is missing, and would "
            f"happen again. Nothing was executed.\nMake another one under a new id: steplog fork"
        )
        raise StoreError(message, run_id=run_id)
