"""A store that lives as long as its object: for tests, and as the plainest statement of what a store does."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256 as sha256_of

from steplog._kernel.line import scan
from steplog.errors import BodyMissing, ForkedWriter, InvalidArgument, RunBusy, StoreError, UnknownRun
from steplog.stores.base import BodyStore, Durability, LogView, Recovered, check_run_id
from steplog.stores.explain import refusal


class MemoryStore:
    """Runs in memory. The object is the store: whoever opens a run twice through it gets `RunBusy`."""

    bodies: BodyStore
    durability: Durability = "memory"

    def __init__(self) -> None:
        self.bodies = MemoryBodies()
        self._logs: dict[str, bytearray] = {}
        self._writers: dict[str, MemoryWriter] = {}
        self._guard = threading.RLock()
        self._inboxes: dict[str, MemoryInbox] = {}

    def inbox(self, run_id: str) -> MemoryInbox:
        """The inbox of a run."""
        with self._guard:
            return self._inboxes.setdefault(check_run_id(run_id), MemoryInbox())

    def runs(self) -> list[str]:
        """Names of all runs, the one written last first."""
        return [run_id for run_id, log in reversed(self._logs.items()) if log]

    def read(self, run_id: str) -> LogView:
        """Verify and return a log."""
        log = self._logs.get(check_run_id(run_id))
        if log is None:
            raise UnknownRun(f"there is no run {run_id!r} in this memory store.", run_id=run_id)
        found = scan(bytes(log), run_id)
        if found.verdict != "clean":
            raise refusal(found, run_id, "memory")
        return LogView(run_id, found.events, found.end, 0)

    def open(self, run_id: str) -> MemoryWriter:
        """Take the run for writing; create it if it is new."""
        with self._guard:
            if check_run_id(run_id) in self._writers:
                raise RunBusy(f"run {run_id!r} is already open. Close it first.", run_id=run_id, pid=os.getpid())
            self._logs.setdefault(run_id, bytearray())
            self._writers[run_id] = writer = MemoryWriter(self, self.read(run_id))
            return writer

    def add(self, run_id: str, log: bytes) -> bool:
        """Put the whole log of a new run in place; False where there is one of that name already."""
        with self._guard:
            if self._logs.get(check_run_id(run_id)) or run_id in self._writers:
                return False
            self._logs[run_id] = bytearray(log)
            return True

    def extend(self, run_id: str, data: bytes) -> None:
        """Add bytes to a log, which makes it the newest."""
        with self._guard:
            # In place: a log that is copied for each event takes time quadratic in its length.
            log = self._logs[run_id] = self._logs.pop(run_id)
            log += data

    def release(self, run_id: str) -> None:
        """Let the next writer in."""
        with self._guard:
            self._writers.pop(run_id, None)


class MemoryWriter:
    """The writer of one run in memory."""

    recovered: Recovered | None = None

    def __init__(self, store: MemoryStore, view: LogView) -> None:
        self.view = view
        self._store = store
        self._next = len(view.events)
        self._pid = os.getpid()
        self._closed = False

    def append(self, lines: Sequence[bytes], first_seq: int, *, sync: bool) -> None:  # noqa: ARG002  nothing to sync
        """Append whole sealed lines, all or none."""
        run_id = self.view.run_id
        if os.getpid() != self._pid:
            raise ForkedWriter(f"run {run_id!r}: a forked child tried to write to its parent's run.", run_id=run_id)
        if self._closed:
            raise StoreError(f"run {run_id!r} is closed: open it again to append.", run_id=run_id)
        if lines and first_seq != self._next:
            raise StoreError(f"run {run_id!r}: the next event is seq {self._next}, not {first_seq}.", run_id=run_id)
        self._store.extend(run_id, b"".join(lines))
        self._next += len(lines)

    def close(self) -> None:
        """Release the run. Idempotent."""
        if not self._closed:
            self._closed = True
            self._store.release(self.view.run_id)


class MemoryInbox:
    """Messages for one run, in memory."""

    path = "memory"

    def __init__(self) -> None:
        self._data = bytearray()
        self._guard = threading.Lock()

    def size(self) -> int:
        """How many bytes it holds."""
        return len(self._data)

    def read(self, start: int = 0) -> bytes:
        """What it holds from a byte on."""
        with self._guard:
            return bytes(self._data[start:])

    def append(self, line: bytes) -> None:
        """Add one line."""
        with self._guard:
            self._data += line


class MemoryBodies:
    """Bodies in a dictionary."""

    def __init__(self) -> None:
        self._bodies: dict[str, bytes] = {}

    def name(self, data: bytes) -> str:
        """The name under which these bytes are put."""
        return sha256_of(data).hexdigest()

    def held(self) -> AbstractContextManager[None]:
        """Nothing is ever pruned here."""
        return nullcontext()

    def put(self, bodies: Iterable[tuple[str, bytes]], *, sync: bool = True) -> None:  # noqa: ARG002
        """Store bodies, all or none."""
        new = {name: bytes(data) for name, data in bodies}
        for name, data in new.items():
            if sha256_of(data).hexdigest() != name:
                raise InvalidArgument(f"a body was named {name} but does not hash to it. Nothing was stored.")
        self._bodies.update(new)

    def keep(self, bodies: Iterable[tuple[str, bytes]]) -> None:
        """Store bodies under names that another store has given them."""
        self._bodies.update((name, bytes(data)) for name, data in bodies)

    def get(self, sha256: str) -> bytes:
        """Return the exact bytes."""
        if sha256 not in self._bodies:
            raise BodyMissing(f"body {sha256} is not in this memory store.", sha256=sha256)
        return self._bodies[sha256]

    def has(self, sha256: str) -> bool:
        """Tell whether a body is present."""
        return sha256 in self._bodies

    def rest(self) -> None:
        """Writing needs no space of its own."""

    def close(self) -> None:
        """Nothing to close: what is stored stays."""
