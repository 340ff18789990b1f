"""`steplog key rotate`: everything under the newest key, whenever it is killed, and then the old key is not needed."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Annotated

import pytest
from click.testing import CliRunner

import steplog
from steplog._cli.main import cli
from steplog.errors import InvalidArgument, KeyMissing
from steplog.stores import rotation
from steplog.stores.bodies import SqliteBodies
from steplog.stores.cipher import Key, keyring, new_key
from steplog.stores.rotation import rotate

OLD, NEW, NEWER = new_key(), new_key(), new_key()
BODIES = [f"body {number} ".encode() * 400 for number in range(60)]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "home/bodies.db")


@pytest.fixture
def names(path):
    return filled(path, OLD)


def opened(path, *keys):
    return SqliteBodies(path, cipher=keyring(",".join(keys)))


def filled(path, *keys):
    store = opened(path, *keys)
    names = [store.name(body) for body in BODIES]
    store.put(zip(names, BODIES, strict=True))
    store.close()
    return names


def key_id(key):
    return keyring(key).key_id.hex()


def read(path, names, *keys):
    with closing(opened(path, *keys)) as store:
        return [store.get(name) for name in names], store.check().faults


def rows(path):
    store = opened(path, OLD)
    found = store.database.connect().execute("SELECT id, data, key_id FROM chunks ORDER BY id").fetchall()
    store.close()
    return found


def test_what_is_rotated_is_read_with_the_new_key_alone_and_is_not_in_the_file_under_the_old(path, names):
    before = rows(path)
    done = rotate(opened(path, NEW, OLD))

    assert done == (key_id(NEW), [key_id(OLD)], len(before), sum(len(data) for _, data, _ in before), 0, 0, 0)
    assert read(path, names, NEW) == (BODIES, [])
    assert read(path, names, NEW, OLD) == (BODIES, [])
    with pytest.raises(KeyMissing, match=key_id(NEW)):
        read(path, names, OLD)
    kept = b"".join(file.read_bytes() for file in Path(path).parent.iterdir())
    assert [chunk for chunk, data, _ in before if data[-40:] in kept] == []


def test_keys_are_rotated_again_and_again(path, names):
    rotate(opened(path, NEW, OLD))
    rotate(opened(path, NEWER, NEW))

    assert read(path, names, NEWER) == (BODIES, [])
    assert rotate(opened(path, NEWER)).pieces == 0


@pytest.mark.parametrize("moment", [1, 7, 31, 59])
def test_killed_at_any_moment_both_keys_read_everything_and_the_next_one_carries_on(path, names, moment, monkeypatch):
    child = os.fork()
    if not child:
        seal, count = rotation._anew, iter(range(1, 1000))

        def dies(*given):
            if next(count) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return seal(*given)

        rotation._anew, rotation._AT_ONCE = dies, 8
        rotate(opened(path, NEW, OLD))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert read(path, names, NEW, OLD) == (BODIES, [])
    assert read(path, names, OLD, NEW) == (BODIES, [])

    done = rotate(opened(path, NEW, OLD))
    assert done.pieces == 60 - (moment - 1) // 8 * 8
    assert read(path, names, NEW) == (BODIES, [])


def test_others_read_and_write_while_it_goes_on(path, names, monkeypatch):
    """A reader that was open before sees every state; what a program with the old key first adds is told as left."""
    monkeypatch.setattr(rotation, "_AT_ONCE", 8)
    other = opened(path, OLD, NEW)
    late = b"late " * 200
    seal_all = rotation._seal_all

    def watched(*given):
        for each in seal_all(*given):
            assert [other.get(name) for name in names] == BODIES
            yield each
        other.put([(other.name(late), late)])

    monkeypatch.setattr(rotation, "_seal_all", watched)
    found = rotate(opened(path, NEW, OLD))
    assert (found.pieces, found.left, found.damaged) == (60, 1, 0)
    assert read(path, [*names, other.name(late)], NEW, OLD) == ([*BODIES, late], [])

    monkeypatch.setattr(rotation, "_seal_all", seal_all)
    assert rotate(opened(path, NEW, OLD)).pieces == 1
    assert read(path, [other.name(late)], NEW)[0] == [late]


def test_without_the_old_key_nothing_is_changed(path, names):
    before = rows(path)
    with pytest.raises(KeyMissing, match=f"needs the key {key_id(OLD)}"):
        rotate(opened(path, NEW))
    with pytest.raises(InvalidArgument, match="STEPLOG_KEY is not set"):
        rotate(SqliteBodies(path))
    assert rows(path) == before


def test_a_piece_that_is_damaged_stays_as_it_is(path, names):
    damaged = rows(path)[4][0]
    with closing(opened(path, OLD)) as store:
        db = store.database.connect()
        db.execute("UPDATE chunks SET data = substr(data, 1, length(data) - 1) WHERE id = ?", (damaged,))
    broken = rows(path)[4]
    done = rotate(opened(path, NEW, OLD))

    assert (done.pieces, done.left, done.damaged) == (59, 1, 1)
    assert rows(path)[4] == broken


def test_what_is_kept_of_an_old_key_opens_nothing(path, names):
    rotate(opened(path, NEW, OLD))
    ring = keyring(NEW)
    ((kept_id, sealed),) = opened(path, NEW).retired_keys()
    kept = ring.retired(kept_id, sealed)

    assert kept_id.hex() == key_id(OLD)
    assert not isinstance(kept, Key)
    assert keyring(OLD).keys[kept_id]._secret not in kept.kept()


def test_a_run_of_the_old_key_is_resumed_with_the_new_one_alone(tmp_path, monkeypatch):
    calls = []

    @steplog.step
    def log_in(user: str, pin: Annotated[str, steplog.Secret]) -> dict:
        calls.append(user)
        return {"token": "sk-proj-" + "a1B2c3D4" * 6, "page": "x" * 9000}

    def program():
        with steplog.run("r"):
            return log_in("ada", "4711")

    def say(*words):
        return CliRunner().invoke(cli, ["key", "rotate", *words], prog_name="steplog")

    steplog.install(interceptors=[])
    monkeypatch.setenv("STEPLOG_KEY", OLD)
    answer = program()
    monkeypatch.setenv("STEPLOG_KEY", f"{NEW},{OLD}")
    planned = json.loads(say("--dry-run", "--json").stdout)
    assert (planned["old"], planned["left"]) == ([key_id(OLD)], planned["pieces"])
    done = say()
    assert done.exit_code == 0
    assert f"no other key is needed to read this home. Set STEPLOG_KEY to key {key_id(NEW)} alone." in done.stdout
    monkeypatch.setenv("STEPLOG_KEY", NEW)

    assert program() == answer
    assert calls == ["ada"]
    steplog.uninstall()


def test_the_command_makes_a_key_as_before():
    made = CliRunner().invoke(cli, ["key"], prog_name="steplog")

    assert key_id(made.stdout.strip()) in made.stderr
