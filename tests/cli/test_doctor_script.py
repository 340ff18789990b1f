"""`steplog doctor SCRIPT`: what in a program is not the same when it runs again, with the line that draws it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run import Shell
from tests.support.processes import hits, provider_process
from tests.support.recorded import OWN, ROOT

SAME = """\
import os, steplog

@steplog.step
def mail(to):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(to + "\\n")
    return "sent"

print(mail("ada"), mail("bob"))
"""

OTHER = """\
import datetime, os, random, time, uuid
import steplog

@steplog.step
def mail(to, text):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(to + "\\n")
    return "sent"

def plan():
    now = time.time()
    mail("ada", f"at {now}")
    mail("bob", str(uuid.uuid4()))
    mail("cat", {"dice": random.random()})
    mail("dot", ", ".join({"tea", "cup", "pot", "can", "jar", "lid", "mug", "tin"}))
    day = datetime.date.today()
    mail("eve", "the same again")

plan()
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def doctor(shell: Shell, *words: str, **env: str) -> tuple[int, dict[str, Any]]:
    done = shell("doctor", "--json", *words, **env)
    return done.returncode, json.loads(done.stdout)


def test_a_program_that_is_the_same_again_is_told_so(shell):
    shell.script("agent.py", SAME)

    done = shell("doctor", "agent.py")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["sent sent", "every request is the same again"]
    assert shell.effects.read_text() == "ada\nbob\n"


def test_every_difference_is_told_with_its_line_and_source(shell):
    shell.script("agent.py", OTHER)

    code, found = doctor(shell, "agent.py")

    assert code == 1
    told = [(one["site"], one["field"], one["source"]) for one in found["findings"]]
    assert told == [
        ("agent.py:12 in plan", "text", "clock"),
        ("agent.py:13 in plan", "text", "uuid"),
        ("agent.py:14 in plan", "text.dice", "random"),
        ("agent.py:15 in plan", "text", "order"),
    ]
    drawn = {(one["what"], one["site"]) for one in found["draws"]}
    assert ("time.time", "agent.py:11 in plan") in drawn
    assert ("uuid.uuid4", "agent.py:13 in plan") in drawn
    assert ("random.random", "agent.py:14 in plan") in drawn
    assert ("date.today", "agent.py:16 in plan") in drawn
    assert (found["replayed"], found["live_calls"]) == (5, 0)
    assert shell.effects.read_text() == "ada\nbob\ncat\ndot\neve\n"


def test_the_text_says_what_to_write(shell):
    shell.script("agent.py", OTHER)

    done = shell("doctor", "agent.py")

    assert done.returncode == 1
    assert "1. agent.py:12 in plan: tool_call mail differs at text" in done.stdout
    assert 'install(also=["uuid"])' in done.stdout
    assert "  agent.py:16 in plan: date.today" in done.stdout
    assert done.stdout.splitlines()[-1] == "4 requests not the same again"


def test_a_recorded_run_is_examined_without_running_anything(shell):
    shell.script("agent.py", OTHER)
    assert shell("run", "--id", "r", "agent.py").returncode == 0
    before = shell.effects.read_text()

    code, found = doctor(shell, "--run", "r")

    assert code == 1
    assert len(found["findings"]) >= 3  # a set may have the same order twice
    assert shell.effects.read_text() == before


def test_what_is_recorded_is_not_told(shell):
    shell.script("agent.py", OTHER)
    also = {"STEPLOG_ALSO": "clock,uuid,random"}
    assert (
        shell("run", "--id", "r", "--also", "clock", "--also", "uuid", "--also", "random", "agent.py").returncode == 0
    )

    _, found = doctor(shell, "--run", "r", **also)

    assert {one["source"] for one in found["findings"]} <= {"order"}
    assert found["draws"] == []


CHAT = """
import sys, uuid
sys.path.insert(0, {root!r})
import openai, steplog
from tests.support.agents import first_request

request = first_request("openai/runs/refund")
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="k")
for _ in range(2):
    request["user"] = "fixed"
    client.chat.completions.create(**request, extra_headers={{"x-request-id": str(uuid.uuid4())}})
"""


def test_model_calls_through_a_real_sdk(shell):
    changed = CHAT.replace('request["user"] = "fixed"', 'request["messages"][0]["content"] = str(uuid.uuid4())')
    (shell.folder / "handler.py").write_text("")
    shell.script("agent.py", CHAT.format(root=str(ROOT)).replace('request["user"] = "fixed"', "pass"))
    with provider_process(shell.folder, OWN / "openai") as url:
        assert shell("run", "--id", "r", "agent.py", url).returncode == 0
        sent = len(hits(shell.folder))
        shell.script("agent.py", changed.format(root=str(ROOT)))

        code, found = doctor(shell, "--run", "r")

        assert (code, found["live_calls"]) == (1, 0)
        assert [one["field"] for one in found["findings"]] == ["messages[0].content"] * 2
        assert all(one["site"].startswith("agent.py:") for one in found["findings"])
        assert len(hits(shell.folder)) == sent


def test_without_a_script_it_checks_the_machine(shell):
    done = shell("doctor")

    assert "interceptors:" in done.stdout
