"""One writer per run, across processes, forks and deaths."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from steplog._kernel.line import Chain
from steplog.errors import RunBusy
from steplog.stores.files import FileStore
from steplog.stores.fs import FS
from steplog.stores.lock import acquire, boot_id, holder
from steplog.testing.contract import fill, in_child
from tests.support.processes import environment

HOLD = """
import sys
from steplog.stores.files import FileStore
writer = FileStore(sys.argv[1]).open("r")
print("held", flush=True)
sys.stdin.read()
"""

FORK = """
import os, sys
from steplog.stores.files import FileStore
writer = FileStore(sys.argv[1]).open("r")
child = os.fork()
if child:
    print("forked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path / "home")


@contextmanager
def another_process(store):
    """Run a process that holds the run until it dies."""
    command = [sys.executable, "-c", HOLD, store.home]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    try:
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_process_is_refused_and_told_who_holds_the_run(store):
    with another_process(store) as process:
        with pytest.raises(RunBusy, match=f"process {process.pid} on {socket.gethostname()}") as caught:
            store.open("r")
        assert (caught.value.run_id, caught.value.pid, caught.value.host) == ("r", process.pid, socket.gethostname())
        assert caught.value.since
        who = store.holder("r")
        assert (who.pid, who.host, who.boot_id) == (process.pid, socket.gethostname(), boot_id())


def test_a_dead_holders_run_is_free_at_once(store):
    with another_process(store) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert store.holder("r") is None
        store.open("r").close()


def test_a_stopped_holder_still_holds(store):
    with another_process(store) as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(RunBusy):
            store.open("r")
        process.send_signal(signal.SIGCONT)


def test_nobody_holds_what_does_not_exist_or_was_closed(store):
    assert store.holder("r") is None
    assert not Path(store.home).exists()
    writer = store.open("r")
    assert store.holder("r").pid == os.getpid()
    writer.close()
    assert store.holder("r") is None


def test_the_lock_file_is_never_removed(store):
    store.open("r").close()
    lock = Path(store.path_of("r")).parent / "events.lock"
    first = lock.stat().st_ino
    store.open("r").close()
    assert lock.stat().st_ino == first


def test_a_lock_file_that_says_nothing_still_locks(store):
    writer = store.open("r")
    lock = Path(store.path_of("r")).parent / "events.lock"
    for content in ("", "[]", "{", "null"):
        lock.write_text(content)
        assert store.holder("r") == (None, None, None, None)
        with pytest.raises(RunBusy) as caught:
            store.open("r")
        assert caught.value.pid is None
    writer.close()


class SlowLock(FS):
    """Refuses a few times, as while another process asks who holds the run."""

    def __init__(self, refusals):
        self.refusals = refusals

    def flock(self, fd, *, shared=False):
        self.refusals -= 1
        return self.refusals < 0 and super().flock(fd, shared=shared)


def test_asking_who_holds_a_run_never_keeps_a_writer_out(store):
    path = str(Path(store.home).parent / "lock")
    lock = acquire(SlowLock(3), path, "r")
    lock.release()
    with Path(path).open() as file:
        assert FS().flock(file.fileno(), shared=True)
        assert holder(path) is None, "two who ask do not meet"


class BlindLock(FS):
    """Grants every lock, as file systems do that map `flock` to record locks, which a process has only once."""

    def flock(self, fd, *, shared=False):
        return True


def test_a_process_refuses_itself_even_where_the_system_would_not(store):
    store = FileStore(store.home, fs=BlindLock())
    writer = store.open("r")
    with pytest.raises(RunBusy, match="already open in this process"):
        store.open("r")
    assert store.holder("r").pid == os.getpid()
    writer.close()
    store.open("r").close()


def test_threads_that_open_at_once_get_one_writer(store):
    gate = threading.Barrier(8)
    writers, refused = [], []

    def attempt():
        gate.wait()
        try:
            writers.append(store.open("r"))
        except RunBusy as error:
            refused.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(writers), len(refused)) == (1, 7)
    writers[0].close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
class TestFork:
    def test_a_child_neither_holds_nor_frees_the_run(self, store):
        chain = Chain("r")
        writer = store.open("r")
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(sender)
            writer.close()
            os.read(receiver, 1)  # until the parent has died or closed the pipe
            os._exit(0)
        os.close(receiver)
        with pytest.raises(RunBusy):
            store.open("r")
        fill(writer, chain)
        writer.close()
        store.open("r").close()  # the child, alive, keeps no copy of the lock
        os.close(sender)
        os.waitpid(child, 0)

    def test_a_child_may_open_a_run_of_its_own(self, store):
        writer = store.open("r")
        assert in_child(lambda: fill(store.open("child"), Chain("child"))) == ""
        assert in_child(lambda: store.open("r")) == "RunBusy"
        assert len(store.read("child").events) == 1
        fill(writer, Chain("r"))
        writer.close()

    def test_a_living_child_does_not_keep_a_dead_parents_run(self, store):
        program = subprocess.Popen(
            [sys.executable, "-c", FORK, store.home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )
        with program:
            assert program.stdout.readline() == b"forked\n"
            with pytest.raises(RunBusy):
                store.open("r")
            program.kill()
            program.wait()
            store.open("r").close()
            program.stdin.close()  # ends the child

    def test_a_closed_run_is_free_before_the_child_has_closed_its_copy(self, store):
        writer = store.open("r")
        copy = os.dup(writer._log.lock._fds[-1])  # what a child has between the fork and its first instruction
        writer.close()
        store.open("r").close()
        os.close(copy)

    def test_threads_of_a_child_open_runs(self, store):
        writer = store.open("r")

        def work():
            threads = [threading.Thread(target=lambda n=n: store.open(f"c{n}").close(), daemon=True) for n in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert not any(thread.is_alive() for thread in threads)

        assert in_child(work) == ""
        writer.close()

    def test_a_child_of_a_busy_process_is_not_stuck(self, store):
        """Another thread may be anywhere inside the lock or the body store when the process forks."""
        over = threading.Event()

        def work():
            while not over.is_set():
                store.open("busy").close()
                store.bodies.has("0" * 64)

        store.bodies.put([])
        thread = threading.Thread(target=work)
        thread.start()
        try:
            for number in range(20):
                assert in_child(lambda n=number: (store.open(f"c{n}").close(), store.bodies.has("0" * 64))) == ""
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize("method", sorted(set(multiprocessing.get_all_start_methods()) - {"fork"}))
def test_a_process_pool_does_not_inherit_the_run(store, method):
    writer = store.open("r")
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        with pytest.raises(RunBusy):
            pool.apply(open_run, (store.home,))
        writer.close()
        assert pool.apply(open_run, (store.home,)) == 0
    store.open("r").close()


def open_run(home):
    writer = FileStore(home).open("r")
    writer.close()
    return len(writer.view.events)


def test_a_program_started_meanwhile_inherits_nothing(store):
    writer = store.open("r")
    program = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        writer.close()
        store.open("r").close()
    finally:
        program.kill()
        program.wait()
