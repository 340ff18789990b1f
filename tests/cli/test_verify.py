"""`steplog verify` says that a log and its bodies are whole, or where exactly they are not."""

from __future__ import annotations

import json

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
