"""A log is a list: whatever fails, what was acknowledged is in it, in order, and nothing else but the batch under way.

A generated life appends to a real log while calls fail, write short or are interrupted; it ends with a close, a kill or
the loss of power, and the next one opens the log again. Beside the log stands the list that it must be:

P  the log is a valid chain;
A  every acknowledged event is in it; of those that were not synced, a loss of power may take a tail;
U  of what was never acknowledged at most the last batch is in it, whole lines from its start.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from steplog._kernel.line import Chain, Mark, scan
from steplog.errors import Conflict, Corrupt, RunBusy, StoreError, UnknownRun
from steplog.stores import lock
from steplog.stores.files import FileStore
from steplog.stores.writer import FileWriter
from steplog.testing import FaultyFS, PowerFailure
from tests.support.examples import examples

RUN = "r"
SHARED_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
ERRNOS = st.sampled_from([errno.ENOSPC, errno.EIO, errno.EINTR, errno.EACCES, errno.EMFILE])
FLAG = st.booleans()
FAR = st.integers(1, 3)
WRITES = st.sampled_from(["write", "sync", "truncate"])


def _call(method: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.just(method), st.fixed_dictionaries(arguments))


def faults(*calls: str) -> st.SearchStrategy[list[Any]]:
    """What may happen to the next calls, as calls of `Disk`: as often as not, nothing."""
    call = st.sampled_from([*calls, "*"])
    interruption = _call("interrupt", operation=WRITES, nth=FAR, behind=FLAG)
    short = _call("shorten", keep=st.integers(0, 2000), persistent=FLAG)
    return st.one_of(
        st.just([]),
        _call("fail", operation=call, nth=FAR, errno=ERRNOS, persistent=FLAG).map(lambda one: [one]),
        _call("stop", operation=call, nth=FAR).map(lambda one: [one]),
        short.map(lambda one: [one]),
        interruption.map(lambda one: [one]),
        st.tuples(short, interruption).map(list),
        st.tuples(short, _call("fail", operation=st.just("truncate"), errno=ERRNOS, persistent=FLAG)).map(list),
    )


IN_APPEND = st.just([]) | faults("write", "sync", "truncate", "end", "stat", "read")
IN_OPEN = st.just([]) | faults("write", "sync", "truncate", "read", "open", "create", "flock", "sync_dir")
# Lines that fit into a page with others, and lines that span pages.
BATCHES = st.lists(st.sampled_from([0, 0, 300, 3000, 9000]), min_size=1, max_size=4)


class Interrupted(BaseException):
    """A signal handler that raises, as Ctrl-C does."""


class Disk(FaultyFS):
    """A file system under which the process can be interrupted, before a call and right behind it, and die."""

    def __init__(self) -> None:
        super().__init__()
        self._interruption: tuple[str, int, bool] | None = None

    def interrupt(self, operation: str, nth: int, *, behind: bool) -> None:
        """Raise `Interrupted` at a call that is counted from now."""
        self._interruption = (operation, nth, behind)

    def heal(self) -> None:
        super().heal()
        self._interruption = None

    def next_process(self) -> None:
        """What the system knows of unsynced bytes survives the process; its faults do not."""
        self.heal()
        self._off = False

    def write(self, fd: int, data: bytes) -> int:
        self._at("write", behind=False)
        written = super().write(fd, data)
        self._at("write", behind=True)
        return written

    def sync(self, fd: int) -> None:
        self._at("sync", behind=False)
        super().sync(fd)
        self._at("sync", behind=True)

    def truncate(self, fd: int, size: int) -> None:
        self._at("truncate", behind=False)
        super().truncate(fd, size)
        self._at("truncate", behind=True)

    def _at(self, operation: str, *, behind: bool) -> None:
        if self._interruption is None or self._interruption[::2] != (operation, behind):
            return
        _, nth, _ = self._interruption
        self._interruption = (operation, nth - 1, behind) if nth > 1 else None
        if nth == 1:
            raise Interrupted


class Log:
    """The log, the list beside it, and the process that writes it.

    Attributes:
        synced: lines that no loss of power may take.
        written: lines behind them that were acknowledged without a sync.
        doubt: lines of the batch whose append failed last, when nothing was acknowledged since.
        gone: lines of earlier failed appends, which must never be seen again.
    """

    def __init__(self, home: str, durability: Any) -> None:
        self.home = home
        self.durability = durability
        self.disk = Disk()
        self.synced: list[bytes] = []
        self.written: list[bytes] = []
        self.doubt: list[bytes] = []
        self.writer: FileWriter | None = None
        self.chain = Chain(RUN)
        self.number = 0

    # what a process does ------------------------------------------------------------------------------------------

    def open(self, fault: list[Any]) -> None:
        self._strike(fault)
        try:
            writer = self._store().open(RUN)
        except (StoreError, Interrupted):
            self._release()
            return
        except PowerFailure:
            self.kill()
            return
        except Corrupt as error:
            self._cut_as_advised(error)
            return
        self.writer = writer
        self._found(_lines(self._path()))
        # Opening makes durable what a dead process had only written.
        self._acknowledge(synced=True)
        # The faults were meant for the opening; events of the view are read when they are asked for.
        self.disk.heal()
        self.chain = Chain(RUN, writer.view.events)

    def append(self, pads: list[int], sync: bool, again: bool, fault: list[Any]) -> None:
        if self.writer is None:
            return
        self._strike(fault)
        mark = self.chain.mark()
        lines = self.doubt if again and self.doubt else [self._seal(pad) for pad in pads]
        try:
            self.writer.append(lines, mark.seq, sync=sync)
        except (StoreError, Interrupted):
            self.chain.rewind(mark)
            self._tried(lines)
        except PowerFailure:
            self._tried(lines)
            self.kill()
        else:
            self.chain = self._behind(lines, mark)
            self.doubt = []
            self.written += lines
            self._acknowledge(synced=sync)

    def sync(self, fault: list[Any]) -> None:
        if self.writer is None:
            return
        self._strike(fault)
        try:
            self.writer.append([], self.chain.seq, sync=True)
        except (StoreError, Interrupted):
            return
        except PowerFailure:
            self.kill()
            return
        self._settle_doubt()
        self._acknowledge(synced=True)

    def close(self) -> None:
        if self.writer is None:
            return
        self.disk.heal()
        try:
            self.writer.close()
        except StoreError:
            pass
        except PowerFailure:
            self.kill()
            return
        self.writer = None
        self._release()

    # what happens to it -------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """No code of this process runs any more; what it wrote is the system's."""
        self.writer = None
        self._release()
        self.disk.next_process()

    def lose_power(self, pages: int, names: bool, grow: bool) -> None:
        self.kill()
        self.disk.lose_power(
            keep_page=lambda _path, page: bool(pages >> page % 16 & 1), keep_name=lambda _path: names, grow=grow
        )
        self.disk = Disk()
        self.doubt = self.written + self.doubt
        self.written = []

    # what must hold -----------------------------------------------------------------------------------------------

    def open_beside_it(self) -> None:
        """Somebody else tries to write, too."""
        if self.writer is None:
            return
        self.disk.heal()
        with pytest.raises(RunBusy) as caught:
            FileStore(self.home).open(RUN)
        assert caught.value.pid in (os.getpid(), None)  # the lock file may have been cut short

    def what_is_read_is_the_list(self) -> None:
        certain = self.synced + self.written
        try:
            events = FileStore(self.home).read(RUN).events
        except UnknownRun:
            assert not certain
            return
        except Corrupt as error:
            self._judge(error)
            return
        lines = _lines(self._path())[: len(events)]
        assert lines[: len(certain)] == certain, "an acknowledged event is missing"
        rest = lines[len(certain) :]
        assert rest == self.doubt[: len(rest)], "there is something in the log that is not the batch under way"

    # how ----------------------------------------------------------------------------------------------------------

    def _strike(self, fault: list[Any]) -> None:
        self.disk.heal()
        for method, arguments in fault:
            getattr(self.disk, method)(**arguments)

    def _store(self) -> FileStore:
        return FileStore(self.home, durability=self.durability, fs=self.disk)

    def _path(self) -> Path:
        return Path(FileStore(self.home).path_of(RUN))

    def _seal(self, pad: int) -> bytes:
        self.number += 1  # no two lines are ever the same, so that a line that comes back is noticed
        return self.chain.seal("t", None, "", b'{"n":%d,"pad":"%b"}' % (self.number, b"x" * pad))

    def _behind(self, lines: list[bytes], mark: Mark) -> Chain:
        chain = Chain(RUN)
        chain.rewind(mark)
        chain.seq += len(lines)
        chain.prev = lines[-1][-35:-3].decode()
        return chain

    def _tried(self, lines: list[bytes]) -> None:
        """An append failed: its lines are in the log or not. Of an earlier one, at most what is there now may stay."""
        there = _lines(self._path())[len(self.synced) + len(self.written) :]
        if not (there and there == self.doubt[: len(there)]):
            self.doubt = lines

    def _settle_doubt(self) -> None:
        """After a success the log is certain: an interrupted batch that landed counts, one that did not is gone."""
        self._found(_lines(self._path()))
        self.chain = Chain(RUN, FileStore(self.home).read(RUN).events)

    def _found(self, lines: list[bytes]) -> None:
        rest = lines[len(self.synced) + len(self.written) :]
        assert rest == self.doubt[: len(rest)]
        self.written += rest
        self.doubt = []

    def _acknowledge(self, *, synced: bool) -> None:
        if synced and self.durability == "durable" and (self.writer is None or self.writer.durable):
            self.synced += self.written
            self.written = []

    def _judge(self, error: Corrupt) -> None:
        """A page of the last batch that was kept without an earlier one may hold whole lines, which nobody cuts."""
        assert not isinstance(error, Conflict)
        certain = len(self.synced) + len(self.written)
        assert (-1 if error.last_good_seq is None else error.last_good_seq) + 1 >= certain
        assert self.doubt

    def _cut_as_advised(self, error: Corrupt) -> None:
        self._judge(error)
        os.truncate(self._path(), error.offset)

    def _release(self) -> None:
        """The system frees what a dead process held."""
        for held in list(lock._registry.held.values()):
            if held.path.startswith(self.home):
                del lock._registry.held[held.identity]
                held.abandon()


def _lines(path: Path) -> list[bytes]:
    """The whole lines of a log that verify."""
    data = path.read_bytes() if path.exists() else b""
    found = scan(data, RUN)
    lines = data[: found.end].splitlines(keepends=True)
    return [line if line.endswith(b"\n") else line + b"\n" for line in lines[: len(found.events)]]


OPERATIONS = st.one_of(
    *[st.tuples(st.just("append"), BATCHES, FLAG, FLAG, IN_APPEND)] * 3,
    st.tuples(st.just("sync"), IN_APPEND),
    st.tuples(st.just("open_beside_it")),
)
ENDS = st.one_of(
    *[st.tuples(st.just("lose_power"), st.integers(0, 2**16 - 1), FLAG, FLAG)] * 2,
    st.tuples(st.sampled_from(["close", "kill"])),
)
LIVES = st.lists(
    st.builds(
        lambda fault, operations, end: [("open", fault), *operations, end],
        *(IN_OPEN, st.lists(OPERATIONS, max_size=5), ENDS),
    ),
    min_size=2,
    max_size=6,
)


FAILED_SYNC = ("fail", {"operation": "sync", "nth": 1, "errno": errno.EIO, "persistent": False})
INTERRUPTED_WRITE = ("interrupt", {"operation": "write", "nth": 1, "behind": True})


def _tried_again_after(fault: Any) -> list[Any]:
    operations = [
        ("append", [0], True, False, [fault]),
        ("append", [0], True, True, []),
        ("append", [0], True, False, []),
    ]
    return [[("open", []), *operations, ("lose_power", 0, True, False)], [("open", []), ("close",)]]


RESUMED_AFTER_A_FAILED_SYNC = [
    [("open", []), ("append", [0], True, False, []), ("append", [9000], True, False, [FAILED_SYNC]), ("kill",)],
    [("open", []), ("append", [0], True, False, []), ("lose_power", 0, True, True)],
    [("open", []), ("close",)],
]


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(lives=LIVES, durability=st.sampled_from(["durable", "durable", "process"]))
@example(lives=_tried_again_after(FAILED_SYNC), durability="durable")
@example(lives=_tried_again_after(INTERRUPTED_WRITE), durability="durable")
@example(lives=RESUMED_AFTER_A_FAILED_SYNC, durability="durable")
def test_the_log_is_the_list_of_what_was_acknowledged(lives, durability):
    home = tempfile.mkdtemp(dir=SHARED_MEMORY)
    log = Log(home, durability)
    try:
        for name, *arguments in chain.from_iterable(lives):
            getattr(log, name)(*arguments)
            log.what_is_read_is_the_list()
    finally:
        log.kill()
        shutil.rmtree(home)
