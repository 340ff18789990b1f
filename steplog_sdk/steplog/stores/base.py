"""What a store is: two small protocols that the file, memory and later stores implement.

A store keeps whole sealed lines and never looks inside them beyond what is needed to verify the chain. Mutual
exclusion is by the chain itself: each append names the sequence number it continues at, and taking a run over is an
append (`run.claimed`). Locks only say when it is worth trying.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

from steplog._kernel.events import RUN_CREATED, Event
from steplog._kernel.fold import RunState, fold
from steplog.errors import InvalidArgument


class Recovered(NamedTuple):
    """A torn tail that was cut off when a log was opened for writing.

    Attributes:
        offset: byte offset of the first byte cut.
        size: how many bytes were cut, 0 where only the last newline was missing and has been added.
        sha256: of the bytes cut.
        saved_as: the file that keeps them, or None.
    """

    offset: int
    size: int
    sha256: str
    saved_as: str | None


class LogView(NamedTuple):
    """A verified log as it stood when it was read.

    Attributes:
        run_id: the run.
        events: every whole event, in order; seals and chain are verified. A store may read each when it is asked for.
        end: byte offset behind the last whole line.
        torn: bytes behind `end` that a crash left (a reader reports them, a writer cuts them), 0 when clean.
        state: what the events fold to, from a store that folds while it verifies; else None.
    """

    run_id: str
    events: Sequence[Event]
    end: int
    torn: int
    state: RunState | None = None


def folded(view: LogView) -> RunState:
    """The state of a run whose log was read. It is the caller's own."""
    return fold(view.events) if view.state is None else view.state


def created_of(store: Store, run_id: str) -> dict[str, Any]:
    """What `run.created` says of a run. A store that has a method `first` is spared the rest of the log.

    Raises: what `read` raises.
    """
    first = getattr(store, "first", None)
    event = next(iter(store.read(run_id).events), None) if first is None else first(run_id)
    return event.data if event is not None and event.type == RUN_CREATED else {}


Durability = Literal["memory", "process", "interval", "durable", "durable-full"]

DURABILITIES: Final[tuple[Durability, ...]] = ("memory", "process", "interval", "durable", "durable-full")
"""What survives, from nothing to the most; docs/durability.md says what each costs."""


class Weakness(NamedTuple):
    """Why a log is less durable than it was asked to be.

    Attributes:
        asked: the level that was asked for.
        level: the level in force.
        why: one clause.
    """

    asked: str
    level: str
    why: str


@runtime_checkable
class Writer(Protocol):
    """The only writer of one run. Not thread-safe: the runtime calls it from one thread at a time.

    A writer may have a method `save(state)` as well, called with the folded state before `close`: its store then keeps
    what spares the next opening the folding. It raises nothing, and nothing may depend on it.

    A writer may also have `level`, the durability in force, `weakness`, a `Weakness` or None, and for the level
    `interval` a number of seconds `interval` and a method `flush`, which syncs what was appended.
    """

    view: LogView
    recovered: Recovered | None

    def append(self, lines: Sequence[bytes], first_seq: int, *, sync: bool) -> None:
        """Append whole sealed lines, each ending in a newline, all or none.

        Args:
            lines: sealed lines in order.
            first_seq: sequence number of the first of them; must be the next one.
            sync: return only when they are as durable as the store's level promises.

        Raises:
            LeaseLost: somebody else wrote to the log or took the run.
            ForkedWriter: called in a forked child.
            StoreError: the write failed. After a failed sync the writer is poisoned: every later append raises too.
        """

    def close(self) -> None:
        """Release the run. Idempotent."""


class Cipher(Protocol):
    """Encrypts what a body store writes, and gives bodies names from which nobody without the key can guess them.

    Attributes:
        key_id: names the key that new bodies are sealed with. Chunks under one key id are compressed together.
    """

    key_id: bytes

    def name(self, digest: bytes) -> bytes:
        """The 32 bytes that stand for a SHA-256 digest wherever plain content would be named, under the newest key."""

    def is_name(self, name: bytes, digest: bytes) -> bool:
        """Whether the digest itself, or its name under any key that may have been used, is this or begins with it."""

    def seal(self, data: bytes, context: bytes) -> bytes:
        """Encrypt bytes for one place, which `context` names; opening them elsewhere fails."""

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Decrypt.

        Raises:
            Corrupt: what is stored was altered or moved.
            StoreError: the key that it needs is not known.
        """


class BodyStore(Protocol):
    """Content-addressed bytes, named by the SHA-256 (64 hex digits) of their exact content.

    A store that encrypts names them by a keyed hash of it instead, so ask `name`.
    """

    def name(self, data: bytes) -> str:
        """The name under which these bytes are put."""

    def held(self) -> AbstractContextManager[None]:
        """Keep what is put inside from being pruned until the lines that name it have been appended, inside too."""

    def put(self, bodies: Iterable[tuple[str, bytes]], *, sync: bool = True) -> None:
        """Store `(sha256, bytes)` pairs; those already present are skipped. With `sync` they are durable at return."""

    def get(self, sha256: str) -> bytes:
        """Return the exact bytes. Raises `BodyMissing` when absent, `Corrupt` when they do not hash to their name."""

    def has(self, sha256: str) -> bool:
        """Tell whether a body is present, without reading it."""

    def rest(self) -> None:
        """Give back space that only writing needs: a run was closed."""

    def close(self) -> None:
        """Close this process's handle. Idempotent; a later call opens it again."""


class Inbox(Protocol):
    """Where anybody may put messages for one run, in order. The runtime says what they are; a store keeps the lines."""

    path: str

    def size(self) -> int:
        """How many bytes it holds. Cheap; 0 where nobody has sent anything."""

    def read(self, start: int = 0) -> bytes:
        """What it holds from a byte on. What was acknowledged stays as it is. Raises StoreError."""

    def append(self, line: bytes) -> None:
        """Add one line, which ends in a newline, all or none; durable at return. Safe from any process.

        Raises:
            StoreError: it was not written.
        """


class Store(Protocol):
    """Where runs live.

    A store may have a method `inbox(run_id)` as well, which gives the `Inbox` of a run: without it, nobody but its own
    program can say anything to a run.
    """

    bodies: BodyStore

    def runs(self) -> list[str]:
        """Names of all runs, newest first."""

    def read(self, run_id: str) -> LogView:
        """Read and verify a log without writing or locking anything.

        Raises: UnknownRun, Corrupt, Conflict, UnsupportedFormat, StoreError, InvalidArgument (a bad run id).
        """

    def open(self, run_id: str) -> Writer:
        """Take the run for writing, creating an empty log if there is none, cutting a torn tail if there is one.

        Raises: RunBusy, Corrupt, Conflict, UnsupportedFormat, StoreError, InvalidArgument (a bad run id).
        """


_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_run_id(run_id: object) -> str:
    """Return a run id that is safe as a file name.

    Raises:
        InvalidArgument: anything else, so that no name reaches a path unchecked.
    """
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise InvalidArgument(
            f"{run_id!r} is no run id: use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or digit, "
            f'as in steplog.run("refund-1001").',
            run_id=run_id if isinstance(run_id, str) else None,
        )
    return run_id
