"""`steplog ls` lists every run, whatever state its log is in and however narrow the terminal."""

from __future__ import annotations

import os

import pytest

from tests.cli.logs import MAIL, LogFile, refund_run

LONG_ID = "refund-" + "1" * 60


def older(log: LogFile) -> None:
    os.utime(log.path, (1_000_000_000, 1_000_000_000))


def test_an_empty_home_says_how_to_fill_it(invoke):
    result = invoke("ls")
    assert result.exit_code == 0
    assert "steplog run SCRIPT" in result.stdout


def test_an_empty_home_is_an_empty_list(ask):
    assert ask("ls") == []


def test_a_line_has_the_facts_of_a_run(home, invoke, ask):
    refund_run(home)
    (facts,) = ask("ls")
    assert facts["run"] == "refund-1001"
    assert facts["steps"] == {"total": 4, "done": 3, "in doubt": 1}
    assert facts["tokens"] == {"input": 1204, "output": 88}
    assert facts["seconds"] == 8
    line = invoke("ls").stdout.splitlines()[1]
    for words in (
        "refund-1001",
        "interrupted (1 step in doubt)",
        "3/4",
        "1,204 in, 88 out",
        "8.0 s",
        "refund the damaged item",
    ):
        assert words in line


def test_replays_of_a_completed_run_take_no_time_of_it(home, invoke, ask):
    log = refund_run(home).add("run.ended", outcome="completed", reason="done")
    (facts,) = ask("ls")
    log.add("run.claimed", pid=2, host="h").add("run.ended", outcome="completed", reason="done")
    (again,) = ask("ls")
    assert again["seconds"] == facts["seconds"] == 9
    assert (again["last"], again["events"]) != (facts["last"], facts["events"])
    assert "took 9.0 s" in invoke("show", "refund-1001").stdout


def test_a_run_that_stood_still_did_not_take_that_time(home, invoke, ask):
    log = refund_run(home).rest(40)
    log.add("run.claimed", pid=2, host="h").add("run.ended", outcome="completed", reason="done")
    (facts,) = ask("ls")
    assert (facts["seconds"], facts["stopped_seconds"]) == (9, 41)
    assert "took 9.0 s, stood still for 41.0 s" in invoke("show", "refund-1001").stdout


def test_what_cannot_be_returned_was_done_all_the_same(home, invoke, ask):
    log = LogFile(home, "r").begin().tool("s_1", "pay").tool("s_2", "look", mode="safe")
    log.add("step.finished", "s_1", outcome="done", attempt=1, unreplayable={"path": "pay", "type": "Socket"})
    log.add("step.finished", "s_2", outcome="done", attempt=1, result=1)
    log.add("run.ended", outcome="completed", reason="done")
    assert ask("ls")[0]["steps"] == {"total": 2, "done": 1, "not returnable": 1}
    assert "2/2" in invoke("ls").stdout


def test_newest_first_and_no_more_than_the_limit(home, invoke, ask):
    older(LogFile(home, "first").begin())
    LogFile(home, "second").begin()
    assert [row["run"] for row in ask("ls")] == ["second", "first"]
    assert [row["run"] for row in ask("ls", "--limit", "1")] == ["second"]
    assert "1 older runs" in invoke("ls", "--limit", "1").stdout


@pytest.mark.parametrize(
    "ending, status",
    [
        (("run.ended", {"outcome": "completed", "reason": "completed"}), "completed"),
        (("run.ended", {"outcome": "failed", "reason": "error"}), "failed (error)"),
        (("run.suspended", {"reason": "indeterminate"}), "suspended (indeterminate)"),
    ],
)
def test_the_status_is_what_the_log_ends_with(home, invoke, ending, status):
    kind, data = ending
    LogFile(home, "r").begin().add(kind, **data)
    assert status in invoke("ls").stdout


def test_a_damaged_log_does_not_hide_the_others(home, invoke, ask):
    damaged = refund_run(home, "damaged")
    damaged.path.write_bytes(damaged.path.read_bytes().replace(b"4200", b"9900", 1))
    refund_run(home, "whole")
    assert {row["run"]: row["status"] for row in ask("ls")} == {"damaged": "unreadable", "whole": "interrupted"}
    assert invoke("ls").exit_code == 0


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_ids_are_whole_at_every_width(home, invoke, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes the output a terminal's, which has a width
    refund_run(home, LONG_ID)
    for words in (("ls",), ("show", "last"), ("show", "last", MAIL)):
        assert LONG_ID in invoke(*words).stdout
    assert MAIL in invoke("show", "last").stdout


def test_no_color_into_a_pipe_and_none_where_it_is_unwanted(home, invoke, monkeypatch):
    refund_run(home)
    assert "\x1b" not in invoke("ls").stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "33m" in invoke("ls").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "33m" not in invoke("ls").stdout


@pytest.mark.parametrize("columns", ["200", "40"])
def test_why_a_run_stopped_is_not_its_goal(home, invoke, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    LogFile(home, "r").begin().add("run.suspended", reason="drift", message="run r: the program asks for more.")
    LogFile(home, "goal").begin(goal="refund").add("run.suspended", reason="drift", message="another reason")
    text = invoke("ls").stdout
    for run, why in (("r", "run r: the program asks for more."), ("goal", "another reason")):
        (index,) = (n for n, line in enumerate(text.splitlines()) if line.split()[:1] == [run])
        assert why not in text.splitlines()[index]
        told = [line for line in text.splitlines() if line.endswith(why)]
        assert [line.split()[0].rstrip(":") for line in told] == ["why"]
    assert " refund" in text
