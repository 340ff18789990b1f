"""A process that opens one run after the other keeps nothing of those that it has closed."""

from __future__ import annotations

import sys

import pytest

from bench import many_runs

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_hundreds_of_runs_leave_no_object_descriptor_or_thread(tmp_path):
    left = many_runs.measure(tmp_path, runs=300, warm=100)

    assert (left["runs_300_fds"], left["runs_300_threads"]) == (0, 0)
    # Far less than one for each run: what a cache of fixed size takes in meanwhile.
    assert left["runs_300_objects"] < 20


@pytest.mark.nightly
def test_ten_thousand_runs_leave_no_memory(tmp_path):
    left = many_runs.measure(tmp_path)

    assert (left["runs_10000_fds"], left["runs_10000_threads"]) == (0, 0)
    assert left["runs_10000_objects"] < 20
    assert left["runs_10000_rss_kb"] < 4_000
