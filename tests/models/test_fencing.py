"""Workers that no lock keeps apart, as on a file system without locks: the log itself tells the stale one.

Generated workers take the run over, append, are held up anywhere, in the middle of an append too, and go on. What must
hold: epochs never fall along the log; nobody's append succeeds once somebody else has claimed the run; whatever was
acknowledged stands in the log that everybody reads, and what anybody ever read is its beginning.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, settings

from steplog._kernel import events as ev
from steplog._kernel.line import Chain, scan
from steplog.errors import Conflict, LeaseLost
from steplog.stores import lock
from steplog.stores.files import FileStore
from steplog.stores.fs import FS
from steplog.stores.writer import FileWriter
from tests.models.test_log import SHARED_MEMORY
from tests.support.examples import examples

RUN = "r"


class NoLocks(FS):
    """A file system whose locks keep nobody out, and under which a worker can be held up at a call."""

    def __init__(self) -> None:
        self.held_up: tuple[str, bool, Any] | None = None

    def flock(self, fd: int, *, shared: bool = False) -> bool:
        return True

    def unlock(self, fd: int) -> None:
        pass

    def write(self, fd: int, data: bytes) -> int:
        self._at("write", behind=False)
        written = super().write(fd, data)
        self._at("write", behind=True)
        return written

    def sync(self, fd: int) -> None:
        self._at("sync", behind=False)
        super().sync(fd)
        self._at("sync", behind=True)

    def _at(self, call: str, *, behind: bool) -> None:
        if self.held_up is not None and self.held_up[:2] == (call, behind):
            (_, _, meanwhile), self.held_up = self.held_up, None
            meanwhile()


class Worker:
    """A process that writes to the run as long as it believes that the run is its own."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.fs = NoLocks()
        self.writer: FileWriter | None = None
        self.chain = Chain(RUN)

    def take(self) -> None:
        """Open the run and claim it."""
        try:
            self.writer = FileStore(self.history.home, fs=self.fs).open(RUN)
        except Conflict:
            self.writer = None
            return
        self.history.writers.append(self.writer)
        # The lock is known to this process only, and the workers stand for processes.
        lock._registry.held.pop(self.writer._log.lock.identity, None)
        self.chain = Chain(RUN, self.writer.view.events)
        self.chain.epoch += 1
        self._append([(ev.RUN_CLAIMED, b"{}")])

    def append(self, count: int) -> None:
        """Append a batch."""
        if self.writer is not None:
            self._append([("t", b'{"n":%d}' % number) for number in range(count)])

    def _append(self, batch: list[tuple[str, bytes]]) -> None:
        first, epoch = self.chain.seq, self.chain.epoch
        lines = [self.chain.seal(type_, None, "", data) for type_, data in batch]
        try:
            self.writer.append(lines, first, sync=True)  # type: ignore[union-attr]
        except LeaseLost:
            self.writer = None
        else:
            self.history.acknowledge(epoch, lines)


class History:
    """What was acknowledged, to whom and in which order, and what was read."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.epoch = 0
        self.acknowledged: list[bytes] = []
        self.reads: list[bytes] = []
        self.writers: list[FileWriter] = []

    def acknowledge(self, epoch: int, lines: list[bytes]) -> None:
        assert epoch >= self.epoch, f"epoch {epoch} was acknowledged after epoch {self.epoch} had claimed the run"
        self.epoch = epoch
        self.acknowledged += lines

    def read(self) -> bytes:
        """Read the verified beginning of the log."""
        with open(FileStore(self.home).path_of(RUN), "rb") as file:
            data = file.read()
        found = scan(data, RUN)
        assert found.verdict in ("clean", "conflict")
        epochs = [event.epoch for event in found.events]
        assert epochs == sorted(epochs)
        self.reads.append(data[: found.end])
        return data[: found.end]

    def check(self) -> None:
        final = self.read()
        assert b"".join(self.acknowledged) == b"".join(
            line for line in final.splitlines(keepends=True) if line in set(self.acknowledged)
        ), "what was acknowledged is not in the log, or in another order"
        assert all(final.startswith(read) for read in self.reads)


WORKERS = st.integers(0, 2)
CALLS = st.tuples(st.sampled_from(["write", "sync"]), st.booleans())
PLAIN = st.one_of(
    st.tuples(st.just("take"), WORKERS),
    *[st.tuples(st.just("append"), WORKERS, st.integers(1, 3))] * 2,
)
# What others do while this worker is held up in its next append.
HELD_UP = st.tuples(st.just("held up"), WORKERS, CALLS, st.lists(PLAIN, min_size=1, max_size=4))


def _do(workers: list[Worker], what: str, who: int, *arguments: Any) -> None:
    worker = workers[who]
    if what == "held up":
        (call, behind), others = arguments
        worker.fs.held_up = call, behind, lambda: [_do(workers, *one) for one in others if one[1] != who]
        worker.append(1)
        worker.fs.held_up = None
    else:
        getattr(worker, what)(*arguments)


@settings(max_examples=examples(100))
@given(script=st.lists(st.one_of(PLAIN, PLAIN, HELD_UP), min_size=2, max_size=12))
@example(script=[("take", 0), ("held up", 0, ("write", False), [("take", 1)]), ("append", 1, 1)])
def test_nobody_writes_behind_the_claim_of_another(script):
    home = tempfile.mkdtemp(dir=SHARED_MEMORY)
    history = History(home)
    workers = [Worker(history) for _ in range(3)]
    try:
        workers[0].take()
        for one in script:
            _do(workers, *one)
            history.read()
        history.check()
    finally:
        for writer in history.writers:
            writer.close()
        shutil.rmtree(home)
