"""The example that waits: its process ends, a signal comes, it goes on; or it is cancelled and cleans up."""

from __future__ import annotations

import subprocess
import sys

from tests.support.processes import environment
from tests.support.recorded import ROOT


def test_it_pays_when_it_is_approved_and_gives_back_when_it_is_cancelled(tmp_path):
    def call(*words):
        command = [sys.executable, "-m", "steplog", *words]
        env = environment(STEPLOG_HOME=str(tmp_path / "home"))
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout.splitlines()

    program = str(ROOT / "examples/waiting.py")
    for name in ("yes", "no"):
        assert call("run", "--id", name, "--on-wait", "suspend", program, name) == (75, [f"reserved for {name}"])
    assert call("signal", "yes", "approved", '{"cents": 4200}')[0] == 0
    assert call("cancel", "no")[0] == 0
    code, lines = call("resume", "--due")
    assert code == 0
    assert lines == ["paid 4200 from reservation-yes", "paid", "released reservation-no"]
