"""`steplog policy`, and policies of programs that the command line starts."""

from __future__ import annotations

import json

import pytest

import steplog

POLICY = """
default_action = "deny"

[[rules]]
id = "cap"
action = "deny"
target = "refund"
when = "args.cents > 100"
reason = "Above one dollar."

[[rules]]
id = "twice"
action = "rate_limit"
target = "refund"
rate = "2/1h"
"""

PROGRAM = """
import steplog

@steplog.step
def refund(cents):
    return cents

for cents in (50, 500):
    try:
        print("refunded", refund(cents))
    except steplog.StepDenied as denied:
        print("denied by", denied.rule, denied)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPLOG_POLICY", "")
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "agent.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def recorded(home):
    steplog.install(home=home, interceptors=[])
    with steplog.run("r1"):
        for cents in (50, 500, 60, 70):
            steplog.step("look", lambda: 1)
            refund(cents)
    yield "r1"
    steplog.uninstall()


@steplog.step
def refund(cents):
    return cents


def test_check_lists_the_rules(file, invoke, ask):
    done = invoke("policy", "check", str(file))
    assert done.exit_code == 0
    assert "2 rules, default_action deny" in done.stdout
    assert ask("policy", "check", str(file))["rules"][1] == {"id": "twice", "action": "rate_limit"}


def test_check_refuses_what_is_none_with_the_line(file, invoke):
    file.write_text(POLICY.replace("args.cents > 100", "cents > 100"))
    done = invoke("policy", "check", str(file))
    assert done.exit_code == 2
    assert f"{file}, line 8: rule 'cap': when" in done.stderr
    assert "undeclared reference to 'cents'" in done.stderr


def test_test_says_what_would_have_been_decided(file, invoke, ask, recorded):
    found = ask("policy", "test", str(file), "--run", recorded)
    steps = [(step["target"], step["decision"], step["rule"]) for step in found["steps"] if step["kind"] != "local"]
    assert steps == [
        ("refund", "allow", "twice"),
        ("refund", "deny", "cap"),
        ("refund", "allow", "twice"),
        ("refund", "rate_limit", "twice"),
    ]
    assert found["totals"] == {"allow": 6, "deny": 1, "rate_limit": 1}
    assert "1 deny" in invoke("policy", "test", str(file), "--run", "last").stdout
    assert "Above one dollar." in invoke("policy", "test", str(file), "--run", "last").stdout


def test_a_program_runs_under_a_policy_and_resumes_under_it(file, script, invoke, home, monkeypatch):
    done = invoke("run", "--policy", str(file), "--id", "r1", str(script))
    assert done.stdout == "refunded 50\ndenied by cap Above one dollar.\n"
    created = json.loads((home / "runs/r1/events.jsonl").read_bytes().splitlines()[0])["data"]
    assert created["policy"]["file"] == str(file)

    monkeypatch.setenv("STEPLOG_POLICY", "")
    file.write_text("")
    again = invoke("resume", "r1")
    assert again.stdout == done.stdout
    shown = invoke("show", "r1").stdout
    assert "denied" in shown
    assert "Above one dollar." in shown
