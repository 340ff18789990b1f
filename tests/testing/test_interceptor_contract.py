"""The contract of interceptors accepts a sound one, finds each fault of a broken one, and says what to do."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from steplog.testing import _rig
from tests.support.processes import environment
from tests.support.recorded import ROOT
from tests.testing import broken, faulty

Outcomes = dict[str, dict[str, list[tuple[str, str]]]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """By class and test, what was not passed and why: one pytest for all, because each would load everything anew.

    And one for all workers of this test run, whose folders lie in one.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "broken-interceptors"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _play(folder)
            (folder / "done").touch()
    found: Outcomes = {}
    for case in ET.parse(folder / "report.xml").iter("testcase"):
        results = [(part.tag, part.get("message", "")) for part in case if part.tag in ("failure", "error", "skipped")]
        assert "error" not in {kind for kind, _ in results}
        tests = found.setdefault(case.get("classname", "").rpartition(".")[2], {})
        tests.setdefault(case.get("name", "").partition("[")[0], []).extend(results or [("passed", "")])
    return found


def _play(folder: Path) -> None:
    selected = [f"{broken.__file__}::TestHand"]
    selected += [
        f"{broken.__file__}::Test{fault.__name__}::{test}" for fault in faulty.FAULTS for test in fault.caught_by
    ]
    selected += [f"{broken.__file__}::{kind.__name__}::{kind.told[0]}" for kind in broken.MISTAKES]
    selected += [f"{broken.__file__}::{kind.__name__}::{kind.excused[0]}" for kind in broken.EXCUSED]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", f"--junit-xml={folder / 'report.xml'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--basetemp={folder / 'work'}", *selected],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr


def failed(outcomes: Outcomes, name: str) -> set[str]:
    return {test for test, results in outcomes[name].items() if any(kind == "failure" for kind, _ in results)}


def test_a_sound_interceptor_passes(outcomes):
    assert len(outcomes["TestHand"]) > 20
    assert {kind for results in outcomes["TestHand"].values() for kind, _ in results} == {"passed"}


@pytest.mark.parametrize("fault", faulty.FAULTS, ids=lambda fault: fault.__name__)
def test_a_broken_interceptor_is_found_out(fault, outcomes):
    assert failed(outcomes, f"Test{fault.__name__}") == set(fault.caught_by)


@pytest.mark.parametrize("kind", broken.MISTAKES, ids=lambda kind: kind.__name__)
def test_a_wrong_use_of_the_contract_is_told_what_to_do(kind, outcomes):
    test, *words = kind.told
    messages = [message for result, message in outcomes[kind.__name__][test] if result == "failure"]
    assert messages
    assert [word for word in words if not any(word in message for message in messages)] == [], messages


@pytest.mark.parametrize("kind", broken.EXCUSED, ids=lambda kind: kind.__name__)
def test_a_weakness_of_the_sdk_is_not_held_against_the_interceptor(kind, outcomes):
    test, reason = kind.excused
    results = outcomes[kind.__name__][test]
    assert {result for result, _ in results} == {"skipped"}, results
    assert all(reason in message for _, message in results), results


def test_what_a_slow_machine_notes_of_a_stream_is_no_step_of_its_own(tmp_path):
    types = ["run.started", "step.started", "step.progressed", "step.finished"]
    log = tmp_path / "runs" / "r" / "events.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f'{{"type": "{kind}"}}\n' for kind in types))

    assert [event["type"] for event in _rig.log_of(tmp_path)] == ["step.started", "step.finished"]
