"""A replay of a run that was stopped from outside itself stops at the same step, for the same reason."""

from __future__ import annotations

import pytest

import steplog
from steplog.errors import BudgetExceeded, Cancelled, RunStopped, Suspended, Unrecorded

ASK = [steplog.Rule(id="ask", action="require_approval", target="pay")]
DONE: list[int] = []


@steplog.step(mode="safe")
def look_up(number):
    return number


@steplog.step
def pay(number):
    DONE.append(number)
    return number


def over_budget(*numbers):
    with steplog.run("r", budget=steplog.Budget(max_tool_calls=2)):
        for number in numbers or range(5):
            look_up(number)


def held():
    with steplog.run("r", policy=ASK):
        look_up(1)
        pay(2)


def waits():
    with steplog.run("r", on_wait="suspend") as run:
        look_up(1)
        run.wait("go")


def cancelled(*, cancel=lambda: None):
    with steplog.run("r"):
        try:
            look_up(1)
            cancel()
            pay(2)
        finally:
            look_up(3)


def recorded(program, *args, **options):
    with pytest.raises(RunStopped) as live:
        program(*args, **options)
    return live.value.__cause__


def again(program, *args):
    """The interrupt of a replay, and what came of it."""
    with pytest.raises(RunStopped) as caught, steplog.replay("r") as replayed:
        program(*args)
    return caught.value.__cause__, replayed


@pytest.mark.parametrize("program, kind", [(over_budget, BudgetExceeded), (held, Suspended), (waits, Suspended)])
def test_a_suspended_run_is_stopped_again_where_it_was(program, kind):
    live = recorded(program)

    found, replayed = again(program)

    assert type(found) is type(live) is kind
    for fact in ("args", "step", "reason", "commands", *kind.noted):
        assert getattr(found, fact) == getattr(live, fact), fact
    assert replayed.identical
    assert "the recording ends here" in replayed.note
    assert not DONE


def test_a_cancelled_run_is_cancelled_again_and_cleans_up():
    live = recorded(cancelled, cancel=lambda: steplog.cancel("r", by="ann"))

    found, replayed = again(cancelled)

    assert (type(found), found.step, found.by) == (Cancelled, live.step, "ann")
    assert replayed.identical
    assert replayed.replayed == 2


def test_another_step_than_the_one_that_was_stopped_is_a_difference():
    live = recorded(over_budget)

    found, replayed = again(over_budget, 0, 1, 7)

    assert isinstance(found, Unrecorded)
    assert not replayed.identical
    assert live.step in replayed.divergence.message


def test_a_stop_that_was_lifted_since_stops_no_replay():
    recorded(over_budget)
    with steplog.run("r", budget=steplog.Budget(max_tool_calls=9)):
        for number in range(3):
            look_up(number)

    with steplog.replay("r") as replayed, steplog.run("r"):
        for number in range(3):
            look_up(number)
    assert replayed.identical
