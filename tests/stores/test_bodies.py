"""The body store: exact bytes, once, in space linear in what is new."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steplog.errors import BodyMissing, Corrupt, InvalidArgument, KeyMissing, StoreError, UnsupportedFormat
from steplog.stores.additions import Additions
from steplog.stores.blocks import pack, unpack
from steplog.stores.bodies import SqliteBodies
from steplog.stores.chunks import LEAST, MOST, cuts, prefixes
from steplog.stores.upkeep import begin, prune
from steplog.testing import FaultyFS
from steplog.testing.contract import in_child, named
from tests.support.examples import examples
from tests.support.processes import environment
from tests.support.recorded import ROOT

WORDS = (
    "order refund damaged item the a customer asks for and is shipment parcel late please check status of my".split()
)


def conversation(turns, seed=0):
    """Yield the request of each turn: everything said before, and something new."""
    pick = random.Random(seed)
    messages = [{"role": "system", "content": "You are careful. " * 30}]
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "parameters": {"type": "object"}}} for n in range(9)
    ]
    for turn in range(turns):
        messages.append({"role": "user", "content": " ".join(pick.choices(WORDS, k=100)) + str(turn)})
        yield orjson.dumps({"messages": messages, "model": "m", "tools": tools})
        messages.append({"role": "assistant", "content": " ".join(pick.choices(WORDS, k=200)) + str(turn)})


@pytest.fixture
def bodies(tmp_path):
    store = SqliteBodies(str(tmp_path / "home" / "bodies.db"))
    yield store
    store.close()


def file_size(bodies):
    bodies.close()
    return os.path.getsize(bodies.path)


class TestChunks:
    @given(st.binary(max_size=3000), st.sampled_from([b"", b"{", b"["]))
    def test_chunks_are_the_whole_in_order(self, data, opening):
        data = opening + data * 5
        ends = list(cuts(data))
        assert ends == sorted(set(ends))
        assert ends[-1] == len(data)
        sizes = [stop - start for start, stop in zip([0, *ends], ends, strict=False)]
        assert max(sizes) <= MOST
        assert all(size >= LEAST for size in sizes[:-1])

    def test_a_longer_request_repeats_the_cuts_of_the_shorter(self):
        before = set()
        for request in conversation(30):
            found, digest = prefixes(request)
            assert digest == sha256(request).hexdigest()
            assert [prefix.digest for prefix in found] == [sha256(request[: p.stop]).digest() for p in found]
            keys = [prefix.digest for prefix in found]
            shared = sum(key in before for key in keys)
            assert keys[:shared] == [key for key in keys if key in before], "what is shared is a prefix"
            assert len(request) - (found[shared - 1].stop if shared else 0) < 4000 or not before
            before.update(keys)

    def test_bytes_without_structure_are_cut_by_size(self):
        data = random.Random(1).randbytes(MOST * 3 + 1)
        assert list(cuts(data)) == [MOST, 2 * MOST, 3 * MOST, 3 * MOST + 1]
        assert list(cuts(b"{" + b"x" * MOST * 2))[:2] == [MOST, 2 * MOST]


def test_a_chunk_is_unpacked_with_more_than_it_was_packed_with():
    """A short chunk is compressed with the end of what its block holds before it, and unpacked with all of that."""
    said = b"".join(conversation(40))
    for before in (said[:500], said[:20_000], said[:90_000]):
        for raw in (before[-900:], before[-9_000:], said[1_000:1_700] + before[-300:]):
            assert unpack(pack(raw, before, None, 1), before, None, 1) == raw


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(
    st.lists(
        st.one_of(st.binary(max_size=5000), st.integers(0, 20).map(lambda n: b"".join(conversation(n)))), max_size=5
    )
)
def test_any_bytes_are_returned_exactly(bodies, many):
    bodies.put(named(data) for data in many)
    for data in many:
        assert bodies.get(named(data)[0]) == data


def test_a_conversation_takes_space_linear_in_what_is_said(bodies):
    requests = list(conversation(120))
    for request in requests:
        bodies.put([named(request)])
    assert [bodies.get(named(request)[0]) for request in requests] == requests
    assert file_size(bodies) < len(requests[-1])
    assert sum(map(len, requests)) > 30 * len(requests[-1])


def test_the_same_bodies_again_take_no_space(bodies):
    requests = [named(request) for request in conversation(20)]
    bodies.put(requests)
    size = file_size(bodies)
    for request in requests:
        bodies.put([request])
    assert file_size(bodies) == size


def test_tools_behind_the_conversation_are_stored_once(bodies):
    tools = random.Random(3).randbytes(6000).hex()
    for turn in range(40):
        messages = [{"role": "user", "content": f"{n}" * 600} for n in range(turn)]
        request = {"messages": messages, "tools": [{"name": tools[n * 600 : n * 600 + 600]} for n in range(20)]}
        bodies.put([named(orjson.dumps(request))])
    assert file_size(bodies) < 45_000


def test_a_conversation_that_repeats_itself_takes_little_space(bodies):
    say = [{"role": "user", "content": "again " * 150}, {"role": "assistant", "content": "and again " * 90}]
    tools = [{"name": "tool " * 120 + str(n)} for n in range(9)]
    requests = [orjson.dumps({"messages": say * turn, "tools": tools}) for turn in range(1, 150)]
    for request in requests:
        bodies.put([named(request)])
    assert all(bodies.get(named(request)[0]) == request for request in requests)
    assert file_size(bodies) < 150_000


def test_random_bytes_do_not_grow(bodies):
    data = random.Random(2).randbytes(1_000_000)
    bodies.put([named(data)])
    assert bodies.get(named(data)[0]) == data
    assert file_size(bodies) < 1_050_000


def test_large_chunks_are_bounded_and_restored(bodies):
    for data in (b"\0" * 5_000_000, b'{"a":"' + b"ab" * 300_000 + b'"}'):
        bodies.put([named(data)])
        assert bodies.get(named(data)[0]) == data
    assert file_size(bodies) < 50_000


def test_the_write_ahead_log_stays_small(bodies):
    for request in conversation(150):
        bodies.put([named(request)])
    assert os.path.getsize(bodies.path + "-wal") < 400_000


def test_a_put_is_all_or_nothing(bodies, monkeypatch):
    bodies.put([named(b"before")])
    placed = Additions._place
    good, bad = named(b"good"), named(b"bad")
    monkeypatch.setattr(
        Additions, "_place", lambda self, data, found: placed(self, data, found) if data != bad[1] else 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        bodies.put([good, bad])
    monkeypatch.undo()
    assert not bodies.has(good[0])
    later = [named(request) for request in conversation(5)]
    bodies.put([good, bad, *later])
    assert [bodies.get(name) for name, _ in (good, bad, *later)] == [data for _, data in (good, bad, *later)]


def test_a_failed_put_leaves_no_memory_of_its_chunks(bodies, monkeypatch):
    """The next chunk is compressed with those before it, which are what the file holds, not what was tried."""
    raw = b"never stored " * 50
    [part], _ = prefixes(raw)
    monkeypatch.setattr(Additions, "_place", lambda self, *_: self._add_chunk(raw, part) and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bodies.put([named(b"x")])
    monkeypatch.undo()
    other = SqliteBodies(bodies.path)
    other.put([named(b"another first chunk " * 50)])
    other.close()
    bodies.put([named(b"never stored, another second chunk " * 50)])
    other.close()
    assert other.get(named(b"never stored, another second chunk " * 50)[0])


def test_bodies_put_together_are_stored_as_if_one_by_one(bodies, tmp_path):
    conversations = [named(request) for request in conversation(40)]
    several = [named(b"%d " % number + b"words " * 200) for number in range(1_500)]
    everything = [*several[:700], *conversations, *several[300:], *conversations]
    alone = SqliteBodies(str(tmp_path / "alone.db"))
    for body in everything:
        alone.put([body], sync=False)
    bodies.put(several[:5])
    bodies.put(everything)
    bodies.put(everything)
    tables = ("chunks", "hashes", "spines", "tails", "bodies")
    rows = [
        [store.database.connect().execute(f"SELECT * FROM {table}").fetchall() for table in tables]
        for store in (alone, bodies)
    ]
    assert rows[0] == rows[1]
    assert [bodies.get(name) for name, _ in everything[:50]] == [data for _, data in everything[:50]]
    alone.close()


def test_bodies_put_together_are_few_statements(bodies):
    """Between two statements a thread waits for the interpreter, beside a busy event loop for long."""
    bodies.put([named(b"first")])
    statements = []
    bodies.database.connection.set_trace_callback(statements.append)
    bodies.put([named(b"%d " % number + b"words " * 200) for number in range(200)])
    bodies.database.connection.set_trace_callback(None)
    assert len(statements) < 20


def test_the_cost_of_a_turn_is_the_turn(bodies):
    requests = [named(request) for request in conversation(100)]
    bodies.put(requests[:-1])
    statements = []
    bodies.database.connection.set_trace_callback(statements.append)
    bodies.put(requests[-1:])
    assert len(statements) < 40


def test_reading_creates_nothing(tmp_path):
    bodies = SqliteBodies(str(tmp_path / "home" / "bodies.db"))
    assert not bodies.has("0" * 64)
    with pytest.raises(BodyMissing):
        bodies.get("0" * 64)
    bodies.put([])
    assert not bodies.has("no hexadecimal")
    bodies.close()
    assert not (tmp_path / "home" / "bodies.db-wal").exists()


def test_a_wrong_name_stores_nothing(bodies):
    with pytest.raises(InvalidArgument, match="hashes to"):
        bodies.put([named(b"good"), ("ab" * 32, b"bad")])
    assert not bodies.has(named(b"good")[0])


@pytest.mark.parametrize("damage", ["chunk altered", "chunk lost", "spine lost", "chunk swapped"])
def test_an_altered_body_is_noticed(bodies, damage):
    data = orjson.dumps([{"text": random.Random(n).randbytes(300).hex()} for n in range(20)])
    bodies.put([named(data)])
    bodies.close()
    db = sqlite3.connect(bodies.path)
    statement = {
        "chunk altered": "UPDATE chunks SET data = CAST(substr(data, 1, 99) || x'00' || substr(data, 101) AS BLOB)"
        " WHERE id = 2",
        "chunk lost": "DELETE FROM chunks WHERE id = 1",
        "spine lost": "DELETE FROM spines",
        "chunk swapped": "UPDATE bodies SET chunks = CAST(x'02' || substr(chunks, 2) AS BLOB)",
    }[damage]
    assert db.execute(statement).rowcount == 1
    db.commit()
    db.close()
    with pytest.raises(Corrupt) as caught:
        bodies.get(named(data)[0])
    assert caught.value.expected == named(data)[0]


def test_a_file_that_is_no_database_is_named(bodies):
    Path(bodies.path).parent.mkdir()
    Path(bodies.path).write_bytes(b"no database at all" * 100)
    for attempt in (lambda: bodies.put([named(b"x")]), lambda: bodies.has("0" * 64), lambda: bodies.get("0" * 64)):
        with pytest.raises(Corrupt, match="Restore it"):
            attempt()


class Scrambler:
    """A stand-in for encryption: it shows that nothing is stored or named but through it."""

    def __init__(self, *keys):
        self.keys = keys

    @property
    def key_id(self):
        return self.keys[-1]

    def name(self, digest):
        return sha256(self.keys[-1] + digest).digest()

    def is_name(self, name, digest):
        return any(each.startswith(name) for each in (digest, *(sha256(key + digest).digest() for key in self.keys)))

    def seal(self, data, context):
        return self.key_id + context + bytes(byte ^ 0x5A for byte in data)

    def open(self, sealed, context):
        key_id, place, data = sealed[:2], sealed[2:10], sealed[10:]
        if key_id not in self.keys:
            raise StoreError("the key is not known")
        if place != context:
            raise Corrupt("moved")
        return bytes(byte ^ 0x5A for byte in data)


def keyed(store, data):
    return store.name(data), data


def test_a_cipher_seals_and_names_all_that_is_stored(tmp_path):
    path = str(tmp_path / "bodies.db")
    request = list(conversation(20))[-1]
    plain = SqliteBodies(path)
    plain.put([named(request)])
    old = SqliteBodies(path, cipher=Scrambler(b"k1"))
    assert old.get(named(request)[0]) == request, "what was stored without a cipher stays readable"
    for each in conversation(20, seed=1):
        old.put([keyed(old, each)])
    secret = list(conversation(20, seed=1))[-1]
    assert old.name(secret) != named(secret)[0]
    new = SqliteBodies(path, cipher=Scrambler(b"k1", b"k2"))
    assert new.get(old.name(secret)) == secret
    new.put([keyed(new, secret), keyed(new, b"short")])
    plain.put([named(b"in the clear again")])
    assert [new.get(new.name(data)) for data in (secret, b"short")] == [secret, b"short"]
    with pytest.raises(KeyMissing, match="needs the key 6b31"):
        plain.get(old.name(secret))
    with pytest.raises(StoreError, match="not known"):
        old.get(new.name(secret))
    for store in (plain, old, new):
        store.close()
    kept = Path(path).read_bytes()
    for length in (16, 32):
        assert sha256(secret).digest()[:length] not in kept
    db = sqlite3.connect(path)
    assert {key for (key,) in db.execute("SELECT DISTINCT key_id FROM chunks")} == {None, b"k1", b"k2"}
    blocks = db.execute("SELECT count(DISTINCT key_id) + max(key_id IS NULL) FROM chunks GROUP BY id / 32").fetchall()
    assert set(blocks) == {(1,)}, "a block is read by one key"
    db.close()


def test_a_file_of_the_first_format_is_read_and_goes_on(tmp_path):
    """As the first release made it, with a conversation of four turns in it."""
    path = tmp_path / "bodies.db"
    shutil.copy(ROOT / "tests/golden/bodies-1/bodies.db", path)
    bodies = SqliteBodies(str(path))
    requests = list(conversation(8))
    assert [bodies.get(named(request)[0]) for request in requests[:4]] == requests[:4]
    for request in requests:
        bodies.put([named(request)])
    bodies.close()
    assert [bodies.get(named(request)[0]) for request in requests] == requests
    bodies.close()


def test_a_file_that_is_replaced_while_it_is_open_is_noticed(bodies):
    bodies.put([named(b"before")])
    for replace in (os.unlink, lambda path: os.rename(path, path + ".away")):
        replace(bodies.path)
        with pytest.raises(StoreError, match="deleted or replaced"):
            bodies.put([named(b"after")])
        bodies.put([named(b"after")])
        assert not bodies.has(named(b"before")[0])
        assert bodies.get(named(b"after")[0]) == b"after"


def test_a_newer_format_is_refused(bodies):
    bodies.put([named(b"x")])
    bodies.close()
    db = sqlite3.connect(bodies.path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UnsupportedFormat) as caught:
        bodies.get(named(b"x")[0])
    assert caught.value.found == "99"


def test_a_full_disk_is_a_store_error_and_nothing_is_lost(bodies):
    bodies.put([named(b"before")])
    (pages,) = bodies.database.connection.execute("PRAGMA page_count").fetchone()
    bodies.database.connection.execute(f"PRAGMA max_page_count = {pages}")
    big = named(random.Random(5).randbytes(100_000))
    with pytest.raises(StoreError) as caught:
        bodies.put([big])
    assert caught.value.errno == errno.ENOSPC
    assert bodies.get(named(b"before")[0]) == b"before"
    bodies.database.connection.execute("PRAGMA max_page_count = 1000000")
    bodies.put([big])
    assert bodies.get(big[0]) == big[1]


def test_a_busy_database_is_named(bodies, monkeypatch):
    monkeypatch.setattr("steplog.stores.database.BUSY_SECONDS", 0.05)
    bodies.put([named(b"x")])
    other = sqlite3.connect(bodies.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked") as caught:
        bodies.put([named(b"y")])
    assert caught.value.errno == errno.EBUSY
    other.execute("ROLLBACK")
    other.close()
    bodies.put([named(b"y")])


def test_the_file_and_its_directory_cannot_be_created(tmp_path):
    for code in (errno.EACCES, errno.EROFS, errno.ENOSPC):
        for operation in ("mkdir", "create", "sync_dir"):
            fs = FaultyFS()
            bodies = SqliteBodies(str(tmp_path / f"{code}{operation}" / "bodies.db"), fs=fs)
            fs.fail(operation, errno=code)
            with pytest.raises(StoreError) as caught:
                bodies.put([named(b"x")])
            assert caught.value.errno == code
            bodies.put([named(b"x")])
            assert bodies.get(named(b"x")[0]) == b"x"
            bodies.close()


@pytest.mark.parametrize("sync", [True, False])
def test_what_is_durable_is_synced_with_the_transaction(bodies, sync):
    bodies.put([named(b"x")], sync=sync)
    assert bodies.database.connection.execute("PRAGMA synchronous").fetchone() == ((2,) if sync else (1,))
    bodies.put([named(b"y")], sync=True)
    assert bodies.database.connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_body_put_without_sync_is_synced_when_it_is_put_again(tmp_path):
    fs = FaultyFS()
    bodies = SqliteBodies(str(tmp_path / "bodies.db"), fs=fs)
    bodies.put([named(b"x")], sync=False)
    before = fs.count("sync")
    bodies.put([named(b"x")], sync=True)
    bodies.put([named(b"x")], sync=True)
    assert fs.count("sync") == before + 1
    bodies.close()


def test_a_body_that_another_process_put_without_sync_is_synced_when_it_is_found(tmp_path):
    path, fs = str(tmp_path / "bodies.db"), FaultyFS()
    other, mine = SqliteBodies(path, durability="process"), SqliteBodies(path, fs=fs)
    for text in (b"said at a lower level", b"and once more"):
        other.put([named(text)])
        before = fs.count("sync")
        mine.put([named(text)])
        assert fs.count("sync") == before + 1, "a line that names it could be on the disk before it"
        mine.put([named(text)])
        assert fs.count("sync") == before + 1
    other.close()
    mine.close()


def test_what_others_changed_while_no_connection_was_open_is_noticed(tmp_path):
    """A fork closes the connection. What a piece is compressed with is what stands there then, not what stood there."""
    path = str(tmp_path / "bodies.db")
    mine, other = SqliteBodies(path), SqliteBodies(path)
    mine.put([named(b"first")])
    mine.put([named(b"a piece that is pruned " * 40)])
    mine.close()
    wanted = named(b"first")[0]
    prune(other, begin(other, 1), lambda name, _day: name == wanted, {wanted})
    other.put([named(b"what has its number now " * 40)])
    mine.put([named(b"a piece that is pruned " * 41)])
    for text in (b"what has its number now " * 40, b"a piece that is pruned " * 41):
        assert other.get(named(text)[0]) == text
    mine.close()
    other.close()


def test_level_process_does_not_wait_for_the_disk(tmp_path):
    bodies = SqliteBodies(str(tmp_path / "bodies.db"), durability="process")
    bodies.put([named(b"x")], sync=True)
    assert bodies.database.connection.execute("PRAGMA synchronous").fetchone() == (1,)
    bodies.close()


def test_threads_share_the_store(bodies):
    failures = []

    def work(seed):
        try:
            for request in conversation(15, seed):
                bodies.put([named(request)])
                assert bodies.get(named(request)[0]) == request
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


WORK = """
import sys
from tests.stores.test_bodies import conversation, named
from steplog.stores.bodies import SqliteBodies
from steplog.stores.upkeep import begin, prune
bodies = SqliteBodies(sys.argv[1])
for request in conversation(40, int(sys.argv[2])):
    bodies.put([named(request)])
"""


def test_processes_share_the_file(bodies):
    """Four begin at once, on a file that none of them has created yet."""
    command = [sys.executable, "-c", WORK, bodies.path]
    processes = [subprocess.Popen([*command, str(seed)], env=environment()) for seed in range(4)]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    for seed in range(4):
        for request in conversation(40, seed):
            assert bodies.get(named(request)[0]) == request


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_uses_a_connection_of_its_own(bodies):
    bodies.put([named(b"parent")])
    assert bodies.database.connection is not None
    assert in_child(lambda: 1 / 0 if bodies.database.connection else None) == "", "a connection crossed the fork"
    assert in_child(lambda: bodies.put([named(b"child")])) == ""
    assert in_child(lambda: bodies.get(named(b"parent")[0])) == ""
    bodies.put([named(b"after")])
    assert [bodies.get(named(data)[0]) for data in (b"parent", b"child", b"after")] == [b"parent", b"child", b"after"]
