"""`steplog signal`, `cancel` and `resume --due`: what operators and cron do with a run that waits."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import steplog
from steplog._cli import due
from steplog._kernel.inbox import CANCEL, SIGNAL, Message, seal
from steplog._kernel.waiting import readiness
from steplog._runtime import wait as waiting
from steplog.errors import RunStopped
from steplog.stores.base import folded
from steplog.stores.files import FileStore
from tests.support.processes import environment

PROGRAM = """
import steplog

run = steplog.current_run()

@steplog.step
def note(text):
    with open("effects", "a") as file:
        file.write(text + "\\n")

try:
    note("begun")
    note("got " + str(run.wait("go")))
    steplog.sleep(0.01)
finally:
    note("cleanup")
"""


@pytest.fixture
def suspend(home, monkeypatch):
    """Makes a run that waits for the signal `go`, in this process."""
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.0)

    def make(run_id="r", *, effect=True):
        store = FileStore(str(home))

        @steplog.step(mode="unsafe" if effect else "safe")
        def work():
            return 1

        with pytest.raises(RunStopped), steplog.run(run_id, store=store, on_wait="suspend") as run:
            work()
            run.wait("go", timeout=3600)
        return store

    return make


def test_a_run_that_waits_is_told_as_that_until_its_signal_is_there(suspend, invoke, ask):
    suspend()
    text = invoke("show", "r").stdout
    assert "suspended (waiting)" in text
    assert "for signal go until 20" in text
    assert "next: steplog signal r go JSON" in text
    commands = ["steplog signal r go JSON", "steplog resume r"]
    assert ask("show", "r")["next"] == commands
    assert ask("why", "r")["next"] == commands
    why = invoke("why", "r").stdout
    assert "run r waits for signal go" in why
    assert "it goes on by" not in why
    assert "waits: for signal go until" in invoke("ls").stdout
    said = invoke("signal", "r", "go", '{"a": 1}', "--by", "ann").stdout
    assert "no process holds the run" in said
    assert "steplog resume r" in said
    shown = ask("show", "r")
    assert [(each["kind"], each["name"], each["by"]) for each in shown["pending"]] == [("signal", "go", "ann")]
    assert shown["next"] == ["steplog resume r"]
    assert shown["waits"][0]["signal"] == "go"
    assert "inbox: not taken yet: signal go" in invoke("ls").stdout


def test_a_damaged_inbox_hides_neither_the_log_nor_the_messages_before_it(suspend, invoke, ask):
    store = suspend()
    for value in "12":
        invoke("signal", "r", "go", value)
    with open(store.inbox("r").path, "r+b") as file:
        data = file.read()
        file.seek(data.rindex(b"signal"))
        file.write(b"sIgnal")
    shown = ask("show", "r")
    assert (shown["status"], len(shown["pending"])) == ("suspended", 1)
    assert "line 2: this message is not what was sent" in shown["inbox_error"]["message"]
    assert "line 2: this message is not what was sent" in " ".join(invoke("show", "r").stdout.split())
    assert ask("ls")[0]["status"] == "suspended"
    for words in (["r"], ["--all"]):
        result = invoke("verify", *words)
        assert (result.exit_code, "bad inbox: run 'r'" in result.stdout) == (1, True)


def test_messages_of_a_shape_that_no_release_sends_are_shown(suspend, invoke):
    store = suspend()
    for number, data in enumerate(({}, {"name": 5, "value": 1})):
        store.inbox("r").append(seal(Message(f"m{number}", SIGNAL, data, None, None, "")))
    assert "signal, signal 5" in invoke("show", "r").stdout


def test_what_is_sent_is_checked(suspend, invoke):
    suspend()
    assert "is JSON, and this is not" in invoke("signal", "r", "go", "yes").stderr
    assert invoke("signal", "absent", "go").exit_code == 1
    assert invoke("resume").exit_code == 2
    assert invoke("resume", "r", "--due").exit_code == 2


def test_cancelling_says_what_becomes_of_the_run(suspend, invoke, ask):
    suspend("had-effects")
    suspend("had-none", effect=False)
    told = ask("cancel", "had-effects", "--note", "no more")
    assert (told["outcome"], told["status"]) == ("pending", "suspended")
    assert told["next"] == ["steplog resume had-effects", "steplog cancel had-effects --now"]
    assert "has ended as cancelled" in invoke("cancel", "had-none").stdout
    assert "had ended before (cancelled); nothing was changed" in invoke("cancel", "had-none").stdout
    assert ask("cancel", "had-effects", "--now")["status"] == "cancelled"
    assert ask("show", "had-effects")["cancel"]["note"] == "no more"


def test_a_run_can_go_on_when_what_it_waits_for_has_come(suspend):
    state = folded(suspend().read("r"))
    hour = 3600_000
    now = int(time.time() * 1000)

    def sent(kind, **data):
        return [Message("m", kind, data, None, None, "")]

    assert readiness(state, [], now).now is False
    assert now < readiness(state, [], now).at <= now + hour
    assert readiness(state, sent(SIGNAL, name="other"), now).now is False
    assert readiness(state, sent(SIGNAL, name="go"), now) == (True, "signal go has come", None)
    assert readiness(state, [], now + hour) == (True, "its time has come", None)
    assert readiness(state, sent(CANCEL), now).why == "it was cancelled"


class Shop:
    """A folder with the program, and a way to run commands there."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "agent.py").write_text(PROGRAM)
        self.env = environment(STEPLOG_HOME=str(folder / "home"), NO_COLOR="1")

    def steplog(self, *words):
        command = [sys.executable, "-m", "steplog", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False, timeout=60
        )

    def effects(self):
        return (self.folder / "effects").read_text().split("\n")[:-1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A shop with a run that was suspended by `steplog run --on-wait suspend`."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    done = shop.steplog("run", "--id", "r", "--on-wait", "suspend", "agent.py")
    assert done.returncode == 75, done.stderr
    return shop


@pytest.fixture
def shop(recorded):
    """That shop, as it was."""
    kept = recorded.folder.parent / "kept"
    shutil.copytree(recorded.folder, kept)
    yield recorded
    shutil.rmtree(recorded.folder)
    kept.rename(recorded.folder)


def test_due_starts_what_has_its_signal_once(shop, invoke, monkeypatch):
    monkeypatch.setenv("STEPLOG_HOME", shop.env["STEPLOG_HOME"])
    monkeypatch.chdir(shop.folder)
    assert invoke("resume", "--due").exit_code == 0
    assert invoke("resume", "--all", "--json").stdout.strip() == "[]"
    assert shop.effects() == ["begun"]
    steplog.signal("r", "go", 7, store=FileStore(shop.env["STEPLOG_HOME"]))

    # Somebody else is just starting it.
    with open(shop.folder / "home/runs/r/resume.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert json.loads(invoke("resume", "--due", "--json").stdout) == []
    both = [subprocess.Popen([sys.executable, "-m", "steplog", "resume", "--due"], cwd=shop.folder, env=shop.env,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]  # fmt: skip
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("signal go has come; completed" in err for _, err in said) == 1
    assert shop.effects() == ["begun", "got 7", "cleanup"]
    assert invoke("resume", "--all").exit_code == 0


def test_due_delivers_a_cancellation_and_tells_of_what_cannot_be_started(shop, invoke, monkeypatch):
    monkeypatch.setenv("STEPLOG_HOME", shop.env["STEPLOG_HOME"])
    monkeypatch.chdir(shop.folder)
    store = FileStore(shop.env["STEPLOG_HOME"])
    steplog.cancel("r", by="ann", store=store)
    (shop.folder / "agent.py").rename(shop.folder / "moved.py")
    lost = invoke("resume", "--due")
    assert lost.exit_code == 1
    assert "not started: cannot be started from here" in lost.stderr
    (shop.folder / "moved.py").rename(shop.folder / "agent.py")
    done = invoke("resume", "--due", "--json")
    assert done.exit_code == 0
    (report,) = json.loads(done.stdout)
    assert (report["run"], report["why"], report["status"]) == ("r", "it was cancelled", "cancelled")
    assert shop.effects() == ["begun", "cleanup"]


def test_all_starts_what_was_killed_and_leaves_what_needs_a_person(home, invoke, monkeypatch):
    store = FileStore(str(home))
    for run_id, mode in (("doubt", "unsafe"), ("killed", "safe")):
        pid = os.fork()
        if not pid:
            with steplog.run(run_id, store=store):
                steplog.step(mode=mode, name="x")(lambda: os.kill(os.getpid(), signal.SIGKILL))()
        os.waitpid(pid, 0)
    with pytest.raises(KeyboardInterrupt), steplog.run("stopped", store=store):
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="no"), steplog.run("failed", store=store):
        raise ValueError("no")
    started = []
    monkeypatch.setattr(due, "_start", lambda found, _home, why, **_: started.append((found.run_id, why)))

    assert invoke("resume", "--due").exit_code == 0
    assert started == []
    assert invoke("resume", "--all").exit_code == 0
    assert sorted(started) == [("killed", "it was interrupted"), ("stopped", "it was interrupted")]
    told = invoke("resume", "--all").stderr
    assert "run doubt: a step is in doubt; left out: steplog resolve doubt s_" in told
    assert "failed" not in told.replace("--failed", "")
    # What cannot be read hides none of the others.
    (home / "runs/killed/events.jsonl").write_text("damaged\n")
    done = invoke("resume", "--all")
    assert done.exit_code == 1
    assert "run killed: it cannot be read; not started" in done.stderr
