"""The file store: what it creates, what opening repairs, what it refuses, and how it says so."""

from __future__ import annotations

import errno
import os
import re
import stat
from hashlib import sha256
from pathlib import Path

import pytest

from steplog._kernel.line import Chain
from steplog.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    LeaseLost,
    RunBusy,
    StoreError,
    UnknownRun,
    UnsupportedFormat,
)
from steplog.stores.files import FileStore
from steplog.testing import FaultyFS
from steplog.testing.contract import BAD_RUN_IDS, fill, named, sealed


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path / "home")


def written(store, count=3, run_id="r"):
    """Write a run; return its log file and its chain."""
    chain = Chain(run_id)
    writer = store.open(run_id)
    for _ in range(count):
        fill(writer, chain)
    writer.close()
    return Path(store.path_of(run_id)), chain


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_everything_is_private_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        store = FileStore(tmp_path / "deep" / "home")
        path, _ = written(store)
        path.write_bytes(path.read_bytes()[:-5])
        store.open("r").close()
        store.bodies.put([named(b"x" * 5000)])
    finally:
        os.umask(before)
    found = [tmp_path / "deep", *(tmp_path / "deep").rglob("*")]
    names = {entry.name for entry in found if entry.is_file()}
    assert {"events.jsonl", "events.lock", "bodies.db", "bodies.db-wal", "bodies.db-shm"} <= names
    assert any(".torn-" in name for name in names)
    for entry in found:
        assert mode(entry) == (0o700 if entry.is_dir() else 0o600), entry


def test_the_home_does_not_move_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = FileStore("home")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path, _ = written(store)
    assert path == tmp_path / "home/runs/r/events.jsonl"
    assert path.exists()


@pytest.mark.parametrize("run_id", BAD_RUN_IDS)
def test_no_path_is_built_from_a_bad_run_id(store, run_id):
    with pytest.raises(InvalidArgument):
        store.path_of(run_id)
    with pytest.raises(InvalidArgument):
        store.open(run_id)
    assert not Path(store.home).exists()


def test_an_unknown_durability_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="fast"):
        FileStore(tmp_path, durability="fast")


def test_what_is_no_run_is_not_listed(store):
    written(store)
    runs = Path(store.home, "runs")
    (runs / "empty").mkdir()
    (runs / ".hidden").mkdir()
    (runs / "a file").write_text("")
    (runs / "file").write_text("")
    store.open("unwritten").close()
    assert store.runs() == ["r"]


def test_reading_leaves_no_trace_and_takes_no_lock(store):
    path, chain = written(store)
    fragment = sealed(chain)[0][:30]
    with path.open("ab") as file:
        file.write(fragment)
    before = {entry: entry.read_bytes() for entry in Path(store.home).rglob("*") if entry.is_file()}
    view = store.read("r")
    assert (len(view.events), view.end, view.torn) == (3, path.stat().st_size - 30, 30)
    assert {entry: entry.read_bytes() for entry in Path(store.home).rglob("*") if entry.is_file()} == before
    with pytest.raises(UnknownRun):
        store.read("absent")
    assert not Path(store.home, "runs", "absent").exists()


@pytest.mark.parametrize("durability", ["durable", "process"])
def test_a_torn_tail_is_kept_beside_the_log_and_the_run_goes_on(tmp_path, durability):
    store = FileStore(tmp_path / "home", durability=durability)
    path, chain = written(store)
    good = path.read_bytes()
    mark = chain.mark()
    fragment = sealed(chain)[0][:-10]
    path.write_bytes(good + fragment)
    writer = store.open("r")
    saved = f"{path.with_suffix('')}.torn-{len(good)}"
    assert writer.recovered == (len(good), len(fragment), sha256(fragment).hexdigest(), saved)
    assert Path(saved).read_bytes() == fragment
    assert path.read_bytes() == good
    assert (len(writer.view.events), writer.view.end, writer.view.torn) == (3, len(good), 0)
    chain.rewind(mark)
    fill(writer, chain)
    writer.close()
    assert len(store.read("r").events) == 4


def test_an_earlier_torn_copy_is_never_overwritten(store):
    path, _ = written(store)
    good = path.read_bytes()
    for number, tail in enumerate((b"first", b"second", b"third"), 1):
        path.write_bytes(good + tail)
        writer = store.open("r")
        writer.close()
        assert Path(writer.recovered.saved_as).read_bytes() == tail
        assert len(list(path.parent.glob("events.torn-*"))) == number


@pytest.mark.parametrize("zeros", [0, 1, 100])
def test_a_missing_newline_is_added_and_nothing_is_cut(store, zeros):
    path, chain = written(store)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes(zeros))
    assert len(store.read("r").events) == 3
    writer = store.open("r")
    assert writer.recovered == (len(good) - 1, zeros, sha256(bytes(zeros)).hexdigest(), None)
    assert writer.view.end == len(good)
    assert path.read_bytes() == good
    fill(writer, chain)
    writer.close()
    assert len(store.read("r").events) == 4


def test_a_clean_log_is_opened_as_it_is(store):
    path, _ = written(store)
    before = path.read_bytes()
    writer = store.open("r")
    assert writer.recovered is None
    writer.close()
    assert path.read_bytes() == before


def damages():
    lines = sealed(Chain("r"), 5)
    other = Chain("r", [])
    other.epoch = 7
    whole = b"".join(lines)
    return {
        "flip": (whole.replace(b'"n":2', b'"n":3', 1), Corrupt, 3),
        "crlf": (whole.replace(b"\n", b"\r\n"), Corrupt, 1),
        "blank": (whole + b"\n", Corrupt, 6),
        "utf16": (whole.decode().encode("utf-16"), Corrupt, 1),
        "fused": (b"".join([*lines[:2], lines[2][:40], *lines[2:]]), Corrupt, 3),
        "twice": (b"".join([*lines, lines[4]]), Conflict, 6),
        "two writers": (whole + sealed(other)[0], Conflict, 6),
        "other run": (b"".join(sealed(Chain("other"), 2)), Conflict, 1),
        "no log": (b"hello\n", Corrupt, 1),
    }


@pytest.mark.parametrize("name", damages())
def test_damage_is_refused_explained_and_left_alone(store, name):
    data, kind, line = damages()[name]
    path, _ = written(store)
    path.write_bytes(data)
    for attempt in (store.read, store.open):
        with pytest.raises(kind) as caught:
            attempt("r")
        error = caught.value
        assert type(error) is kind
        assert (error.run_id, error.path, error.line) == ("r", str(path), line)
        assert error.offset == len(b"".join(data.split(b"\n")[: line - 1])) + line - 1
        assert error.last_good_seq == (line - 2 if line > 1 else None)
        if name == "other run":
            assert f"mv {path.parent} {path.parent.parent / 'ITS-OWN-ID'}\n" in str(error)
        else:
            assert "\nLook: steplog verify r\n" in str(error)
            if name == "crlf":
                assert f"sed -i 's/\\r$//' {path}" in str(error)
                continue
            assert re.search(r"execute[sd]\s.*\bagain\b.*side effects too", str(error))
        # An emptied log is a run that does everything a second time.
        assert (f"steplog repair r --to-seq {error.last_good_seq}" in str(error)) == (error.offset > 0)
        assert max(map(len, str(error).splitlines())) < 200 + 2 * len(str(path))
    assert path.read_bytes() == data
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["events.jsonl", "events.lock"]
    assert store.holder("r") is None


def test_a_conflict_names_both_epochs(store):
    path, chain = written(store)
    chain.rewind(Chain("r", store.read("r").events[:2]).mark())
    chain.epoch = 4
    with path.open("ab") as file:
        file.write(sealed(chain)[0])
    with pytest.raises(Conflict, match="epoch 0 before it, epoch 4 on it"):
        store.open("r")


def test_a_newer_log_asks_for_a_newer_release(store):
    path, _ = written(store)
    path.write_bytes(b'{"data":{"format":"steplog/2"}}\n')
    for attempt in (store.read, store.open):
        with pytest.raises(UnsupportedFormat, match="pip install") as caught:
            attempt("r")
        assert caught.value.found == "steplog/2"


def test_an_empty_log_is_a_run_that_has_not_begun(store):
    path, _ = written(store)
    path.write_bytes(b"")
    assert store.read("r").events == []
    writer = store.open("r")
    assert writer.view.events == []
    fill(writer, Chain("r"))
    writer.close()


def test_a_torn_first_line_is_cut(store):
    path, _ = written(store)
    path.write_bytes(sealed(Chain("r"))[0][:30])
    writer = store.open("r")
    assert (writer.view.events, writer.recovered.offset, writer.recovered.size) == ([], 0, 30)
    writer.close()


def test_a_directory_in_place_of_the_log(store):
    Path(store.path_of("r")).mkdir(parents=True)
    for attempt in (store.read, store.open):
        with pytest.raises(StoreError) as caught:
            attempt("r")
        assert caught.value.errno == errno.EISDIR


def test_a_file_in_place_of_a_directory(tmp_path):
    (tmp_path / "home").write_text("")
    store = FileStore(tmp_path / "home")
    for attempt in (lambda: store.open("r"), store.runs, lambda: store.bodies.put([named(b"x")])):
        with pytest.raises(StoreError) as caught:
            attempt()
        assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)
        assert str(tmp_path) in str(caught.value)
    with pytest.raises(UnknownRun):
        store.read("r")


@pytest.mark.parametrize("link", ["symlink", "hard link", "other path"])
def test_one_file_has_one_writer_by_whatever_path(tmp_path, link):
    store = FileStore(tmp_path / "home")
    writer = store.open("r")
    runs = tmp_path / "home/runs"
    if link == "symlink":
        (tmp_path / "other").symlink_to(tmp_path / "home")
        second = lambda: FileStore(tmp_path / "other").open("r")  # noqa: E731
    elif link == "hard link":
        (runs / "r2").mkdir()
        os.link(runs / "r/events.lock", runs / "r2/events.lock")
        second = lambda: store.open("r2")  # noqa: E731
    else:
        second = lambda: FileStore(tmp_path / "x/../home").open("r")  # noqa: E731
    with pytest.raises(RunBusy):
        second()
    writer.close()


@pytest.mark.parametrize("durability", ["durable", "process"])
@pytest.mark.parametrize("stranger", ["valid", "invalid", "cut"])
def test_a_stranger_in_the_log_ends_the_lease_before_our_next_byte(tmp_path, durability, stranger):
    store = FileStore(tmp_path / "home", durability=durability)
    path, chain = written(store)
    writer = store.open("r")
    mark = chain.mark()
    data = path.read_bytes()
    theirs = {"valid": data + sealed(chain)[0], "invalid": data + b"x", "cut": data[:-1]}[stranger]
    path.write_bytes(theirs)
    chain.rewind(mark)
    for _ in range(2):
        with pytest.raises(LeaseLost) as caught:
            fill(writer, chain)
        chain.rewind(mark)
        assert caught.value.run_id == "r"
    path.write_bytes(data)
    with pytest.raises(LeaseLost):
        fill(writer, chain)
    assert path.read_bytes() == data
    writer.close()


def test_a_moved_or_replaced_run_ends_the_lease(store):
    def replace(path):
        copy = path.read_bytes()
        path.unlink()
        path.write_bytes(copy)

    changes = {
        "directory moved": lambda path: path.parent.rename(path.parent.parent / "moved"),
        "log deleted": lambda path: path.unlink(),
        "log replaced by its copy": replace,
        "lock deleted": lambda path: (path.parent / "events.lock").unlink(),
        "lock replaced": lambda path: replace(path.parent / "events.lock"),
    }
    for number, change in enumerate(changes.values()):
        run_id = f"r{number}"
        path, chain = written(store, run_id=run_id)
        writer = store.open(run_id)
        change(path)
        with pytest.raises(LeaseLost) as caught:
            fill(writer, chain)
        assert caught.value.run_id == run_id
        writer.close()


def test_without_syncs_the_log_is_missed_once_a_millisecond_has_passed(tmp_path, monkeypatch):
    store = FileStore(tmp_path, durability="process")
    path, chain = written(store)
    writer = store.open("r")
    now = [1000.0]
    monkeypatch.setattr("steplog.stores.writer.time.monotonic", lambda: now[0])
    fill(writer, chain)
    path.unlink()
    now[0] += 0.0005
    fill(writer, chain)
    now[0] += 0.0006
    with pytest.raises(LeaseLost, match="moved or deleted"):
        fill(writer, chain)
    writer.close()


def test_closing_the_log_elsewhere_in_the_process_keeps_the_lock(store):
    path, chain = written(store)
    writer = store.open("r")
    for name in (path, path.parent / "events.lock"):
        with name.open("rb") as file:
            file.read()
    assert store.holder("r").pid == os.getpid()
    with pytest.raises(RunBusy):
        store.open("r")
    fill(writer, chain)
    writer.close()


def test_a_failing_call_at_open_is_a_typed_error_and_no_run_appears(tmp_path):
    """Every call that opening a new run makes fails once; then the run opens as if nothing had been."""
    for code in (errno.EACCES, errno.EMFILE, errno.EROFS, errno.ENOSPC, errno.EIO):
        nth = 0
        while True:
            nth += 1
            fs = FaultyFS()
            store = FileStore(tmp_path / f"home-{code}-{nth}", fs=fs)
            fs.fail(nth=nth, errno=code)
            try:
                writer = store.open("r")
            except StoreError as error:
                facts = (error.errno, error.run_id, bool(error.path))
            else:
                fs.heal()
                writer.close()
                break
            assert facts == (code, "r", True)
            fs.heal()
            assert store.runs() == []
            assert store.holder("r") is None
            writer = store.open("r")
            fill(writer, Chain("r"))
            writer.close()
        assert nth > 10


def test_a_log_larger_than_a_block_is_read_whole(store, monkeypatch):
    monkeypatch.setattr("steplog.stores.source._BLOCK", 100)
    path, chain = written(store, 20)
    assert len(store.read("r").events) == 20
    writer = store.open("r")
    fill(writer, chain)
    writer.close()
    assert path.stat().st_size > 2000


def test_messages_name_the_run_the_file_and_the_remedy(tmp_path):
    fs = FaultyFS()
    store = FileStore(tmp_path / "home", fs=fs)
    chain = Chain("refund-7")
    writer = store.open("refund-7")
    fill(writer, chain)
    fs.fail("write", errno=errno.ENOSPC, persistent=True)
    with pytest.raises(StoreError) as caught:
        fill(writer, chain, 3)
    message = str(caught.value)
    for part in (
        "refund-7",
        "events 1 to 3",
        store.path_of("refund-7"),
        "disk is full",
        "move the whole home",
        "as it was before",
    ):
        assert part in message
    writer.close()
