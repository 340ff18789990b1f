"""The line and the scan: what a crash leaves is recovered exactly, anything else is refused, nothing is ever wrong."""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import combinations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel.events import Event
from steplog._kernel.line import MAX_BATCH, MAX_LINE, Chain, Scanner, first_prev, scan
from steplog.errors import EncodeError

TS = "2026-01-01T00:00:00.000000Z"


def write(chain: Chain, data: dict[str, object] | None = None, type: str = "step.finished") -> bytes:
    return chain.seal(type, "s_x", TS, orjson.dumps({"n": chain.seq} if data is None else data))


def log(count: int, run_id: str = "r") -> list[bytes]:
    chain = Chain(run_id)
    first = chain.seal("run.created", None, TS, b'{"format":"steplog/1"}')
    return [first, *(write(chain) for _ in range(count - 1))]


def seal(body: bytes) -> bytes:
    """Close a hand-made line so that it proves itself."""
    return body + b',"h":"' + sha256(body).hexdigest()[:32].encode() + b'"}\n'


def body(seq: int = 0, prev: str | None = None, data: bytes = b"{}", epoch: int = 0) -> bytes:
    link = first_prev("r") if prev is None else prev
    return b'{"seq":%d,"type":"t","step":null,"epoch":%d,"ts":"","data":%b,"prev":"%b"' % (
        seq,
        epoch,
        data,
        link.encode(),
    )


LINES = log(40)
WHOLE = scan(b"".join(LINES), "r").events


def test_a_line_is_what_the_format_says():
    chain = Chain("run-1")
    chain.epoch = 3
    line = chain.seal("step.started", "s_a", TS, '{"text":"ü"}'.encode())
    prev = sha256(b"steplog/1\nrun-1").hexdigest()[:32]
    hashed = f'{{"seq":0,"type":"step.started","step":"s_a","epoch":3,"ts":"{TS}","data":{{"text":"ü"}},"prev":"{prev}"'
    h = sha256(hashed.encode()).hexdigest()[:32]
    assert line.decode() == f'{hashed},"h":"{h}"}}\n'
    assert (chain.seq, chain.prev) == (1, h)
    assert scan(line, "run-1").events == [Event(0, "step.started", "s_a", 3, TS, {"text": "ü"}, prev, h)]


def test_a_chain_continues_a_log():
    chain = Chain("r", WHOLE[:7])
    assert (chain.seq, chain.prev) == (7, WHOLE[6].h)
    assert write(chain) == LINES[7]


def test_a_chain_goes_back_to_a_mark():
    chain = Chain("r")
    mark = chain.mark()
    first = write(chain)
    chain.epoch = 9
    chain.rewind(mark)
    assert write(chain) == first


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b'{"a":\n1}', b'{"a":"' + b"x" * MAX_LINE + b'"}'], ids=len)
def test_data_that_would_break_the_line_is_refused_and_the_chain_stays(data):
    chain = Chain("r")
    with pytest.raises(EncodeError):
        chain.seal("t", None, TS, data)
    assert chain.mark() == Chain("r").mark()


def test_a_line_may_be_as_long_as_the_limit_and_no_longer():
    empty = len(Chain("r").seal("t", None, TS, b'{"a":""}'))
    longest = Chain("r").seal("t", None, TS, b'{"a":"' + b"x" * (MAX_LINE - empty) + b'"}')
    assert len(longest) == MAX_LINE
    with pytest.raises(EncodeError):
        Chain("r").seal("t", None, TS, b'{"a":"' + b"x" * (MAX_LINE - empty + 1) + b'"}')


def test_a_log_cut_at_every_byte_is_its_longest_prefix_and_goes_on():
    data = b"".join(LINES)
    ends = [sum(map(len, LINES[:count])) for count in range(41)]
    for cut in range(len(data) + 1):
        found = scan(data[:cut], "r")
        whole = sum(end - 1 <= cut for end in ends[1:])  # the newline is not needed for a line to count
        verdict = "clean" if cut in ends else "unterminated" if cut + 1 in ends else "torn"
        assert (found.verdict, found.events) == (verdict, WHOLE[:whole]), cut
        assert found.end == (cut if verdict == "unterminated" else ends[whole])
        if whole < 40 and cut % 50 == 0:
            repaired = data[: found.end] + (b"\n" if verdict == "unterminated" else b"")
            assert scan(repaired + write(Chain("r", found.events)), "r").verdict == "clean"


def mutations(data: bytes):
    for position, byte in enumerate(data):
        for other in {byte ^ 1 << bit for bit in range(8)} | {0x00, 0x0A, 0xFF}:
            if other != byte:
                yield position, data[:position] + bytes([other]) + data[position + 1 :]


def test_no_changed_byte_goes_unnoticed_or_costs_a_good_line():
    lines = log(4)
    data, last = b"".join(lines), len(b"".join(lines[:-1]))
    original = scan(data, "r").events
    for position, mutant in mutations(data):
        found = scan(mutant, "r")
        line = data.count(b"\n", 0, position)
        if mutant == data[:-1] + b"\0":  # a lost newline at the very end: every event is still there
            assert (found.verdict, found.events) == ("unterminated", original)
            continue
        assert found.events == original[:line], position
        if found.verdict == "torn":
            assert position >= last, "a tail was cut that began before the last line"
            assert b"\0" in mutant
        else:
            assert found.verdict in ("corrupt", "conflict", "unsupported")
            assert (found.damage.line, found.damage.offset) == (line + 1, sum(map(len, lines[:line])))
            assert found.damage.last_good_seq == (line - 1 if line else None)


@given(st.data())
def test_whatever_is_done_to_a_log_only_its_own_prefix_is_read(data):
    whole = b"".join(LINES[:6])
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    found = scan(whole[:start] + data.draw(st.binary(max_size=40)) + whole[stop:], "r")
    assert found.events == WHOLE[: len(found.events)]


@pytest.mark.parametrize("count", [12])
def test_dropped_doubled_swapped_and_reversed_lines_are_refused_where_they_stand(count):
    lines = LINES[:count]
    edits = [(drop, lines[:drop] + lines[drop + 1 :]) for drop in range(count - 1)]
    edits += [(twice + 1, lines[: twice + 1] + lines[twice:]) for twice in range(count)]
    for first, second in combinations(range(count), 2):
        swapped = list(lines)
        swapped[first], swapped[second] = lines[second], lines[first]
        turned = lines[:first] + lines[first : second + 1][::-1] + lines[second + 1 :]
        edits += [(first, swapped), (first, turned)]
    for bad, edited in edits:
        found = scan(b"".join(edited), "r")
        assert found.verdict == "conflict"
        assert found.events == WHOLE[:bad]
        assert found.damage.line == bad + 1


@pytest.mark.parametrize(
    "convert, hint",
    [
        (lambda data: data.replace(b"\n", b"\r\n"), "CRLF"),
        (lambda data: b"\xef\xbb\xbf" + data, "byte order mark"),
        (lambda data: data.decode().encode("utf-16"), "UTF-16"),
        (lambda data: data.decode().encode("utf-16-le"), "UTF-16"),
        (lambda data: data.decode().encode("utf-16-be"), "UTF-16"),
        (lambda data: data + b"\n", "blank line"),
        (lambda data: data + b"\r\n", "blank line"),
        (lambda data: b"\n" + data, "blank line"),
        (lambda data: b"".join(json.dumps(json.loads(line), indent=2).encode() for line in data.splitlines()), "again"),
        (lambda data: json.dumps([json.loads(line) for line in data.splitlines()]).encode(), "again"),
        (lambda data: b"\n".join(json.dumps(json.loads(line)).encode() for line in data.splitlines()), "again"),
    ],
    ids=[
        "crlf",
        "bom",
        "utf16",
        "utf16le",
        "utf16be",
        "blank",
        "blank-crlf",
        "blank-first",
        "indent",
        "array",
        "spaces",
    ],
)
def test_a_converted_log_is_refused_and_the_converter_named(convert, hint):
    found = scan(convert(b"".join(LINES[:5])), "r")
    assert found.verdict == "corrupt"
    assert hint in found.damage.hint


def test_two_fused_lines_are_refused():
    for fused in (LINES[2][:-1] + LINES[3], LINES[2][:50] + LINES[3], LINES[2][:50] + LINES[2]):
        found = scan(b"".join(LINES[:2]) + fused, "r")
        assert (found.verdict, found.damage.line, len(found.events)) == ("corrupt", 3, 2)


def test_a_fragment_that_holds_a_good_line_is_never_cut():
    for separator in (b"\x0b", b"\0", b"\r", b" "):
        tail = LINES[2][:-1] + separator + LINES[3]
        for data in (tail, tail[:-1]):
            assert scan(b"".join(LINES[:2]) + data, "r").verdict == "corrupt"


@pytest.mark.parametrize("size", [1, 511, 4096, 65536])
def test_zeros_behind_the_last_line_are_torn(size):
    data = b"".join(LINES[:5])
    for tail in (
        bytes(size),
        LINES[5][:60] + bytes(size),
        bytes(size) + LINES[5][60:],
        LINES[5][:60] + bytes(size) + b"x\n",
    ):
        found = scan(data + tail, "r")
        assert (found.verdict, found.end, found.events) == ("torn", len(data), WHOLE[:5])


def test_a_lost_newline_before_zeros_keeps_the_line():
    data = b"".join(LINES[:5])
    found = scan(data[:-1] + bytes(100), "r")
    assert (found.verdict, found.end, found.size) == ("unterminated", len(data) - 1, len(data) + 99)
    assert found.events == WHOLE[:5]


def test_a_zeroed_sector_before_a_good_line_is_refused():
    data = b"".join([*LINES[:3], LINES[3][:40] + bytes(60) + LINES[3][100:], LINES[4]])
    assert scan(data, "r").verdict == "corrupt"


def test_a_fragment_longer_than_any_batch_is_refused():
    data = b"".join(LINES[:2]) + b'{"seq":2,"type":"'
    assert scan(data.ljust(len(data) + MAX_BATCH - 17, b"x"), "r").verdict == "torn"
    assert scan(data.ljust(len(data) + MAX_BATCH - 16, b"x"), "r").verdict == "corrupt"


def test_a_file_that_is_no_log_is_not_taken_for_a_torn_one():
    for data in (b"hello", b"PK\x03\x04\0\0", b'{"a":1}', b'{"seq":1,"type":"t'):
        assert scan(data, "r").verdict == "corrupt"
    for data in (b"{", b'{"seq":0,"ty', b'{"seq":0,"type":"run.created","step":nul', bytes(50)):
        assert scan(data, "r").verdict == "torn"


def test_an_empty_log_is_clean():
    assert scan(b"", "r") == ([], 0, 0, "clean", None)


def test_two_writers_are_named_by_their_epochs():
    ours = Chain("r", WHOLE[:3])
    theirs = Chain("r", WHOLE[:3])
    ours.epoch, theirs.epoch = 4, 5
    found = scan(b"".join(LINES[:3]) + write(ours) + write(theirs), "r")
    assert (found.verdict, found.damage.epochs) == ("conflict", (4, 5))
    assert len(found.events) == 4


def test_a_line_that_follows_the_seal_but_not_the_number_breaks_the_chain():
    found = scan(LINES[0] + seal(body(seq=2, prev=WHOLE[0].h)), "r")
    assert (found.verdict, len(found.events)) == ("conflict", 1)


def test_an_epoch_never_goes_back():
    chain = Chain("r", WHOLE[:3])
    chain.epoch = 2
    line = write(chain)
    chain.epoch = 1
    assert scan(b"".join(LINES[:3]) + line + write(chain), "r").verdict == "conflict"


def test_the_log_of_another_run_is_refused():
    found = scan(b"".join(log(3, "other")), "r")
    assert (found.verdict, found.events) == ("conflict", [])
    assert "another run" in found.damage.what


@pytest.mark.parametrize("behind", ["other", "r"])
def test_two_logs_in_one_file_are_refused_where_the_second_begins(behind):
    found = scan(b"".join(LINES[:3] + log(3, behind)), "r")
    assert found.verdict == "conflict"
    assert found.events == WHOLE[:3]
    assert found.end == len(b"".join(LINES[:3]))


def test_missing_and_repeated_events_are_told_apart():
    missing = scan(b"".join(LINES[:3] + LINES[5:]), "r").damage
    assert "3 to 4" in missing.what
    repeated = scan(b"".join([*LINES[:3], LINES[1]]), "r").damage
    assert "repeats" in repeated.what


@pytest.mark.parametrize("format", ["steplog/2", "steplog/10"])
def test_a_newer_format_is_not_taken_for_damage(format):
    line = seal(body(data=b'{"format":"%b"}' % format.encode(), prev="0" * 32))
    other_seal = orjson.dumps({"data": {"format": format}}) + b"\n"
    for data in (line, other_seal, other_seal + b"binary\0"):
        found = scan(data, "r")
        assert (found.verdict, found.damage.found) == ("unsupported", format)


@pytest.mark.parametrize("format", [b'"steplog/0"', b'"other/2"', b"2", b"null"])
def test_an_unknown_format_is_no_newer_one(format):
    assert scan(b'{"data":{"format":%b}}\n' % format, "r").verdict == "corrupt"


def test_unknown_event_types_pass_through():
    line = write(Chain("r"), type="weather.changed")
    assert scan(line, "r").events[0].type == "weather.changed"


@pytest.mark.parametrize(
    "bad",
    [
        body(data=b"[]"),
        body(data=b'{"a":NaN}'),
        body(data=b'{"a":"\xff"}'),
        body(data=b'{"a":"\t"}'),
        body(data=b'{"a":"\xed\xa0\x80"}'),
        body().replace(b'"step":null', b'"step":7'),
        body().replace(b'"type":"t"', b'"type":null'),
        body().replace(b'"epoch":0', b'"epoch":"0"'),
        body().replace(b'"epoch":0,', b""),
        body().replace(b'"ts":""', b'"ts":"","more":1'),
        body().replace(b'"seq":0', b'"seq":false'),
    ],
)
def test_a_sealed_line_that_is_no_event_is_corrupt(bad):
    assert scan(seal(body()), "r").verdict == "clean"
    found = scan(seal(bad), "r")
    assert (found.verdict, found.events) == ("corrupt", [])


def test_only_a_newline_ends_a_line():
    text = "a\u2028b\u2029c\u0085d\u000be\u000cf"
    chain = Chain("r")
    data = write(chain, {"text": text}) + write(chain, {"text": text})
    assert len(data.decode().splitlines()) > 2
    assert [event.data["text"] for event in scan(data, "r").events] == [text, text]


@given(st.lists(st.integers(1, 300), min_size=1), st.integers(0, 3000), st.integers(0, 255))
def test_a_log_in_blocks_is_scanned_as_a_whole_one(sizes, position, byte):
    data = bytearray(b"".join(LINES[:9]))
    if position < len(data):
        data[position] = byte
    scanner, start = Scanner("r"), 0
    while start < len(data):
        for size in sizes:
            scanner.feed(bytes(data[start : start + size]))
            start += size
    assert scanner.finish() == scan(bytes(data), "r")
