"""Secrets in pieces: what a stream adds up to is looked at, wherever it is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel.fragments import HELD_BACK, safe_cut, without_split
from steplog._kernel.redact import Redactor
from steplog._runtime.looking import Body, looked_at

SECRET = "sk-proj-" + "a1B2c3D4" * 6
KNOWN = "correcthorsebattery9"
REDACTOR = Redactor(secrets=[KNOWN])


def stream(parts, field="content"):
    events = [{"choices": [{"index": 0, "delta": {field: part}}]} for part in parts]
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]


def text_of(data, field="content"):
    lines = [line for line in data.split(b"\n\n") if line]
    return "".join(json.loads(line[6:])["choices"][0]["delta"][field] for line in lines)


def parted(text, sizes):
    parts, at = [], 0
    for size in sizes:
        parts.append(text[at : at + size])
        at += size
    return [part for part in (*parts, text[at:]) if part]


@pytest.mark.parametrize("secret, kind", [(SECRET, "openai-key"), (KNOWN, "secret")])
@given(sizes=st.lists(st.integers(1, 12), max_size=20))
def test_a_secret_in_many_events_goes_out_of_all_of_them(secret, kind, sizes):
    parts = parted(f"The key is {secret} and that is it.", sizes)
    cleaned, count = looked_at(REDACTOR, Body(b"".join(stream(parts)), events=True))
    assert text_of(cleaned) == f"The key is [redacted:{kind}] and that is it."
    assert count == 1


@pytest.mark.parametrize("secret", [SECRET, KNOWN])
@given(sizes=st.lists(st.integers(1, 12), max_size=20), written=st.lists(st.integers(1, 6), max_size=10))
def test_whatever_is_written_down_while_it_passes_adds_up_to_no_secret(secret, sizes, written):
    waiting, kept, before = b"", b"", b""
    pending = stream(parted(f"It is: {secret} and that is it.", sizes))
    for number in (*written, len(pending)):
        waiting += b"".join(pending[:number])
        del pending[:number]
        cut = safe_cut(waiting, [KNOWN.encode()], events=True) if pending else len(waiting)
        piece, waiting = waiting[:cut], waiting[cut:]
        kept += looked_at(REDACTOR, Body(piece, before=before, events=True))[0]
        before = (before + piece)[-8192:]
    text = text_of(kept)
    assert text.startswith("It is: ")
    assert text.endswith(" and that is it.")
    assert "[redacted:" in text
    for start in range(len(secret) - 3):
        assert secret[start : start + 4] not in text or start + 4 <= len("sk-p")


def test_ordinary_words_are_not_held_back():
    for parts in (["Hello", " there", " my"], ["alpha", "bravo"], ["Now", " 12", " x"], ["Ünï", "cödé ", "end"]):
        data = b"".join(stream(parts))
        assert safe_cut(data, [KNOWN.encode()], events=True) > 0
    assert safe_cut(b"".join(stream(["a " * 10])), events=True) > 0
    assert safe_cut(b"data: [DONE]\n\ndata: half", events=True) == len(b"data: [DONE]\n\n")


def test_what_could_be_a_secret_waits_and_not_for_ever():
    events = stream(["The door:", " sk-proj", "-a1B2"])
    assert safe_cut(b"".join(events), events=True) == len(events[0])
    assert safe_cut(b"".join(stream(["correct", "horse"])), [KNOWN.encode()], events=True) == 0
    long = stream(["a1B2" * 100] * 40)
    assert safe_cut(b"".join(long), events=True) == len(b"".join(long))


@pytest.mark.parametrize(
    "items, expected",
    [
        (
            ["It is: ", SECRET[:9], SECRET[9:30], SECRET[30:], " so."],
            ["It is: ", "[redacted:openai-key]", "", "", " so."],
        ),
        ([SECRET + " ", KNOWN], [SECRET + " ", KNOWN]),  # in one piece each: what looks at every text finds them
        ([1, "a " + SECRET[:20], {"n": 2}, SECRET[20:] + " b"], [1, "a [redacted:openai-key]", {"n": 2}, " b"]),
        (
            [{"delta": {"content": SECRET[:20], "id": "sk-"}}, {"delta": {"content": SECRET[20:], "id": "proj"}}],
            [{"delta": {"content": "[redacted:openai-key]", "id": "sk-"}}, {"delta": {"content": "", "id": "proj"}}],
        ),
        (
            ["é" + SECRET[:20], SECRET[20:] + " ö " + KNOWN[:9], KNOWN[9:] + "ü"],
            ["é[redacted:openai-key]", " ö [redacted:secret]", "ü"],
        ),
        ([], []),
    ],
)
def test_the_items_of_a_list_add_up(items, expected):
    before = json.dumps(items)
    count = without_split(REDACTOR.spans, items)
    assert items == expected
    assert count == json.dumps(expected).count("[redacted:")
    assert (before == json.dumps(items)) == (count == 0)


def test_a_text_is_cut_between_words():
    text = ("word " * 1000 + SECRET + " ").encode()
    for end in range(len(text) - 80, len(text)):
        data = text[:end] + b"x" * (HELD_BACK - 40)
        cut = safe_cut(data, events=False)
        assert 0 < cut <= len(data) - HELD_BACK
        assert data[cut - 1 : cut] == b" "
    assert safe_cut(b"x" * 3 * HELD_BACK, events=False) == 2 * HELD_BACK
    assert safe_cut(b"short", events=False) == 0


def test_fields_and_events_that_hold_no_text_stay_as_they_are():
    data = b"".join(stream(["sk-", "not a key", " at all"])) + b"data: [DONE]\n\n"
    assert looked_at(REDACTOR, Body(data, events=True)) == (data, 0)


def test_arguments_of_a_tool_call_add_up_too():
    parts = ['{"key": "', SECRET[:9], SECRET[9:30], SECRET[30:], '", "n": 1}']
    cleaned, count = looked_at(REDACTOR, Body(b"".join(stream(parts, "arguments")), events=True))
    assert json.loads(text_of(cleaned, "arguments")) == {"key": "[redacted:openai-key]", "n": 1}
    assert count == 1


@pytest.mark.parametrize(
    "parts",
    [
        ["log in with", ' {"', "password", '": "', "hunter", "22", '"} then'],
        ["Authorization:", " Bearer", " abcdefgh", "1234567890abcdef", " then"],
        ["x-api-key", ":", " abcdefgh", "1234567890abcdef", " then"],
        ["log in with", ' {"', "pass", "word", '": "', "hunter", "22", '"} then'],
        ["send", " Authorization", ":", " b", "earer", " abcdefgh", "1234567890abcdef", " then"],
    ],
)
def test_small_letters_with_which_a_named_secret_begins_are_not_written_before_the_rest(parts):
    waiting, before, written = b"", b"", b""
    for event in stream(parts):
        waiting += event
        cut = safe_cut(waiting, events=True)
        piece, waiting = waiting[:cut], waiting[cut:]
        written += looked_at(REDACTOR, Body(piece, before=before, events=True))[0]
        before += piece
    written += looked_at(REDACTOR, Body(waiting, before=before, events=True))[0]
    assert "[redacted:" in text_of(written)
    assert "hunter" not in text_of(written)
    assert "abcd" not in text_of(written)
