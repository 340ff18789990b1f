"""Budgets: no limit is ever exceeded by what was admitted, and what is not known counts as used."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel.bounds import ADDED, ADDED_FOR_TOOLS, UNCAPPED, cap_name, of_arguments, of_request, of_window
from steplog._kernel.budget import Budget, BudgetState, Charge, Proposed, Usage, judge, nanos, parse, usd
from steplog.errors import InvalidArgument

KINDS = ("llm_call", "tool_call", "local")


def model(tokens=0, cost=0, **more):
    return Proposed("llm_call", "m", charge=Charge(tokens, cost), **more)


TOOL = Proposed("tool_call", "search")
LOCAL = Proposed("local", "now")


# limits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits, usage, next_, limit",
    [
        ({"max_steps": 2}, Usage(steps=2), LOCAL, "max_steps"),
        ({"max_model_calls": 2}, Usage(steps=9, model_calls=2), model(), "max_model_calls"),
        ({"max_model_calls": 2}, Usage(steps=9, model_calls=2), TOOL, None),
        ({"max_tool_calls": 2}, Usage(tool_calls=2), TOOL, "max_tool_calls"),
        ({"max_tool_calls": 2}, Usage(tool_calls=2), model(), None),
        ({"max_tool_calls": 0}, Usage(), TOOL, "max_tool_calls"),
        ({"max_tokens": 100}, Usage(tokens=60), model(40), None),
        ({"max_tokens": 100}, Usage(tokens=60), model(41), "max_tokens"),
        ({"max_tokens": 100}, Usage(tokens=60, reserved={"s": [30, 0]}), model(11), "max_tokens"),
        ({"max_tokens": 100}, Usage(tokens=900), TOOL, None),
        ({"max_cost": "0.01"}, Usage(nanos=9_000_000), model(1, 1_000_000), None),
        ({"max_cost": "0.01"}, Usage(nanos=9_000_000), model(1, 1_000_001), "max_cost"),
        ({"max_cost": 1}, Usage(), model(1, unpriced="nobody knows"), "max_cost"),
        ({"deadline": 1.5}, Usage(active_ms=1_499), TOOL, None),
        ({"deadline": 1.5}, Usage(active_ms=1_500), TOOL, "deadline"),
        ({"max_repeat": 2}, Usage(), TOOL._replace(times=1), None),
        ({"max_repeat": 2}, Usage(), TOOL._replace(times=2), "max_repeat"),
        ({"max_repeat": 2}, Usage(), TOOL._replace(times=2, again=True), None),
        ({"max_repeat": 2}, Usage(), LOCAL._replace(times=9), None),
        ({"max_stalls": 3}, Usage(), model(stalls=2), None),
        ({"max_stalls": 3}, Usage(), model(stalls=3), "max_stalls"),
        ({"max_stalls": 3}, Usage(), TOOL._replace(stalls=3), None),
    ],
)
def test_a_limit_stops_the_attempt_that_would_exceed_it(limits, usage, next_, limit):
    found = judge(Budget(**limits), usage, next_)

    assert (found and found.limit) == limit


@given(
    st.integers(0, 300),
    st.lists(st.tuples(st.sampled_from(["ask", "answer", "die", "skip"]), st.integers(0, 60), st.integers(0, 60))),
)
def test_what_was_admitted_never_uses_more_tokens_than_the_limit(limit, course):
    budget, usage, spent, open_ = Budget(max_tokens=limit), Usage(), 0, {}
    for number, (what, tokens, used) in enumerate(course):
        if what == "ask" and judge(budget, usage, model(tokens)) is None:
            usage.begin(f"s_{number}", "llm_call", Charge(tokens))
            open_[f"s_{number}"] = tokens
        elif what == "answer" and open_:
            step, held = open_.popitem()
            usage.end(step, Charge(min(used, held)))
            spent += min(used, held)
        elif what == "die" and open_:
            usage.lose_all()  # each may have used all that was set aside for it
            spent += sum(open_.values())
            open_.clear()
        elif what == "skip" and open_:
            usage.take_back(open_.popitem()[0], "llm_call")
    assert spent + sum(open_.values()) <= limit
    assert usage.tokens == spent


def test_an_attempt_whose_outcome_nobody_knows_counts_in_full_and_one_that_did_not_begin_not_at_all():
    usage = Usage()
    usage.begin("s_a", "llm_call", Charge(100, 5))
    usage.begin("s_a", "llm_call", Charge(70, 3))
    assert (usage.tokens, usage.set_aside, usage.model_calls, usage.steps) == (100, Charge(70, 3), 2, 2)

    usage.take_back("s_a", "llm_call")
    assert (usage.tokens, usage.set_aside, usage.model_calls, usage.steps) == (100, Charge(), 1, 1)


# what a program and a person may say ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [
        {"max_steps": -1},
        {"max_steps": 1.5},
        {"max_tokens": True},
        {"max_cost": "cheap"},
        {"max_cost": -1},
        {"max_cost": float("nan")},
        {"deadline": "soon"},
        {"deadline": -1},
        {"deadline": float("inf")},
        {"deadline": 10**400},
        {"max_tokens": 10**30},
        {"max_cost": "1e999999999"},
    ],
)
def test_what_is_no_limit_is_refused_with_what_to_write(limits):
    with pytest.raises(InvalidArgument, match=rf"Write steplog.Budget\({next(iter(limits))}="):
        Budget(**limits)


def test_a_budget_is_the_same_after_a_way_through_json():
    budget = Budget(max_steps=3, max_cost=0.1, deadline=dt.timedelta(minutes=2))

    assert budget.limits() == {"max_steps": 3, "max_cost": "0.1", "deadline": 120.0}
    assert Budget.of({**budget.limits(), "of_a_later_release": 1}) == budget


def test_limits_are_typed_as_words():
    assert parse("max_tokens=5_000, max_cost=2.50,deadline=none") == {
        "max_tokens": 5000,
        "max_cost": "2.50",
        "deadline": None,
    }
    for words in ("max_tokns=5", "max_tokens", "max_tokens=", "max_tokens=many", "max_cost=x", "deadline=-1"):
        with pytest.raises(InvalidArgument):
            parse(words)


def test_a_persons_limit_counts_until_the_program_changes_its_own():
    state = BudgetState()
    state.set_by_program({"max_steps": 5, "max_tokens": 10})
    state.operator.update({"max_steps": 8, "max_tokens": None})
    state.set_by_program({"max_steps": 5, "max_tokens": 10})
    assert state.budget == Budget(max_steps=8)

    state.set_by_program({"max_steps": 6, "max_tokens": 10})
    assert state.budget == Budget(max_steps=6)


@given(st.decimals(0, 10_000, places=12))
def test_money_is_never_rounded_down(dollars):
    assert Decimal(usd(nanos(dollars))) >= dollars
    assert nanos(dollars) - dollars * 10**9 < 1


# bounds ---------------------------------------------------------------------------------------------------------------

CHAT = "/v1/chat/completions"
ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    "path, more, output, capped",
    [
        (CHAT, {"max_tokens": 50}, 50, True),
        (CHAT, {"max_completion_tokens": 50, "n": 3}, 150, True),
        (CHAT, {"max_tokens": 10, "max_completion_tokens": 50}, 50, True),
        (CHAT, {"max_tokens": None}, UNCAPPED, False),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 9}, 9, True),
        ("/v1/messages", {"max_tokens": 7}, 7, True),
        ("/v1beta/models/g:generateContent", {"contents": [], "generationConfig": {"maxOutputTokens": 8}}, 8, True),
        ("/v1/embeddings", {"input": "hi"}, 0, True),
    ],
)
def test_an_answer_is_bounded_by_the_cap_of_its_request(path, more, output, capped):
    found = of_request("POST", path, {**ASKED, **more}, 100)

    assert (found.input, found.output, found.capped) == (100 + ADDED, output, capped)


@pytest.mark.parametrize(
    "more, window, output",
    [
        ({}, None, UNCAPPED),
        ({}, 8_192, 16_384),
        ({"n": 3}, 8_192, 3 * 16_384),
        ({}, 1_000_000, UNCAPPED),
        ({"max_tokens": 50}, 8_192, 50),
    ],
)
def test_an_answer_without_a_cap_is_bounded_by_the_window_of_its_model(more, window, output):
    assert of_window(of_request("POST", CHAT, {**ASKED, **more}, 100), window).output == output


@pytest.mark.parametrize(
    "path, name",
    [
        (CHAT, "max_completion_tokens"),
        ("/openai/deployments/d/chat/completions", "max_completion_tokens"),
        ("/v1/responses", "max_output_tokens"),
        ("/v1/messages", "max_tokens"),
        ("/v1beta/models/g:streamGenerateContent", "max_output_tokens in its config"),
        ("/invoke", ""),
    ],
)
def test_the_name_of_a_cap_is_that_of_the_api(path, name):
    assert cap_name(path) == name


@pytest.mark.parametrize(
    "method, path, body",
    [
        ("GET", "/v1/models", None),
        ("POST", "/v1/files", None),
        ("POST", "/v1/messages/count_tokens", ASKED),
        ("POST", "/v1beta/models/g:countTokens", {"contents": []}),
        ("POST", "/v1/vector_stores", {"name": "v"}),
    ],
)
def test_what_asks_no_model_uses_nothing(method, path, body):
    assert of_request(method, path, body, 100) == (0, 0, True, False)


def test_tools_bring_instructions_of_their_own_and_a_conversation_goes_on():
    assert of_request("POST", CHAT, {**ASKED, "tools": [{}]}, 100).input == 100 + ADDED + ADDED_FOR_TOOLS
    assert of_request("POST", "/v1/responses", {"input": "a", "previous_response_id": "r"}, 9).continues


def test_a_call_of_the_programs_own_is_bounded_by_its_arguments():
    assert of_arguments({"prompt": "hi", "max_tokens": 5}, 30) == (30 + ADDED, 5, True, False)
    assert of_arguments(["hi"], 6).output == UNCAPPED
