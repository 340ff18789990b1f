"""A process is killed around each event that steers its run; started again, it comes to the same judgements."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import steplog
from steplog.stores.files import FileStore
from tests.support.processes import environment

PROGRAM = """
import os, signal, sys
import steplog
from steplog import Rule
from steplog.stores.writer import FileWriter

home, where, point = sys.argv[1:]
append = FileWriter.append

def killed(self, lines, *args, **kwargs):
    hit = any(f'"type":"{where}"'.encode() in line for line in lines)
    if hit and point == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = append(self, lines, *args, **kwargs)
    if hit:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

FileWriter.append = killed
steplog.install(home=home, interceptors=[])

@steplog.step
def refund(order):
    with open(f"{home}/done", "a") as file:
        file.write(f"{order}\\n")
    return order

rules = [
    Rule(id="no", action="deny", target="refund", args={"order": "b"}),
    Rule(id="ask", action="require_approval", target="refund", args={"order": "c"}),
]
said = []
with steplog.run("r1", policy=rules):
    for order in "abc":
        try:
            said.append(refund(order))
        except steplog.StepDenied as denied:
            said.append(type(denied).__name__)
print(said)
"""


def play(home: Path, where: str = "none", point: str = "after") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(home), where, point]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "where, point",
    [
        ("step.denied", "after"),
        ("step.blocked", "after"),
        ("step.approved", "after"),
        ("step.rejected", "before"),
        pytest.param("step.denied", "before", marks=pytest.mark.nightly),
        pytest.param("step.blocked", "before", marks=pytest.mark.nightly),
        pytest.param("step.approved", "before", marks=pytest.mark.nightly),
        pytest.param("step.rejected", "after", marks=pytest.mark.nightly),
    ],
)
def test_killed_at_an_event_that_steers_the_run(tmp_path, where, point):
    home = tmp_path / "home"
    is_decision = where in ("step.approved", "step.rejected")
    if not is_decision:
        assert play(home, where, point).returncode == -signal.SIGKILL
    assert "needs approval" in play(home).stderr
    state = state_in(home)
    (held,) = [step.id for step in state.steps.values() if step.status == "blocked"]
    decide = steplog.reject if where == "step.rejected" else steplog.approve
    assert decide("r1", held, by="ann", store=FileStore(str(home))).counted
    if is_decision:
        assert play(home, where, point).returncode == -signal.SIGKILL

    done = play(home)
    last = "StepRejected" if where == "step.rejected" else "c"
    assert done.stdout == f"{['a', 'StepDenied', last]}\n", done.stderr
    assert (home / "done").read_text().split() == ["a"] + ["c"] * (last == "c")


def state_in(home: Path):
    from steplog._kernel.fold import fold

    return fold(FileStore(str(home)).read("r1").events)
