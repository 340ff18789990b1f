"""`steplog verify` says that a log and its bodies are whole, or where exactly they are not."""

from __future__ import annotations

import json
import sqlite3

import pytest

import steplog
from tests.cli.logs import MODEL, TOOL, LogFile, refund_run


def test_a_whole_log(home, invoke, ask):
    refund_run(home)
    result = invoke("verify", "last")
    assert result.exit_code == 0
    assert result.stdout.startswith("ok: 9 events")
    facts = ask("verify", "last")
    assert facts["ok"] is True
    assert facts["last_seal"] in result.stdout


def test_a_changed_byte_is_named_by_line_and_offset(home, invoke):
    log = refund_run(home)
    lines = log.path.read_bytes().splitlines(keepends=True)
    changed = [line.replace(b"4200", b"9900", 1) if index == 4 else line for index, line in enumerate(lines)]
    log.path.write_bytes(b"".join(changed))
    result = invoke("verify", "last", "--json")
    assert result.exit_code == 1
    facts = json.loads(result.stdout)
    assert facts["ok"] is False
    error = facts["error"]
    assert error["line"] == 5
    assert error["offset"] == sum(map(len, lines[:4]))
    assert error["last_good_seq"] == 3
    text = invoke("verify", "last")
    assert text.exit_code == 1
    assert "last good seq" in text.stdout


def test_a_torn_tail_is_no_damage(home, invoke, ask):
    log = refund_run(home)
    with log.path.open("ab") as file:
        file.write(b'{"seq":9,"type":"st')
    assert invoke("verify", "last").exit_code == 0
    assert ask("verify", "last")["torn"] == 19


def test_bodies_are_checked(home, ask):
    log = LogFile(home, "r").begin()
    log.model(MODEL, {"body": log.body(b"x" * 5000), "size": 5000})
    log.tool(TOOL, "search")
    log.add("step.finished", TOOL, result={"$steplog": "body", "sha256": log.body(b'"y"'), "size": 3})
    assert ask("verify", "r")["bodies"] == 2
    assert ask("verify", "r")["ok"] is True


def test_a_missing_body_is_a_fault(home, invoke, ask):
    LogFile(home, "r").begin().model(MODEL, {"body": "0" * 64, "size": 5000})
    (fault,) = ask("verify", "r")["faults"]
    assert (fault["seq"], fault["step"], fault["body"]) == (2, MODEL, "0" * 64)
    assert fault["error"]["type"] == "BodyMissing"
    result = invoke("verify", "r")
    assert result.exit_code == 1
    assert "0" * 64 in result.stdout


def test_what_only_looks_like_a_reference_is_none(home, ask):
    log = LogFile(home, "r").begin()
    log.tool(TOOL, "post", body="0" * 64, size=1)
    log.model(MODEL, {"json": {"messages": [], "body": "0" * 64, "size": 1}})
    log.add("step.started", MODEL, request={"params": {"prompt": {"body": "0" * 64, "size": 1}}, "body": {"text": ""}})
    facts = ask("verify", "r")
    assert (facts["ok"], facts["bodies"]) == (True, 0)


def test_all_runs_are_whole(home, invoke, ask):
    refund_run(home)
    refund_run(home, "refund-1002")
    result = invoke("verify", "--all")
    assert result.exit_code == 0
    assert result.stdout == "ok: 2 whole runs; 18 events, 0 bodies\n"
    facts = ask("verify", "--all")
    assert facts["ok"] is True
    assert {run["run"] for run in facts["runs"]} == {"refund-1001", "refund-1002"}


def test_one_damaged_run_among_all_is_named_and_the_others_are_checked(home, invoke, ask):
    log = refund_run(home)
    refund_run(home, "refund-1002")
    log.path.write_bytes(log.path.read_bytes().replace(b"4200", b"9900"))
    torn = refund_run(home, "torn").path
    torn.write_bytes(torn.read_bytes()[:-10])
    result = invoke("verify", "--all")
    assert result.exit_code == 1
    assert "refund-1001/events.jsonl, line " in result.stdout
    assert "what to do: steplog repair refund-1001\n" in result.stdout
    assert "faults: 2 whole runs, 1 damaged: refund-1001; 17 events" in result.stdout
    facts = ask("verify", "--all")
    assert facts["damaged"] == ["refund-1001"]
    assert {run["run"]: run["ok"] for run in facts["runs"]} == {"refund-1001": False, "refund-1002": True, "torn": True}


def test_a_body_that_several_runs_name_is_a_fault_of_each(home, invoke, ask):
    for run_id in ("a", "b"):
        LogFile(home, run_id).begin().model(MODEL, {"body": "0" * 64, "size": 5000})
    facts = ask("verify", "--all")
    assert sorted(facts["damaged"]) == ["a", "b"]
    assert invoke("verify", "--all").stdout.count("bad body: run ") == 2


def test_a_damaged_body_that_no_run_names_is_found(home, invoke, ask):
    log = refund_run(home)
    log.body(b"x" * 9000)
    db = sqlite3.connect(home / "bodies.db")
    db.execute("UPDATE chunks SET data = zeroblob(length(data))")
    db.commit()
    db.close()
    result = invoke("verify", "--all")
    assert result.exit_code == 1
    assert result.stdout.startswith("bad body: ")
    facts = ask("verify", "--all")
    assert (facts["ok"], facts["damaged"], facts["bodies"]["checked"]) == (False, [], 1)


def test_without_the_key_the_bodies_are_named_and_the_rest_is_checked(home, invoke, ask, monkeypatch):
    pytest.importorskip("cryptography")
    refund_run(home)
    monkeypatch.setenv("STEPLOG_KEY", invoke("key").stdout.strip())
    steplog.install(home=home, interceptors=[])
    with steplog.run("sealed"):
        for number in range(2):
            steplog.step(f"read {number}", lambda number=number: f"{number} " * 3_000)
    assert ask("verify", "--all")["ok"]
    monkeypatch.delenv("STEPLOG_KEY")
    facts = ask("verify", "--all")
    assert (facts["ok"], facts["damaged"], len(facts["runs"])) == (False, ["sealed"], 2)
    for words in (("sealed",), ("--all",)):
        shown = invoke("verify", *words)
        assert shown.exit_code == 1
        assert shown.stdout.count("needs the key") >= 2
        assert shown.stdout.count("Set STEPLOG_KEY to that key.") == 1, "what helps is said once"


def test_a_home_without_runs_is_whole(home, invoke):
    home.mkdir()
    result = invoke("verify", "--all")
    assert (result.exit_code, result.stdout) == (0, "ok: 0 whole runs; 0 events, 0 bodies\n")


def test_a_home_that_is_not_there_is_not_called_whole(home, invoke):
    result = invoke("verify", "--all")
    assert result.exit_code == 1
    assert f"there is no home at {home}, so nothing was checked." in result.stderr


def test_a_run_or_all_but_not_both_and_not_neither(home, invoke):
    refund_run(home)
    for words in ((), ("refund-1001", "--all")):
        result = invoke("verify", *words)
        assert result.exit_code == 2
        assert "Name a run, or say --all." in result.stderr
