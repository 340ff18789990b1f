"""Looking at what a call would get, without submitting it."""

from __future__ import annotations

import pytest

import steplog
from steplog import plugins


def call(number: int = 1) -> plugins.Call:
    return plugins.Call("llm_call", "model", {"number": number}, "safe")


def submit(number: int = 1) -> int:
    return plugins.record(call(number), lambda _ticket: number)


def test_outside_a_run_nothing_is_foreseen():
    assert plugins.foresee(call()) is None
    assert plugins.asked() == 0


def test_what_is_recorded_is_foreseen_until_it_was_asked_for():
    with steplog.run("r"):
        assert plugins.foresee(call()) is None
        submit()
        assert plugins.foresee(call()) is None  # a second one would run
        assert plugins.asked() == 1
    with steplog.run("r") as run:
        for _ in range(2):
            assert plugins.foresee(call())["outcome"] == "done"
        assert plugins.foresee(call(2)) is None
        assert plugins.asked() == 0
        assert submit() == 1
        assert plugins.foresee(call()) is None
        assert run.replayed == 1


def test_a_failure_that_is_tried_again_is_not_foreseen():
    def fail(_ticket: object) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), steplog.run("r"):
        plugins.record(call(), fail)
    with steplog.run("r"):
        assert plugins.foresee(call()) is None
        submit()


def test_a_call_inside_another_step_is_foreseen_there_only():
    @steplog.step(mode="safe")
    def outer(fails: list[bool]) -> object:
        seen = plugins.foresee(call())
        submit()
        if fails.pop():
            raise KeyError("not yet")
        return seen and seen["outcome"]

    with pytest.raises(KeyError), steplog.run("r"):
        outer([True])
    with steplog.run("r", on_drift="run"):
        assert plugins.foresee(call()) is None
        assert outer([False]) is None  # other arguments: another step, with an inside of its own
