"""`steplog show` tells what a run did, and everything that is known of a step."""

from __future__ import annotations

import fcntl
import os

import pytest

from tests.cli.logs import ANSWER, INNER, MAIL, MODEL, REQUEST, TOOL, LogFile, refund_run


def test_a_run_says_what_it_was_for_and_how_it_stands(home, invoke):
    refund_run(home)
    text = invoke("show", "refund-1001").stdout
    for words in ("refund-1001", "interrupted", "refund the damaged item", "git:0123456789", "command by ada",
                  "/srv/agent.py ord_1001", "3/4 done", "1 in doubt", "1,204 in, 88 out"):  # fmt: skip
        assert words in text


def test_steps_are_listed_inside_the_step_that_made_them(home, ask):
    refund_run(home)
    tree = ask("show", "refund-1001")["tree"]
    assert [node["step"] for node in tree] == [MODEL, TOOL, MAIL]
    assert [node["step"] for node in tree[1]["steps"]] == [INNER]


def test_the_list_is_indented_by_scope_and_holds_whole_ids(home, invoke):
    refund_run(home)
    lines = invoke("show", "refund-1001").stdout.splitlines()
    outer = next(line for line in lines if TOOL in line)
    inner = next(line for line in lines if INNER in line)
    assert len(inner) - len(inner.lstrip()) > len(outer) - len(outer.lstrip())


def test_a_step_in_doubt_comes_with_the_command_that_settles_it(home, ask):
    refund_run(home)
    assert ask("show", "last")["next"] == [
        f"steplog resolve refund-1001 {MAIL} --done JSON    (or --retry, --failed MESSAGE, --unknown)"
    ]


def test_a_home_named_by_option_is_named_in_the_command(home, invoke):
    refund_run(home)
    assert f"--home {home}" in invoke("show", "last", "--home", str(home)).stdout


def test_a_model_call_is_shown_message_by_message(home, invoke):
    refund_run(home)
    text = invoke("show", "last", MODEL).stdout
    for words in ("--- system", "You are a careful clerk.", "--- user", "Refund order ord_1001.", "temperature",
                  "--- assistant", '-> refund({"cents": 4200})', "gpt-5.2-2026-02-01", "req_77", "1,204 in, 88 out",
                  "900 ms waiting on the provider", "10 ms in the SDK and steplog", "parsed       ok"):  # fmt: skip
        assert words in text


def test_a_step_as_json_has_input_and_output_verbatim(home, ask):
    refund_run(home)
    detail = ask("show", "last", MODEL)
    assert detail["input"]["body"] == REQUEST
    assert detail["input"]["params"] == {"text": "plain"}
    assert detail["output"][0]["body"] == ANSWER
    assert detail["ms"] == {"total": 910.0, "provider": 900.0, "own": 10.0}


def test_a_tool_shows_its_key_arguments_result_and_parent(home, ask, invoke):
    refund_run(home)
    tool, inner = ask("show", "last", TOOL), ask("show", "last", INNER)
    assert tool["idempotency_key"] == f"refund-1001:{TOOL}"
    assert tool["input"] == {"order_id": "ord_1001", "cents": 4200}
    assert tool["output"] == {"receipt": "r_1"}
    assert f"refund-1001:{TOOL}" in invoke("show", "last", TOOL).stdout
    assert inner["parent"] == TOOL
    assert inner["input"] == {"text": "a note"}


def test_every_attempt_is_listed(home, ask):
    log = LogFile(home, "r").begin().tool(TOOL, "refund")
    log.add(
        "step.finished", TOOL, outcome="failed", attempt=1, error={"type": "Timeout", "message": "slow"}, status=504
    )
    log.add("step.started", TOOL, kind="tool_call", target="refund", mode="unsafe", attempt=2)
    log.add("step.resolved", TOOL, how="done", result=1, by="ada", note="seen in the ledger")
    first, second = ask("show", "r", TOOL)["attempts"]
    assert (first["outcome"], first["status_code"], first["error"]["type"]) == ("failed", 504, "Timeout")
    assert (second["outcome"], second["by"], second["note"]) == ("settled: done", "ada", "seen in the ledger")


def test_a_large_body_is_fetched_from_the_body_store(home, ask, invoke):
    log = LogFile(home, "r").begin()
    data = b'{"messages":[{"role":"user","content":"' + b"long " * 2000 + b'"}]}'
    log.model(MODEL, {"body": log.body(data), "size": len(data)})
    assert ask("show", "r", MODEL)["input"]["body"]["messages"][0]["content"] == "long " * 2000
    assert "--- user" in invoke("show", "r", MODEL).stdout


def test_a_large_result_is_fetched_from_the_body_store(home, ask):
    log = LogFile(home, "r").begin().tool(TOOL, "search")
    reference = {"$steplog": "body", "sha256": log.body(b'["found"]'), "size": 9}
    log.add("step.finished", TOOL, outcome="done", attempt=1, result=reference)
    assert ask("show", "r", TOOL)["output"] == ["found"]


def test_a_body_that_is_gone_is_said_to_be_gone(home, invoke):
    log = LogFile(home, "r").begin()
    log.model(MODEL, {"body": "0" * 64, "size": 5000})
    shown = invoke("show", "r", MODEL)
    assert shown.exit_code == 0
    assert "missing" in shown.stdout
    assert "0" * 64 in shown.stdout


def test_events_of_unknown_kinds_are_passed_over_and_named(home, invoke, ask):
    refund_run(home).add("step.dreamt", MAIL, about="sheep").add("run.sang", song="la")
    assert invoke("show", "last").exit_code == 0
    assert [event["type"] for event in ask("show", "last")["unknown_events"]] == ["step.dreamt", "run.sang"]
    assert "step.dreamt" in str(ask("show", "last", MAIL)["attempts"])
    assert invoke("show", "last", MAIL).exit_code == 0


def test_a_run_that_somebody_holds_is_running(home, ask):
    log = refund_run(home)
    lock = os.open(log.path.with_name("events.lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shown = ask("show", "last")
    finally:
        os.close(lock)
    assert shown["status"] == "running"
    assert shown["tree"][-1]["status"] == "running"
    assert shown["next"] == []


@pytest.mark.parametrize("poison", ["\x1b[2J", "\x07", "\u202e", "\r"], ids=["escape", "bell", "bidi", "return"])
def test_what_a_log_holds_cannot_drive_the_terminal(home, invoke, poison):
    log = LogFile(home, "r").begin(goal=f"goal{poison}")
    log.tool(TOOL, f"tool{poison}", text=f"argument{poison}", **{f"name{poison}": 1})
    for words in (("ls",), ("show", "r"), ("show", "r", TOOL)):
        assert poison not in invoke(*words).stdout


def test_markup_in_a_log_is_text(home, invoke):
    text = "[bold]now[/bold] :smile:"
    LogFile(home, "r").begin(goal=text).tool(TOOL, "t").add("step.resolved", TOOL, how="done", result=text, note=text)
    assert text in invoke("show", "r").stdout
    assert invoke("show", "r", TOOL).stdout.count(text) == 3


def test_a_step_that_cannot_be_returned_or_was_given_up_is_not_shown_as_ordinary(home, ask):
    log = LogFile(home, "odd").add("run.created", format="steplog/1", run_id="odd").add("run.claimed")
    for step, outcome in (("s_lost", "done"), ("s_given_up", "cancelled"), ("s_last", "done")):
        log.add("step.started", step, kind="tool_call", target="t", mode="unsafe", attempt=1)
        log.add("step.finished", step, outcome=outcome, **({"unreplayable": {"why": "w"}} if step == "s_lost" else {}))

    statuses = [ask("show", "odd", step)["status"] for step in ("s_lost", "s_given_up", "s_last")]

    assert statuses == ["not returnable", "given up", "done"]


def test_a_run_as_it_stood_when_a_step_began(home, ask, invoke):
    refund_run(home).add("run.suspended", reason="interrupted")
    found = ask("show", "last", "--at", "3")

    assert [node["step"] for node in found["tree"]] == [MODEL, TOOL]
    assert found["tree"][1]["status"] == "running"
    assert found["tree"][1]["steps"][0]["status"] == "running"
    assert found["status"] == "running"
    assert found["steps"] == {"total": 3, "done": 1, "running": 2}
    assert found["tokens"] == {"input": 1204, "output": 88}
    assert found["at"]["step"] == INNER
    text = invoke("show", "last", "--at", "3").stdout
    assert "when step #3 began" in text
    assert "send_mail" not in text
    assert "in doubt" not in text


def test_a_step_as_it_stood_when_another_began(home, ask):
    refund_run(home)
    assert ask("show", "last", TOOL, "--at", "3")["output"] is None
    assert ask("show", "last", TOOL, "--at", "4")["output"] == {"receipt": "r_1"}
    refused = ask("show", "last", MAIL, "--at", "3")["error"]
    assert refused["type"] == "UnknownStep"
    assert "had not begun" in refused["message"]


def test_the_middle_of_a_long_list_is_left_out_unless_all_is_asked_for(home, invoke):
    log = LogFile(home, "r").begin()
    for number in range(100):
        log.tool(f"s_{number}", f"tool_{number}", mode="safe")
        if number != 50:
            log.add("step.finished", f"s_{number}", outcome="done", attempt=1, result=1)
    for words in (("show", "r"), ("show", "r", "--at", "100")):
        lines = invoke(*words).stdout.splitlines()
        shown = [number for number in range(100) if any(f" tool_{number} " in f"{line} " for line in lines)]
        assert shown == [*range(20), 50, *range(60, 100)]
        assert "39 steps of the middle are left out; --all shows them" in lines[-1 if "--at" in words else -3]
    assert "tool_30" in invoke("show", "r", "--at", "100", "--all").stdout
