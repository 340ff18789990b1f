"""A process that is told to end: what it had finished stays, an effect under way is in doubt and not made again.

It is told in the middle of an effect, or in a write or a sync of its log, before the call or behind it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.support.processes import environment

PROGRAM = """
import sys, signal
import steplog
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below nohup
steplog.install(interceptors=[])

def note(word):
    with open("ledger", "a") as ledger:
        ledger.write(word + "\\n")
    print(word, flush=True)

@steplog.step
def first():
    note("first")

@steplog.step
def effect():
    note("effect")
    sys.stdin.read()

try:
    with steplog.run("r"):
        first()
        effect()
except steplog.RunStopped as stopped:
    print(stopped.reason)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_in_the_middle_of_an_effect_leaves_it_in_doubt(name, tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    variables = environment(STEPLOG_HOME=str(tmp_path / "home"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=variables, **pipes) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["first\n", "effect\n"]
        process.send_signal(getattr(signal, name))
        process.wait(60)
    assert process.returncode != 0

    resumed = subprocess.run(
        command, cwd=tmp_path, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )

    assert resumed.stdout == "indeterminate\n"
    assert (tmp_path / "ledger").read_text() == "first\neffect\n"


APPENDING = """
import os, signal, sys
import steplog
from steplog.stores.files import FileStore
from steplog.stores.fs import FS

name, call, nth, behind = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "behind"
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below nohup
steplog.install(interceptors=[])

class Told(FS):
    # A signal comes in the call with this number, counted from the end of `first`.
    armed, count = False, 0

    def write(self, fd, data):
        return self._around("write", super().write, fd, data)

    def sync(self, fd):
        return self._around("sync", super().sync, fd)

    def _around(self, called, function, *arguments):
        self.count += self.armed and called == call
        struck = self.armed and called == call and self.count == nth
        if struck and not behind:
            os.kill(os.getpid(), getattr(signal, name))
        answer = function(*arguments)
        if struck and behind:
            os.kill(os.getpid(), getattr(signal, name))
        return answer

def note(word):
    with open("ledger", "a") as ledger:
        ledger.write(word + "\\n")

@steplog.step
def first():
    note("first")

@steplog.step
def effect():
    note("effect")
    return "answer"

fs = Told()
try:
    with steplog.run("r", store=FileStore("home", fs=fs)):
        first()
        fs.armed = bool(nth)
        print(effect())
except steplog.RunStopped as stopped:
    print(stopped.reason)
"""

# Call 1 writes the intent of `effect`, call 2 its outcome.
MOMENTS = [(call, nth, side) for call in ("write", "sync") for nth in (1, 2) for side in ("before", "behind")]
QUICK = [("write", 1, "behind"), ("write", 2, "before"), ("sync", 2, "behind")]


def _at_night(name, moment):
    fast = moment in QUICK and name != "SIGHUP"
    return pytest.param(name, *moment, marks=[] if fast else pytest.mark.nightly)


@pytest.mark.parametrize(
    "name, call, nth, side", [_at_night(name, moment) for name in ("SIGTERM", "SIGINT", "SIGHUP") for moment in MOMENTS]
)
def test_a_signal_in_the_middle_of_an_append_loses_and_repeats_nothing(name, call, nth, side, tmp_path):
    def dispatch(*moment):
        return subprocess.run(
            [sys.executable, "-c", APPENDING, name, *moment],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    told = dispatch(call, str(nth), side)
    log = [json.loads(line) for line in (tmp_path / "home/runs/r/events.jsonl").read_bytes().splitlines()]
    last = [event["type"] for event in log if event["step"]][2:]
    done = (tmp_path / "ledger").read_text().split()
    assert "answer" not in told.stdout
    assert done == ["first", "effect"][:nth]
    if name == "SIGINT":  # Python raises behind the call; what the writer cannot be sure of it takes back
        assert (told.returncode, told.stdout) == (0, "log_failed\n")
    else:
        assert told.returncode == -getattr(signal, name)
        assert last == ["step.started", "step.finished"][: nth - ((call, side) == ("write", "before"))]

    resumed = dispatch(call, "0", side)

    assert resumed.returncode == 0, resumed.stderr
    ledger = (tmp_path / "ledger").read_text().split()
    if last == ["step.started"]:
        assert (resumed.stdout, ledger) == ("indeterminate\n", done)
    else:
        assert (resumed.stdout, ledger) == ("answer\n", ["first", "effect"])
        assert bool(last) == (nth == 2), "what has had its effect is known to have begun"
