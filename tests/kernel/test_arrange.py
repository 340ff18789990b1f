"""The stable order of events: all of them, each once, and the same however fast the branches were."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel.arrange import Told, arranged, read, said


def log(*words: str) -> list[Told]:
    """A log from words: `a`, `a<b` (a begins behind b), `a/b` (inside b), `/a` (more of a), `!` (the run)."""
    events = []
    for word in words:
        if word == "!":
            events.append(Told(None))
        elif word.startswith("/"):
            events.append(Told(word[1:]))
        elif "<" in word:
            name, after = word.split("<")
            events.append(Told(name, "", after, name))
        elif "/" in word:
            name, scope = word.split("/")
            events.append(Told(name, scope, None, name))
        else:
            events.append(Told(word, "", None, word))
    return events


def listed(*words: str) -> str:
    return " ".join(words[number] for number in arranged(log(*words)))


def test_a_sequence_stays_as_it_is():
    words = ["!", "!", "a", "/a", "b<a", "/b", "c<b", "/c", "!"]

    assert listed(*words) == " ".join(words)


def test_what_is_inside_a_step_stands_between_its_beginning_and_its_end():
    assert listed("!", "a", "b/a", "/b", "c/a", "/c", "/a", "!") == "! a b/a /b c/a /c /a !"


@pytest.mark.parametrize(
    "words",
    [
        "! a /a b<a c<a /c /b !",
        "! a /a c<a b<a /b /c !",
        "! a /a c<a b<a /c /b !",
    ],
)
def test_branches_that_ran_together_are_sorted_by_name(words):
    assert listed(*words.split()) == "! a /a b<a /b c<a /c !"


def test_what_began_after_the_branches_stands_behind_them_whatever_its_name():
    assert listed("!", "c", "b", "/b", "/c", "a", "/a", "!") == "! b /b c /c a /a !"


def test_each_branch_stands_together():
    assert listed("b", "c", "/c", "d<c", "/b", "a<b", "/d", "/a") == "b /b a<b /a c /c d<c /d"


def test_links_that_lead_nowhere_lose_nothing():
    assert sorted(arranged([Told("a", "", "a"), Told("b", "b", "c"), Told("c", "", "b"), Told("a")])) == [0, 1, 2, 3]


def test_a_chain_may_be_as_long_as_a_run():
    events = [Told(f"s{n}", "", f"s{n - 1}" if n else None, "s") for n in range(20_000)]

    assert arranged(events) == list(range(20_000))


def program(names: int, seed: int) -> list[Told]:
    """A fan-out of branches of several steps each, run in an order that a seed decides."""
    draw = random.Random(seed)
    left = [
        [
            part
            for n in range(3)
            for part in (Told(f"{b}{n}", "", f"{b}{n - 1}" if n else "root", f"{b}{n}"), Told(f"{b}{n}"))
        ]
        for b in "abcdef"[:names]
    ]
    # Every branch begins before any of them ends its first step, as tasks of a gather do.
    events = [Told(None), Told("root", "", None, "root"), Told("root")]
    draw.shuffle(left)
    events += [branch.pop(0) for branch in left]
    while any(left):
        events.append(draw.choice([branch for branch in left if branch]).pop(0))
    return events


@given(st.integers(1, 6), st.integers(), st.integers())
def test_the_order_does_not_depend_on_who_was_faster(names, one, other):
    def text(seed):
        events = program(names, seed)
        return [events[number] for number in arranged(events)]

    assert text(one) == text(other)


@given(st.permutations(range(12)))
def test_a_permutation_is_said_and_read(order):
    assert read(said(order), 12) == order


@pytest.mark.parametrize("text", ["0-2", "0 0 1 2", "0-9", "a", "2-0", "0-99999999999"])
def test_what_is_no_order_is_refused(text):
    with pytest.raises(ValueError):
        read(text, 4)


def test_an_order_of_many_is_short():
    assert said([0, *range(5, 10), *range(1, 5), 10]) == "0 5-9 1-4 10"
