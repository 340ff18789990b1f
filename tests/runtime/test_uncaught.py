"""What a program that ends of a stopped run leaves on the screen."""

from __future__ import annotations

import subprocess
import sys

import pytest

import steplog
from steplog.errors import RunStopped
from tests.support.processes import environment

PROGRAM = """
import steplog
steplog.install(interceptors=[])

def agent(*steps):
    with steplog.run("r"):
        for name in steps:
            steplog.step(name, lambda: name)

agent("one", "two")
try:
    agent("one", "three")
except steplog.RunStopped as stopped:
    print(stopped.__cause__)
    raise RuntimeError("no answer") from stopped
"""


@pytest.fixture
def stopped(home):
    """A run that stopped, as its program got it."""
    steplog.install(interceptors=[])
    with steplog.run("r"):
        steplog.step("one", lambda: 1)
    with pytest.raises(RunStopped) as caught, steplog.run("r"):
        steplog.step("two", lambda: 2)
    return caught.value


def test_the_traceback_of_a_stopped_run_says_it_once(tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    variables = environment(STEPLOG_HOME=str(tmp_path / "home"))
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    first, *others = [line for line in done.stdout.splitlines() if line.strip()]

    assert done.returncode == 1
    assert len(others) >= 3
    assert [done.stderr.count(line) for line in others] == [1] * len(others)
    assert done.stderr.count(first) == 2, "the interrupt is still named where it was raised"
    assert done.stderr.endswith("RuntimeError: no answer\n")


def test_the_interrupt_says_all_of_it_to_a_program(stopped):
    assert str(stopped) == f"run r stopped (drift).\n{stopped.__cause__}"
    text = str(stopped.__cause__)
    sys.excepthook(type(stopped), stopped, stopped.__traceback__)

    assert str(stopped.__cause__) == text


@pytest.mark.usefixtures("stopped")
def test_the_hook_is_put_back():
    assert sys.excepthook.__module__ == "steplog._runtime.uncaught"
    steplog.uninstall()
    assert sys.excepthook is sys.__excepthook__
