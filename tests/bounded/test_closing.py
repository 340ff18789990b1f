"""A last word for every way in which a task ends, which claims what the state knows and nothing else."""

from __future__ import annotations

import pytest

from steplog.bounded import STOPS, TaskState, closing_message
from tests.bounded.shop import CUSTOMER, GOAL, Clock, Shop
from tests.bounded.test_scenarios import SCENARIOS

TOOLS = {tool.name: tool for tool in Shop(Clock()).tools()}


@pytest.mark.parametrize(
    "scenario, message",
    [
        ("as asked", "Refund issued and confirmation sent."),
        (
            "same call",
            "I came to a point at which I would only have repeated myself. A person will take it from here.",
        ),
        (
            "slow model",
            (
                "I could not finish this in time. The refund was issued. The confirmation was sent. "
                "A person will take it from here."
            ),
        ),
        (
            "few steps",
            (
                "I could not finish this within the steps that I may take. The refund was issued. "
                "The confirmation was not sent. A person will take it from here."
            ),
        ),
        (
            "slow write",
            (
                "Something went wrong on the way, and I do not know whether it has happened. "
                "Whether this happened is not known: The refund was issued. The confirmation was not sent. "
                "Somebody will find out before it is tried again."
            ),
        ),
        (
            "large refund",
            (
                "This is waiting for somebody's approval. The refund was not issued. It needs approval. "
                "The confirmation was not sent. It goes on when that is decided."
            ),
        ),
    ],
)
def test_the_last_word_says_what_happened_and_what_did_not(scenario, message, store):
    outcome = SCENARIOS[scenario][0]().agent.run(GOAL, user_id=CUSTOMER)

    assert outcome.message == message


@pytest.mark.parametrize("stop", STOPS)
def test_every_stop_reason_has_a_last_word(stop):
    state = TaskState("t1", CUSTOMER, GOAL, answer="It is done.", outcome="completed")
    state.finish(stop)

    assert closing_message(state, TOOLS).endswith(".")


def test_a_task_under_way_says_so():
    assert closing_message(TaskState("t1", CUSTOMER, GOAL), TOOLS) == "This is still under way."
