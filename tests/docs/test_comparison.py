"""The comparison with other recorders: steplog's own column, played here, and the page of `make compare`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import compare_recorders
from tests.support.recorded import ROOT
from tests.support.thinned import thinned

sys.path.insert(0, str(ROOT / "bench/recorders"))
CASES = list(compare_recorders.cases.CASES)


# What the others fail at, a part of it each day. The rest, which the suite tests elsewhere too, is played by night.
OFTEN = ("gather_same", "gather_five", "as_completed", "threads_same", "streams_interleaved", "nested", "killed")
SELDOM = [case for case in CASES if case not in OFTEN]
ROWS = [*thinned(OFTEN, every=3), *(pytest.param(case, marks=pytest.mark.nightly) for case in SELDOM)]


@pytest.mark.parametrize("case", ROWS)
def test_steplog_records_and_replays_every_case(case, tmp_path):
    found = compare_recorders.verdict(compare_recorders.STEPLOG, case, tmp_path / case, Path(sys.executable))

    assert found == "OK"


def test_the_rows_that_are_played_often_are_rows():
    assert set(CASES) >= set(OFTEN)


def test_the_page_holds_what_the_comparison_compares():
    page = (ROOT / "docs/comparison.md").read_text()
    rows = {
        line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1:] for line in page.splitlines() if "| " in line
    }

    titles = [case.title for case in compare_recorders.cases.CASES.values()]
    assert [title for title in titles if title not in rows] == []
    assert {rows[title][0] for title in titles} == {"OK"}
    for peer in compare_recorders.PEERS:
        assert f"- {peer.name} " in page


def test_a_wrong_answer_is_seen(tmp_path):
    """The judge itself: answers that were swapped, tools that ran again, a replay that went live."""
    import json
    import subprocess

    def judged(replay: dict | None, error: str = "") -> str:
        done = subprocess.CompletedProcess([], 1 if error else 0, "", error)
        (tmp_path / "record.json").write_text(json.dumps({"said": ["a", "b"], "executed": ["x"]}))
        (tmp_path / "replay.json").unlink(missing_ok=True)
        if replay is not None:
            (tmp_path / "replay.json").write_text(json.dumps(replay))
        return compare_recorders._judged("gather_five", tmp_path, done, 2)

    assert judged({"said": ["a", "b"], "executed": []}) == "OK"
    assert judged({"said": ["b", "a"], "executed": []}) == "2 of 2 answers are wrong"
    assert judged({"said": ["a", "b"], "executed": ["x"]}) == "1 tools executed again"
    assert judged(None, "openai.APIConnectionError: Connection error.\n") == "goes live"
    assert judged(None, "some.DivergenceError: not the same\n") == "stops: DivergenceError"
