"""The example does what it says, with the command that it names."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from steplog._cli.main import cli
from tests.support.processes import environment
from tests.support.recorded import ROOT


def play(home):
    command = [sys.executable, str(ROOT / "examples/approval.py")]
    env = environment(STEPLOG_HOME=str(home))
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_a_refund_waits_for_a_person_and_a_second_one_is_denied(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPLOG_HOME", str(tmp_path))
    stopped = play(tmp_path)
    assert stopped.returncode == 75, stopped.stderr
    assert "Money leaves the house." in stopped.stdout
    assert "paying" not in stopped.stdout

    approved = CliRunner().invoke(cli, ["approve", "refund-ord_1001", "--note", "checked with the shop"])
    assert approved.exit_code == 0, approved.output

    for paying in (1, 0):
        done = play(tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("paying 4200") == paying
        assert "refunded 4200\nnot refunded: One refund is enough" in done.stdout
