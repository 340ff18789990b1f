"""A process that is told to end in the middle of an effect: what it had finished stays, the effect is in doubt."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.processes import environment

PROGRAM = """
import sys, signal
import steplog
signal.signal(signal.SIGINT, signal.default_int_handler)
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
