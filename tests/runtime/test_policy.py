"""A policy in force: what it denies does not happen, what it counts survives a crash, what is no policy says so."""

from __future__ import annotations

import asyncio
import dataclasses
import decimal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import steplog
from steplog import Policy, Rule
from steplog.errors import InvalidArgument, RunStopped, StepDenied, StepRateLimited, Suspended

DONE: list[object] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    DONE.clear()


@steplog.step
def refund(order, cents=100):
    DONE.append((order, cents))
    return f"refunded {order}"


@steplog.step
async def mail(to):
    DONE.append(to)


def deny(**fields):
    return Rule(**{"id": "no", "action": "deny", **fields})


def tried(*arguments):
    try:
        return refund(*arguments)
    except StepDenied as denied:
        return denied.rule


def test_a_condition_in_cel_decides_on_the_bound_arguments():
    @dataclasses.dataclass(frozen=True)
    class Order:
        id: str
        total: decimal.Decimal

    @steplog.step
    def pay(order, *, region="eu"):
        DONE.append(order.id)

    rules = [deny(when="args.order.total > 100 && args.region == 'eu'", reason="Above 100.")]
    with steplog.run("r1", policy=rules):
        pay(Order("a", decimal.Decimal("99.5")))
        with pytest.raises(StepDenied, match=r"Above 100\."):
            pay(Order("b", decimal.Decimal("100.01")))
        pay(Order("c", decimal.Decimal(500)), region="us")
    assert DONE == ["a", "c"]


def test_a_condition_that_cannot_be_evaluated_denies():
    with steplog.run("r1", policy=[Rule(id="ok", action="allow", kind="tool_call", when="args.amount < 10")]):
        with pytest.raises(StepDenied, match=r"cannot be told whether rule ok allows this step.*amount"):
            refund("a")
        assert steplog.step("now", lambda: 1) == 1
    assert DONE == []


def test_a_number_that_is_no_answer_denies():
    with steplog.run("r1", policy=[Rule(id="ok", action="allow", when="args.cents")]):
        with pytest.raises(StepDenied, match="neither to yes nor to no"):
            refund("a")


def test_large_numbers_compare():
    with steplog.run("r1", policy=[deny(when="args.cents > 10")]):
        assert tried("a", 2**70) == "no"
        assert tried("a", -(2**70)) == "refunded a"


@pytest.mark.parametrize(
    "text, says",
    [
        ("args.x >", "Syntax error"),
        ("amount > 3", "undeclared reference to 'amount'"),
        ("'a' + 'b'", "not to yes or no"),
    ],
)
def test_a_condition_that_is_none_is_refused_when_it_is_written(text, says):
    with pytest.raises(InvalidArgument, match="rule 'no': when") as wrong:
        Policy([deny(when=text)])
    assert says in str(wrong.value)


def test_counts_are_carried_across_a_crash_and_an_agent_cannot_ask_more_often():
    policy = Policy([deny(target="refund", count_over=2)])
    with pytest.raises(ZeroDivisionError), steplog.run("r1", policy=policy):
        assert [tried(order) for order in "abc"] == ["refunded a", "refunded b", "no"]
        raise ZeroDivisionError
    with steplog.run("r1", policy=policy):
        assert [tried(order) for order in "abcd"] == ["refunded a", "refunded b", "no", "no"]
    assert DONE == [("a", 100), ("b", 100)]


def test_a_rule_that_is_new_counts_what_happened_before_it():
    with pytest.raises(ZeroDivisionError), steplog.run("r1"):
        assert [tried(*call) for call in (("a", 5), ("b", 500), ("c", 500))] == [f"refunded {order}" for order in "abc"]
        raise ZeroDivisionError
    with steplog.run("r1", policy=[deny(count_over=2, when="args.cents > 100")]):
        assert [tried(*call) for call in (("a", 5), ("b", 500), ("c", 500))] == [f"refunded {order}" for order in "abc"]
        assert tried("d", 5) == "refunded d"
        assert tried("e", 500) == "no"


def test_branches_cannot_both_take_the_last_of_a_count():
    with steplog.run("r1", policy=[deny(count_over=3)]), ThreadPoolExecutor(8) as pool:
        results = list(pool.map(tried, (f"o{number}" for number in range(12))))
    assert sorted(results)[:9] == ["no"] * 9
    assert len(DONE) == 3


def test_tasks_cannot_both_take_the_last_of_a_rate():
    async def main():
        async with steplog.run("r1", policy=[Rule(id="slow", action="rate_limit", rate="2/1h")]):
            return await asyncio.gather(*(mail(f"{number}") for number in range(6)), return_exceptions=True)

    results = asyncio.run(main())
    limited = [result for result in results if isinstance(result, StepRateLimited)]
    assert (len(limited), len(DONE)) == (4, 2)
    assert all(1700 < error.retry_after <= 1800 for error in limited)


def test_a_rate_is_carried_across_a_crash(home):
    policy = Policy([Rule(id="slow", action="rate_limit", rate="2/1h")])
    with pytest.raises(ZeroDivisionError), steplog.run("r1", policy=policy):
        assert [tried(order) for order in "ab"] == ["refunded a", "refunded b"]
        raise ZeroDivisionError
    with steplog.run("r1", policy=policy):
        assert [tried(order) for order in "abc"] == ["refunded a", "refunded b", "slow"]


def test_a_short_wait_is_waited_for_and_the_next_one_waits_too():
    with steplog.run("r1", policy=[Rule(id="slow", action="rate_limit", rate="100/1s", burst=1)]):
        assert [tried(order) for order in "abcd"] == [f"refunded {order}" for order in "abcd"]
    with steplog.run("r1", policy=False) as run:
        assert [tried(order) for order in "abcd"] == [f"refunded {order}" for order in "abcd"]
        assert run.executed == 0


def test_a_step_that_needs_approval_suspends_the_run(state_of):
    rule = Rule(id="big", action="require_approval", when="args.cents > 100", reason="Above one dollar.", expires="1h")
    with pytest.raises(RunStopped, match=r"Above one dollar\.") as stopped, steplog.run("r1", policy=[rule]):
        assert tried("a", 50) == "refunded a"
        refund("b", 500)
    assert isinstance(stopped.value.__cause__, Suspended)
    (held,) = state_of("r1").controls.held.values()
    assert (held["rule"], held["expires"] > 0) == ("big", True)


def test_a_held_step_expires_and_the_agent_is_told(monkeypatch):
    from steplog._runtime import approvals

    rule = Rule(id="big", action="require_approval", expires="1s")
    with pytest.raises(RunStopped), steplog.run("r1", policy=[rule]):
        refund("a")
    monkeypatch.setattr(approvals.time, "time", lambda: 4e9)
    for _ in range(2):
        with steplog.run("r1", policy=[rule]), pytest.raises(steplog.StepRejected, match="in time") as rejected:
            refund("a")
        assert (rejected.value.by, rejected.value.rule) == (None, "big")
    assert DONE == []


def test_a_run_that_began_under_a_policy_does_not_go_on_without_one():
    with pytest.raises(ZeroDivisionError), steplog.run("r1", policy=[deny()]):
        raise ZeroDivisionError
    with pytest.raises(InvalidArgument, match="policy=False"), steplog.run("r1"):
        pytest.fail("entered")
    with steplog.run("r1", policy=False):
        assert tried("a") == "refunded a"
    with steplog.run("r1"):  # it has ended, so nothing new can happen
        assert tried("a") == "refunded a"


def test_where_a_policy_comes_from(tmp_path, monkeypatch, home):
    file = tmp_path / "policy.toml"
    file.write_text('default_action = "deny"')
    monkeypatch.setenv("STEPLOG_POLICY", str(file))
    with steplog.run("env"):
        assert tried("a") == "default_action"
    with steplog.run("own", policy=[]):
        assert tried("a") == "refunded a"
    steplog.install(home=home, interceptors=[], policy=[deny()])
    with steplog.run("installed"):
        assert tried("a") == "no"
    with steplog.run("none", policy=False) as run:
        assert tried("a") == "refunded a"
        assert run.recorder.control is None
    with pytest.raises(InvalidArgument, match=r"policy\.toml"):
        steplog.run("bad", policy=3)


TOML = """
default_action = "deny"

[[rules]]
id = "small"
action = "allow"
target = ["refund", "mail*"]
args = { cents = [50, 100] }

[[rules]]
id = "slow"
action = "rate_limit"
rate = "10/1m"
kind = "llm_call"
"""
YAML = """
default_action: deny
rules:
  - id: small
    action: allow
    target:
      - refund
      - mail*
    args: {cents: [50, 100]}
  - id: slow
    action: rate_limit
    rate: 10/1m
    kind: llm_call
"""


@pytest.mark.parametrize("name, text", [("p.toml", TOML), ("p.yaml", YAML)])
def test_a_policy_in_a_file(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    policy = Policy.load(file)
    assert [rule.id for rule in policy.rules] == ["small", "slow"]
    assert policy.digest == Policy(policy.rules, default_action="deny").digest
    with steplog.run("r1", policy=file):
        assert [tried("a", 50), tried("a", 70)] == ["refunded a", "default_action"]


@pytest.mark.parametrize(
    "change, line, says",
    [
        (("allow", "alow"), 6, "rule 'small': action is 'alow'"),
        (("rate = ", "rat = "), 13, "rule 'slow': rat is no field of a rule. Did you mean rate?"),
        (('id = "slow"', 'id = "small"'), 11, "is taken already"),
        (('id = "slow"\n', ""), 10, "id is missing"),
        (("10/1m", "ten"), 13, "'10/1m'"),
        (('"deny"', '"maybe"'), 2, "allow, deny, require_approval"),
        (("default_action", "defualt_action"), 2, "Did you mean default_action?"),
        (('"deny"', '"deny'), None, "no TOML"),
    ],
)
def test_what_is_wrong_with_a_file_names_the_line(tmp_path, change, line, says):
    file = tmp_path / "p.toml"
    file.write_text(TOML.replace(*change))
    with pytest.raises(InvalidArgument) as wrong:
        Policy.load(file)
    assert says in str(wrong.value)
    assert str(file) in str(wrong.value)
    assert getattr(wrong.value, "line", None) == line


def test_what_is_wrong_with_yaml_names_the_line(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(YAML.replace("rate_limit", "rate"))
    with pytest.raises(InvalidArgument, match=r"line 11: rule 'slow': action"):
        Policy.load(file)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        Policy.load(tmp_path / "none.toml")


def test_the_library_for_conditions_is_loaded_by_the_first_condition():
    code = (
        "import sys, steplog; rule = {'id': 'a', 'action': 'deny'}; loaded = lambda: 'cel_expr_python' in sys.modules;"
        "steplog.Policy([rule]); print(loaded()); steplog.Policy([{**rule, 'when': 'args.x > 1'}]); print(loaded())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_replay_judges_nothing():
    policy = Policy([deny(when="args.cents > 100")])

    def agent():
        return [tried("a", 500), tried("a", 50)]

    with steplog.run("r1", policy=policy):
        assert agent() == ["no", "refunded a"]
    with steplog.replay("r1"), steplog.run("r1", policy=[]):
        assert agent() == ["no", "refunded a"]


@pytest.mark.parametrize(
    "name, text, told",
    [
        ("p.toml", "[[rules]]\nid='a'\naction='deny'\nargs={day=1979-05-27}", "Write a date as its text"),
        ("p.yaml", "rules: [{id: a, action: deny, args: {x: &q {y: *q}}}]", "a value is a text"),
        ("p.toml", "x = " + "[" * 3000, "it is no TOML"),
        ("p.yaml", "rules: " + "[" * 3000, "it is no YAML"),
    ],
)
def test_what_no_argument_could_equal_or_is_too_deep_is_refused(tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidArgument, match=told):
        Policy.load(tmp_path / name)
