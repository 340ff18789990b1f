"""Rules are judged in order, purely, and what cannot be judged is denied."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel.control import Allow, Asked, Block, Deny, Later
from steplog._kernel.decide import Effect
from steplog._kernel.plain import plain
from steplog._kernel.policy import Knowledge, Unjudged, judge
from steplog._kernel.rule import FIELDS, Rule, rate_of, seconds_of
from steplog._kernel.state import RunState
from steplog.errors import InvalidArgument

CREATED = {"workflow": "refunds", "goal": None, "trigger": {"kind": "program", "by": "ann"}}


def asked(target="refund", args=None, *, kind="tool_call", step="s_a"):
    state = RunState(run_id="r-1", created=CREATED)
    effect = Effect(step, kind, target, "", None, "unsafe")
    return Asked(
        state, effect, "h", 1, lambda: {"cents": 50, "to": {"tier": "gold"}} if args is None else args, again=False
    )


def known(now=0, buckets=None, counted=None, holds=lambda rule, step: True):
    return Knowledge(now, buckets or {}, counted or {}, holds)


def verdict(rules, step=None, default="allow", **knowledge):
    return judge(rules, default, step or asked(), known(**knowledge)).verdict


def rule(action="deny", **fields):
    return Rule(id=fields.pop("id", "r"), action=action, **fields)


@pytest.mark.parametrize(
    "fields, matches",
    [
        ({}, True),
        ({"kind": "tool_call"}, True),
        ({"kind": ["llm_call", "tool_call"]}, True),
        ({"kind": "llm_call"}, False),
        ({"target": "refund"}, True),
        ({"target": "ref*"}, True),
        ({"target": "refun?"}, True),
        ({"target": "ref"}, False),
        ({"target": "REFUND"}, False),
        ({"target": ["mail", "refund"]}, True),
        ({"target": "[r]efund"}, False),
        ({"args": {"cents": 50}}, True),
        ({"args": {"cents": 50.0}}, True),
        ({"args": {"cents": 51}}, False),
        ({"args": {"cents": [1, 50]}}, True),
        ({"args": {"to.tier": "gold"}}, True),
        ({"args": {"to.tier": "silver"}}, False),
        ({"args": {"to.none": "gold"}}, False),
        ({"args": {"cents": True}}, False),
        ({"run": {"workflow": "ref*"}}, True),
        ({"run": {"run_id": "q-*"}}, False),
        ({"run": {"trigger.by": "ann"}}, True),
        ({"run": {"goal": "*"}}, False),
        ({"kind": "tool_call", "target": "mail"}, False),
    ],
)
def test_a_rule_matches_when_all_of_it_does(fields, matches):
    assert isinstance(verdict([rule(**fields)]), Deny if matches else Allow)


def test_true_is_no_one():
    assert isinstance(verdict([rule(args={"x": 1})], asked(args={"x": True})), Allow)


def test_the_first_rule_that_matches_decides():
    rules = [rule("allow", target="refund"), rule(id="all")]

    assert judge(rules, "deny", asked(), known()).rule == "r"
    assert judge(rules, "deny", asked("mail"), known()).rule == "all"


@pytest.mark.parametrize("default, kind", [("allow", Allow), ("deny", Deny), ("require_approval", Block)])
def test_what_no_rule_matches_has_the_default_and_a_local_value_is_always_allowed(default, kind):
    assert isinstance(verdict([], default=default), kind)
    assert verdict([], asked(kind="local"), default=default) == Allow()
    assert judge([], default, asked(), known()).rule == "default_action"


def test_a_rule_may_deny_a_local_value():
    assert isinstance(verdict([rule(kind="local")], asked(kind="local")), Deny)


@pytest.mark.parametrize("action", ["allow", "deny", "require_approval", "rate_limit"])
def test_a_condition_that_fails_denies_whatever_the_rule_says(action):
    def holds(rule, step):
        raise Unjudged("no such key")

    one = rule(action, when="args.x", **({"rate": "1/1s"} if action == "rate_limit" else {}))
    denied = verdict([one], holds=holds)

    assert isinstance(denied, Deny)
    assert denied.rule == "r"
    assert "no such key" in denied.reason


@pytest.mark.parametrize("fields", [{"args": {"x": 1}}, {"when": "true"}])
def test_arguments_that_cannot_be_read_deny(fields):
    unreadable = asked(args=None)
    unreadable._args = lambda: None
    assert isinstance(verdict([rule("allow", **fields)], unreadable), Deny)
    assert isinstance(verdict([rule("allow")], unreadable), Allow)


def test_a_secret_argument_is_not_compared():
    secret = plain({"key": {"$steplog": "secret", "v": "[redacted:secret]", "id": "x"}})
    assert isinstance(verdict([rule("allow", args={"key": "[redacted:secret]"})], asked(args=secret)), Deny)


def test_a_count_matches_from_the_next_one_on():
    over = rule(count_over=2)
    assert isinstance(verdict([over], counted={"r": {"s_1"}}), Allow)
    assert isinstance(verdict([over], counted={"r": {"s_1", "s_2"}}), Deny)
    # A step that is attempted again does not count against itself.
    assert isinstance(verdict([over], counted={"r": {"s_1", "s_a"}}), Allow)


def test_a_rule_counts_the_steps_that_reach_it():
    rules = [rule("allow", id="vip", args={"cents": 1}), rule(count_over=2)]
    assert judge(rules, "allow", asked(), known()).counts == ["r"]
    assert judge(rules, "allow", asked(args={"cents": 1}), known()).counts == []


def test_a_rate_lets_a_burst_through_and_then_its_rate():
    limit = [rule("rate_limit", rate="2/1s", burst=3, max_wait=0)]
    buckets, now, times = {}, 1_000, []
    for _ in range(400):
        judgement = judge(limit, "allow", asked(), known(now, buckets))
        if isinstance(judgement.verdict, Allow):
            buckets.update(judgement.took)
            times.append(now)
        now += 10
    assert times[:4] == [1000, 1000 + 10, 1000 + 20, 1500]
    assert [b - a for a, b in itertools.pairwise(times[3:])] == [500] * (len(times) - 4)


def test_a_rate_says_how_long_to_wait():
    later = verdict([rule("rate_limit", rate="1/1m")], now=10_000, buckets={"r": [0.0, 10_000]})
    assert later == Later("r", later.reason, 60.0, 5.0)
    later = verdict([rule("rate_limit", rate="1/1m", max_wait="50s")], now=40_000, buckets={"r": [0.0, 10_000]})
    assert (later.seconds, later.patience) == (30.0, 50.0)


@given(st.lists(st.integers(-5_000, 5_000), max_size=60))
def test_no_clock_gives_more_than_the_rate(steps):
    """However the clock moves, over any time by it no more than a burst and the rate of that time get through."""
    limit = [rule("rate_limit", rate="1/1s", burst=2)]
    buckets, now, taken = {}, 100_000, 0
    first = highest = now + (steps[0] if steps else 0)
    for step in steps:
        now += step
        highest = max(highest, now)
        judgement = judge(limit, "allow", asked(), known(now, buckets))
        if isinstance(judgement.verdict, Allow):
            buckets.update(judgement.took)
            taken += 1
    assert taken <= 2 + (highest - first) / 1000 + 1e-6


def test_a_rate_may_be_a_condition():
    rules = [rule("require_approval", rate_over="2/1h")]
    buckets = {}
    for expected in (Allow, Allow, Block):
        judgement = judge(rules, "allow", asked(), known(0, buckets))
        assert isinstance(judgement.verdict, expected)
        if expected is Allow:
            buckets.update(judgement.took)


def test_an_approval_may_expire():
    assert verdict([rule("require_approval", expires="2h")], now=1000).expires == 1000 + 7_200_000
    assert verdict([rule("require_approval")], now=1000).expires is None


@pytest.mark.parametrize(
    "fields, field, says",
    [
        ({"id": ""}, "id", "1 to 64"),
        ({"action": "alow"}, "action", "allow, deny, require_approval, rate_limit"),
        ({"kind": "tool"}, "kind", "llm_call, tool_call, local"),
        ({"kind": []}, "kind", "llm_call"),
        ({"target": 3}, "target", "refund*"),
        ({"target": ""}, "target", "refund*"),
        ({"args": ["x"]}, "args", "table"),
        ({"run": {"flow": "x"}}, "run", "workflow"),
        ({"when": " "}, "when", "text"),
        ({"count_over": -1}, "count_over", "at least 0"),
        ({"count_over": True}, "count_over", "whole number"),
        ({"rate_over": "ten"}, "rate_over", "10/1m"),
        ({"rate_over": "0/1m"}, "rate_over", "10/1m"),
        ({"rate": "1/1m"}, "rate", "rate_limit"),
        ({"action": "rate_limit"}, "rate", "missing"),
        ({"action": "rate_limit", "rate": "1/1m", "rate_over": "1/1m"}, "rate_over", "rate_limit"),
        ({"action": "rate_limit", "rate": "1/1m", "max_wait": 61}, "max_wait", "60 seconds"),
        ({"action": "rate_limit", "rate": "1/1m", "burst": 0}, "burst", "at least 1"),
        ({"burst": 3}, "burst", "needs a rate"),
        ({"expires": "1h"}, "expires", "require_approval"),
        ({"action": "require_approval", "expires": "soon"}, "expires", "30s"),
        ({"action": "require_approval", "expires": 0}, "expires", "from 1"),
        ({"reason": ""}, "reason", "text"),
    ],
)
def test_a_rule_that_is_none_says_what_is_allowed(fields, field, says):
    with pytest.raises(InvalidArgument, match="rule") as wrong:
        Rule(**{"id": "r", "action": "deny", **fields})
    assert wrong.value.field == field
    assert says in str(wrong.value)


def test_times_and_rates_as_they_are_written():
    assert [seconds_of(time) for time in ("500ms", "90s", "5m", "24h", "7d", 3, 1.5, "m")] == [
        *(0.5, 90.0, 300.0, 86400.0, 604800.0, 3.0, 1.5, 60.0)
    ]
    assert rate_of("10/m") == rate_of("10 / 1m") == rate_of("10/60s") == (10, 60.0)
    assert {field.name for field in dataclasses.fields(Rule)} == set(FIELDS)


@pytest.mark.parametrize(
    "tree, seen",
    [
        ({"$steplog": "decimal", "v": "12.50"}, 12.5),
        ({"$steplog": "decimal", "v": "12"}, 12),
        ({"$steplog": "int", "v": str(2**70)}, 2**70),
        ({"$steplog": "date", "v": "2026-03-01"}, "2026-03-01"),
        ({"$steplog": "tuple", "v": [1, {"$steplog": "decimal", "v": "2"}]}, [1, 2]),
        ({"$steplog": "dataclass", "class": "m:C", "v": {"a": 1}}, {"a": 1}),
        ({"$steplog": "enum", "class": "m:E", "name": "RED"}, "RED"),
        ({"$steplog": "map", "v": [[1, "a"]]}, {"1": "a"}),
        ({"$steplog": "bytes", "text": "hi"}, "hi"),
        ({"x": [{"$steplog": "secret", "v": "[redacted:secret]", "id": "i"}]}, {"x": ["[redacted:secret]"]}),
    ],
)
def test_values_as_conditions_see_them(tree, seen):
    assert plain(tree) == seen
