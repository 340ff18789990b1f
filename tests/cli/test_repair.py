"""`steplog repair`: it explains before it changes anything, and a repaired run does no side effect a second time."""

from __future__ import annotations

import json

import pytest

import steplog
from tests.cli.logs import MAIL, TOOL, refund_run


def damage(log, line):
    lines = log.path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"seq"', b'"SEQ"')
    log.path.write_bytes(b"".join(lines))


def test_without_a_number_it_explains_and_changes_nothing(home, invoke, ask):
    log = refund_run(home)
    damage(log, 3)
    before = log.path.read_bytes()
    result = invoke("repair", "refund-1001")
    assert result.exit_code == 1
    assert "line 4" in result.stdout
    assert "steplog repair refund-1001 --to-seq 2\n" in result.stdout
    assert "5 events can still be read one by one, 2 of them outcomes" in result.stdout
    assert f"  {TOOL}  refund (keyed)\n  {MAIL}  send_mail (unsafe)\n" in result.stdout
    facts = ask("repair", "refund-1001")
    assert facts["ok"] is False
    assert (facts["verdict"], facts["last_good_seq"]) == ("corrupt", 2)
    assert [step["step"] for step in facts["open"]] == [TOOL, MAIL]
    assert facts["next"] == "steplog repair refund-1001 --to-seq 2"
    assert log.path.read_bytes() == before
    assert not list(log.path.parent.glob("*repair*"))


@pytest.mark.parametrize("tail", [b"", b'{"seq":9,"ty'])
def test_nothing_to_repair(home, invoke, ask, tail):
    log = refund_run(home)
    with log.path.open("ab") as file:
        file.write(tail)
    result = invoke("repair", "last")
    assert result.exit_code == 0
    assert result.stdout.startswith("nothing to repair: every event up to seq 8 verifies")
    assert ask("repair", "last")["ok"] is True
    refused = invoke("repair", "last", "--to-seq", "3")
    assert refused.exit_code == 2
    assert "not damaged" in refused.stderr


def test_it_replaces_the_log_and_says_what_is_open(home, invoke, ask):
    log = refund_run(home)
    damage(log, 3)
    result = invoke("repair", "last", "--to-seq", "2", "--by", "ada")
    assert result.exit_code == 0
    assert "holds its events up to seq 2" in result.stdout
    assert f"{log.path}.before-repair-1" in result.stdout
    assert "go on: steplog resume refund-1001" in result.stdout
    assert invoke("verify", "last").exit_code == 0
    assert ask("show", "last")["steps"]["total"] == 3


def test_a_number_that_does_not_verify_is_refused_with_the_one_that_does(home, invoke):
    log = refund_run(home)
    damage(log, 3)
    result = invoke("repair", "last", "--to-seq", "7", "--json")
    assert result.exit_code == 2
    assert "steplog repair refund-1001 --to-seq 2" in json.loads(result.stdout)["error"]["message"]


def test_a_repaired_run_does_no_side_effect_a_second_time(home, invoke):
    done = []

    @steplog.step
    def pay(what):
        done.append(what)
        return what

    def agent():
        with steplog.run("r"):
            return [pay("rent"), pay("tax"), pay("fine")]

    steplog.install(home=home, interceptors=())
    agent()
    log = home / "runs/r/events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b'"step.finished"' in line)
    log.write_bytes(b"".join([*lines[:at], lines[at].replace(b"rent", b"rant"), *lines[at + 1 :]]))
    with pytest.raises(steplog.Corrupt, match=f"steplog repair r --to-seq {at - 1}"):
        agent()
    assert invoke("repair", "r", "--to-seq", str(at - 1)).exit_code == 0
    for what in ("rent", "tax", "fine"):
        with pytest.raises(steplog.RunStopped) as stopped:
            agent()
        assert stopped.value.reason == "indeterminate"
        settled = invoke("resolve", "r", stopped.value.step, "--done", json.dumps(what))
        assert settled.exit_code == 0, settled.output
    assert agent() == ["rent", "tax", "fine"]
    assert done == ["rent", "tax", "fine"]
    steplog.uninstall()
