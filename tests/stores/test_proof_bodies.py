"""What a failed sync has given up of the body store's write-ahead log, which SQLite reads as if it were stored."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from steplog.errors import StoreError
from steplog.stores.bodies import SqliteBodies
from steplog.testing import FaultyFS
from steplog.testing.contract import named

ONE, TWO = named(b"x" * 9000), named(b"y" * 9000)

DYING = """
import os, sys
from steplog.stores.bodies import SqliteBodies
from steplog.testing.contract import named
SqliteBodies(sys.argv[1], durability="process").put([named(b"x" * 9000)], sync=False)
os.kill(os.getpid(), 9)
"""

BUSY = """
import os, sys
from steplog.stores.bodies import SqliteBodies
from steplog.testing.contract import named
for number in range(12):
    bodies = SqliteBodies(sys.argv[1])
    for piece in range(4):
        bodies.put([named(b"%s %d %d " % (sys.argv[2].encode(), number, piece) + os.urandom(9000))], sync=piece % 2 > 0)
    bodies.close()
os._exit(0)
"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "bodies.db")


@pytest.fixture
def fs():
    return FaultyFS()


@pytest.fixture
def bodies(path, fs):
    store = SqliteBodies(path, fs=fs)
    yield store
    store.close()


def on_the_log(fs, path, since=0):
    """What happened to the write-ahead log."""
    return [call.operation for call in fs.calls[since:] if call.path == path + "-wal" and call.operation != "stat"]


@pytest.mark.parametrize("use", [lambda b: b.put([ONE]), lambda b: b.put([TWO]), lambda b: b.sync()])
def test_what_a_killed_process_left_is_written_again_before_it_counts(path, fs, bodies, use):
    subprocess.run([sys.executable, "-c", DYING, path], check=False)
    left = os.path.getsize(path + "-wal")
    rewritten = []
    rewrite = fs.rewrite

    def counting(fd, data, offset):
        assert "sync" not in on_the_log(fs, path)
        rewritten.append(len(data))
        return rewrite(fd, data, offset)

    fs.rewrite = counting
    use(bodies)
    assert sum(rewritten) >= left > 9000
    assert bodies.get(ONE[0]) == ONE[1]


def test_a_store_that_was_closed_is_not_written_again(path, fs, bodies):
    bodies.put([ONE])
    bodies.close()
    bodies.put([TWO])
    assert "rewrite" not in on_the_log(fs, path)


def test_after_a_failed_sync_the_next_one_is_preceded_by_a_second_write(path, fs, bodies):
    bodies.put([ONE], sync=False)
    fs.fail("sync", errno=errno.EIO)
    with pytest.raises(StoreError):
        bodies.sync()
    since = len(fs.calls)
    bodies.put([ONE], sync=True)
    assert on_the_log(fs, path, since) == ["fstat", "read", "rewrite", "sync"]
    since = len(fs.calls)
    bodies.sync()
    assert on_the_log(fs, path, since) == ["sync"]


def test_what_cannot_be_written_again_is_refused(path, fs, bodies):
    subprocess.run([sys.executable, "-c", DYING, path], check=False)
    fs.fail("rewrite", errno=errno.EIO)
    with pytest.raises(StoreError):
        bodies.put([ONE])
    bodies.put([ONE])
    assert on_the_log(fs, path)[-2:] == ["rewrite", "sync"]


def test_a_log_whose_file_was_deleted_is_left_alone(path, fs, bodies):
    subprocess.run([sys.executable, "-c", DYING, path], check=False)
    os.unlink(path)
    bodies.sync()
    assert not os.path.exists(path)


def test_nothing_is_overwritten_that_others_write_meanwhile(path, bodies):
    crowd = [subprocess.Popen([sys.executable, "-c", BUSY, path, name]) for name in "abc"]
    assert [one.wait(120) for one in crowd] == [0, 0, 0]
    found = bodies.check()
    assert (found.bodies, found.faults) == (3 * 12 * 4, [])
