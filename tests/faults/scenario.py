"""A run of appends that a fault may hit, and what must hold of its log afterwards, whatever happened.

P: the log is a valid chain. A: every acknowledged event is in it. U: of what was not acknowledged at most the batch
under way is in it, from its start.
"""

from __future__ import annotations

from pathlib import Path

from steplog._kernel.line import Chain
from steplog.errors import StoreError
from steplog.stores.files import FileStore
from steplog.testing.contract import fill

BATCHES = (1, 3, 1, 2, 4)


class Scenario:
    """Opens a run, appends batches, closes it; remembers what was acknowledged and what was under way."""

    def __init__(self, home, fs, *, pad=0, durability="durable"):
        self.store = FileStore(home, durability=durability, fs=fs)
        self.pad = b'{"pad":"' + b"x" * pad + b'"}'
        self.acknowledged: list[bytes] = []
        self.tried: list[bytes] = []
        self.errors: list[StoreError] = []

    def run(self, batches=BATCHES):
        writer = self._attempt(lambda: self.store.open("r"))
        if writer is None:
            return
        chain = Chain("r", writer.view.events)
        for size in batches:
            mark = chain.mark()
            lines = [chain.seal("t", None, "", self.pad) for _ in range(size)]
            # Lines depend on their place alone, so the longest batch begins with what any other would have written.
            self.tried = max(self.tried, self.acknowledged + lines, key=len)
            if self._attempt(lambda first=mark.seq, lines=lines: writer.append(lines, first, sync=True) or True):
                self.acknowledged = self.acknowledged + lines
            else:
                chain.rewind(mark)
        self._attempt(writer.close)

    def _attempt(self, action):
        try:
            return action()
        except StoreError as error:
            self.errors.append(error)
            return None

    def check(self):
        """Open the run with a healthy file system, check the invariants, and go on with it."""
        assert all(error.run_id == "r" and error.errno for error in self.errors)
        store = FileStore(self.store.home)
        writer = store.open("r")
        left = Path(store.path_of("r")).read_bytes().splitlines(keepends=True)
        assert left[: len(self.acknowledged)] == self.acknowledged, "an acknowledged event was lost"
        assert left == self.tried[: len(left)], "something else than the batch under way is in the log"
        fill(writer, Chain("r", writer.view.events))
        writer.close()
        assert len(store.read("r").events) == len(left) + 1


def repetitions():
    """Count 1, 2, 3 … ; the caller breaks when its fault is no longer reached."""
    return range(1, 10_000)


def release(store):
    """A machine without power holds no locks; this process still does."""
    from steplog.stores import lock

    for held in list(lock._registry.held.values()):
        if held.path.startswith(store.home):
            del lock._registry.held[held.identity]
            held.abandon()
