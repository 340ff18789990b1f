"""A run is named by `last`, its id, a unique prefix of it, or a path; a step by its id or a unique prefix."""

from __future__ import annotations

import os

import pytest

from tests.cli.logs import MODEL, TOOL, LogFile, refund_run


@pytest.mark.parametrize("name", ["last", "refund-1001", "ref"])
def test_words_that_name_the_run(home, ask, name):
    refund_run(home)
    os.utime(LogFile(home, "other").begin().path, (1, 1))
    assert ask("show", name)["run"] == "refund-1001"


@pytest.mark.parametrize("tail", ["", "/", "/events.jsonl"])
def test_a_path_names_the_run_and_its_home(home, ask, tmp_path, tail):
    log = refund_run(home)
    shown = ask("show", f"{log.path.parent}{tail}", "--home", str(tmp_path / "elsewhere"))
    assert shown["run"] == "refund-1001"


def test_an_id_that_is_the_beginning_of_another_is_exact(home, ask):
    LogFile(home, "refund-1").begin()
    LogFile(home, "refund-10").begin()
    assert ask("show", "refund-1")["run"] == "refund-1"


@pytest.mark.parametrize("name", [TOOL, TOOL.removeprefix("s_"), TOOL[:5], "aab"])
def test_words_that_name_the_step(home, ask, name):
    refund_run(home)
    assert ask("show", "last", name)["step"] == TOOL


def test_an_ambiguous_step_lists_its_candidates(home, ask):
    refund_run(home)
    error = ask("show", "last", "s_aa")["error"]
    assert error["type"] == "UnknownStep"
    assert error["candidates"] == [MODEL, TOOL]


@pytest.mark.parametrize("name", ["2", "#2"])
def test_a_step_is_named_by_its_number_in_recorded_order(home, ask, name):
    refund_run(home)
    assert ask("show", "refund-1001", name)["step"] == TOOL


@pytest.mark.parametrize("name", ["0", "5", "#99"])
def test_a_number_that_no_step_has_is_told_with_how_many_there_are(home, invoke, name):
    refund_run(home)
    result = invoke("show", "refund-1001", name)
    assert result.exit_code == 1
    assert "it has 4" in result.output
