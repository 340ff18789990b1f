"""Who a step is follows from what is asked: not from when, in which order, or by which spelling."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from steplog._kernel.identity import MODES, args_hash, check_mode, step_id
from steplog._kernel.occurrences import Occurrences
from steplog._runtime.context import Frame
from steplog._runtime.journal import Journal
from steplog._runtime.recorder import Recorder
from steplog._runtime.redaction import redactor
from steplog._runtime.settle import begin
from steplog._runtime.signature import Binder
from steplog._runtime.ticket import Call
from steplog.errors import EncodeError, InvalidArgument
from steplog.stores.memory import MemoryStore
from tests.kernel.logs import Log
from tests.kernel.strategies import JSON

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
HASHES = st.binary(max_size=4).map(lambda data: hashlib.sha256(data).hexdigest())
IDENTITIES = st.tuples(TEXT, st.sampled_from(["llm_call", "tool_call", "local"]), TEXT, HASHES, st.integers(0, 9999))


def shuffled(tree, random):
    """The same JSON value with the members of its objects in another order."""
    if isinstance(tree, dict):
        members = [(name, shuffled(value, random)) for name, value in tree.items()]
        random.shuffle(members)
        return dict(members)
    return [shuffled(item, random) for item in tree] if isinstance(tree, list) else tree


@given(IDENTITIES)
def test_an_id_is_what_the_format_says(identity):
    """Written down a second time, with the standard library: a log must be readable by other programs, for ever."""
    text = json.dumps(list(identity), ensure_ascii=False, separators=(",", ":"))
    # The canonical form escapes only what JSON requires, and DEL is not among it.
    digest = hashlib.sha256(text.encode()).digest()

    assert step_id(*identity) == "s_" + base64.b32encode(digest).decode().lower()[:26]
    assert re.fullmatch(r"s_[a-z2-7]{26}", step_id(*identity))


def test_an_id_is_the_same_in_every_release():
    hashed = args_hash({"order_id": "ord_1001", "cents": 4200})

    assert hashed == "5e306cf50cf08438e8b0a4b779b0a930042a028760672bd1a7a35c7c8251d806"
    assert step_id("", "tool_call", "refund", hashed, 0) == "s_5ninnixgwyrpqg4wthab3ltyzc"


@given(IDENTITIES, IDENTITIES)
def test_different_identities_have_different_ids(one, other):
    assert (step_id(*one) == step_id(*other)) == (one == other)


@given(IDENTITIES, st.integers(0, 4), st.data())
def test_each_part_separates(identity, part, data):
    other = list(identity)
    other[part] = data.draw(st.integers(0, 9999) if part == 4 else TEXT)
    assume(other[part] != identity[part])

    assert step_id(*identity) != step_id(*other)


@given(JSON, st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(tree, random):
    assert args_hash(shuffled(tree, random)) == args_hash(tree)


@given(JSON, JSON)
def test_different_arguments_have_different_hashes(one, other):
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assume(same or not _equal_numbers(one, other))

    assert (args_hash(one) == args_hash(other)) == same


def _equal_numbers(one, other):
    # JSON knows one kind of number: 1 and 1.0, 0 and -0.0 are the same there, and json.dumps tells them apart.
    def plain(tree):
        if isinstance(tree, float):
            return int(tree) if tree.is_integer() else tree
        if isinstance(tree, dict):
            return {name: plain(value) for name, value in tree.items()}
        return [plain(item) for item in tree] if isinstance(tree, list) else tree

    return json.dumps(plain(one), sort_keys=True) == json.dumps(plain(other), sort_keys=True)


@pytest.mark.parametrize("tree", [{1: 2}, {"a": {3}}, {"a": object()}, b"bytes"])
def test_what_json_cannot_hold_is_refused(tree):
    with pytest.raises(EncodeError):
        args_hash(tree)


# submissions ----------------------------------------------------------------------------------------------------------

CALLS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["", "s_x", "s_y"]), st.sampled_from([1, 2])), max_size=8
)


def submitted(calls):
    """Step ids of calls (target, scope, argument) that one dispatch of a new run submits in this order."""
    store = MemoryStore()
    journal = Journal.open(store, "r", dict, redactor())
    recorder = Recorder(journal, redactor())
    ids = []
    for target, scope, argument in calls:
        ticket = begin(recorder, Call("tool_call", target, {"x": argument}), Frame(recorder, scope, None, (0, 0)))
        assert isinstance(ticket.attempt, int)
        ids.append(ticket.step)
    journal.close()
    return ids


@given(CALLS, st.randoms(use_true_random=False))
def test_the_order_of_submission_does_not_matter(calls, random):
    again = list(calls)
    random.shuffle(again)

    assert sorted(submitted(calls)) == sorted(submitted(again))


@given(CALLS)
def test_every_submission_is_a_step_of_its_own(calls):
    ids = submitted(calls)

    assert len(set(ids)) == len(calls)


@given(CALLS, CALLS)
def test_more_submissions_do_not_move_the_others(calls, more):
    """A step that is inserted leaves the others what they were; only one that asks the same is told apart by number."""
    assert set(submitted(calls)) <= set(submitted([*more, *calls]))


@given(CALLS)
def test_a_new_dispatch_counts_from_zero(calls):
    assert submitted(calls) == submitted(calls)


def test_defaults_and_spelling_of_a_call_do_not_matter():
    def refund(order, cents=100, *, reason="damaged", **more): ...

    bind = Binder(refund, owner="step refund", ignore=(), key="idempotency_key").bind
    calls = [
        bind(("o",), {}),
        bind((), {"order": "o"}),
        bind(("o", 100), {}),
        bind((), {"reason": "damaged", "cents": 100, "order": "o"}),
    ]

    assert len({args_hash(call) for call in calls}) == 1
    assert args_hash(bind(("o", 101), {})) != args_hash(calls[0])
    assert args_hash(bind(("o",), {"extra": 1})) != args_hash(calls[0])


@pytest.mark.parametrize("mode", MODES)
def test_the_four_modes_are_accepted(mode):
    assert check_mode(mode, "step x") == mode


@pytest.mark.parametrize("mode", ["", "Safe", "idempotent", None])
def test_another_mode_is_refused_with_the_four_named(mode):
    with pytest.raises(InvalidArgument) as caught:
        check_mode(mode, "step refund")

    assert all(known in str(caught.value) for known in ("step refund", repr(mode), *MODES))


# occurrences ----------------------------------------------------------------------------------------------------------

REQUEST = step_id("", "tool_call", "t", "hash", 0)
ELSEWHERE = step_id("s_x", "tool_call", "t", "hash", 0)


def occurrences(finished, still_open=(), *, mode="unsafe", after=None):
    """What a resumed run gives out, whose log holds these; `after` tells what each of them follows."""
    log = Log().begin()
    for number in (*finished, *still_open):
        log.start(f"s_{number}", args_hash="hash", occurrence=number, mode=mode, after=(after or {}).get(number))
    for number in finished:
        log.finish(f"s_{number}")
    return Occurrences(log.claim().state)


def handed_out(found, *places):
    return [found.give("", REQUEST, place) for place in places]


@pytest.mark.parametrize(
    "finished, still_open, given_out",
    [
        ((), (), [0, 1, 2]),
        ((0,), (), [0, 1, 2]),
        ((0, 1), (2,), [0, 1, 2, 3]),
        ((1,), (), [1, 0, 2, 3]),
        ((0, 2), (1,), [0, 2, 1, 3]),
        ((4, 0, 2), (6,), [0, 2, 4, 6, 1, 3, 5, 7]),
    ],
)
@pytest.mark.parametrize("place", [None, "elsewhere"])
def test_finished_occurrences_are_given_out_first(finished, still_open, given_out, place):
    found = occurrences(finished, still_open)

    assert handed_out(found, *[place] * len(given_out)) == given_out
    assert [found.give("s_x", ELSEWHERE, None) for _ in range(2)] == [0, 1]


def test_a_branch_gets_the_occurrences_that_it_recorded_itself():
    after = {0: "a", 1: "b", 2: "a", 3: "b"}

    assert handed_out(occurrences([0, 1, 2, 3], after=after), "b", "b", "a", "a") == [1, 3, 0, 2]
    assert handed_out(occurrences([0, 2], [1, 3], after=after), "b", "a", "b", "a") == [1, 0, 3, 2]


def test_a_request_at_another_place_gets_what_is_left():
    found = occurrences([0, 1, 2], after={0: "a", 1: "b", 2: "c"})

    assert handed_out(found, "inserted", "a", "c", "b", "d") == [0, 1, 2, 3, 4]


def test_what_may_be_repeated_keeps_its_number_at_its_own_place():
    assert handed_out(occurrences([1], [0], mode="safe"), None, None) == [0, 1]
    assert handed_out(occurrences([1], [0], mode="safe"), "elsewhere", None) == [1, 0]


def test_a_step_that_is_attempted_again_gives_its_inner_occurrences_out_again():
    found = occurrences([1, 2])
    assert handed_out(found, None, None) == [1, 2]

    found.restart("s_other")
    assert handed_out(found, None) == [0]
    found.restart("")

    assert handed_out(found, None, None, None, None) == [1, 2, 0, 3]


@given(
    st.sets(st.integers(0, 12)),
    st.sets(st.integers(0, 12)),
    st.lists(st.sampled_from("abc"), max_size=20),
    st.dictionaries(st.integers(0, 12), st.sampled_from("abc")),
)
def test_every_occurrence_is_given_out_once(finished, still_open, asked, after):
    still_open -= finished
    recorded = finished | still_open

    numbers = handed_out(occurrences(sorted(finished), sorted(still_open), after=after), *asked)

    assert len(set(numbers)) == len(asked)
    assert set(numbers[: len(recorded)]) <= recorded
    assert recorded <= set(numbers) or len(asked) < len(recorded)
