"""However a process ends, and whatever children it has: what the program saw is in the log, and nobody else writes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter

import pytest

import steplog
from steplog._kernel.fold import fold
from steplog.stores.files import FileStore
from tests.support.processes import environment


def start(program, folder, *words):
    return subprocess.Popen(
        [sys.executable, str(program), *words],
        cwd=folder,
        env=environment(STEPLOG_HOME=str(folder / "home")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def written(folder, source):
    file = folder / "program.py"
    file.write_text(source)
    return file


def events(folder):
    return [json.loads(line) for line in (folder / "home/runs/r/events.jsonl").read_bytes().splitlines()]


EXITS = """
import atexit, os, sys, threading, time
import steplog
from steplog.stores.files import FileStore
from steplog.stores.fs import FS

way, level = sys.argv[1:]
steplog.install(interceptors=[])

class Watched(FS):
    synced = True

    def write(self, fd, data):
        self.synced = False
        return super().write(fd, data)

    def sync(self, fd):
        super().sync(fd)
        self.synced = True

fs = Watched()
run = steplog.run("r", store=FileStore(os.environ["STEPLOG_HOME"], durability=level, fs=fs))

@steplog.step
def act(number):
    return number

def see(number):
    # One call, so that no part of a line is lost at any end.
    os.write(1, b"%d %d\\n" % (act(number), fs.synced))

def in_thread(function, daemon=False):
    thread = threading.Thread(target=function, daemon=daemon)
    thread.start()
    return thread

def go_on_for_ever():
    number = 3
    while True:
        see(number)
        number += 1
        told.set()

def go_on_behind_the_end_of_main():
    threading.main_thread().join()
    see(3)

told = threading.Event()
if way in ("daemon", "atexit", "late"):
    run.__enter__()
    see(1)
    see(2)
    if way == "daemon":
        in_thread(go_on_for_ever, daemon=True)
        told.wait(30)
    elif way == "atexit":
        atexit.register(see, 3)
    else:
        in_thread(go_on_behind_the_end_of_main)
else:
    try:
        with run:
            see(1)
            if way == "exit in a thread":
                in_thread(lambda: (see(2), sys.exit(3))).join()
            else:
                see(2)
            if way == "exit":
                sys.exit(3)
            if way == "_exit":
                os._exit(4)
            if way == "error":
                raise ValueError("nobody handles this")
    finally:
        os.write(1, b"closed %d\\n" % fs.synced)
"""
# How the process ends, its exit status, what the log says of the run, and how many results the program saw at least.
ENDS = {
    "end": (0, "completed", 2),
    "exit": (3, "failed", 2),
    "exit in a thread": (0, "completed", 2),
    "_exit": (4, "running", 2),
    "error": (1, "failed", 2),
    "daemon": (0, "running", 3),
    "atexit": (0, "running", 3),
    "late": (0, "running", 3),
}
QUICK = {("end", "interval"), ("_exit", "process")}


def _exits():
    for way in ENDS:
        for level in ("durable", "interval", "process"):
            fast = level == "durable" or (way, level) in QUICK
            yield pytest.param(way, level, marks=[] if fast else pytest.mark.nightly)


@pytest.mark.parametrize("way, level", list(_exits()))
def test_however_a_process_ends_what_it_saw_is_in_the_log(way, level, tmp_path):
    status, said, least = ENDS[way]
    with start(written(tmp_path, EXITS), tmp_path, way, level) as process:
        out, err = process.communicate(timeout=60)

    assert process.returncode == status, err
    seen = [line.split() for line in out.splitlines()]
    synced = [flag for what, flag in seen if what != "closed"]
    numbers = [int(what) for what, _ in seen if what != "closed"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= least
    # What a level promises when the program sees a result, and when the run is closed.
    assert set(synced) == ({"1"} if level == "durable" else {"0"})
    assert [flag for what, flag in seen if what == "closed"] in ([], ["0" if level == "process" else "1"])

    view = FileStore(tmp_path / "home").read("r")
    state = fold(view.events)
    done = [step for step in state.steps.values() if step.status == "done"]
    assert len(done) >= len(numbers)
    assert state.status == said
    assert sum(step.status == "running" for step in state.steps.values()) <= (way == "daemon")
    _every_result_is_returned(tmp_path, numbers)


def _every_result_is_returned(folder, numbers):
    steplog.install(home=folder / "home", interceptors=[])
    executed = []

    @steplog.step(name="act")
    def act(number):
        executed.append(number)
        return number

    act.__wrapped__.__module__ = "__main__"
    try:
        with steplog.run("r"):
            assert [act(number) for number in numbers] == numbers
    finally:
        steplog.uninstall()
    assert executed == []


CHILDREN = """
import multiprocessing, os
from pathlib import Path
import steplog

steplog.install(interceptors=[], strict=True)

@steplog.step
def act(word):
    with open("ledger", "a") as ledger:
        ledger.write(word + "\\n")
    return word

def refused(work):
    try:
        work()
    except BaseException as error:
        return type(error).__name__
    return "done"

def reopen():
    with steplog.run("r"):
        act("reopened")

def child(method):
    Path(method).write_text(" ".join([refused(lambda: act("child")), refused(reopen)]))

if __name__ == "__main__":
    with steplog.run("r"):
        act("before")
        for method in ("fork", "forkserver", "spawn"):
            process = multiprocessing.get_context(method).Process(target=child, args=(method,))
            process.start()
            process.join()
            act("behind " + method)
"""


def test_children_of_every_start_method_are_refused_and_do_no_harm(tmp_path):
    with start(written(tmp_path, CHILDREN), tmp_path) as process:
        _, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    assert (tmp_path / "fork").read_text() == "ForkedWriter RunBusy"
    assert (tmp_path / "forkserver").read_text() == "NotInRun RunBusy"
    assert (tmp_path / "spawn").read_text() == "NotInRun RunBusy"
    ledger = (tmp_path / "ledger").read_text().splitlines()
    assert ledger == ["before", "behind fork", "behind forkserver", "behind spawn"]
    assert Counter(event["type"] for event in events(tmp_path))["step.finished"] == len(ledger)
    assert fold(FileStore(tmp_path / "home").read("r").events).status == "completed"


STALE = """
import os, sys
import steplog
from steplog.stores.files import FileStore
from steplog.stores.fs import FS

who, held_up = sys.argv[1:]
steplog.install(interceptors=[])

class NoLocks(FS):
    def flock(self, fd, *, shared=False):
        return True

    def unlock(self, fd):
        pass

def wait():
    if who == "first":
        print("held up", flush=True)
        sys.stdin.readline()

@steplog.step
def act(word, waits):
    with open("ledger", "a") as ledger:
        ledger.write(f"{who} {word}\\n")
    if waits:
        wait()
    return word

try:
    with steplog.run("r", store=FileStore(os.environ["STEPLOG_HOME"], fs=NoLocks())):
        act("one", held_up == "inside")
        if held_up == "between":
            wait()
        print(act("two", False), flush=True)
except steplog.RunStopped as stopped:
    print(stopped.reason, flush=True)
"""


@pytest.mark.parametrize("held_up", ["between", "inside"])
def test_a_stopped_holder_that_was_overtaken_does_nothing_more(held_up, tmp_path):
    program = written(tmp_path, STALE)
    with start(program, tmp_path, "first", held_up) as stale:
        assert stale.stdout.readline() == "held up\n", stale.stderr.read()
        stale.send_signal(signal.SIGSTOP)
        with start(program, tmp_path, "second", held_up) as taking:
            taken, err = taking.communicate(timeout=60)
        assert taken == ("two\n" if held_up == "between" else "indeterminate\n"), err
        left = events(tmp_path)
        stale.send_signal(signal.SIGCONT)
        said, _ = stale.communicate("\n", timeout=60)

    assert said == "lease_lost\n"
    assert events(tmp_path) == left
    ledger = (tmp_path / "ledger").read_text().splitlines()
    assert ledger == (["first one", "second two"] if held_up == "between" else ["first one"])
