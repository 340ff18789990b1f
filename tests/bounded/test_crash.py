"""A task that is killed goes on where it was (P2, P4): nothing lost, nothing done twice."""

from __future__ import annotations

import sys

import pytest

from steplog.testing import crash_matrix
from tests.support.recorded import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture
def matrix(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    ledger = __import__("bounded_agent")
    yield lambda **options: crash_matrix(
        EXAMPLES / "bounded_agent.py",
        ledger=ledger.entries,
        reset=lambda: ledger.LEDGER.unlink(missing_ok=True),
        cwd=tmp_path,
        **options,
    )
    sys.modules.pop("bounded_agent")


def test_a_task_killed_where_its_effects_are_at_risk_loses_and_doubles_nothing(matrix):
    report = matrix(limit=6)

    assert report.ok, report


@pytest.mark.nightly
def test_a_task_killed_anywhere_loses_and_doubles_nothing(matrix):
    report = matrix()

    assert report.ok, report
    assert [tool.name for tool in report.tools if tool.undecided] == ["send_mail"]
