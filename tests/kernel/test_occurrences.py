"""Among equal requests, an account gets what was recorded for it, and what is doubtful is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel.identity import step_id
from steplog._kernel.occurrences import Caller, Clash, Given, Occurrences
from tests.kernel.logs import Log

REQUEST = step_id("", "tool_call", "t", "hash", 0)
OTHER = step_id("", "tool_call", "t", "another", 0)


def recorded(*accounts, after=None, still_open=(), others=()):
    """What a resumed run gives out, whose log holds an equal request of each of these accounts."""
    log = Log().begin()
    for number, account in enumerate(accounts):
        place = (after or {}).get(number)
        log.start(f"s_{number}", args_hash="hash", occurrence=number, after=place, account=account)
    for number, account in enumerate(others):
        log.start(f"s_o{number}", args_hash="another", occurrence=number, account=account)
        log.finish(f"s_o{number}")
    for number in range(len(accounts)):
        if number not in still_open:
            log.finish(f"s_{number}")
    return Occurrences(log.claim().state)


def branch(account, **more):
    return Caller(account, **{"forked": True, "waited": False, **more})


def ask(found, caller, after=None, request=REQUEST):
    return found.give_to("", request, after, caller)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_an_account_gets_what_was_recorded_for_it_in_any_order(order):
    found = recorded("a", "b", "c")

    assert [ask(found, branch("abc"[number])) for number in order] == [Given(number) for number in order]
    assert ask(found, branch("a")) == Given(3)


def test_the_account_goes_before_the_lineage_and_the_lineage_before_the_order():
    found = recorded("a", "b", "a", after={0: "x", 1: "y", 2: "y"})

    assert ask(found, Caller("a"), "y") == Given(2)
    assert ask(found, Caller("a"), "y") == Given(0)
    assert ask(found, Caller("b"), "x") == Given(1)


def test_an_account_that_the_log_does_not_know_waits_until_the_others_have_theirs():
    """Killed between the two: only the one had asked, and now the other one asks first."""
    found = recorded("a")

    assert ask(found, branch("b")) is None
    assert ask(found, branch("a")) == Given(0)
    assert ask(found, branch("b")) == Given(1)


def test_a_changed_key_gets_what_nobody_else_asks_for():
    found = recorded("a", "a", others=["a"])

    assert ask(found, branch("b")) is None
    assert ask(found, branch("b", waited=True)) == Given(0)
    assert ask(found, branch("b")) == Given(1), "once it is known whose key this is now, nobody waits"
    assert ask(found, branch("b"), request=OTHER) == Given(0)
    assert ask(found, branch("b")) == Given(2)


def test_in_a_sequence_a_changed_key_never_waits():
    found = recorded("a", "b", after={1: "x"})

    assert ask(found, Caller("c", waited=False)) == Given(0)
    assert ask(found, Caller("d", waited=False), "x") == Given(1)
    assert ask(found, Caller("e", waited=False), "y") == Given(2)


def test_with_one_of_two_keys_changed_the_other_one_leaves_what_is_its():
    found = recorded("a", "b")

    assert ask(found, branch("c")) is None
    assert ask(found, branch("b")) == Given(1)
    assert ask(found, branch("c")) is None
    assert ask(found, branch("c", waited=True)) == Given(0)


def test_with_both_keys_changed_nothing_is_given_without_saying_so():
    found = recorded("a", "b")

    assert ask(found, branch("c", waited=True)) == Given(0, Clash((0, 1), "c"))


def test_with_both_keys_changed_the_lineage_tells():
    found = recorded("a", "b", after={0: "x", 1: "y"})

    assert ask(found, branch("c", waited=True), "y") == Given(1)
    assert ask(found, branch("d", waited=True), "x") == Given(0)


def test_what_was_recorded_for_an_account_that_is_there_is_not_given_to_another():
    found = recorded("a", others=["b"])

    assert ask(found, branch("b", waited=True)) == Given(1), "b is in the log as another account"
    assert ask(found, branch("a")) == Given(0)

    found = recorded("a", others=["a"])
    assert ask(found, branch("a"), request=OTHER) == Given(0)
    assert ask(found, branch("b", waited=True)) == Given(1), "a has asked in this process, so b is not a's new key"


def test_an_account_whose_own_was_given_away_says_so():
    found = recorded("a")
    assert ask(found, Caller("b")) == Given(0)

    assert ask(found, Caller("a")) == Given(1, Clash((0,), "a", taken=True))


def test_a_second_account_that_the_log_does_not_know_says_so_where_it_would_change_something():
    found = recorded("a")
    assert ask(found, branch("b", waited=True)) == Given(0)

    assert ask(found, branch("c", changes=False)) == Given(1)
    assert ask(found, branch("c")) == Given(2, Clash((0,), "c"))
    assert ask(found, Caller("c")) == Given(3), "in a sequence, a token that has been renewed"


def test_a_model_that_is_asked_through_any_of_several_keys_answers_as_well():
    found = recorded("a", "b", others=["c"])

    assert ask(found, branch("c", strict=False, waited=True)) == Given(0)
    assert ask(found, branch("b", strict=False)) == Given(1)
    assert ask(found, branch("a", strict=False, waited=True)) == Given(2, Clash((0,), "a", taken=True))


def test_a_log_of_an_older_release_is_read_as_before():
    found = recorded("", "", after={0: "x", 1: "y"})

    assert [ask(found, branch("a"), place) for place in "yx"] == [Given(1), Given(0)]
    assert ask(found, branch("b")) == Given(2)


def test_that_two_accounts_share_the_records_of_an_older_release_is_said():
    found = recorded("", "")

    assert ask(found, branch("a")) == Given(0)
    assert ask(found, branch("b")) == Given(1, Clash((1,), "b", old=True))


def test_a_call_for_nobody_in_particular_is_told_by_lineage_and_order():
    found = recorded("a", "b", after={0: "x", 1: "y"})

    assert [found.give("", REQUEST, place) for place in "yxz"] == [1, 0, 2]


@given(st.lists(st.sampled_from("abc")), st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.booleans())))
def test_no_occurrence_is_given_out_twice(accounts, asked):
    found = recorded(*accounts)

    given_out = [ask(found, Caller(who, forked=forked, strict=strict)) for who, forked, strict in asked]

    numbers = [one.number for one in given_out if one is not None]
    assert len(set(numbers)) == len(asked)


def drawn(*branches):
    """A run in which each of these branches has begun with the same request."""
    log = Log().begin()
    for number, name in enumerate(branches):
        log.start(f"s_{number}", args_hash="hash", occurrence=number, branch=name).finish(f"s_{number}")
    return Occurrences(log.claim().state)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_branch_gets_what_it_drew_itself_in_any_order(order):
    names = ("p0", "p1", "task")
    found = drawn(*names)

    assert [found.give("", REQUEST, None, names[number], of_others="wait") for number in order] == list(order)


def test_a_branch_that_had_not_drawn_yet_leaves_the_others_theirs():
    assert drawn("p1").give("", REQUEST, None, "p0", of_others="wait") is None
    assert drawn("p1").give("", REQUEST, None, "p0", of_others="leave") == 1
    # Nobody else has come for it: then the program forks in another order now.
    assert drawn("p1").give("", REQUEST, None, "p0", of_others="take") == 0


def test_a_branch_that_draws_once_more_leaves_the_others_theirs():
    found = drawn("p0", "p1")

    assert found.give("", REQUEST, None, "p0", of_others="wait") == 0
    assert found.give("", REQUEST, "behind", "", of_others="wait") is None
    assert found.give("", REQUEST, "behind", "", of_others="leave") == 2
    assert found.give("", REQUEST, None, "p1", of_others="wait") == 1
    assert found.give("", REQUEST, "behind", "", of_others="wait") == 3


def test_a_log_that_names_no_branches_gives_them_out_in_order():
    found = drawn(True, True)

    assert [found.give("", REQUEST, None, name, of_others="wait") for name in ("p1", "p0")] == [0, 1]
