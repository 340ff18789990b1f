"""A checkpoint changes how fast a long log is opened, and nothing else: not when it is old, wrong, torn or missing."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import steplog
from steplog._kernel.checkpoint import fold_digest, pack, unpack
from steplog._kernel.fold import fold
from steplog._kernel.line import Chain
from steplog._kernel.state import RunState
from steplog.errors import Corrupt
from steplog.stores import checkpoint, source
from steplog.stores.files import FileStore
from steplog.testing import FaultyFS
from tests.kernel.logs import hostile, logs
from tests.stores.test_source import loaded

EVENTS = logs().map(lambda log: log.events) | hostile()
STAMP = "2026-01-01T00:00:00.000Z"


class Kept:
    """Event data by number."""

    def __init__(self, events):
        self.by_seq = {event.seq: event.data for event in events}

    def read(self, seq):
        return self.by_seq[seq], orjson.dumps(self.by_seq[seq])


@given(EVENTS, st.data())
def test_a_packed_state_and_the_events_behind_it_are_as_good_as_the_log(events, data):
    cut = data.draw(st.integers(0, len(events)))
    source = Kept(events)
    head = fold(events[:cut], RunState(source=source))

    again = unpack(orjson.loads(orjson.dumps(pack(head))), source)

    assert again == head
    whole = fold(events[cut:], again)
    assert whole == fold(events, RunState(source=source))
    assert loaded(whole) == loaded(fold(events))


@given(EVENTS)
def test_a_state_that_leaves_event_data_in_the_log_decides_like_one_that_holds_it(events):
    light, heavy = fold(events, RunState(source=Kept(events))), fold(events)

    assert loaded(light) == loaded(heavy)


# on disk --------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Logs of a few lines count as long."""
    monkeypatch.setattr(checkpoint, "_FEWEST_EVENTS", 10)
    monkeypatch.setattr(checkpoint, "_SMALLEST_LOG", 0)
    monkeypatch.setattr("steplog._runtime.journal._LONG", 1)


def record(home, steps: int, *, run_id: str = "r", fs=None) -> None:
    """Write that many further steps, as a process does that opens the run, and leave it."""
    writer = FileStore(home, fs=fs).open(run_id)
    chain = Chain(run_id, writer.view.events)
    first = chain.seq
    lines = [] if first else [chain.seal("run.created", None, STAMP, b'{"format":"steplog/1","run_id":"r"}')]
    chain.epoch += 1
    lines.append(chain.seal("run.claimed", None, STAMP, b'{"pid":1}'))
    for number in range(chain.seq, chain.seq + 2 * steps, 2):
        data = b'{"kind":"tool_call","target":"t","mode":"unsafe","after":null,"args":{"n":%d}}' % number
        lines.append(chain.seal("step.started", f"s_{number}", STAMP, data))
        lines.append(chain.seal("step.finished", f"s_{number}", STAMP, b'{"outcome":"done","result":%d}' % number))
    writer.append(lines, first, sync=False)
    state = fold(list(FileStore(home).read(run_id).events), RunState(source=writer.view.state.source))
    writer.save(state)
    writer.close()


def opened(home, *, fs=None, run_id: str = "r"):
    """The state that a process opens the run with, its events, and whether a checkpoint spared it the folding."""
    writer = FileStore(home, fs=fs).open(run_id)
    try:
        return loaded(writer.view.state), list(writer.view.events), writer._covered.events > 0
    finally:
        writer.close()


def file_of(home) -> Path:
    return Path(home) / "runs/r/events.checkpoint"


@pytest.fixture
def home(tmp_path):
    record(tmp_path, 10)
    return tmp_path


def test_opening_with_a_checkpoint_gives_what_opening_without_gives(home):
    record(home, 0)  # one more event, too few for a new checkpoint
    state, events, spared = opened(home)
    assert spared
    assert file_of(home).stat().st_mode & 0o777 == 0o600

    file_of(home).unlink()

    assert opened(home) == (state, events, False)
    assert state == fold(events)


def test_a_checkpoint_grows_with_its_log(home):
    sizes = [file_of(home).stat().st_size]
    for _ in range(3):
        record(home, 10)
        sizes.append(file_of(home).stat().st_size)
        assert opened(home)[2]

    assert sizes == sorted(set(sizes))
    before = file_of(home).read_bytes()
    record(home, 0)  # a process that only returned what is recorded
    assert file_of(home).read_bytes() == before


def test_a_run_of_few_events_gets_none(tmp_path):
    record(tmp_path, 3)

    assert not file_of(tmp_path).exists()
    assert not opened(tmp_path)[2]


def test_no_changed_bit_of_a_checkpoint_changes_what_is_opened(home):
    expected = opened(home)[:2]
    whole = file_of(home).read_bytes()
    bits = random.Random(4).sample(range(len(whole) * 8), 400)
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        file_of(home).write_bytes(damaged)

        state, events, spared = opened(home)

        assert (state, events) == expected
        assert not spared


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: bytes(len(whole)),
        lambda whole: whole + b"\n",
        lambda whole: b"[]",
        lambda whole: resealed(whole, by="another fold"),
        lambda whole: resealed(whole, format="steplog-checkpoint/9"),
        lambda whole: resealed(whole, run_id="another"),
        lambda whole: resealed(whole, offset=10**9),
        lambda whole: resealed(whole, sha256="0" * 64),
        lambda whole: resealed(whole, seq=3),
        lambda whole: resealed(whole, state={}),
        lambda whole: resealed(whole, state=checkpoint._shortened(b"{}")),
        lambda whole: resealed(whole, state=changed_state(whole, run=None)),
        lambda whole: resealed(whole, state=changed_state(whole, steps=[])),
        lambda whole: resealed(whole, state=changed_state(whole, passed_over=1)),
        lambda whole: resealed(whole, lines=None),
        lambda whole: resealed(whole, lines=checkpoint._shortened(b"")),
        lambda whole: resealed(whole, lines=checkpoint._shortened(b"AAAAA")),
    ],
)
def test_a_checkpoint_that_is_not_of_this_log_is_passed_over(home, damage):
    expected = opened(home)[:2]
    file_of(home).write_bytes(damage(file_of(home).read_bytes()))

    state, events, spared = opened(home)

    assert (state, events) == expected
    assert not spared


@pytest.mark.parametrize("block", [64, 100, 701, 4 << 20])
def test_the_seals_of_what_a_checkpoint_covers_are_those_in_the_log(home, monkeypatch, block):
    expected = FileStore(home).read("r").events
    monkeypatch.setattr(source, "_BLOCK", block)
    with closing(FileStore(home).open("r")) as writer:
        assert writer._covered.events
        assert writer.view.events == expected
        index = writer._source.index
        assert [index.seal(seq).hex() for seq in range(len(index))] == [event.h for event in expected]


def resealed(whole: bytes, **changed) -> bytes:
    tree = orjson.loads(whole)
    del tree["seal"]
    body = orjson.dumps({**tree, **changed})[:-1]
    return b'%b,"seal":"%b"}' % (body, checkpoint.sha256(body).hexdigest().encode())


def changed_state(whole: bytes, **changed) -> str:
    state = orjson.loads(checkpoint._expanded(orjson.loads(whole)["state"]))
    return checkpoint._shortened(orjson.dumps({**state, **changed}))


def test_a_resealed_checkpoint_counts_or_the_cases_above_show_nothing(home):
    file_of(home).write_bytes(resealed(file_of(home).read_bytes()))

    assert opened(home)[2]


def test_damage_that_a_checkpoint_covers_is_found(home):
    path = home / "runs/r/events.jsonl"
    whole = path.read_bytes()
    for position in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        path.write_bytes(damaged)

        with pytest.raises(Corrupt) as caught:
            FileStore(home).open("r")

        assert caught.value.line == whole.count(b"\n", 0, position) + 1
        with pytest.raises(Corrupt):
            FileStore(home).read("r")
    path.write_bytes(whole)
    assert opened(home)[2]


def test_damage_behind_a_checkpoint_is_told_as_without_one(home):
    record(home, 0)
    path = home / "runs/r/events.jsonl"
    head, last = path.read_bytes()[:-300], path.read_bytes()[-300:]
    path.write_bytes(head + last.replace(b'"pid":1', b'"pid":2'))
    told = []
    for _ in range(2):
        with pytest.raises(Corrupt) as caught:
            FileStore(home).open("r")
        told.append(str(caught.value))
        file_of(home).unlink(missing_ok=True)

    assert told[0] == told[1]


def test_a_torn_tail_behind_a_checkpoint_is_cut_off(home):
    record(home, 0)
    path = home / "runs/r/events.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])

    state, events, spared = opened(home)

    assert spared
    assert state == fold(events)
    assert len(events) == whole.count(b"\n") - 1
    assert path.read_bytes() == whole[: whole[:-1].rfind(b"\n") + 1]


def test_a_checkpoint_of_a_log_that_was_cut_is_passed_over(home):
    path = home / "runs/r/events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:12]))

    state, events, spared = opened(home)

    assert (len(events), spared) == (12, False)
    assert state == fold(events)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_a_checkpoint_that_cannot_be_written_or_read_harms_nothing(home, code):
    record(home, 20)
    expected = opened(home)[:2]
    log = home / "runs/r/events.jsonl"
    before = log.read_bytes()
    for operation in ("create", "open", "truncate", "write", "rename", "fstat", "close"):
        for nth in (1, 2, 3):
            fs = FaultyFS()
            writer = FileStore(home, fs=fs).open("r")
            fs.fail(operation, nth=nth, errno=code)
            writer._covered = checkpoint.Covered.nothing()
            writer.save(writer.view.state)
            fs.heal()
            writer.close()
            assert log.read_bytes() == before
            assert opened(home)[:2] == expected

    class Refusing(FaultyFS):
        def open(self, path, flags):
            if path.endswith(".checkpoint"):
                raise OSError(code, "refused")
            return super().open(path, flags)

    assert opened(home, fs=Refusing()) == (*expected, False)


def test_a_fold_that_changes_reads_no_state_of_an_earlier_one(home, monkeypatch):
    assert opened(home)[2]
    before = fold_digest()
    monkeypatch.setattr("steplog._kernel.fold.is_settled", lambda step: False)
    checkpoint._writer.cache_clear()
    try:
        assert fold_digest() != before
        assert not opened(home)[2]
    finally:
        monkeypatch.undo()
        checkpoint._writer.cache_clear()


# in a program ---------------------------------------------------------------------------------------------------------


@steplog.step
def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def installed(tmp_path):
    steplog.install(home=tmp_path, interceptors=[])
    yield tmp_path
    steplog.uninstall()


def test_a_resumed_program_gets_its_results_by_way_of_a_checkpoint(installed):
    with steplog.run("r"):
        for number in range(20):
            double(number)
    assert file_of(installed).exists()

    with steplog.run("r") as run:
        assert [double(number) for number in range(20)] == [2 * number for number in range(20)]

    assert (run.executed, run.replayed) == (0, 20)
    assert opened(installed)[2]


def test_an_event_loop_goes_on_while_a_checkpoint_is_written(installed, monkeypatch):
    written_in = []
    save = checkpoint.save
    monkeypatch.setattr(
        "steplog.stores.writer.save", lambda *args: (written_in.append(threading.current_thread()), save(*args))[1]
    )

    async def program():
        async with steplog.run("r"):
            for number in range(20):
                double(number)

    asyncio.run(program())

    assert len(written_in) == 1
    assert written_in[0] is not threading.main_thread()
    assert file_of(installed).exists()
    assert opened(installed)[2]


def test_a_loop_that_starts_no_thread_any_more_ends_its_run_all_the_same(installed):
    async def program():
        async with steplog.run("r"):
            for number in range(20):
                double(number)
            await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(program())

    assert opened(installed)[2]


def test_whatever_goes_wrong_with_a_checkpoint_the_run_ends_as_without_one(installed, monkeypatch):
    def broken(state):
        raise AttributeError("a mistake of ours")

    monkeypatch.setattr(checkpoint, "pack", broken)
    with steplog.run("r"):
        for number in range(20):
            double(number)

    assert not file_of(installed).exists()
    assert opened(installed)[0].status == "completed"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_however_a_log_grew_its_checkpoint_and_the_rest_are_the_whole(tmp_path_factory, sizes):
    home = tmp_path_factory.mktemp("grown")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_FEWEST_EVENTS", 4)
        patch.setattr(checkpoint, "_SMALLEST_LOG", 0)
        for size in sizes:
            record(home, size)
            state, events, _ = opened(home)
            assert state == fold(events)
