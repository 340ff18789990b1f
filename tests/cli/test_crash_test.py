"""`steplog crash-test`: the report, the exit codes, and the command that repeats one kill."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest

from tests.support.processes import environment
from tests.support.recorded import ROOT

EXAMPLE = ROOT / "examples/crash_test"
WORLD = ["--ledger", "shop:entries", "--reset", "rm -f shop.txt"]


@pytest.fixture
def shop(tmp_path):
    """Run the command in a copy of the example's folder."""
    for file in EXAMPLE.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())

    def run(*words):
        command = [sys.executable, "-m", "steplog", "crash-test", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)

    return run


def test_the_example_finds_the_tool_whose_author_was_wrong(shop):
    done = shop(*WORLD, "--json", "agent.py", "ord_1001")

    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["killed"] == report["points"] >= 20
    assert (report["doubled"], report["lost"], report["stuck"], report["undecided"]) == (1, 0, 0, 2)
    declare = {tool["name"]: (tool["mode"], tool["declare"]) for tool in report["tools"]}
    assert declare == {
        "lookup_order": ("safe", "safe"),
        "refund": ("keyed", "keyed"),
        "send_mail": ("safe", "unsafe"),
        "restock": ("unsafe", "verify"),
    }
    (doubled,) = [case for case in report["cases"] if case["verdict"] == "doubled"]
    assert doubled["at"] == "send_mail before-outcome"
    assert "send_mail before-outcome: doubled" in done.stderr

    again = shop(*shlex.split(doubled["again"])[2:])
    assert again.returncode == 1
    assert "killed at 1 of" in again.stdout
    assert doubled["again"] in again.stdout
    assert "agent.py:29: send_mail has an effect" in again.stdout


def test_a_run_that_waits_for_a_person_is_a_failure_only_where_that_is_asked_for(shop):
    only = ["--only", "restock:before-outcome", "agent.py", "ord_1001"]

    assert [shop(*strict, *only).returncode for strict in ([], ["--strict"])] == [0, 1]


def test_what_cannot_be_done_is_said(shop):
    missing = shop("nowhere.py")
    assert (missing.returncode, "there is no script nowhere.py" in missing.stderr) == (2, True)
    ledger = shop("--ledger", "shop:nothing", "agent.py", "a")
    assert (ledger.returncode, "--ledger shop:nothing" in ledger.stderr) == (2, True)
    reset = shop("--reset", "exit 3", "agent.py", "a")
    assert (reset.returncode, "failed with exit status 3" in reset.stderr) == (2, True)
    failing = shop("--json", "agent.py")
    assert failing.returncode == 1
    assert "recorded no step" in json.loads(failing.stdout)["error"]["message"]
