"""A steered run dies around every line of its logs, and comes to the same end: nothing is lost, nothing happens twice.

In process every line, where a store that writes nothing more stands for death; as real processes by SIGKILL a few, and
by night all.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import steplog
from steplog._kernel.fold import RunState, fold
from steplog._runtime.resolve import resolve
from steplog.errors import RunStopped, StoreError, UnknownRun
from steplog.stores.files import FileStore
from steplog.stores.memory import MemoryStore, MemoryWriter
from tests.faults.programs import steered
from tests.support.processes import environment
from tests.support.recorded import ROOT
from tests.support.thinned import thinned

TYPES = {
    "run.budgeted",
    "run.progressed",
    "step.denied",
    "step.blocked",
    "step.approved",
    "signal.received",
    "signal.consumed",
    "wait.began",
    "cancel.requested",
    "cancel.delivered",
    "run.suspended",
    "run.ended",
}
LINES = 37
"""Of both logs, where nothing dies."""

UNDO = f"{steered.RUN}.undo"


class Case:
    """One run, over all the processes that it takes, with a person who does what it needs."""

    def __init__(self, folder: Path, store) -> None:
        folder.mkdir()
        self.store = store
        self.folder = folder
        self.deaths = 0
        self._signalled = False

    def start(self, point: str) -> dict[str, str] | None:
        """Start it once; what it stopped with, or None where it died."""
        raise NotImplementedError

    def play(self, when: str = "", number: int = 0) -> None:
        """Start it until it has ended and is undone; one process dies at a line, counted over all."""
        for _ in range(12):
            left = number - len(lines_of(self.store))
            stopped = self.start(f"{when}:{left}" if when and not self.deaths else "")
            self.deaths += stopped is None
            if stopped is not None and self._is_over(stopped):
                return
        raise AssertionError(f"{self.folder.name}: no end")

    def _is_over(self, stopped: dict[str, str]) -> bool:
        reason, step = stopped["reason"], stopped["step"]
        if reason == "approval":
            steplog.approve(steered.RUN, step, by="ann", store=self.store)
        elif reason == "waiting":
            if not self._signalled:
                steplog.signal(steered.RUN, "go", 7, store=self.store)
            self._signalled = True
        elif reason == "indeterminate":
            what = f"buy {self.state().steps[step].started['args']['what']}"
            happened = what in steered.effects()
            resolve(self.store, steered.RUN, step, how="done" if happened else "retry", result=what, by="ann")
        else:
            assert reason == "cancelled", stopped
            return True
        return False

    def state(self, run_id: str = steered.RUN) -> RunState:
        try:
            return fold(self.store.read(run_id).events)
        except UnknownRun:
            return RunState()

    def check(self) -> None:
        """What must hold of a run that has ended, wherever it died."""
        effects = steered.effects()
        # Cleanup is declared safe to repeat.
        assert list(dict.fromkeys(effects)) == ["buy a", "buy c", "clean", "undo buy c", "undo buy a"], effects
        assert {what: count for what, count in Counter(effects).items() if count > 1 and what != "clean"} == {}
        state, undo = self.state(), self.state(UNDO)
        assert (state.status, state.ended["by"], undo.status) == ("cancelled", "ann", "completed")
        assert state.ended["undo"] == {"run": UNDO, "undone": 2, "left": []}
        events = self.store.read(steered.RUN).events
        counts = Counter(event.type for event in events)
        for once in ("step.denied", "step.blocked", "step.approved", "signal.received", "signal.consumed"):
            assert counts[once] == 1, once
        assert (counts["cancel.requested"] >= 1, counts["cancel.delivered"], counts["run.progressed"]) == (True, 1, 2)
        known = state.controls.budget
        assert known.budget.limits() == {"max_tool_calls": 50, "max_stalls": 5}
        begun = sum(event.type == "step.started" for event in events)
        assert known.usage.steps == begun, "an attempt is not counted"


class InProcess(Case):
    def __init__(self, folder: Path, monkeypatch) -> None:
        super().__init__(folder, MemoryStore())
        self._patch = monkeypatch

    def start(self, point: str) -> dict[str, str] | None:
        dead = False

        def die() -> None:
            nonlocal dead
            dead = True
            raise StoreError("dead")

        append = steered.dies(MemoryWriter.append, point, die)

        def unless_dead(writer, lines, *args, **kwargs) -> None:
            if dead:
                raise StoreError("dead")
            append(writer, lines, *args, **kwargs)

        with self._patch.context() as patch:
            patch.setattr(MemoryWriter, "append", unless_dead)
            try:
                steered.program(self.store)
            except RunStopped as stopped:
                return None if dead else {"reason": stopped.reason, "step": stopped.step}
            except StoreError:
                assert dead
        assert dead
        return None


class Processes(Case):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FileStore(str(folder / "home")))

    def start(self, point: str) -> dict[str, str] | None:
        command = [sys.executable, "-m", "tests.faults.programs.steered", str(self.folder), point]
        variables = environment(STEPLOG_BUDGET=steered.OPERATOR)
        ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        return json.loads((self.folder / "outcome").read_text()) if ended.returncode == 0 else None


@pytest.fixture
def at(monkeypatch):
    """Where the program has its effects; with limits that a person has set."""
    monkeypatch.setenv("STEPLOG_BUDGET", steered.OPERATOR)

    def place(folder: Path) -> Path:
        monkeypatch.setattr(steered.world, "folder", folder)
        return folder

    return place


@pytest.fixture
def _installed(tmp_path):
    steplog.install(home=tmp_path / "home", interceptors=[])
    yield
    steplog.uninstall()


def lines_of(store) -> list[str]:
    """What is in both logs, by type."""
    return [event.type for run_id in store.runs() for event in store.read(run_id).events]


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_recorder_that_dies_at_any_line(when, tmp_path, at, monkeypatch):
    # Nobody sends a signal while it waits.
    monkeypatch.setattr("steplog._runtime.wait._QUIET_SECONDS", 0)
    whole = InProcess(at(tmp_path / "whole"), monkeypatch)
    whole.play()
    whole.check()
    assert set(lines_of(whole.store)) >= TYPES

    for number in itertools.count(1):
        case = InProcess(at(tmp_path / str(number)), monkeypatch)
        case.play(when, number)
        case.check()
        if not case.deaths:
            break

    assert number == LINES + 1


@pytest.mark.parametrize("number, when", thinned(itertools.product(range(1, LINES + 1), ("before", "after")), every=37))
def test_a_process_that_is_killed_at_any_line(number, when, tmp_path, at):
    case = Processes(at(tmp_path / "case"))
    case.play(when, number)
    case.check()

    assert case.deaths == 1
