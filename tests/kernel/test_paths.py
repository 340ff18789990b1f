"""Paths in a JSON tree: the form in which messages about drift print them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel.drift import first_difference
from steplog._kernel.paths import parse, without
from steplog.errors import InvalidArgument

TREE = {
    "user": "u",
    "metadata": {"request_id": "r", "kept": 1},
    "messages": [{"name": "a", "content": "x"}, {"content": "y"}, "text"],
    "odd.name": 1,
}


@pytest.mark.parametrize(
    "path,left",
    [
        ("user", {key: value for key, value in TREE.items() if key != "user"}),
        ("metadata.request_id", {**TREE, "metadata": {"kept": 1}}),
        ("metadata.*", {**TREE, "metadata": {}}),
        ("*.request_id", {**TREE, "metadata": {"kept": 1}}),
        ("messages[*].name", {**TREE, "messages": [{"content": "x"}, {"content": "y"}, "text"]}),
        ("messages[1].content", {**TREE, "messages": [TREE["messages"][0], {}, "text"]}),
        ("messages[2]", {**TREE, "messages": [*TREE["messages"][:2], None]}),
        ("messages[*]", {**TREE, "messages": [None, None, None]}),
    ],
)
def test_what_stands_at_a_path_is_left_out(path, left):
    before = json.dumps(TREE)
    assert without(TREE, [path]) == left
    assert json.dumps(TREE) == before


@pytest.mark.parametrize(
    "path", ["absent", "metadata.absent", "user.name", "messages.name", "metadata[0]", "messages[9].name", "[0]"]
)
def test_a_path_that_leads_nowhere_changes_nothing(path):
    assert without(TREE, [path]) is TREE


@pytest.mark.parametrize(
    "path",
    ["", " ", ".user", "user.", "a..b", "messages[", "messages[x]", "messages[-1]", "[0]a", "a b", "$.user", "a[*"],
)
def test_what_is_no_path_is_refused_with_an_example(path):
    with pytest.raises(InvalidArgument, match=r"is not a path") as caught:
        parse(path)
    assert "messages[*].name" in str(caught.value)


names = st.text(st.characters(exclude_characters=".[]*", exclude_categories=("Z", "C")), min_size=1, max_size=5)
trees = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@given(trees, trees)
def test_the_path_that_a_difference_is_printed_with_takes_the_difference_away(one, other):
    difference = first_difference(one, other)
    if difference is None or not difference.path:
        return
    left = first_difference(without(one, [difference.path]), without(other, [difference.path]))
    # An item that only one list has leaves its place in that list, so that the lists still differ there.
    assert left is None or left.path != difference.path or difference.path.endswith("]")
