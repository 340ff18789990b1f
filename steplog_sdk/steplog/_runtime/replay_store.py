"""A store in front of another one: what is read comes from it, what is written stays in memory.

A replay opens its run through this, so that the recorder needs no second way of working and the log on disk cannot
change. A run that another process is recording at the moment can be replayed too, as far as it has come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import orjson

from steplog._kernel import events as ev
from steplog.stores.base import Durability
from steplog.stores.memory import MemoryBodies

if TYPE_CHECKING:
    from steplog._kernel.events import Event
    from steplog.stores.base import BodyStore, LogView, Recovered, Store


class ReplayStore:
    """Runs of another store, opened without being taken.

    Attributes:
        home: of the store behind it, where it has one.
        last: the writer that was opened last, by run id.
    """

    durability: Durability = "memory"

    def __init__(self, source: Store) -> None:
        self._source = source
        self.home = getattr(source, "home", None)
        self.bodies: BodyStore = ReplayBodies(source.bodies)
        self.last: dict[str, ReplayWriter] = {}

    def runs(self) -> list[str]:
        """Names of all recorded runs, newest first."""
        return self._source.runs()

    def read(self, run_id: str) -> LogView:
        """Read and verify a recorded log."""
        return self._source.read(run_id)

    def first(self, run_id: str) -> Event | None:
        """The first event of a recorded run."""
        first = getattr(self._source, "first", None)
        return next(iter(self._source.read(run_id).events), None) if first is None else first(run_id)

    def open(self, run_id: str) -> ReplayWriter:
        """Open a recorded run. Raises what `read` raises; a run that is not recorded is not created."""
        writer = self.last[run_id] = ReplayWriter(self._source.read(run_id))
        return writer


class ReplayWriter:
    """Takes what a replay would write.

    Attributes:
        end: type and data of the newest event that ended or suspended the replayed run, or None.
    """

    recovered: Recovered | None = None
    durable = False

    def __init__(self, view: LogView) -> None:
        self.view = view
        self.end: tuple[str, dict[str, Any]] | None = None

    def append(self, lines: Sequence[bytes], first_seq: int, *, sync: bool) -> None:  # noqa: ARG002  # nothing is kept
        """Look at whole sealed lines."""
        for line in lines:
            event = orjson.loads(line)
            if event["type"] in (ev.RUN_ENDED, ev.RUN_SUSPENDED):
                self.end = event["type"], event["data"]

    def close(self) -> None:
        """Nothing was taken."""


class ReplayBodies:
    """Recorded bodies, with new ones in memory in front of them."""

    def __init__(self, source: BodyStore) -> None:
        self._source = source
        self._new = MemoryBodies()
        # Looked for by whoever tells what stands for a secret argument.
        self.cipher = getattr(source, "cipher", None)

    def name(self, data: bytes) -> str:
        """The name under which these bytes are recorded."""
        return self._source.name(data)

    def held(self) -> AbstractContextManager[None]:
        """Nothing is pruned from memory."""
        return self._new.held()

    def put(self, bodies: Iterable[tuple[str, bytes]], *, sync: bool = True) -> None:  # noqa: ARG002  # nothing to sync
        """Keep bodies in memory."""
        self._new.keep(bodies)

    def get(self, sha256: str) -> bytes:
        """Return the exact bytes."""
        return self._new.get(sha256) if self._new.has(sha256) else self._source.get(sha256)

    def has(self, sha256: str) -> bool:
        """Tell whether a body is present."""
        return self._new.has(sha256) or self._source.has(sha256)

    def rest(self) -> None:
        """Nothing was written that would need space."""

    def close(self) -> None:
        """Close the handle of the store behind."""
        self._source.close()
