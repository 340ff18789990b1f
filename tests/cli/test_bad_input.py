"""What a user gets wrong is answered by a typed error that says what to do: no traceback, and JSON on request."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.logs import MAIL, MODEL, LogFile, refund_run


def no_run(home):
    return ["show", "nothing"], "UnknownRun", "steplog ls"


def no_runs_at_all(home):
    return ["show", "last"], "UnknownRun", "steplog run SCRIPT"


def ambiguous(home):
    LogFile(home, "refund-1").begin()
    LogFile(home, "refund-2").begin()
    return ["show", "refund"], "UnknownRun", "refund-1, refund-2"


def no_step(home):
    refund_run(home)
    return ["show", "last", "s_zz"], "UnknownStep", "steplog show refund-1001"


def not_a_run(home):
    home.mkdir()
    return ["show", str(home)], "UnknownRun", "events.jsonl"


def outside_a_home(home):
    home.mkdir()
    (home / "events.jsonl").write_text("")
    return ["show", str(home)], "InvalidArgument", "HOME/runs/RUN"


def damaged(home):
    log = refund_run(home)
    log.path.write_bytes(log.path.read_bytes().replace(b"4200", b"9900", 1))
    return ["show", "last"], "Corrupt", "line "


def newer(home):
    log = LogFile(home, "r").add("run.created", format="steplog/9", run_id="r")
    assert log.path.exists()
    return ["show", "r"], "UnsupportedFormat", "steplog/9"


def home_is_a_file(home):
    home.write_text("")
    return ["ls"], "StoreError", "STEPLOG_HOME"


def bad_id(home):
    script = home.with_name("agent.py")
    script.write_text("")
    return ["run", "--id", "../x", str(script)], "InvalidArgument", "../x"


def bad_level(home):
    script = home.with_name("agent.py")
    script.write_text("")
    return ["run", "--durability", "paper", str(script)], "InvalidArgument", "durable"


def no_script(home):
    return ["run", "nowhere.py"], "InvalidArgument", "nowhere.py"


def no_entry(home):
    LogFile(home, "r").begin()
    return ["resume", "r"], "SteplogError", 'steplog.run("r")'


def script_is_gone(home):
    LogFile(home, "r").begin(entry={"script": "/nowhere/agent.py", "argv": [], "cwd": str(home)})
    return ["resume", "r"], "SteplogError", "/nowhere/agent.py"


def directory_is_gone(home):
    LogFile(home, "r").begin(entry={"script": sys.executable, "argv": [], "cwd": "/nowhere"})
    return ["resume", "r"], "SteplogError", "/nowhere"


def not_in_doubt(home):
    refund_run(home)
    return ["resolve", "last", MODEL, "--retry"], "InvalidArgument", "done"


def two_verdicts(home):
    refund_run(home)
    return ["resolve", "last", MAIL, "--retry", "--done", "1"], "UsageError", "exactly one"


def no_verdict(home):
    refund_run(home)
    return ["resolve", "last", MAIL], "UsageError", "exactly one"


def not_json(home):
    refund_run(home)
    return ["resolve", "last", MAIL, "--done", "sent"], "InvalidArgument", "JSON"


def no_such_verb(home):
    return ["shwo"], "NoSuchCommand", "shwo"


USAGE = {bad_id, bad_level, no_script, outside_a_home, not_in_doubt, two_verdicts, no_verdict, not_json, no_such_verb}
CASES = [
    no_run, no_runs_at_all, ambiguous, no_step, not_a_run, outside_a_home, damaged, newer, home_is_a_file,
    bad_id, bad_level, no_script, no_entry, script_is_gone, directory_is_gone,
    not_in_doubt, two_verdicts, no_verdict, not_json, no_such_verb,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_error_is_typed_and_teaches(home, invoke, case):
    words, _, hint = case(home)
    result = invoke(*words)
    assert result.exit_code == (2 if case in USAGE else 1)
    assert isinstance(result.exception, SystemExit)
    assert hint in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_error_is_json_on_request(home, invoke, case):
    (verb, *rest), kind, hint = case(home)
    result = invoke(verb, "--json", *rest)
    error = json.loads(result.stdout)["error"]
    assert error["type"] == kind
    assert hint in error["message"]


def test_the_words_of_a_script_are_not_ours(home, invoke):
    (verb, *rest), _, _ = bad_id(home)
    assert invoke(verb, *rest, "--json").stdout == ""


def test_reading_changes_nothing(home, invoke):
    log = refund_run(home)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    for words in (("ls",), ("show", "last"), ("show", "last", MAIL), ("verify", "last")):
        invoke(*words)
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    assert log.path in before


def test_a_reader_that_stops_reading_is_no_error(home):
    for number in range(200):
        LogFile(home, f"run-{number}").begin(goal="x" * 500)
    command = [sys.executable, "-m", "steplog", "ls", "--limit", "200", "--home", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
