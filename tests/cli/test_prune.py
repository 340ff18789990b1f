"""`steplog prune` deletes what is old and nothing else; `steplog du` tells what there is."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

import steplog
from steplog.stores.files import FileStore
from tests.cli.logs import LogFile
from tests.support.processes import environment

DAY = 86_400


def text(number, length=6_000):
    return f"{number} " + " ".join(f"word {(number * 7919 + n) % 9973}" for n in range(length // 10))


def record(home, run_id, *numbers):
    """A run of steps with large results, some of them in common with others."""
    steplog.install(home=home, interceptors=[], durability="process")
    with steplog.run(run_id):
        return [steplog.step(f"read {number}", lambda number=number: text(number)) for number in numbers]


def grow_old(home, run_id, days):
    """Make a run and the bodies look as if it had been written that long ago: times in lines are sealed, so the whole
    log is sealed anew."""
    store = FileStore(home)
    view, names = store.read(run_id), set()
    path = store.path_of(run_id)
    os.unlink(path)
    log = LogFile(home, run_id)
    for event in view.events:
        log.add(event.type, event.step, **event.data)
        names |= {value["sha256"] for value in event.data.values() if isinstance(value, dict) and "sha256" in value}
    when = time.time() - days * DAY
    os.utime(path, (when, when))
    db = store.bodies.database.connect()
    day = int(time.time()) // DAY - days
    db.executemany("UPDATE bodies SET day = ? WHERE sha256 = ?", [(day, bytes.fromhex(name)) for name in names])
    store.bodies.close()


@pytest.fixture
def runs(home):
    """Two completed runs, one of them old, with one body in common; and an old one that was killed."""
    record(home, "old", 1, 2, 3)
    record(home, "new", 3, 4)
    with pytest.raises(ZeroDivisionError), steplog.run("broken"):
        steplog.step("read 9", lambda: text(9))
        raise ZeroDivisionError
    grow_old(home, "old", 100)
    grow_old(home, "broken", 100)
    record(home, "new", 3, 4)
    return home


def test_old_bodies_go_and_the_lines_stay(runs, invoke, ask):
    foreseen = ask("prune", "--bodies", "30d", "--dry-run")
    assert (foreseen["bodies"]["count"], foreseen["runs"]) == (2, [])

    done = ask("prune", "--bodies", "30d")

    assert done == {**foreseen, "dry_run": False}
    assert done["bytes"]["bodies_plain"] == len(text(1)) + len(text(2)) + 4
    assert ask("verify", "new")["ok"], "what a young run names stays"
    assert ask("verify", "broken")["ok"], "and what a run needs that can still be resumed"
    gone = ask("verify", "old")
    assert (gone["ok"], gone["faults"], gone["pruned"]) == (True, [], 2), "what was pruned is missing on purpose"
    assert "3 bodies (2 pruned)" in invoke("verify", "old").stdout
    assert invoke("verify", "--all").stdout.startswith("ok: ")
    assert "read 1" in invoke("show", "old").stdout
    assert ask("prune", "--bodies", "30d")["bodies"]["count"] == 0


def test_a_step_whose_body_was_pruned_cannot_be_replayed_and_says_when(runs, ask):
    ask("prune", "--bodies", "30d")
    today = time.strftime("%Y-%m-%d", time.gmtime())
    with pytest.raises(steplog.RunStopped, match=f"it was pruned on {today}") as caught:
        record(runs, "old", 1, 2, 3)
    assert caught.value.reason == "unreplayable"
    assert record(runs, "new", 3, 4) == [text(3), text(4)]


def test_old_runs_that_are_complete_go_whole(runs, invoke, ask):
    result = invoke("prune", "--runs", "3m", "--dry-run")
    assert "would delete run old: completed" in result.stdout
    assert "kept run broken: it can still be resumed (failed)" in result.stdout
    assert (runs / "runs" / "old").exists()

    done = ask("prune", "--runs", "3m")

    assert [run["run_id"] for run in done["runs"]] == ["old"]
    assert [run["run_id"] for run in done["kept"]] == ["broken"]
    assert done["bodies"]["count"] == 2
    assert sorted(os.listdir(runs / "runs")) == ["broken", "new"]
    assert ask("verify", "new")["ok"]
    assert FileStore(runs).bodies.check()[2:] == (0, [])


def test_what_can_be_resumed_goes_only_by_force(runs, ask):
    done = ask("prune", "--runs", "3m", "--force", "broken")
    assert [run["run_id"] for run in done["runs"]] == ["broken"]
    assert done["bodies"]["count"] == 1
    assert sorted(os.listdir(runs / "runs")) == ["new", "old"]


def test_only_the_runs_that_are_named_are_touched(runs, ask):
    assert ask("prune", "--runs", "3m", "--bodies", "30d", "new")["bodies"]["count"] == 0
    assert sorted(os.listdir(runs / "runs")) == ["broken", "new", "old"]


def test_a_run_that_is_held_stays(runs, ask):
    path = runs / "runs" / "old" / "events.jsonl"
    times = (path.stat().st_atime, path.stat().st_mtime)
    writer = FileStore(runs).open("old")
    os.utime(path, times)  # opening may write the end of a log again
    try:
        done = ask("prune", "--runs", "3m")
    finally:
        writer.close()
    assert done["runs"] == []
    assert "a process holds it" in " ".join(kept["why"] for kept in done["kept"])


def test_a_damaged_log_keeps_its_bodies(runs, ask):
    path = runs / "runs" / "old" / "events.jsonl"
    times = (path.stat().st_atime, path.stat().st_mtime)
    path.write_bytes(path.read_bytes().replace(b'"kind"', b'"kinD"', 1))
    os.utime(path, times)
    done = ask("prune", "--bodies", "30d", "--runs", "3m")
    assert (done["runs"], done["bodies"]["count"]) == ([], 0)
    assert "unreadable" in " ".join(kept["why"] for kept in done["kept"])


@pytest.mark.parametrize("words", [(), ("--bodies", "0d"), ("--bodies", "soon"), ("--runs", "1h"), ("old",)])
def test_what_is_old_must_be_said(runs, invoke, words):
    result = invoke("prune", *words)
    assert result.exit_code == 2
    assert sorted(os.listdir(runs / "runs")) == ["broken", "new", "old"]


KILLED = """
import os, signal, sys
from steplog.stores import retention
from steplog.stores.files import FileStore
real = getattr(retention.os, sys.argv[2])
def die(*words, **options):
    if sys.argv[3] == "after":
        real(*words, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(retention.os, sys.argv[2], die)
retention.prune_home(FileStore(sys.argv[1]), retention.Limits(runs=90, bodies=30))
"""


@pytest.mark.parametrize("call", ["replace", "unlink", "rmdir"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_prune_that_is_killed_is_finished_by_the_next(runs, ask, call, when):
    command = [sys.executable, "-c", KILLED, str(runs), call, when]
    assert subprocess.run(command, env=environment(), check=False).returncode == -9
    left = os.listdir(runs / "runs")
    assert "old" not in left or ask("verify", "old")["ok"], "whole or gone"
    ask("prune", "--runs", "3m")
    assert sorted(os.listdir(runs / "runs")) == ["broken", "new"]
    assert ask("verify", "new")["ok"]
    assert FileStore(runs).bodies.check()[2:] == (0, [])


def test_small_bodies_take_space_too(home, invoke, ask):
    record(home, "small", 1)
    grow_old(home, "small", 100)
    done = ask("prune", "--bodies", "30d", "--dry-run")
    assert done["bodies"]["count"] == 1
    assert 0 < done["bytes"]["bodies"] < done["bytes"]["bodies_plain"]
    assert "(0 B in the file" not in invoke("prune", "--bodies", "30d").stdout


def test_du_counts_what_is_shared_once(runs, invoke, ask):
    facts = ask("du")
    rows = {row["run"]: row for row in facts["runs"]}
    assert set(rows) == {"old", "new", "broken"}
    assert rows["old"]["bodies"] == 3
    assert rows["old"]["shared"] == rows["new"]["shared"] > 0
    assert rows["old"]["own"] > rows["new"]["own"] > 0
    assert rows["broken"]["shared"] == 0
    assert rows["old"]["plain"] > rows["old"]["total"]
    assert rows["old"]["total"] == rows["old"]["log"] + rows["old"]["own"] + rows["old"]["shared"]
    assert ask("du", "old")["runs"] == [rows["old"]]
    assert facts["home"]["bodies"] >= os.path.getsize(runs / "bodies.db")
    assert "RUN" in invoke("du").stdout


def test_du_tells_what_is_missing_and_what_it_could_not_read(runs, invoke, ask):
    ask("prune", "--bodies", "30d")
    assert "2 of its bodies are not there" in invoke("du", "old").stdout
    log = runs / "runs" / "old" / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"kind"', b'"kinD"', 1))
    result = invoke("du")
    assert result.exit_code == 1
    assert "not read: old" in result.stdout


def test_an_empty_home(home, ask):
    assert ask("du") == {"runs": [], "home": {"path": str(home), "runs": 0, "bodies": 0}, "unread": []}
    assert ask("prune", "--bodies", "30d")["bodies"]["count"] == 0
    assert not home.exists()
