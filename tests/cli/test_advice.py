"""The command that goes on is one that goes on: typed as it stands, it does not end in the same place again."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from steplog.testing import LocalProvider
from steplog.testing.provider import Fault, Reply
from tests.cli.logs import MAIL, TOOL, LogFile, refund_run
from tests.cli.test_run import STEPLOG, Shell, last_line

CHARGE = """\
import sys
import httpx
answer = httpx.post(sys.argv[1] + "/charge", json={"cents": 1})
answer.raise_for_status()
print("charged")
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.parametrize("fault", ["status", "drop"])
def test_a_failure_that_is_returned_for_ever_is_not_to_be_resumed(shell, fault):
    shell.script("charge.py", CHARGE)
    with LocalProvider(handler=lambda _hit: Reply.json({})) as provider:
        provider.inject(Fault(fault, status=503))
        failed = shell("run", "--id", "r", "--http", "127.0.0.1", "charge.py", provider.url)
        again = shell("resume", "r")
        step = shell.facts("r")["tree"][0]
        for done in (failed, again):
            assert done.returncode == 1
            assert last_line(done) == f"steplog resolve r {step['step']} --retry    (or --done JSON)"
        assert shell.facts("r")["next"] == [last_line(failed)]
        told = "status 503: Service Unavailable" if fault == "status" else "RemoteProtocolError: "
        for text in (shell("show", "r").stdout, shell("show", "r", step["step"]).stdout):
            assert told in text
        words = shlex.split(last_line(failed))
        assert shell(*words[1:4], "--retry").returncode == 0
        assert shell.facts("r")["next"] == ["steplog resume r"]
        assert shell("resume", "r").stdout == "charged\n"


def test_a_failure_that_the_program_handled_did_not_end_the_run(home, ask):
    log = LogFile(home, "r").begin()
    log.tool(MAIL, "send").add("step.finished", MAIL, outcome="failed", attempt=1, status=503)
    log.add("run.ended", outcome="failed", reason="error", error={"type": "KeyError", "message": "'x'"}, retry=[])
    assert ask("show", "r")["next"] == ["steplog resume r"]


def test_a_failure_behind_the_error_that_ended_the_run_counts(home, ask):
    log = LogFile(home, "r").begin()
    log.tool(MAIL, "send").add(
        "step.resolved", MAIL, how="failed", error={"type": "StepFailed", "message": "the bank says no"}
    )
    log.add(
        "run.ended", outcome="failed", reason="exit", error={"type": "SystemExit", "message": "1"}, retry=[],
        causes=[{"type": "AgentError", "message": "tool"}, {"type": "StepFailed", "message": "the bank says no"}],
    )  # fmt: skip
    assert ask("show", "r")["next"] == [f"steplog resolve r {MAIL} --retry    (or --done JSON)"]


def test_a_failure_that_is_tried_again_is_to_be_resumed(home, ask):
    error = {"type": "ValueError", "message": "no"}
    log = LogFile(home, "r").begin()
    log.tool(TOOL, "send").add("step.finished", TOOL, outcome="failed", attempt=1, error=error)
    log.add("run.ended", outcome="failed", reason="error", error=error, retry=[TOOL])
    assert ask("show", "r")["next"] == ["steplog resume r"]


def test_what_an_error_came_from_is_recorded(shell):
    text = (
        "import steplog, sys\nwith steplog.run('own'):\n    try:\n        raise ValueError('deep')\n"
        "    except ValueError as error:\n        raise RuntimeError('outer') from error\n"
    )
    shell.script("own.py", "import steplog\nsteplog.install()\n" + text)
    shell.execute([sys.executable, "own.py"])
    log = (shell.home / "runs" / "own" / "events.jsonl").read_text()
    assert '"causes":[{"type":"ValueError","message":"deep"}]' in log


PAYING = """\
import sys, time
import steplog
@steplog.step
def pay():
    print("here", flush=True)
    time.sleep(60)
pay()
"""


def test_a_side_effect_that_was_interrupted_is_settled_first(shell):
    shell.script("pay.py", PAYING)
    words = [*STEPLOG, "run", "--id", "r", "pay.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=shell.folder, env=shell.env, text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    facts = shell.facts("r")
    line = f"steplog resolve r {facts['tree'][0]['step']} --done JSON    (or --retry, --failed MESSAGE, --unknown)"
    assert err.splitlines()[-1] == line
    assert facts["next"] == [line]


def test_a_renamed_run_is_renamed_back_and_never_emptied(home, invoke):
    log = refund_run(home, "refund-1001")
    renamed = log.path.parent.rename(home / "runs" / "refund-1002")
    shown = invoke("show", "refund-1002")
    assert f"\n  mv {renamed} {home / 'runs' / 'refund-1001'}\n" in shown.stderr
    assert "truncate" not in shown.stderr
    (line,) = (line for line in shown.stderr.splitlines() if line.startswith("  mv "))
    subprocess.run(shlex.split(line), check=True)
    assert invoke("show", "refund-1001").exit_code == 0


SECRET = """\
import os, steplog
@steplog.step
def pay():
    raise ValueError("refused: " + os.environ["SHOP_API_KEY"])
try:
    pay()
except ValueError as error:
    print("told", type(error).__name__)
"""


def test_a_failure_whose_error_lost_a_secret_is_said_to_have_failed(shell):
    shell.script("pay.py", SECRET)
    shell.env["SHOP_API_KEY"] = "k-49271-zaQ!77"
    assert shell("run", "--id", "r", "pay.py").returncode == 0
    stopped = shell("resume", "r")
    assert stopped.returncode == 75
    assert "tool_call pay (s_" in stopped.stderr
    assert ") failed, but its error cannot be raised again" in stopped.stderr
    assert "Recorded of it: ValueError: refused: [redacted" in stopped.stderr
    assert "happened, but" not in stopped.stderr
    step = shell.facts("r")["tree"][0]["step"]
    assert last_line(stopped) == f"steplog resolve r {step} --failed MSG"
    assert shell("resolve", "r", step, "--failed", "refused").returncode == 0


DRAWING = """\
import sys, steplog
@steplog.step
def send(text):
    return text
print(send(sys.argv[1]))
"""


def test_a_completed_run_that_drifts_is_looked_at_and_says_how_it_was_started(shell):
    script = shell.script("send.py", DRAWING)
    assert shell("run", "--id", "r", "send.py", "one").returncode == 0
    other = shell("run", "--id", "r", "send.py", "the other")
    assert other.returncode == 75
    assert last_line(other) == "steplog show r"
    assert f"This run was started with: {script} one\n" in other.stderr
    assert f"This program is:           {script} 'the other'\n" in other.stderr
    assert "give it an id of its own" in other.stderr
    fixed = shell("replay", "r", "send.py", "the other")
    assert fixed.returncode == 1
    assert f"This program is:           {script} 'the other'\n" in fixed.stderr
    assert "nothing new happens in a replay" in fixed.stderr
    assert "of its own" not in fixed.stderr  # another program is what a replay is for
    assert "belongs in a step: value = steplog.step(" in other.stderr
    script.write_text(DRAWING.replace("sys.argv[1]", "sys.argv[1] * 2"))
    changed = shell("resume", "r")
    assert (changed.returncode, last_line(changed)) == (75, "steplog show r")
    assert "started with" not in changed.stderr


SETTINGS = "from steplog import plugins\nprint(plugins.settings().also, plugins.settings().http)\n"


@pytest.mark.parametrize("own", [False, True], ids=["wrapped", "own"])
def test_what_a_resumed_run_records_beside_can_be_named(shell, own):
    opened = "import steplog\nsteplog.install()\nwith steplog.run('r'):\n    pass\n" if own else ""
    script = shell.script("agent.py", opened + SETTINGS)
    shell.execute([sys.executable, str(script)]) if own else shell("run", "--id", "r", "agent.py")
    resumed = shell("resume", "r", "--also", "uuid", "--http", "a.example")
    assert resumed.stdout == "('uuid',) ('a.example',)\n"
