"""Values that tools disagree about, through steps of a process that is killed: each comes back or is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.faults.programs import values
from tests.support.processes import environment


def dispatch(folder, *words):
    return subprocess.run(
        [sys.executable, "-m", "tests.faults.programs.values", *words],
        cwd=folder,
        env=environment(STEPLOG_HOME=str(folder / "home")),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("size", ["ordinary", pytest.param("large", marks=pytest.mark.nightly)])
def test_every_value_comes_back_after_a_kill_or_was_refused_before_anything_happened(size, tmp_path):
    count = len(values.ACCEPTED) + (size == "large")

    killed = dispatch(tmp_path, "die", size)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, f"0 {count}\n"), killed.stderr
    log = tmp_path / "home/runs/values/events.jsonl"
    recorded = _ids(log)
    ledger = (tmp_path / "ledger").read_text()
    assert len(set(recorded)) == len(recorded) == len(ledger.splitlines()) == count

    resumed = dispatch(tmp_path, size)
    assert (resumed.returncode, resumed.stdout) == (0, f"{count} 0\n"), resumed.stderr
    assert _ids(log) == recorded
    assert (tmp_path / "ledger").read_text() == ledger


def _ids(log):
    return [
        event["step"] for event in map(json.loads, log.read_bytes().splitlines()) if event["type"] == "step.started"
    ]
