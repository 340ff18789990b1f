"""Repairing a damaged log: what is kept, what is given up, and that nothing in between ever stands in its place."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from hashlib import sha256
from itertools import product
from pathlib import Path

import pytest

from steplog._kernel.fold import fold
from steplog._kernel.line import Chain, scan
from steplog._kernel.salvage import intact
from steplog.errors import Conflict, Corrupt, InvalidArgument, RunBusy, StoreError, UnknownRun
from steplog.stores.files import FileStore
from steplog.testing import FaultyFS, PowerFailure
from tests.faults.damaged import damaged, is_old_or_new, lines
from tests.faults.scenario import release, repetitions


def test_what_verifies_is_kept_and_side_effects_behind_it_stay_in_doubt(tmp_path):
    store, path = damaged(tmp_path)
    before, inode = path.read_bytes(), path.stat().st_ino
    with pytest.raises(Corrupt, match="steplog repair r --to-seq 4 --home"):
        store.open("r")

    done = store.repair("r", 4, by="ada")

    kept = b"".join(lines()[:5])
    assert path.read_bytes().startswith(kept)
    assert Path(done.kept_as).read_bytes() == before
    assert Path(done.kept_as).stat().st_ino == inode, "the old file itself, whoever has it open"
    recovered, *intents = store.read("r").events[5:]
    assert recovered.type == "log.recovered"
    assert recovered.data == {
        "offset": len(kept),
        "size": len(before) - len(kept),
        "sha256": sha256(before[len(kept) :]).hexdigest(),
        "saved_as": done.kept_as,
        "to_seq": 4,
        "by": "ada",
        "intents": ["s_three", "s_four"],
    }
    assert recovered.epoch == 4
    assert [(event.step, event.data["recovered"]) for event in intents] == [("s_three", 6), ("s_four", 8)]

    writer = store.open("r")
    chain = Chain("r", store.read("r").events)
    chain.epoch += 1
    writer.append([chain.seal("run.claimed", None, "", b"{}")], chain.seq - 1, sync=True)
    writer.close()
    steps = fold(store.read("r").events).steps
    assert {step.id: step.status for step in steps.values()} == {
        "s_one": "done",
        "s_two": "pending",
        "s_three": "pending",
        "s_four": "indeterminate",
    }


def test_less_may_be_kept_than_verifies(tmp_path):
    store, path = damaged(tmp_path)
    done = store.repair("r", 1, by="ada")
    assert [event.step for event in done.intents] == ["s_one", "s_three", "s_four"]
    assert path.read_bytes().startswith(b"".join(lines()[:2]))


def test_a_second_repair_keeps_the_first_ones_file(tmp_path):
    store, path = damaged(tmp_path)
    first = store.repair("r", 4, by="ada").kept_as
    kept = Path(first).read_bytes()
    path.write_bytes(path.read_bytes()[:-5] + b"x\n" + b"y\n")
    second = store.repair("r", 3, by="ada").kept_as
    assert second != first
    assert Path(first).read_bytes() == kept


@pytest.mark.parametrize("to_seq", [5, 9, 100])
def test_no_more_is_kept_than_verifies(tmp_path, to_seq):
    store, path = damaged(tmp_path)
    before = path.read_bytes()
    with pytest.raises(InvalidArgument, match="verifies up to seq 4"):
        store.repair("r", to_seq, by="ada")
    assert path.read_bytes() == before
    assert {entry.name for entry in path.parent.iterdir()} == {"events.jsonl", "events.lock"}


@pytest.mark.parametrize("tail", [b"", b'{"seq":10,"ty'])
def test_a_log_that_is_not_damaged_is_left_alone(tmp_path, tail):
    store, path = damaged(tmp_path)
    path.write_bytes(b"".join(lines()) + tail)
    with pytest.raises(InvalidArgument, match="not damaged"):
        store.repair("r", 3, by="ada")
    assert path.read_bytes() == b"".join(lines()) + tail


def test_a_log_without_a_good_event_is_not_emptied(tmp_path):
    store, path = damaged(tmp_path, line=0)
    before = path.read_bytes()
    with pytest.raises(InvalidArgument, match="do not empty it"):
        store.repair("r", 0, by="ada")
    assert path.read_bytes() == before


def test_a_run_that_is_being_written_is_left_alone(tmp_path):
    store, path = damaged(tmp_path)
    path.write_bytes(b"".join(lines()))
    writer = store.open("r")
    path.write_bytes(b"".join(lines())[:-9] + b"xx\nyy\nzz\n")
    before = path.read_bytes()
    with pytest.raises(RunBusy):
        store.repair("r", 3, by="ada")
    assert path.read_bytes() == before
    writer.close()
    with pytest.raises(UnknownRun):
        store.repair("absent", 3, by="ada")
    assert not Path(store.path_of("absent")).parent.exists()


def test_a_conflict_is_settled_for_the_first_writer_and_the_others_intents_are_kept(tmp_path):
    store, path = damaged(tmp_path)
    chain = Chain("r", scan(b"".join(lines()[:6]), "r").events)
    chain.epoch = 9
    other = chain.seal("step.started", "s_other", "", b'{"kind":"tool_call","target":"pay","mode":"unsafe","args":{}}')
    path.write_bytes(b"".join(lines()) + other)
    with pytest.raises(Conflict):
        store.read("r")
    done = store.repair("r", 9, by="ada")
    assert [event.step for event in done.intents] == ["s_other"]
    assert store.read("r").events[10].epoch == 10, "above both writers"


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_links_keeps_a_copy(tmp_path, code):
    fs = FaultyFS()
    store, path = damaged(tmp_path, fs=fs)
    before = path.read_bytes()
    fs.fail("link", errno=code, persistent=True)
    assert Path(store.repair("r", 4, by="ada").kept_as).read_bytes() == before
    path.write_bytes(path.read_bytes()[:-5] + b"x\ny\n")
    again = path.read_bytes()
    assert Path(store.repair("r", 4, by="ada").kept_as).read_bytes() == again
    assert Path(f"{path}.before-repair-1").read_bytes() == before


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EMFILE, errno.EROFS])
def test_whatever_call_fails_the_log_is_the_old_or_the_new_one(tmp_path, code):
    seen = []
    for nth in repetitions():
        fs = FaultyFS()
        store, path = damaged(tmp_path / str(nth), fs=fs)
        before = path.read_bytes()
        fs.fail(nth=nth, errno=code)
        with suppress(StoreError):
            store.repair("r", 4, by="ada")
        if not fs.fired:
            break
        fs.heal()
        seen.append(is_old_or_new(store, path, before))
        if seen[-1] == "old":
            store.repair("r", 4, by="ada")
            assert is_old_or_new(store, path, before) == "new"
    assert set(seen) == {"old", "new"}
    assert len(seen) > 15


def test_power_may_fail_before_any_call_of_a_repair(tmp_path):
    seen = set()
    for nth in repetitions():
        home = tmp_path / str(nth)
        fs = FaultyFS()
        store, path = damaged(home, fs=fs)
        before = path.read_bytes()
        fs.stop(nth=nth)
        try:
            store.repair("r", 4, by="ada")
        except PowerFailure:
            pass
        else:
            break
        pages, names = fs.unsynced()
        for mask in product((False, True), repeat=len(pages) + len(names) + 1):
            kept = dict(zip([*pages, *names, "grow"], mask, strict=True))
            shutil.rmtree(home)
            damaged(home)
            fs.lose_power(
                keep_page=lambda file, page, kept=kept: kept[file, page],
                keep_name=lambda name, kept=kept: kept[name],
                grow=kept["grow"],
            )
            seen.add(is_old_or_new(FileStore(home), path, before))
        release(store)
    assert seen == {"old", "new"}


def test_lines_are_read_one_by_one_wherever_they_stand():
    whole = lines()
    events = scan(b"".join(whole), "r").events
    assert list(intact(b"".join(whole))) == events
    assert list(intact(b"".join(whole).replace(b"\n", b"\r\n"))) == events
    assert list(intact(b"".join(whole).replace(b"\n", b""))) == events
    assert list(intact(b"{" + whole[0][:30] + whole[1] + b"\n\0\0" + whole[2])) == [events[1], events[2]]
    assert list(intact(whole[0].replace(b"run_id", b"run_ID"))) == []
    assert list(intact(b"")) == []
