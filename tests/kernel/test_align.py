"""Two runs are paired step by step: equal requests wherever they stand, of the rest what stands at the same place."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel.align import align, common
from steplog._kernel.state import RunState, StepState
from tests.kernel.logs import Log


def content(step: StepState) -> str:
    return str(step.started.get("args"))


def pairs(a: Log, b: Log) -> list[tuple[str | None, str | None, bool]]:
    return [(row.a and row.a.id, row.b and row.b.id, row.same) for row in align(a.state, b.state, content)]


def sequence(*steps: tuple[str, str]) -> Log:
    """Steps one behind the other, as (id, target)."""
    log, after = Log().begin(), None
    for step, target in steps:
        log.start(step, after=after, target=target).finish(step)
        after = step
    return log


def test_equal_requests_are_the_same_step_in_whatever_order_they_were_made():
    a = Log().begin().start("s1").start("s2").finish("s2").finish("s1")
    b = Log().begin().start("s2").start("s1").finish("s1").finish("s2")

    assert pairs(a, b) == [("s1", "s1", True), ("s2", "s2", True)]


def test_what_follows_a_pair_is_paired_by_its_kind_and_target():
    a = sequence(("s1", "plan"), ("s2", "search"), ("s3", "mail"))
    b = sequence(("s1", "plan"), ("t2", "search"), ("t3", "mail"))

    assert pairs(a, b) == [("s1", "s1", True), ("s2", "t2", False), ("s3", "t3", False)]


def test_a_step_that_only_one_run_has_does_not_shift_the_others():
    a = sequence(("s1", "plan"), ("s2", "search"), ("s3", "mail"))
    b = sequence(("s1", "plan"), ("x", "think"), ("t2", "search"), ("t3", "mail"))

    assert pairs(a, b) == [("s1", "s1", True), (None, "x", False), ("s2", "t2", False), ("s3", "t3", False)]


def test_another_tool_at_the_same_place_is_another_step_and_another_model_is_the_same_call():
    a, b = Log().begin(), Log().begin()
    a.start("s1", kind="llm_call", target="gpt-5").finish("s1").start("s2", after="s1", target="refund").finish("s2")
    b.start("t1", kind="llm_call", target="mini").finish("t1").start("t2", after="t1", target="escalate").finish("t2")

    assert pairs(a, b) == [("s1", "t1", False), ("s2", None, False), (None, "t2", False)]


def test_branches_that_fork_at_one_place_are_told_apart_by_what_they_ask():
    a = Log().begin().start("s1", target="north").start("s2", target="south").finish("s1").finish("s2")
    b = Log().begin().start("t2", target="south").start("t1", target="north").finish("t1").finish("t2")

    assert {row[:2] for row in pairs(a, b)} == {("s1", "t1"), ("s2", "t2")}


def test_the_inside_of_two_different_steps_is_compared_by_what_it_asks():
    a = Log().begin().start("s1", target="desk", args={"n": 1}).start("s2", scope="s1", args={"x": 1}).finish("s2")
    b = Log().begin().start("t1", target="desk", args={"n": 2}).start("t0", scope="t1", args={"y": 1}).finish("t0")
    b.start("t2", scope="t1", args={"x": 1}).finish("t2")

    assert pairs(a, b) == [("s1", "t1", False), (None, "t0", False), ("s2", "t2", True)]


def test_runs_that_have_nothing_in_common_stand_one_after_the_other():
    a, b = sequence(("s1", "a"), ("s2", "b")), sequence(("t1", "c"))

    assert pairs(a, b) == [("s1", None, False), ("s2", None, False), (None, "t1", False)]
    assert pairs(Log().begin(), b) == [(None, "t1", False)]


@given(st.lists(st.sampled_from("abc"), max_size=24), st.lists(st.sampled_from("abcd"), max_size=24))
def test_the_common_subsequence_is_the_longest(a: list[str], b: list[str]):
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if one == other else max(table[i][j + 1], table[i + 1][j])
    found = common(a, b)

    assert len(found) == table[-1][-1]
    assert all(a[i] == b[j] for i, j in found)
    assert all(i < k and j < m for (i, j), (k, m) in itertools.pairwise(found))


@pytest.mark.parametrize("letters", ["ab", "abcdefghijklmnopqrstuvwxyz"])
def test_very_different_sequences_still_give_a_subsequence_in_order(letters: str):
    draw = random.Random(7)
    a, b = ([draw.choice(letters) for _ in range(3_000)] for _ in range(2))
    found = common(a, b)

    assert all(a[i] == b[j] for i, j in found)
    assert all(i < k and j < m for (i, j), (k, m) in itertools.pairwise(found))
    assert len(found) > 600


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12), st.randoms())
def test_every_step_of_both_runs_stands_in_exactly_one_row(steps: list[tuple[str, bool]], draw: random.Random):
    a, b = Log().begin(), Log().begin()
    for number, (target, shared) in enumerate(steps):
        place = {"target": target, "after": draw.choice([None, *a.state.steps])}
        a.start(f"s{number}", **place).finish(f"s{number}")
        if shared:
            b.start(f"s{number}", **place).finish(f"s{number}")
        else:
            b.start(f"t{number}", target=target, after=draw.choice([None, *b.state.steps])).finish(f"t{number}")
    rows = align(a.state, b.state, content)

    assert sorted(row.a.id for row in rows if row.a) == sorted(a.state.steps)
    assert sorted(row.b.id for row in rows if row.b) == sorted(b.state.steps)
    assert all(row.a.id == row.b.id for row in rows if row.same and row.a and row.b)


def test_an_empty_run_has_no_rows():
    assert align(RunState(), RunState(), content) == []


def test_equal_calls_of_two_branches_are_told_apart_by_what_each_follows():
    """The branches go on in another order in the second run, and ask for something else."""
    a, b = Log().begin(), Log().begin()
    for log in (a, b):
        log.start("n", target="north").start("s", target="south").finish("n").finish("s")
    a.start("n1", after="n", target="work").start("s1", after="s", target="work").finish("n1").finish("s1")
    b.start("s2", after="s", target="work").start("n2", after="n", target="work").finish("n2").finish("s2")

    assert {row[:2] for row in pairs(a, b)} == {("n", "n"), ("s", "s"), ("n1", "n2"), ("s1", "s2")}
