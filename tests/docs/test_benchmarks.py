"""The benchmark's page: every figure that is asked for has its row and its verdict."""

from __future__ import annotations

import pytest

from bench import page
from bench.figures import FIGURES, Figure
from tests.support.recorded import ROOT


def test_a_figure_is_shown_with_its_target_and_whether_it_is_met():
    rows = page.render({"record_safe_ratio": 1.25, "record_unsafe_ratio": 2.9, "dbos_record_times": 5.0}).splitlines()

    assert any("safe step" in row and "1.25 x | ≤ 1.5 | met" in row for row in rows)
    assert any("unsafe step" in row and "2.9 x | ≤ 2.8 | missed" in row for row in rows)
    assert any("DBOS" in row and "5 times | ≥ 6 | missed" in row for row in rows)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_what_is_measured_beyond_its_target_is_missed(figure: Figure):
    if figure.target is None:
        assert not figure.missed(1e9)
    else:
        above, below = figure.missed(figure.target * 1.01), figure.missed(figure.target * 0.99)
        assert (above, below) == ((False, True) if figure.unit == "times" else (True, False))


def test_the_page_was_written_by_this_program():
    written = (ROOT / "docs/benchmarks.md").read_text()

    assert "`make bench`" in written
    assert [figure.name for figure in FIGURES if f"| {figure.meaning} |" not in written] == []
