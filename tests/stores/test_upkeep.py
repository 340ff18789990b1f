"""Checking, measuring and pruning the body store."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys

import orjson
import pytest

from steplog.errors import BodyMissing, StoreError
from steplog.stores.bodies import SqliteBodies
from steplog.stores.upkeep import begin, prune, usage
from steplog.testing.contract import named
from tests.stores.test_bodies import Scrambler, conversation, keyed
from tests.support.processes import environment


@pytest.fixture
def bodies(tmp_path):
    store = SqliteBodies(str(tmp_path / "bodies.db"))
    yield store
    store.close()


def requests_of(seed, turns=40):
    return [named(request) for request in conversation(turns, seed)]


def age(bodies, names, days=100):
    """Make bodies look as if they had been put that long ago."""
    db = sqlite3.connect(bodies.path)
    db.executemany("UPDATE bodies SET day = day - ? WHERE sha256 = ?", [(days, bytes.fromhex(name)) for name in names])
    db.commit()
    db.close()


def keep_only(bodies, wanted, *, dry=False, named_in_logs=()):
    number = None if dry else begin(bodies, 20_000)
    return prune(bodies, number, lambda name, _day: name in wanted, named_in_logs)


# check ----------------------------------------------------------------------------------------------------------------


def test_a_whole_store_has_no_fault(bodies):
    assert bodies.check() == (0, 0, 0, [])
    assert not os.path.exists(bodies.path), "a check creates nothing"
    bodies.put(requests_of(1) + requests_of(2) + [named(random.Random(1).randbytes(200_000)), named(b"")])

    found = bodies.check()

    assert (found.bodies, found.unused, found.faults) == (82, 0, [])


def test_a_check_is_linear_in_a_conversation(bodies):
    bodies.put(requests_of(1, 150))
    statements = []
    bodies.database.connection.set_trace_callback(statements.append)
    assert bodies.check().faults == []
    assert len([text for text in statements if "FROM chunks WHERE id BETWEEN" in text]) < 700


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE chunks SET data = CAST(substr(data, 1, 9) || x'00' || substr(data, 11) AS BLOB) WHERE id = 40",
        "DELETE FROM chunks WHERE id = 40",
        "DELETE FROM hashes WHERE chunk = 40",
        "DELETE FROM spines WHERE id = 2",
        "UPDATE spines SET parent = 9 WHERE id = 4",
        "UPDATE spines SET parent = 0 WHERE id = 4",
        "UPDATE bodies SET spine = 999 WHERE spine > 0",
        "UPDATE bodies SET chunks = CAST(x'FFFFFFFFFFFFFFFFFFFFFF7F' AS BLOB) WHERE spine > 0",
    ],
)
def test_damage_is_found(bodies, damage):
    bodies.put(requests_of(1))
    bodies.close()
    db = sqlite3.connect(bodies.path)
    assert db.execute(damage).rowcount > 0
    db.commit()
    db.close()
    unreadable = set()
    for name, data in requests_of(1):
        try:
            assert bodies.get(name) == data
        except StoreError:
            unreadable.add(name)

    found = bodies.check()

    assert found.faults
    assert {fault.sha256 for fault in found.faults if fault.sha256} == unreadable


def test_a_file_whose_pages_are_damaged_is_found(bodies):
    bodies.put(requests_of(1))
    bodies.close()
    with open(bodies.path, "r+b") as file:
        file.seek(os.path.getsize(bodies.path) // 2)
        file.write(b"\xff" * 4096)
    try:
        faults = bodies.check().faults
    except StoreError as error:
        faults = [error]
    assert faults


def test_an_encrypted_store_is_checked_with_its_keys(tmp_path):
    bodies = SqliteBodies(str(tmp_path / "bodies.db"), cipher=Scrambler(b"k1"))
    bodies.put(keyed(bodies, data) for _, data in requests_of(1))
    bodies.cipher = Scrambler(b"k1", b"k2")
    bodies.put(keyed(bodies, data) for _, data in requests_of(1))
    assert bodies.check()[2:] == (0, [])
    bodies.close()


# usage ----------------------------------------------------------------------------------------------------------------


def test_what_runs_share_is_counted_apart(bodies):
    mine, yours = requests_of(1), requests_of(2)
    bodies.put(mine + yours)
    both = usage(bodies, {"mine": [name for name, _ in mine], "yours": [name for name, _ in mine[:20] + yours]})
    alone = usage(bodies, {"mine": [name for name, _ in mine]})["mine"]

    assert alone == (40, sum(len(data) for _, data in mine), both["mine"].own + both["mine"].shared, 0, 0)
    assert both["mine"].shared == both["yours"].shared > 0
    assert both["yours"].own > both["mine"].own > 0
    assert usage(bodies, {"r": ["0" * 64, "no name"]}) == {"r": (2, 0, 0, 0, 2)}


# prune ----------------------------------------------------------------------------------------------------------------


def test_what_is_not_wanted_goes_and_the_rest_stays_exact(bodies):
    mine, yours = requests_of(1), requests_of(2)
    for one, other in zip(mine, yours, strict=True):
        bodies.put([one, other])
    bodies.close()
    size = os.path.getsize(bodies.path)
    wanted = {name for name, _ in yours}
    foreseen = keep_only(bodies, wanted, dry=True)
    assert all(bodies.has(name) for name, _ in mine), "a dry run takes nothing away"

    pruned = keep_only(bodies, wanted, named_in_logs={mine[0][0]})

    assert pruned == foreseen
    assert pruned.bodies == sorted(name for name, _ in mine)
    assert pruned.plain == sum(len(data) for _, data in mine)
    assert [bodies.get(name) for name, _ in yours] == [data for _, data in yours]
    assert bodies.check()[2:] == (0, [])
    bodies.close()
    assert os.path.getsize(bodies.path) <= size - pruned.stored * 0.9
    with pytest.raises(BodyMissing, match="pruned on 2024-10-04") as caught:
        bodies.get(mine[0][0])
    assert caught.value.pruned == "2024-10-04"
    with pytest.raises(BodyMissing, match="lost"):
        bodies.get(mine[1][0])
    bodies.put(mine)
    assert [bodies.get(name) for name, _ in mine] == [data for _, data in mine]


def test_a_conversation_goes_on_after_its_beginning_was_pruned(bodies):
    requests = requests_of(1)
    for request in requests[:30]:
        bodies.put([request])
    keep_only(bodies, {requests[29][0]})
    for request in requests[30:]:
        bodies.put([request])
    assert [bodies.get(name) for name, _ in requests[29:]] == [data for _, data in requests[29:]]
    assert bodies.check()[2:] == (0, [])


def test_random_prunes_leave_what_is_wanted(bodies):
    pick = random.Random(3)
    present = {}
    for round_ in range(12):
        new = dict(pick.sample(requests_of(round_ % 4), 12))
        bodies.put(new.items())
        present.update(new)
        present = {name: data for name, data in present.items() if pick.random() < 0.6}
        keep_only(bodies, present)
        assert bodies.check()[2:] == (0, [])
        assert all(bodies.get(name) == data for name, data in present.items())


def test_another_process_does_not_build_on_what_was_pruned(bodies):
    """It remembers the last block that it compressed with; after a prune another one may stand there."""
    first, second = requests_of(1), requests_of(2)
    bodies.put(first[:3])
    other = SqliteBodies(bodies.path)
    keep_only(other, set())
    other.put(second[:2])
    bodies.put(first[:5])
    other.close()
    assert [bodies.get(name) for name, _ in first[:5]] == [data for _, data in first[:5]]
    assert bodies.check()[2:] == (0, [])


def test_what_is_put_after_a_prune_began_is_not_pruned(bodies):
    """A writer found it present, and its line is not in the logs that the prune has read."""
    old, reused = named(b"old" * 300), named(b"reused" * 300)
    bodies.put([old, reused])
    number = begin(bodies, 20_000)
    bodies.put([reused])

    pruned = prune(bodies, number, lambda _name, _day: False, ())

    assert pruned.bodies == [old[0]]
    assert bodies.get(reused[0]) == reused[1]


def test_a_prune_begins_when_nobody_is_between_a_body_and_its_line(bodies, monkeypatch):
    monkeypatch.setattr("steplog.stores.bodies.BUSY_SECONDS", 0.05)
    body = named(b"body" * 300)
    other = SqliteBodies(bodies.path)
    with other.held():
        other.put([body])
        with pytest.raises(StoreError, match="busy"):
            begin(bodies, 20_000)
        with other.held():
            pass
        with pytest.raises(StoreError, match="busy"):
            begin(other, 20_000)
    begin(bodies, 20_000)
    with bodies.alone(), pytest.raises(StoreError, match="pruning"), other.held():
        pass
    with other.held():
        pass
    other.close()


def test_a_body_that_is_put_again_is_as_young_as_a_new_one(bodies):
    body = named(b"body" * 300)
    bodies.put([body])
    age(bodies, [body[0]])
    days = []
    prune(bodies, None, lambda _name, day: days.append(day) or True, ())
    bodies.put([body])
    prune(bodies, None, lambda _name, day: days.append(day) or True, ())
    assert days[1] == days[0] + 100


def test_an_encrypted_block_stays_encrypted(tmp_path):
    bodies = SqliteBodies(str(tmp_path / "bodies.db"), cipher=Scrambler(b"k1"))
    mine = [keyed(bodies, data) for _, data in requests_of(1)]
    bodies.put(mine)
    bodies.cipher = Scrambler(b"k1", b"k2")
    keep_only(bodies, {name for name, _ in mine[:10]})
    assert [bodies.get(name) for name, _ in mine[:10]] == [data for _, data in mine[:10]]
    keys = bodies.database.connection.execute("SELECT DISTINCT key_id FROM chunks").fetchall()
    assert set(keys) <= {(b"k1",), (b"k2",)}
    assert bodies.check()[2:] == (0, [])
    bodies.close()


def test_a_damaged_block_is_left_as_it_is(bodies):
    bodies.put(requests_of(1))
    bodies.close()
    db = sqlite3.connect(bodies.path)
    db.execute("UPDATE chunks SET data = x'00' WHERE id = 2")
    db.commit()
    before = db.execute("SELECT id, data FROM chunks WHERE id < 32").fetchall()
    keep_only(bodies, {requests_of(1)[0][0]})
    assert db.execute("SELECT id, data FROM chunks WHERE id < 32").fetchall() == before
    db.close()


def test_a_file_of_the_first_format_gives_its_space_back(tmp_path):
    path = str(tmp_path / "bodies.db")
    old = os.path.join(os.path.dirname(__file__), "../golden/bodies-1/bodies.db")
    with open(old, "rb") as source, open(path, "wb") as target:
        target.write(source.read())
    bodies = SqliteBodies(path)
    bodies.put(named(orjson.dumps([{"n": random.Random(n).randbytes(900).hex()}])) for n in range(300))
    bodies.close()
    size = os.path.getsize(path)
    keep_only(bodies, {requests_of(0, 4)[3][0]})
    bodies.close()
    assert os.path.getsize(path) < size / 5
    assert bodies.get(requests_of(0, 4)[3][0]) == requests_of(0, 4)[3][1]
    bodies.close()


KILLED = """
import sys
from steplog.stores import bodies as module, upkeep
from tests.stores.test_upkeep import keep_only, requests_of
store = module.SqliteBodies(sys.argv[1])
step, count = sys.argv[2], 0
def die(statement):
    global count
    if statement.startswith(step):
        count += 1
        if count == int(sys.argv[3]):
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
store.put([])
store.database.connection.set_trace_callback(die)
if sys.argv[4] == "put":
    store.put(requests_of(2))
else:
    keep_only(store, {name for name, _ in requests_of(1)[:20]})
"""


@pytest.mark.parametrize(
    "action, statement, nth",
    [
        ("put", "INSERT INTO chunks", 1),
        ("put", "INSERT INTO hashes", 1),
        ("put", "INSERT INTO bodies", 1),
        ("put", "COMMIT", 1),
        ("prune", "INSERT INTO prunes", 1),
        ("prune", "DELETE FROM bodies", 3),
        ("prune", "DELETE FROM chunks", 2),
        ("prune", "COMMIT", 2),
        ("prune", "PRAGMA incremental_vacuum", 1),
        ("prune", "PRAGMA wal_checkpoint", 1),
    ],
)
def test_a_process_killed_in_the_middle_leaves_all_or_nothing(bodies, action, statement, nth):
    bodies.put(requests_of(1))
    bodies.close()
    command = [sys.executable, "-c", KILLED, bodies.path, statement, str(nth), action]
    assert subprocess.run(command, env=environment(), check=False).returncode == -9

    assert bodies.check().faults == []
    kept = [name for name, data in requests_of(1) if bodies.has(name) and bodies.get(name) == data]
    begun = [name for name, data in requests_of(2) if bodies.has(name) and bodies.get(name) == data]
    assert len(begun) in (0, 40)
    assert len(kept) == 40 if action == "put" else len(kept) in (20, 40)
    keep_only(bodies, {kept[0]})
    bodies.put(requests_of(3))
    assert bodies.check()[2:] == (0, [])


PUTS = """
import sys
from steplog.stores.bodies import SqliteBodies
from tests.stores.test_upkeep import said_by
store = SqliteBodies(sys.argv[1])
with open(sys.argv[3], "a") as log:
    for number in range(250):
        name, data = said_by(sys.argv[2], number)
        store.put([(name, data)], sync=False)
        with store.held():
            store.put([(name, data)], sync=False)
            log.write(name + "\\n")
            log.flush()
"""


def said_by(writer, number):
    return named(f"{writer} says {number} ".encode() * 60)


def test_pruning_beside_writers_takes_nothing_that_a_line_names(bodies, tmp_path):
    """Three processes put bodies, find them present, and name them; a fourth prunes what no log names, all the time."""
    logs = {str(number): tmp_path / f"log-{number}" for number in range(3)}
    writers = [
        subprocess.Popen([sys.executable, "-c", PUTS, bodies.path, writer, str(log)], env=environment())
        for writer, log in logs.items()
    ]

    def named_so_far():
        return {line for log in logs.values() if log.exists() for line in log.read_text().split("\n")[:-1]}

    taken = 0
    while any(writer.poll() is None for writer in writers):
        number = begin(bodies, 20_000)
        wanted = named_so_far()
        taken += len(prune(bodies, number, lambda name, _day, wanted=wanted: name in wanted, wanted).bodies)
    assert [writer.wait() for writer in writers] == [0] * 3
    everything = dict(said_by(writer, number) for writer in logs for number in range(250))
    assert named_so_far() == set(everything)
    assert [name for name, data in everything.items() if not bodies.has(name) or bodies.get(name) != data] == []
    assert bodies.check().faults == []
    assert taken


def test_what_is_named_anew_after_a_prune_began_is_not_pruned(bodies):
    """A fork names the bodies of its parent, which may be pruned at that moment; nothing is put anew."""
    old, shared = named(b"old" * 300), named(b"shared" * 300)
    bodies.put([old, shared])
    age(bodies, [old[0], shared[0]])
    number = begin(bodies, 20_000)
    with bodies.held():
        bodies.touch([shared[0], "0" * 64, "not a name"])

    pruned = prune(bodies, number, lambda _name, _day: False, ())

    assert pruned.bodies == [old[0]]
    assert bodies.get(shared[0]) == shared[1]
