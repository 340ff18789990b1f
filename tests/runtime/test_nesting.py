"""Nested steps and retries: an outer step that runs again finds what its inner ones have finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

import steplog
from tests.support.processes import environment

PROGRAM = """
import json, os, signal, sys
import steplog
steplog.install(home="home", interceptors=[])

def effect(name):
    with open("effects", "a") as file:
        file.write(name + "\\n")
    return name

@steplog.step
def mail(to): return effect("mail " + to)

@steplog.step(mode="safe")
def sub_agent(task):
    first = mail(task + " begins")
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return [first, mail(task + " ends")]

with steplog.run("r") as run:
    print(json.dumps([sub_agent("a"), mail("done"), run.replayed]))
"""


def test_finished_inner_steps_are_returned_when_the_outer_one_runs_again(tmp_path):
    (tmp_path / "agent.py").write_text(PROGRAM)

    def agent(fate):
        return subprocess.run(
            [sys.executable, "agent.py", fate],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    assert agent("die").returncode == -signal.SIGKILL
    assert json.loads(agent("live").stdout) == [["mail a begins", "mail a ends"], "mail done", 1]
    assert json.loads(agent("live").stdout) == [["mail a begins", "mail a ends"], "mail done", 2]
    assert (tmp_path / "effects").read_text().splitlines() == ["mail a begins", "mail a ends", "mail done"]


def test_scopes_tell_equal_inner_steps_apart(state_of):
    @steplog.step(mode="safe")
    def inner(x):
        return x

    @steplog.step(mode="safe")
    def outer(name):
        return [inner(1), inner(1)]

    with steplog.run("r"):
        outer("a"), outer("b"), inner(1)

    steps = state_of("r").steps
    assert len(steps) == 7
    scopes = [steps[step.scope].started["args"]["name"] if step.scope else None for step in steps.values()]
    assert scopes == [None, "a", "a", None, "b", "b", None]


def test_retries_are_recorded_attempts_and_repeat_only_what_failed(state_of):
    calls = []

    @steplog.step
    def pay():
        calls.append("pay")
        return "paid"

    @steplog.step
    def flaky():
        calls.append("flaky")
        if calls.count("flaky") < 3:
            raise ConnectionError(f"no {calls.count('flaky')}")
        return "ok"

    @steplog.step(mode="safe", retries=4, backoff=0.001)
    def outer():
        return [pay(), flaky()]

    with steplog.run("r"):
        assert outer() == ["paid", "ok"]
    with steplog.run("r") as run:
        assert outer() == ["paid", "ok"]
        assert run.executed == 0

    assert calls == ["pay", "flaky", "flaky", "flaky"]
    attempts = {step.target: step.attempt for step in state_of("r").steps.values()}
    assert attempts[outer.__qualname__.rsplit(".", 1)[-1]] == 3
    assert attempts["flaky"] == 3
    assert attempts["pay"] == 1


def test_the_last_failure_of_a_retried_step_is_the_one_that_counts():
    calls = []

    @steplog.step(retries=2, backoff=0.001, retry_on=(ConnectionError,))
    def tool(kind):
        calls.append(kind)
        raise {"c": ConnectionError, "v": ValueError}[kind](f"attempt {len(calls)}")

    for _ in range(2):
        with steplog.run("r"):
            with pytest.raises(ConnectionError, match="attempt 3"):
                tool("c")
            with pytest.raises(ValueError, match="attempt 4"):
                tool("v")

    assert calls == ["c", "c", "c", "v"]


async def test_async_retries():
    calls = []

    @steplog.step(retries=1, backoff=0.001)
    async def tool():
        calls.append(1)
        if len(calls) == 1:
            raise OSError
        return 7

    async with steplog.run("r"):
        assert await tool() == 7

    assert len(calls) == 2


def test_effects_of_a_verify_function_are_not_recorded(tmp_path):
    """A recorded answer about the world would be returned again after the world has changed."""
    program = """
import os, signal, sys
import steplog
steplog.install(home="home", interceptors=[], strict=True)

@steplog.step(mode="safe")
def look(): return os.path.exists("effect")

def find(): return steplog.Happened("found") if look() else steplog.NOT_HAPPENED

@steplog.step(mode="verify", verify=find)
def write():
    if sys.argv[1] != "before":
        with open("effect", "a") as file: file.write("x")
    if sys.argv[1] != "live":
        os.kill(os.getpid(), signal.SIGKILL)
    return "wrote"

with steplog.run("r"):
    print(write())
"""
    (tmp_path / "agent.py").write_text(program)
    outputs = []
    for fate in ("before", "after", "live"):
        done = subprocess.run(
            [sys.executable, "agent.py", fate],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        outputs.append(done.stdout.strip())

    assert outputs == ["", "", "found"]
    assert (tmp_path / "effect").read_text() == "x"


def test_an_interrupt_inside_a_step_leaves_it_open(state_of):
    @steplog.step
    def bad():
        return object()

    @steplog.step(mode="safe")
    def outer():
        try:
            return bad()
        except Exception:
            return "swallowed"

    with pytest.raises(steplog.RunStopped), steplog.run("r"):
        outer()

    statuses = {step.target: step.status for step in state_of("r").steps.values()}
    assert statuses == {"outer": "running", "bad": "done"}


@pytest.fixture
def heeds_sigint():
    """A shell that starts the tests in the background has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_sigint")
def test_a_keyboard_interrupt_leaves_the_effect_in_doubt(state_of):
    @steplog.step
    def tool():
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()

    with pytest.raises(KeyboardInterrupt), steplog.run("r"):
        tool()
    with pytest.raises(steplog.RunStopped) as caught, steplog.run("r"):
        tool()

    assert caught.value.reason == "indeterminate"
