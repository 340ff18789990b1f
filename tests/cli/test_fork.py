"""`steplog fork` with real scripts in real processes: what is shared, what happens again, and what a kill leaves."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from steplog.stores.files import FileStore
from tests.cli.test_run import NO_ID, OWN_ID, RECORDED, Shell, last_line

STOPPED = 75


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def sent(shell: Shell) -> list[str]:
    return shell.effects.read_text().splitlines() if shell.effects.exists() else []


def log_of(shell: Shell, run: str) -> bytes:
    return (shell.home / "runs" / run / "events.jsonl").read_bytes()


def test_a_dry_run_says_what_would_happen_and_writes_nothing(shell):
    shell("run", "--id", "r", "agent.py", "tea")
    told = shell("fork", "r", "--at", "2", "--set", "to=bob", "--dry-run")

    assert told.returncode == 0
    assert "fork of r at #2 (tool_call mail)" in told.stdout
    assert "returned from the log: 1 steps" in told.stdout
    assert 'changed: to: "ada" -> "bob"' in told.stdout
    assert "what is not declared safe stops it" in told.stdout
    assert [path.name for path in (shell.home / "runs").iterdir()] == ["r"]
    facts = json.loads(shell("fork", "r", "--dry-run", "--json").stdout)
    assert [step["target"] for step in facts["real"]] == ["mail"]


def test_a_fork_starts_the_script_and_stops_before_the_side_effect(shell):
    shell("run", "--id", "r", "agent.py", "tea")
    before = log_of(shell, "r")
    done = shell("fork", "r", "--at", "2")

    assert done.returncode == STOPPED
    assert sent(shell) == ["mail ada"]
    assert "so this branch is a simulation" not in done.stderr  # nothing of the shared part was real
    assert last_line(done).startswith("steplog resolve r-fork-1 s_")
    assert log_of(shell, "r") == before
    facts = shell.facts("r-fork-1")
    assert (facts["status"], facts["reason"]) == ("suspended", "simulated")
    assert facts["fork"]["run"] == "r"
    assert "fork of r at #2" in shell("ls").stdout
    assert "1 steps shared" in shell("show", "r-fork-1").stdout


def test_the_command_that_it_prints_lets_the_simulation_go_on(shell):
    shell("run", "--id", "r", "agent.py", "tea")
    stopped = shell("fork", "r", "--at", "2")
    given = last_line(stopped).replace("JSON", "'\"as if sent\"'")
    settled = shell.line(given)
    assert settled.returncode == 0, settled.stderr
    done = shell("resume", "r-fork-1")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("TEA as if sent")
    assert sent(shell) == ["mail ada"]


def test_live_tools_happen_and_the_change_is_what_happens(shell):
    shell("run", "--id", "r", "agent.py", "tea")
    done = shell("fork", "r", "--at", "2", "--set", "to=bob", "--live-tools", "--id", "again")

    assert done.returncode == 0, done.stderr
    assert "sent to bob" in done.stdout
    assert sent(shell) == ["mail ada", "mail bob"]
    assert shell("resume", "again").stdout == done.stdout
    assert shell("replay", "again").returncode == 0
    assert sent(shell) == ["mail ada", "mail bob"]


def test_a_result_is_given_in_place_of_the_step(shell):
    shell("run", "--id", "r", "agent.py", "tea")
    done = shell("fork", "r", "--at", "1", "--result", '"COFFEE"')

    assert done.returncode == STOPPED
    assert shell("fork", "r", "--at", "2", "--result", '"not sent"').stdout.startswith("TEA not sent")
    assert sent(shell) == ["mail ada"]


@pytest.mark.parametrize("text", [OWN_ID, NO_ID])
def test_a_program_that_opens_its_run_itself_gets_the_fork(shell, text):
    shell.script("agent.py", text)
    assert shell.execute([sys.executable, "agent.py", "tea"]).returncode == 0
    run = shell.facts()["run"]
    before = log_of(shell, run)
    done = shell("fork", run, "--at", "2", "--live-tools", "--id", "branch")

    assert done.returncode == 0, done.stderr
    assert log_of(shell, run) == before
    assert shell.facts("branch")["status"] == "completed"
    assert sent(shell) == ["mail ada", "mail ada"]
    assert sorted(path.name for path in (shell.home / "runs").iterdir()) == sorted([run, "branch"])


def test_a_fork_that_is_killed_in_an_effect_is_in_doubt_like_any_run(shell):
    shell("run", "--id", "r", "agent.py", "tea")
    died = shell("fork", "r", "--at", "2", "--live-tools", DIE="1")
    assert died.returncode != 0
    again = shell("resume", "r-fork-1")

    assert again.returncode == STOPPED
    assert "no outcome is recorded" in again.stderr
    assert sent(shell) == ["mail ada", "mail ada"]


def test_a_run_that_was_killed_in_an_effect_is_forked_before_it_with_a_warning(shell):
    assert shell("run", "--id", "r", "agent.py", "tea", DIE="1").returncode != 0
    told = shell("fork", "r", "--dry-run")
    assert "may have happened in r all the same: #2 mail" in told.stdout
    done = shell("fork", "r")

    assert done.returncode == STOPPED
    assert sent(shell) == ["mail ada"]
    # The run itself is as it was: its step is still in doubt.
    assert shell("resume", "r").returncode == STOPPED
    assert sent(shell) == ["mail ada"]


def test_an_imported_run_is_forked_in_its_new_home(shell):
    shell("run", "--id", "r", "agent.py", "tea")
    assert shell("export", "r", "-o", "r.steplog").returncode == 0
    other = str(shell.folder / "other")
    assert shell("import", "r.steplog", "--home", other).returncode == 0
    done = shell("fork", "r", "--at", "2", "--home", other)

    assert done.returncode == STOPPED
    assert f"--home {other}" in last_line(done)
    assert [path.name for path in (shell.home / "runs").iterdir()] == ["r"]


def test_a_fork_is_exported_verified_and_imported(shell):
    shell("run", "--id", "r", "agent.py", "tea")
    shell("fork", "r", "--at", "2", "--live-tools")
    assert shell("verify", "r-fork-1").returncode == 0
    assert shell("export", "r-fork-1", "-o", "f.steplog").returncode == 0
    other = str(shell.folder / "other")
    assert shell("import", "f.steplog", "--home", other).returncode == 0
    assert json.loads(shell("show", "r-fork-1", "--home", other, "--json").stdout)["fork"]["run"] == "r"


def test_bodies_stay_while_a_fork_names_them(shell):
    shell.script("agent.py", RECORDED.replace("order.upper()", "order.upper() * 9000"))
    shell("run", "--id", "r", "agent.py", "tea")
    shell("fork", "r", "--at", "2", "--no-start")
    shutil.rmtree(shell.home / "runs" / "r")
    assert shell("prune", "--bodies", "30d").returncode == 0
    done = shell("fork", "r-fork-1", "--live-tools")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("TEATEA")


@pytest.mark.parametrize(
    "words, code, text",
    [
        (["--at", "7"], 1, "no step number 7"),
        (["--at", "2", "--set", "to"], 2, "PATH=VALUE"),
        (["--at", "2", "--set", "too.far=1"], 2, "mail has no argument 'too'"),
        (["--at", "2", "--result", "{"], 2, "--result takes JSON"),
        (["--at", "2", "--result", "1", "--set", "to=x"], 2, "is given a result"),
        (["--set", "to=x"], 2, "belong to one step"),
        (["--at", "2", "--id", "r"], 2, "there is a run 'r' already"),
        (["--at", "2", "--id", "r", "--dry-run"], 2, "there is a run 'r' already"),
        (["--at", "2", "--id", "../r", "--dry-run"], 2, "no run id"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_and_nothing_is_written(shell, words, code, text):
    shell("run", "--id", "r", "agent.py", "tea")
    done = shell("fork", "r", *words)

    assert done.returncode == code
    assert text in done.stderr
    assert [path.name for path in (shell.home / "runs").iterdir()] == ["r"]


KILLED = """
import os, signal, sys
import steplog
from steplog.stores.fs import FS

left = int(sys.argv[1])

def counted(method):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **kwargs)
    return call

for name in ("create", "write", "sync", "sync_dir", "rename", "mkdir", "flock", "unlock"):
    if hasattr(FS, name):
        setattr(FS, name, counted(getattr(FS, name)))
steplog.install(interceptors=[])
print(steplog.fork("r", at=2))
"""


def test_a_kill_at_any_moment_leaves_no_fork_or_a_whole_one(shell):
    """Half a fork would be a run that knows of less than has happened, and does it again."""
    shell.script("agent.py", RECORDED.replace("order.upper()", "order.upper() * 9000"))
    shell("run", "--id", "r", "agent.py", "tea")
    shell.script("killed.py", KILLED)
    outcomes = []
    for moment in range(1, 40):
        done = shell.execute([sys.executable, "killed.py", str(moment)])
        runs = FileStore(str(shell.home)).runs()
        if len(runs) > 1:
            (fork,) = [run for run in runs if run != "r"]
            view = FileStore(str(shell.home)).read(fork)
            assert view.torn == 0
            assert len(view.events) == view.events[0].data["fork"]["events"]
            assert shell("verify", fork).returncode == 0
            shutil.rmtree(shell.home / "runs" / fork)
        outcomes.append((done.returncode == 0, len(runs) > 1))
        if done.returncode == 0:
            break
    assert (False, False) in outcomes
    assert outcomes[-1] == (True, True)
