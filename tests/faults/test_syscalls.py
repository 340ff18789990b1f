"""A real run, killed in every system call that concerns its files, and failed in some of them.

strace puts a SIGKILL, or an error, into the n-th call of a kind. The agent is resumed until it has ended, and what it
has done to the world is counted.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from steplog._kernel.fold import fold
from steplog._runtime.resolve import resolve
from steplog.errors import UnknownRun
from steplog.stores.files import FileStore
from tests.faults.damaged import damaged, is_old_or_new
from tests.faults.programs import traced as program
from tests.support.processes import environment
from tests.support.recorded import ROOT
from tests.support.strace import CALLS, needed, points, traced

MODULE = "tests.faults.programs.traced"
REPAIRING = "tests.faults.programs.repairing"
ANSWER = ["drawn", *map(program.result_of, ("pay rent", "refund rent", "mail north", "mail south"))]


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    """Where, by kind of call, a run without faults deals with its files, or its first thread with one of them."""
    needed()
    folder = tmp_path_factory.mktemp("survey")
    traced(MODULE, folder, "-y", "-o", str(folder / "trace"), "-e", f"trace={','.join(CALLS)}")
    trace = (folder / "trace").read_text()
    return lambda path="": points(trace, str(folder / path), first_thread=bool(path))


class Case:
    """One run of the agent over all the processes that it takes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.store = FileStore(folder / "home")

    def struck(self, call: str, nth: int, fault: str = "signal=SIGKILL") -> int:
        """Dispatch the agent with a fault in the n-th call of a kind; its exit status."""
        options = ("-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={nth}")
        return traced(MODULE, self.folder, "-o", str(self.folder / "trace"), *options).returncode

    def outcome(self):
        command = [sys.executable, "-m", MODULE, str(self.folder)]
        subprocess.run(command, cwd=ROOT, env=environment(), check=True)
        return json.loads((self.folder / "outcome").read_text())

    def ledger(self):
        path = self.folder / "ledger"
        return [line.partition("\t")[0] for line in path.read_text().splitlines()] if path.exists() else []

    def finish(self):
        """Resume the agent, and settle what is in doubt as an operator does, until it has its answer."""
        for _ in range(10):
            ended = self.outcome()
            if "answer" in ended:
                return ended["answer"]
            assert ended["stopped"] == "indeterminate", ended["message"]
            step = self.steps()[ended["step"]]
            label = f"{step.target} {step.started['args'].get('what') or step.started['args']['where']}"
            assert label in program.UNSAFE
            how = "done" if label in self.ledger() else "retry"
            resolve(self.store, program.RUN, step.id, how=how, result=program.result_of(label), by="test")
        raise AssertionError("no answer after ten quiet dispatches")

    def steps(self):
        return fold(self.store.read(program.RUN).events).steps

    def check(self):
        assert self.finish() == ANSWER
        done = Counter(self.ledger())
        assert {label: done[label] for label in program.UNSAFE} == dict.fromkeys(program.UNSAFE, 1)
        assert done["drawn"] <= 2
        keys = [line for line in (self.folder / "ledger").read_text().splitlines() if line.startswith("refund ")]
        assert len(set(keys)) == 1
        assert {step.status for step in self.steps().values()} == {"done"}


def kill_in(call, numbers, folder):
    """Kill a run in the given calls of a kind."""
    for nth in numbers:
        case = Case(folder / f"{call}-{nth}")
        status = case.struck(call, nth)
        # Threads share the work differently from run to run, so the last of the calls may not be reached.
        assert status in (-signal.SIGKILL, 128 + signal.SIGKILL) or nth > max(numbers) - 5, f"{call} {nth}: {status}"
        case.check()


@pytest.mark.parametrize("call, every", [("write", 6), ("fdatasync", 20), ("pwrite64", 99), ("openat", 20)])
def test_killed_in_a_system_call_it_carries_on(call, every, tmp_path, where):
    kill_in(call, where()[call][2::every], tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("call", CALLS)
def test_killed_in_every_system_call_it_carries_on(call, tmp_path, where):
    numbers = where().get(call, [])
    assert len(numbers) >= {"write": 15, "fdatasync": 15, "pwrite64": 40, "openat": 10, "mkdir": 3}.get(call, 0)
    kill_in(call, numbers, tmp_path)


LOG = f"home/runs/{program.RUN}/events.jsonl"


@pytest.mark.parametrize("which", [1, 4])
def test_a_failing_disk_is_never_asked_twice(which, tmp_path, where):
    """EIO on a real sync: the run halts, nothing more is written, and a new process goes on from what is there."""
    case = Case(tmp_path / "case")
    nth = where(LOG)["fdatasync"][which]
    options = ("-y", "-o", str(tmp_path / "trace"), "-e", "trace=write,fdatasync,ftruncate")
    assert traced(MODULE, case.folder, *options, "-e", f"inject=fdatasync:error=EIO:when={nth}").returncode == 0
    assert json.loads((case.folder / "outcome").read_text())["stopped"] == "log_failed"
    calls = [line for line in (tmp_path / "trace").read_text().splitlines() if LOG in line]
    assert "(INJECTED)" in calls[-1], "something was written, or a sync was tried again, after one had failed"
    case.check()


@pytest.mark.parametrize(
    "call, which", [("write", "{}+2"), ("pwrite64", "{}+2"), ("openat", "{}"), ("fdatasync", "{}")]
)
def test_an_interrupted_call_is_made_again(call, which, tmp_path, where):
    """Python does so for every call of the log. SQLite takes an interrupted sync for one that has failed."""
    case = Case(tmp_path / "case")
    when = which.format(where("" if "+" in which else LOG)[call][0])
    options = ("-o", str(tmp_path / "trace"), "-e", f"trace={call}", "-e", f"inject={call}:error=EINTR:when={when}")
    assert traced(MODULE, case.folder, *options).returncode == 0
    assert json.loads((case.folder / "outcome").read_text()) == {"answer": ANSWER}
    assert Counter(case.ledger()).most_common(1)[0][1] == 1
    assert "(INJECTED)" in (tmp_path / "trace").read_text()


@pytest.mark.parametrize("code", ["ENOSPC", "EFBIG"])
def test_a_full_disk_halts_the_run_before_the_effect(code, tmp_path, where):
    case = Case(tmp_path / "case")
    nth = where(LOG)["write"][3]
    options = ("-o", str(tmp_path / "trace"), "-e", "trace=write", "-e", f"inject=write:error={code}:when={nth}+")
    traced(MODULE, case.folder, *options)
    assert "pay rent" not in case.ledger(), "an effect began without its intent"
    assert case.steps().keys()
    case.check()


@pytest.mark.nightly
@pytest.mark.parametrize("call", ["write", "fdatasync", "fsync", "ftruncate", "openat", "link", "rename", "close"])
def test_a_repair_killed_in_any_system_call_leaves_the_old_log_or_the_new_one(call, tmp_path):
    needed()
    survey = tmp_path / "survey"
    damaged(survey / "home")
    options = ("-y", "-o", str(tmp_path / "trace"), "-e", f"trace={call}")
    assert traced(REPAIRING, survey, *options).returncode == 0
    numbers = points((tmp_path / "trace").read_text(), str(survey)).get(call, [])
    assert numbers
    for nth in numbers:
        folder = tmp_path / str(nth)
        store, path = damaged(folder / "home")
        before = path.read_bytes()
        inject = ("-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={nth}")
        assert traced(REPAIRING, folder, *inject).returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if is_old_or_new(store, path, before) == "old":
            store.repair("r", 4, by="test")
        assert is_old_or_new(store, path, before) == "new"


def test_the_program_under_test_uses_what_it_is_killed_in(tmp_path, where):
    """Without a kill it ends at once; and it does use bodies, tasks and every mode."""
    case = Case(tmp_path / "case")
    with pytest.raises(UnknownRun):
        case.steps()
    case.check()
    assert {step.mode for step in case.steps().values()} == {"safe", "keyed", "unsafe"}
    assert (case.folder / "home/bodies.db").exists()
