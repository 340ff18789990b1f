"""Two conversations, message by message."""

from __future__ import annotations

import pytest

from steplog._kernel.prompts import Said, changes, is_cut

BASE = [Said("system", "You are a clerk."), Said("user", "Refund ord_1."), Said("assistant", "-> refund({})  [call_1]")]
LONG = "Returns are accepted within thirty days of delivery, unless the item was worn or the seal is broken. " * 4


def told(a: list[Said], b: list[Said]) -> list[tuple[str, int | None, int | None]]:
    return [(change.label, change.a, change.b) for change in changes(a, b)]


def test_what_is_the_same_is_not_mentioned_and_made_up_names_do_not_count():
    again = [*BASE[:2], Said("assistant", "-> refund({})  [call_9xQ]")]

    assert changes(BASE, again) == []


@pytest.mark.parametrize(
    "b, expected",
    [
        ([Said("system", "You are a careful clerk."), *BASE[1:]], [("changed", 1, 1)]),
        ([BASE[0], Said("user", "By the way."), *BASE[1:]], [("added", None, 2)]),
        (BASE[:2], [("left out", 3, None)]),
        ([BASE[0], BASE[2]], [("left out", 2, None)]),
        ([Said("system", "A."), BASE[1]], [("changed", 1, 1), ("left out", 3, None)]),
        ([*BASE[:2], Said("tool", "1")], [("left out", 3, None), ("added", None, 3)]),
    ],
)  # fmt: skip
def test_each_difference_has_its_label_and_its_numbers(
    b: list[Said], expected: list[tuple[str, int | None, int | None]]
):
    assert told(BASE, b) == expected


def test_a_message_that_arrived_shorter_is_cut_short():
    whole = [*BASE, Said("tool", LONG)]
    for short in (LONG[:120], LONG[:100] + "...", LONG[:60] + LONG[-60:]):
        assert told(whole, [*BASE, Said("tool", short)]) == [("cut short", 4, 4)]
    assert told(whole, [*BASE, Said("tool", "Something else that is a little shorter than it was.")]) == [
        ("changed", 4, 4)
    ]


def test_a_short_text_is_never_cut():
    assert not is_cut("Refund it now.", "Refund it")


def test_a_long_conversation_with_one_more_message_has_one_difference():
    long = [Said("user" if n % 2 else "assistant", f"message {n}") for n in range(5_000)]

    assert told(long, [*long[:4_000], Said("user", "more"), *long[4_000:]]) == [("added", None, 4_001)]
