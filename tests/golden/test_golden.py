"""What a release has written, every later one replays: the same answers, nothing executed, and the same state."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import steplog
from steplog._cli.main import cli
from steplog._kernel.fold import fold
from steplog._kernel.references import references
from steplog._runtime.settings import cipher
from steplog.stores.files import FileStore
from tests.golden import record
from tests.golden.state import kept
from tests.support.processes import environment
from tests.support.recorded import ROOT

GOLDEN = Path(__file__).parent
FOLDERS = sorted(path.parent.name for path in GOLDEN.glob("*/home"))
PLAYED = [name for name in FOLDERS if (GOLDEN / name / "program.py").exists()]
# Their programs are tests of their own.
ELSEWHERE = {"sdk": "tests/matrix/test_logs.py", "withheld": "tests/golden/test_encrypted.py"}
# Types of events that came after a log was recorded.
CONTROL = {
    *("step.denied", "step.blocked", "step.approved", "step.rejected"),
    *("signal.received", "signal.consumed", "wait.began", "cancel.requested", "cancel.delivered"),
    *("run.budgeted", "run.progressed"),
}
CONTROLLED = [name for name in PLAYED if name.startswith("control-")]
BEFORE_CONTROL = [name for name in PLAYED if name not in CONTROLLED]
ADDED_LATER = {"log-1": CONTROL, "log-1-bodies-1": {"log.weakened", *CONTROL}, "log-1-encrypted": CONTROL}
CLOSED = "http://127.0.0.1:9"


@contextmanager
def installed(home, policy, budget):
    steplog.install(home=home, durability="process", policy=policy, budget=budget)
    try:
        yield
    finally:
        steplog.uninstall()


def runs_of(name: str) -> list[str]:
    return sorted(path.name for path in (GOLDEN / name / "home/runs").iterdir())


def expected(name: str, what: str):
    return json.loads((GOLDEN / name / f"{what}.json").read_text())


@pytest.fixture(params=PLAYED)
def played(request, tmp_path):
    """A program of another release and a copy of its home, with this release installed."""
    name = request.param
    home = tmp_path / "home"
    shutil.copytree(GOLDEN / name / "home", home)
    with record.keyed(name):
        program = record.load(GOLDEN / name / "program.py")
        steplog.install(home=home, durability="process")
        yield name, program, home
        steplog.uninstall()


def test_every_run_is_replayed_whole_and_nothing_is_executed(played):
    name, program, home = played
    assert set(program.RUNS) == set(runs_of(name))
    said = expected(name, "said")
    for run_id in program.RUNS:
        log = home / "runs" / run_id / "events.jsonl"
        before = log.read_bytes()
        # Through JSON, as it was kept.
        assert json.loads(json.dumps(program.say(run_id, CLOSED))) == said[run_id], run_id
        assert program.executed == [], f"{run_id} was executed again"
        after = log.read_bytes()
        assert after.startswith(before)
        added = [json.loads(line)["type"] for line in after[len(before) :].splitlines()]
        assert not [kind for kind in added if kind.startswith("step.")], run_id


@pytest.mark.parametrize("name", BEFORE_CONTROL)
def test_a_log_from_before_policies_and_budgets_is_returned_under_both(name, tmp_path):
    """Nothing that it holds is judged again: a rule that denies all, and a budget that is used up, change no answer."""
    said = expected(name, "said")
    shutil.copytree(GOLDEN / name / "home", tmp_path / "home")
    nothing = [steplog.Rule(id="nothing", action="deny", kind=["tool_call", "llm_call"])]
    with record.keyed(name):
        program = record.load(GOLDEN / name / "program.py")
        with installed(tmp_path / "home", nothing, steplog.Budget(max_steps=1)):
            for run_id in program.RUNS:
                assert json.loads(json.dumps(program.say(run_id, CLOSED))) == said[run_id], run_id
                assert program.executed == [], run_id


@pytest.mark.parametrize("name", BEFORE_CONTROL)
def test_a_log_from_before_policies_and_budgets_goes_on_under_both(name, tmp_path):
    """Cut where a tool is to begin: what it has used until there counts, and what is new is judged."""
    home = tmp_path / "home"
    shutil.copytree(GOLDEN / name / "home", home)
    log = home / "runs/tools/events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    events = [json.loads(line) for line in lines]
    cut = next(at for at, event in enumerate(events) if event["data"].get("target") == "outer")
    log.write_bytes(b"".join(lines[:cut]))
    used = sum(event["type"] == "step.started" for event in events[:cut])
    anew = ["outer desk", "send inner desk", "send inner desk", "read desk", "decline thanks", "decline thanks"]
    policy = [
        steplog.Rule(id="new", action="allow", target=["outer", "send", "read", "decline"]),
        steplog.Rule(id="old", action="deny", kind="tool_call"),
    ]
    with record.keyed(name):
        program = record.load(GOLDEN / name / "program.py")
        with installed(home, policy, steplog.Budget(max_steps=used)):
            assert program.say("tools", CLOSED)["stopped"] == "budget"
            assert program.executed == []
        with installed(home, policy, steplog.Budget(max_steps=used + len(anew))):
            assert json.loads(json.dumps(program.say("tools", CLOSED))) == expected(name, "said")["tools"]
            assert program.executed == anew


@pytest.mark.parametrize("name", FOLDERS)
def test_every_log_folds_to_the_state_that_was_kept(name, tmp_path):
    shutil.copytree(GOLDEN / name / "home", tmp_path / "home")
    states = expected(name, "state")
    assert set(states) == set(runs_of(name))
    with record.keyed(name if name != "withheld" else "withheld-encrypted"):
        store = FileStore(tmp_path / "home", cipher=cipher())
        for run_id, state in states.items():
            events = list(store.read(run_id).events)
            assert kept(fold(events)) == state, run_id
            half = len(events) // 2
            assert kept(fold(events[half:], fold(events[:half]))) == state, f"{run_id}, folded in two parts"
            for body in {body for event in events for body in references(event.data)}:
                assert store.bodies.has(body)
                if name != "withheld":
                    store.bodies.get(body)
        store.bodies.close()


@pytest.mark.parametrize("name", FOLDERS)
def test_every_log_is_verified_by_the_command_line(name, tmp_path):
    shutil.copytree(GOLDEN / name / "home", tmp_path / "home")
    key = {"STEPLOG_KEY": record.KEY} if "encrypted" in name or name == "withheld" else {}
    command = [sys.executable, "-m", "steplog", "verify", "--all", "--home", str(tmp_path / "home")]
    done = subprocess.run(command, env=environment(**key), capture_output=True, text=True, check=False)

    assert "verify" in cli.commands
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CONTROLLED)
def test_a_log_of_control_holds_every_event_of_control(name):
    lines = [
        json.loads(line) for file in (GOLDEN / name).rglob("events.jsonl") for line in file.read_bytes().splitlines()
    ]
    judged = [line["data"].get("judged", {}) for line in lines if line["type"] == "step.started"]
    ended = {line["data"]["outcome"] for line in lines if line["type"] == "run.ended"}

    assert {line["type"] for line in lines} >= CONTROL
    assert {key for each in judged for key in each} == {"policy", "approval", "budget"}
    assert any("tokens" in each.get("budget", {}) for each in judged)
    assert ended == {"completed", "cancelled"}
    assert any(run.endswith(".undo") for run in runs_of(name))


@pytest.mark.parametrize("name", CONTROLLED)
def test_a_signal_of_a_log_of_control_belongs_to_its_wait(name, tmp_path):
    shutil.copytree(GOLDEN / name / "home", tmp_path / "home")
    state = fold(FileStore(tmp_path / "home").read("cancelled").events)

    assert state.controls is not None
    owners = [state.steps[signal["step"]].target for signal in state.controls.signals.values()]
    assert owners == ["wait go"]


@pytest.mark.parametrize("name", BEFORE_CONTROL)
def test_a_log_holds_every_type_of_event_and_every_kind_of_step(name):
    from steplog._kernel import events as ev

    lines = [
        json.loads(line) for file in (GOLDEN / name).rglob("events.jsonl") for line in file.read_bytes().splitlines()
    ]
    types = {value for key, value in vars(ev).items() if key.isupper() and key != "FORMAT"}
    started = [line["data"] for line in lines if line["type"] == ev.STEP_STARTED]
    outcomes = {line["data"]["outcome"] for line in lines if line["type"] == ev.STEP_FINISHED}

    assert types - {line["type"] for line in lines} == ADDED_LATER.get(name, set())
    assert {step["mode"] for step in started} == {"safe", "keyed", "verify", "unsafe"}
    assert {step["kind"] for step in started} == {"llm_call", "tool_call", "local"}
    assert outcomes == {"done", "failed", "cancelled"}
    assert any("branch" in step for step in started)


def test_the_newest_golden_log_is_of_the_formats_of_today(tmp_path):
    """Where this fails, a format has changed: record it under a new name (tests/golden/record.py), and keep the old."""
    import sqlite3

    from steplog._kernel.events import FORMAT

    formats, bodies = set(), set()
    for name in PLAYED:
        for file in (GOLDEN / name).rglob("events.jsonl"):
            formats.add(json.loads(file.read_bytes().splitlines()[0])["data"]["format"])
        with sqlite3.connect(GOLDEN / name / "home/bodies.db") as db:
            bodies |= set(db.execute("PRAGMA user_version").fetchone())
    steplog.install(home=tmp_path / "home", interceptors=[])
    with steplog.run("now"):
        steplog.step("large", lambda: "x" * 10_000)
    steplog.uninstall()
    with sqlite3.connect(tmp_path / "home/bodies.db") as db:
        (today,) = db.execute("PRAGMA user_version").fetchone()

    assert FORMAT in formats
    assert today == max(bodies)
    assert bodies == set(range(1, today + 1))


@pytest.mark.parametrize("name", FOLDERS)
def test_a_golden_log_names_no_machine(name):
    logs = b"".join(file.read_bytes() for file in (GOLDEN / name).rglob("events.jsonl"))
    folders = re.findall(rb'"(?:script|cwd|saved_as)":"(/[^"]*)"|--home (/\S*)', logs)

    named = {folder for pair in folders for folder in pair} - {b"", b"/"}
    assert [folder for folder in named if not folder.startswith(b"/srv/ag")] == []


def test_a_new_golden_log_is_recorded_as_if_elsewhere(tmp_path):
    from steplog.stores import lock
    from tests.golden.record import nowhere

    @steplog.step
    def dies():
        raise KeyboardInterrupt

    with nowhere():
        steplog.install(home=tmp_path / "home", interceptors=[])
        with pytest.raises(KeyboardInterrupt), steplog.run("r"):
            dies()
        with pytest.raises(steplog.RunStopped), steplog.run("r"):
            dies()
        steplog.uninstall()
        holder = lock.this_process()
    log = (tmp_path / "home/runs/r/events.jsonl").read_text()

    assert str(ROOT) not in log
    assert "--home" not in log
    assert (holder.host, holder.boot_id) == ("vm", "00000000-0000-4000-8000-000000000000")


def test_every_folder_has_a_program_that_replays_it():
    for name in FOLDERS:
        if name not in PLAYED:
            test = ROOT / ELSEWHERE[name.partition("-")[0]]
            functions = [node.name for node in ast.parse(test.read_text()).body if isinstance(node, ast.FunctionDef)]
            assert any(function.startswith("test_") for function in functions), test
            assert name.partition("-")[0] in test.read_text(), f"{test} does not speak of {name}"


def test_a_golden_log_is_never_written_again(tmp_path):
    before = (GOLDEN / "log-1/said.json").read_bytes()
    command = [sys.executable, "-m", "tests.golden.record", "log-1"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "never written again" in done.stderr
    assert (GOLDEN / "log-1/said.json").read_bytes() == before
