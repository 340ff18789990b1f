"""The file store under every fault that a disk, a kernel or a kill can produce.

Three invariants, after whatever happens: the log is a valid chain (P); every acknowledged event is in it (A); of what
was not acknowledged at most the batch under way is in it, from its start (U).
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from steplog._kernel.line import Chain
from steplog.errors import StoreError
from steplog.stores.files import FileStore
from steplog.testing import FaultyFS
from steplog.testing.contract import fill, sealed
from tests.faults.scenario import BATCHES, Scenario, repetitions
from tests.support.processes import environment


@pytest.fixture
def homes(tmp_path):
    """A new home for each repetition."""
    return (tmp_path / f"home-{number}" for number in count())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_is_full_once_costs_one_batch(homes, code):
    for nth in repetitions():
        fs = FaultyFS()
        scenario = Scenario(next(homes), fs)
        scenario.store.open("r").close()
        fs.fail("write", nth=nth + 1, errno=code)  # the first write is the lock file's
        scenario.run()
        if not fs.fired:
            break
        assert [error.errno for error in scenario.errors] == [code]
        assert len(scenario.acknowledged) == sum(BATCHES) - BATCHES[nth - 1]
        assert [e.seq for e in scenario.store.read("r").events] == list(range(len(scenario.acknowledged)))
        scenario.check()
    assert nth == len(BATCHES) + 1


def test_a_disk_that_stays_full_refuses_until_there_is_room(homes):
    for nth in range(1, len(BATCHES) + 1):
        fs = FaultyFS()
        scenario = Scenario(next(homes), fs)
        writer = scenario.store.open("r")
        chain = Chain("r")
        fs.fail("write", nth=nth, errno=errno.ENOSPC, persistent=True)
        for number, size in enumerate(BATCHES, 1):
            mark = chain.mark()
            if number < nth:
                fill(writer, chain, size)
                continue
            with pytest.raises(StoreError, match="disk is full"):
                fill(writer, chain, size)
            chain.rewind(mark)
        fs.heal()
        fill(writer, chain)
        writer.close()
        assert len(scenario.store.read("r").events) == sum(BATCHES[: nth - 1]) + 1


def test_a_batch_cut_short_at_every_byte_leaves_no_partial_line(homes):
    size = len(b"".join(sealed(Chain("r"), 3)))
    store = FileStore(next(homes), fs=(fs := FaultyFS()), durability="process")
    writer = store.open("r")
    chain = Chain("r")
    fill(writer, chain)
    log = Path(store.path_of("r"))
    for keep in range(size):
        before = log.read_bytes()
        mark = chain.mark()
        fs.shorten(keep, persistent=True)
        with pytest.raises(StoreError, match=f"only {keep} of") as caught:
            fill(writer, chain, 3)
        assert caught.value.errno == errno.ENOSPC
        assert log.read_bytes() == before
        chain.rewind(mark)
        fs.heal()
    fs.shorten(size // 2)  # once, as a signal does
    fill(writer, chain, 3)
    writer.close()
    assert len(store.read("r").events) == 4


@pytest.mark.parametrize("keep", [1, 100, 300])
def test_a_fragment_that_cannot_be_removed_poisons_and_is_repaired_by_the_next_open(homes, keep):
    fs = FaultyFS()
    scenario = Scenario(next(homes), fs)
    scenario.run()
    writer = scenario.store.open("r")
    chain = Chain("r", writer.view.events)
    fs.shorten(keep)
    fs.fail("truncate", errno=errno.EROFS, persistent=True)
    lines = sealed(chain, 5)
    scenario.tried = scenario.acknowledged + lines
    writes = fs.count("write")
    with pytest.raises(StoreError, match="steplog resume r"):
        writer.append(lines, len(scenario.acknowledged), sync=True)
    fs.heal()
    with pytest.raises(StoreError, match="steplog resume r") as caught:
        writer.append(lines, len(scenario.acknowledged), sync=True)
    assert caught.value.errno == errno.EROFS
    assert fs.count("write") == writes + 1
    writer.close()
    scenario.check()


def test_a_failed_sync_poisons_and_is_never_retried(homes):
    for nth in repetitions():
        fs = FaultyFS()
        scenario = Scenario(next(homes), fs)
        scenario.store.open("r").close()
        fs.fail("sync", nth=nth)
        before = fs.count("sync")
        scenario.run()
        if not fs.fired:
            break
        assert fs.count("sync") - before == nth, "a sync was tried again after one had failed"
        assert {error.errno for error in scenario.errors} == {errno.EIO}
        assert len(scenario.errors) == len(BATCHES) - nth + 1
        assert len(scenario.acknowledged) == sum(BATCHES[: nth - 1])
        assert len(scenario.store.read("r").events) == sum(BATCHES[:nth])
    assert nth == len(BATCHES) + 1


def test_a_failing_disk_poisons_at_a_write_too(homes):
    fs = FaultyFS()
    scenario = Scenario(next(homes), fs)
    scenario.store.open("r").close()
    fs.fail("write", nth=3, errno=errno.EIO)
    scenario.run()
    assert len(scenario.acknowledged) == BATCHES[0]
    assert len(scenario.errors) == len(BATCHES) - 1
    scenario.tried = scenario.acknowledged
    scenario.check()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("persistent", [False, True])
def test_any_call_may_fail(homes, code, persistent):
    """Whatever call of a whole run fails, the error is typed and the log keeps its invariants."""
    any_call_fails(homes, code, persistent, "durable")


OTHER_CODES = (
    "EMFILE",
    "ENFILE",
    "EROFS",
    "EFBIG",
    "EDQUOT",
    "EPERM",
    "ENOMEM",
    "ESTALE",
    "EBUSY",
    "ETIMEDOUT",
    "ELOOP",
)


@pytest.mark.nightly
@pytest.mark.parametrize("level", ["process", "interval", "durable", "durable-full"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", [*OTHER_CODES, "EIO", "ENOSPC", "EACCES"])
def test_any_call_may_fail_with_any_error_at_any_level(homes, name, persistent, level):
    any_call_fails(homes, getattr(errno, name), persistent, level)


def any_call_fails(homes, code, persistent, level):
    for nth in repetitions():
        fs = FaultyFS()
        scenario = Scenario(next(homes), fs, durability=level)
        fs.fail(nth=nth, errno=code, persistent=persistent)
        scenario.run(BATCHES[:3])
        if not fs.fired:
            break
        # A note that could not be made costs whoever opens the log next some bytes to write again, and nothing else.
        assert scenario.errors or fs.calls[nth - 1] == (
            "rewrite",
            scenario.store.path_of("r")[: -len("jsonl")] + "lock",
        )
        Path(scenario.store.path_of("r")).parent.mkdir(parents=True, exist_ok=True)
        scenario.check()
    assert nth > 20


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
@pytest.mark.parametrize("action", ["read", "runs", "holder", "examine"])
def test_any_call_of_a_reader_may_fail(tmp_path, action, code):
    """A reader that cannot read says so; it never takes a log that it cannot reach for one that is not there."""
    writer = FileStore(tmp_path).open("r")
    fill(writer, Chain("r"), 3)
    writer.close()
    for nth in repetitions():
        fs = FaultyFS()
        store = FileStore(tmp_path, fs=fs)
        fs.fail(nth=nth, errno=code)
        arguments = () if action == "runs" else ("r",)
        try:
            getattr(store, action)(*arguments)
        except StoreError as error:
            failed = error
        else:
            assert not fs.fired, f"call {nth} failed in silence: {fs.calls[-1]}"
            break
        assert failed.errno == code
    assert nth > 1


APPEND = """
import os, sys
from steplog._kernel.line import Chain
from steplog.stores.files import FileStore
home, size, batch, durability = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
writer = FileStore(home, durability=durability).open("r")
chain = Chain("r", writer.view.events)
data = b'{"pad":"' + b"x" * size + b'"}'
while True:
    first = chain.seq
    writer.append([chain.seal("t", None, "", data) for _ in range(batch)], first, sync=True)
    os.write(1, b"%d\\n" % (chain.seq - 1))
"""


@pytest.mark.nightly
def test_two_hundred_kills_lose_nothing_acknowledged(tmp_path):
    kill_again_and_again(tmp_path, 1_000_000, 1, "process", 200)


@pytest.mark.parametrize(
    "size, batch, durability",
    [(10, 1, "process"), (1000, 3, "durable"), (1_000_000, 1, "process"), (500_000, 8, "process")],
)
def test_a_kill_at_any_moment_loses_nothing_acknowledged(tmp_path, size, batch, durability):
    """SIGKILL at random moments, again and again on one run, which grows from life to life."""
    kill_again_and_again(tmp_path, size, batch, durability, 6 if size < 10_000 else 3)


def kill_again_and_again(tmp_path, size, batch, durability, rounds):
    pick = random.Random(size)
    store = FileStore(tmp_path / "home")
    command = [sys.executable, "-c", APPEND, store.home, str(size), str(batch), durability]
    for number in range(rounds):
        if rounds > 10 and number % 4 == 3:
            shutil.rmtree(store.home)  # or reading it would take most of the time
        before = len(store.read("r").events) if store.runs() else 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
            first = process.stdout.readline()
            time.sleep(pick.random() * 0.05)
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read()
        acknowledged = int((first + rest).split(b"\n")[-2])
        events = store.read("r").events
        assert acknowledged >= before
        assert acknowledged + 1 <= len(events) <= acknowledged + 1 + batch
        writer = store.open("r")
        assert writer.view.events == events
        writer.close()


LIMITED = """
import errno, resource, signal, sys
from steplog._kernel.line import Chain
from steplog.errors import StoreError
from steplog.stores.files import FileStore
from steplog.testing.contract import fill
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = FileStore(sys.argv[1])
writer = store.open("r")
chain = Chain("r")
fill(writer, chain, 5)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
mark = chain.mark()
try:
    fill(writer, chain, 5)
except StoreError as error:
    print(errno.errorcode[error.errno], len(store.read("r").events))
chain.rewind(mark)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
fill(writer, chain, 5)
print(len(store.read("r").events))
"""


def test_a_real_file_size_limit_is_survived(tmp_path):
    size = len(b"".join(sealed(Chain("r"), 5)))
    for limit, code in ((size, "EFBIG"), (size + 1, "ENOSPC"), (size + 333, "ENOSPC")):
        home = tmp_path / str(limit)
        command = [sys.executable, "-c", LIMITED, str(home), str(limit)]
        output = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout
        assert output.split() == [code, "5", "10"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


FULL = """
import errno, os, sys
from steplog._kernel.line import Chain
from steplog.errors import StoreError
from steplog.stores.files import FileStore
from steplog.testing.contract import fill
ballast = os.path.join(sys.argv[1], "ballast")
with open(ballast, "wb") as file:
    file.write(bytes(40_000))
store = FileStore(os.path.join(sys.argv[1], "home"))
writer = store.open("r")
chain = Chain("r")
codes = set()
while not codes:
    mark = chain.mark()
    try:
        fill(writer, chain, 7)
    except StoreError as error:
        codes.add(errno.errorcode[error.errno])
        chain.rewind(mark)
print(codes.pop(), len(store.read("r").events) == chain.seq)
os.unlink(ballast)
fill(writer, chain, 7)
print(len(store.read("r").events) == chain.seq)
"""


def test_a_really_full_disk_is_survived(tmp_path):
    program = tmp_path / "full.py"
    program.write_text(FULL)
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=128k none "{disk}" && "{sys.executable}" "{program}" "{disk}"'
    if shutil.which("unshare") is None:
        pytest.skip("no unshare command")
    probe = f'mount -t tmpfs -o size=128k none "{disk}"'
    if subprocess.run(["unshare", "-Urm", "sh", "-c", probe], capture_output=True, check=False).returncode:
        pytest.skip("this kernel lets no user mount a tmpfs of its own")
    command = ["unshare", "-Urm", "sh", "-c", script]
    output = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout
    assert output.split() == ["ENOSPC", "True", "True"]


def test_the_store_calls_the_system_through_its_seam_only():
    """A file call outside `fs.py` is one that no fault test reaches."""
    import ast

    import steplog.stores

    names = {"path", "getpid", "register_at_fork", "PathLike", "fspath", "stat_result", "strerror", "environ"}
    allowed = names | {"urandom"}
    for file in Path(steplog.stores.__path__[0]).glob("*.py"):
        if file.name == "fs.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                known = node.attr in allowed or node.attr.startswith("O_")
                at_last = node.attr == "close" and file.name in {"lock.py", "source.py"}
                assert known or at_last, f"os.{node.attr} in {file.name}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                assert file.name == "lock.py", f"open() in {file.name}"  # the boot id, which is no file of ours
    assert os.path.exists(steplog.stores.__path__[0])
