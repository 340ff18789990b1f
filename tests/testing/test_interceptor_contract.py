"""The contract of interceptors accepts a sound one and finds the fault in each broken one."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.processes import environment
from tests.support.recorded import ROOT
from tests.testing import broken, faulty


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """By class, the tests that failed: one pytest for all, because each would load everything anew."""
    selected = [f"{broken.__file__}::TestHand"]
    selected += [
        f"{broken.__file__}::Test{fault.__name__}::{test}" for fault in faulty.FAULTS for test in fault.caught_by
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", "-rfE"]
    done = subprocess.run(
        [*command, f"--basetemp={tmp_path_factory.mktemp('broken')}", *selected],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ERROR" not in done.stdout, done.stdout
    found: dict[str, set[str]] = {}
    for name, test in re.findall(r"^FAILED \S+::Test(\w+)::(\w+)", done.stdout, re.MULTILINE):
        found.setdefault(name, set()).add(test)
    return found


def test_a_sound_interceptor_passes(failed):
    assert "Hand" not in failed


@pytest.mark.parametrize("fault", faulty.FAULTS, ids=lambda fault: fault.__name__)
def test_a_broken_interceptor_is_found_out(fault, failed):
    assert failed.get(fault.__name__) == set(fault.caught_by)
