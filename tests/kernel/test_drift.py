"""Where two requests first differ: a path that leads there, and both values in a few words."""

from __future__ import annotations

import copy
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from steplog._kernel.drift import ABSENT, Difference, first_difference, windows
from tests.kernel.strategies import JSON_LEAVES, same

# Names without the characters that a path is made of, so that a path can be read back without ambiguity.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=".[]"), min_size=1, max_size=6)
TREES = st.recursive(
    JSON_LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
LIMIT = 120


def at(tree, path):
    """The value that a path leads to in a tree, or ABSENT."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        if name:
            tree = tree.get(name, ABSENT) if isinstance(tree, dict) else ABSENT
        else:
            tree = tree[int(index)] if isinstance(tree, list) and int(index) < len(tree) else ABSENT
    return tree


def places(tree, path=""):
    """The paths of all containers and leaves in a tree."""
    yield path
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from places(value, f"{path}.{name}" if path else name)
    elif isinstance(tree, list):
        for index, item in enumerate(tree):
            yield from places(item, f"{path}[{index}]")


def with_value(tree, path, value):
    """A copy of a tree with another value at a path."""
    if not path:
        return value
    copied = copy.deepcopy(tree)
    holder, (name, index) = copied, re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)[-1]
    for outer_name, outer_index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)[:-1]:
        holder = holder[outer_name or int(outer_index)]
    holder[name or int(index)] = value
    return copied


@given(TREES)
def test_a_tree_does_not_differ_from_its_copy(tree):
    assert first_difference(tree, copy.deepcopy(tree)) is None


@given(TREES, TREES)
def test_there_is_a_difference_exactly_where_trees_are_unequal(old, new):
    # 0.0 and -0.0 are one number to a program that compares them.
    assume(same(old, new) == (old == new and repr(old) == repr(new)) or old != new)
    difference = first_difference(old, new)

    if difference is None:
        assert old == new
    else:
        assert not same(old, new)
        assert same(at(old, difference.path), difference.recorded) or difference.recorded is ABSENT
        assert same(at(new, difference.path), difference.found) or difference.found is ABSENT
        assert not same(difference.recorded, difference.found)


@given(TREES, JSON_LEAVES, st.data())
def test_a_single_change_is_found_where_it_was_made(tree, value, data):
    path = data.draw(st.sampled_from(sorted(places(tree))))
    old = at(tree, path)
    assume(not isinstance(old, dict | list) and not (type(old) is type(value) and old == value))

    assert first_difference(tree, with_value(tree, path, value)) == Difference(path, old, value)


@given(TREES, st.data())
def test_the_difference_is_the_first_in_document_order(tree, data):
    leaves = [path for path in places(tree) if not isinstance(at(tree, path), dict | list)]
    assume(len(leaves) > 1)
    one, other = sorted(data.draw(st.sets(st.sampled_from(range(len(leaves))), min_size=2, max_size=2)))
    changed = with_value(with_value(tree, leaves[other], ["new"]), leaves[one], ["new"])

    assert first_difference(tree, changed).path == leaves[one]


@pytest.mark.parametrize(
    "old, new, path, recorded, found",
    [
        (1, 2, "", 1, 2),
        (1, 1.0, "", 1, 1.0),
        (True, 1, "", True, 1),
        ({"a": 1}, {"a": 1, "b": None}, "b", ABSENT, None),
        ({"a": 1, "b": 2}, {"b": 2}, "a", 1, ABSENT),
        ([1], [1, 2], "[1]", ABSENT, 2),
        ([1, 2], [2], "[0]", 1, 2),
        ({"m": [{"c": "x"}]}, {"m": [{"c": "y"}]}, "m[0].c", "x", "y"),
        ({"m": {}}, {"m": []}, "m", {}, []),
    ],
)
def test_a_difference_by_hand(old, new, path, recorded, found):
    difference = first_difference(old, new)

    assert difference == Difference(path, recorded, found)
    assert (type(difference.recorded), type(difference.found)) == (type(recorded), type(found))


def test_the_order_of_members_is_no_difference():
    assert first_difference({"a": 1, "b": [2]}, {"b": [2], "a": 1}) is None


def test_a_tree_may_be_as_deep_as_a_request_can_be():
    def deep(leaf):
        for _ in range(50_000):
            leaf = [leaf]
        return leaf

    assert first_difference(deep(1), deep(2)).path == "[0]" * 50_000


# windows --------------------------------------------------------------------------------------------------------------

PIECES = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
SIZES = st.integers(0, 300) | st.sampled_from([29, 30, 31, 99, 100, 101, 1 << 20])


@st.composite
def differing_texts(draw):
    """Two texts with a common beginning and a common end of any size, and something else between."""
    head, tail = ("".join([draw(PIECES), draw(st.sampled_from("ab\n")) * draw(SIZES)]) for _ in range(2))
    old, new = draw(PIECES), draw(PIECES)
    assume(old != new)
    return head + old + tail, head + new + tail


@given(differing_texts())
def test_windows_of_texts_of_any_size_are_short_and_show_the_difference(texts):
    old, new = windows(Difference("x", *texts))

    assert old != new
    assert max(len(old), len(new)) <= LIMIT
    assert (old + new).isprintable()


@given(differing_texts())
def test_a_window_is_a_piece_of_its_text(texts):
    for text, window in zip(texts, windows(Difference("x", *texts)), strict=True):
        if "\\" not in window:
            assert window.removeprefix("...").removesuffix("...") in text


@given(TREES | st.just(ABSENT), TREES | st.just(ABSENT))
def test_windows_of_unequal_values_are_short_and_differ(old, new):
    assume(type(old) is not type(new) or old != new)
    one, other = windows(Difference("x", old, new))

    assert one != other
    assert max(len(one), len(other)) <= LIMIT


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ("1", 1, ("'1'", "1")),
        ("a\nb", "a\\nb", ("a\\nb", "a\\\\nb")),
        ("\x1b[31mred\r", "red", ("\\x1b[31mred\\r", "red")),
        ("é\u2028", "é", ("é\\u2028", "é")),
        (ABSENT, "here", ("(absent)", "here")),
    ],
)
def test_a_window_by_hand(old, new, expected):
    assert windows(Difference("x", old, new)) == expected


def test_a_window_begins_shortly_before_the_difference():
    head = "The weather is fine and the day is long. " * 1000
    old, new = windows(Difference("x", f"{head}It is Monday, says the calendar.", f"{head}It is Tuesday."))

    assert old.startswith("...")
    assert "It is Monday, says the calendar." in old
    assert new.endswith("It is Tuesday.")
