"""With STEPLOG_KEY nothing that is taken out is lost: it lies encrypted in the body store and is returned exactly."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

import steplog
from steplog.errors import InvalidArgument, KeyMissing
from steplog.stores.cipher import Keyring, keyring, new_key
from steplog.stores.files import FileStore

SECRET = "sk-proj-" + "a1B2c3D4" * 6
PIN = "correct horse 4711"


@pytest.fixture
def key(monkeypatch):
    made = new_key()
    monkeypatch.setenv("STEPLOG_KEY", made)
    return made


def bytes_under(home: Path) -> bytes:
    return b"".join(file.read_bytes() for file in home.rglob("*") if file.is_file())


class Program:
    """A tool whose result holds a secret, small, large and in an error; it counts its executions."""

    def __init__(self) -> None:
        self.calls: list[str] = []

        @steplog.step(name="small")
        def small() -> dict:
            self.calls.append("small")
            return {"key": SECRET, "n": 1}

        @steplog.step(name="large")
        def large() -> list:
            self.calls.append("large")
            return [SECRET, "x" * 10_000, PIN]

        @steplog.step(name="failing")
        def failing() -> None:
            self.calls.append("failing")
            raise ValueError(f"refused {SECRET}")

        self.tools = small, large, failing

    def run(self) -> list:
        small, large, failing = self.tools
        with steplog.run("r"):
            found = [small(), large()]
            try:
                failing()
            except ValueError as error:
                found.append(str(error))
            return found


EXPECTED = [{"key": SECRET, "n": 1}, [SECRET, "x" * 10_000, PIN], f"refused {SECRET}"]


@pytest.mark.usefixtures("key")
def test_a_result_with_a_secret_is_returned_exactly_and_is_nowhere_in_clear(home):
    program = Program()
    assert program.run() == EXPECTED
    assert program.run() == EXPECTED
    assert program.calls == ["small", "large", "failing"]
    kept = bytes_under(home)
    assert SECRET.encode() not in kept
    assert PIN.encode() not in kept, "what is large is encrypted whether or not it looks like a secret"
    log = (home / "runs/r/events.jsonl").read_text()
    assert '"withheld":1' in log
    assert '"redacted":' not in log.replace("[redacted:", "")


def test_keys_are_rotated_and_a_missing_one_is_named(home, monkeypatch, key):
    program = Program()
    program.run()
    newer = new_key()
    monkeypatch.setenv("STEPLOG_KEY", f"{newer},{key}")
    assert program.run() == EXPECTED
    log = FileStore(home).read("r").events
    for keys in (None, newer):
        monkeypatch.delenv("STEPLOG_KEY")
        if keys:
            monkeypatch.setenv("STEPLOG_KEY", keys)
        ring = keyring(key)
        assert isinstance(ring, Keyring)
        with pytest.raises(KeyMissing, match=f"run r needs the key {ring.key_id.hex()}") as caught:
            program.run()
        assert caught.value.key_id == ring.key_id.hex()
        assert ("STEPLOG_KEY=NEW,OLD" if keys else "Set STEPLOG_KEY to that key") in str(caught.value)
        assert str(caught.value).endswith("go on: steplog resume r")
        monkeypatch.setenv("STEPLOG_KEY", "unset")
        # It was not taken, so it has not become an interrupted one.
        assert FileStore(home).read("r").events == log
    monkeypatch.setenv("STEPLOG_KEY", key)
    assert program.run() == EXPECTED
    assert program.calls == ["small", "large", "failing"]


def test_a_run_that_began_without_a_key_stops_where_one_is_needed(home, monkeypatch, key):
    program = Program()
    monkeypatch.delenv("STEPLOG_KEY")
    with pytest.raises(ZeroDivisionError), steplog.run("r"):
        raise ZeroDivisionError
    monkeypatch.setenv("STEPLOG_KEY", key)
    program.run()
    monkeypatch.delenv("STEPLOG_KEY")
    with pytest.raises(steplog.RunStopped, match="STEPLOG_KEY is not set") as caught:
        program.run()
    assert caught.value.reason == "unreplayable"
    assert caught.value.commands == ("steplog resume r",)
    monkeypatch.setenv("STEPLOG_KEY", key)
    assert program.run() == EXPECTED
    assert program.calls == ["small", "large", "failing"]


def test_names_of_encrypted_bodies_do_not_tell_what_is_in_them(home, key):
    import hashlib

    program = Program()
    program.run()
    kept = bytes_under(home)
    ring = keyring(key)
    assert ring is not None
    import orjson

    for value in EXPECTED[:2]:
        digest = hashlib.sha256(orjson.dumps(value))
        assert digest.digest()[:16] not in kept
        assert digest.hexdigest().encode() not in kept


def test_sealed_bytes_open_in_their_place_and_unaltered_only():
    ring = keyring(new_key())
    assert ring is not None
    sealed = ring.seal(b"text", b"here")
    assert sealed != ring.seal(b"text", b"here"), "nonces are drawn"
    assert ring.open(sealed, b"here") == b"text"
    for at in range(len(sealed)):
        broken = bytearray(sealed)
        broken[at] ^= 1
        with pytest.raises(steplog.StoreError):
            ring.open(bytes(broken), b"here")
    for wrong in (sealed[:20], b"", sealed + b"x"):
        with pytest.raises(steplog.Corrupt):
            ring.open(wrong, b"here")
    with pytest.raises(steplog.Corrupt):
        ring.open(sealed, b"there")


def test_keys_are_base64_or_hex_and_a_bad_one_is_not_quoted():
    raw = os.urandom(32)
    ids = {
        ring.key_id
        for text in (base64.b64encode(raw), base64.urlsafe_b64encode(raw).rstrip(b"="), raw.hex().encode())
        if (ring := keyring(text.decode()))
    }
    assert len(ids) == 1
    assert keyring(" , ") is None
    with pytest.raises(InvalidArgument, match="number 2 is no key") as caught:
        keyring(f"{new_key()},hunter2hunter2")
    assert "hunter2" not in str(caught.value)
    assert "steplog key" in str(caught.value)


def test_a_value_given_by_hand_is_kept_too_or_refused(home, monkeypatch, key):
    from steplog._runtime.resolve import resolve
    from steplog._runtime.settings import open_store
    from steplog._runtime.settings import resolve as settled

    monkeypatch.delenv("STEPLOG_KEY")
    program = Program()
    small = program.tools[0]
    with steplog.run("r"):
        small()
    with pytest.raises(steplog.RunStopped, match="a secret was taken out"), steplog.run("r"):
        small()
    step = next(iter(open_store(settled()).read("r").events[2:3])).step
    with pytest.raises(InvalidArgument, match="holds what looks like a secret"):
        resolve(open_store(settled()), "r", step, how="done", result={"key": SECRET})
    monkeypatch.setenv("STEPLOG_KEY", key)
    resolve(open_store(settled()), "r", step, how="done", result={"key": SECRET})
    with steplog.run("r"):
        assert small() == {"key": SECRET}
    assert SECRET.encode() not in bytes_under(home)


def test_an_exported_run_is_encrypted_too_and_needs_the_key(home, tmp_path, monkeypatch, key):
    from steplog._cli.export import _names
    from steplog._runtime.settings import open_store
    from steplog._runtime.settings import resolve as settled
    from steplog.stores.archive import export_run
    from steplog.stores.intake import import_run

    program = Program()
    program.run()
    target = tmp_path / "run.steplog"
    export_run(open_store(settled()), "r", str(target), _names)
    assert SECRET.encode() not in target.read_bytes()
    assert b"x" * 64 not in target.read_bytes()
    monkeypatch.setenv("STEPLOG_HOME", str(tmp_path / "elsewhere"))
    steplog.install(interceptors=[])
    monkeypatch.delenv("STEPLOG_KEY")
    with pytest.raises(KeyMissing, match="is encrypted"):
        import_run(open_store(settled()), str(target), _names)
    monkeypatch.setenv("STEPLOG_KEY", key)
    import_run(open_store(settled()), str(target), _names)
    assert program.run() == EXPECTED
    assert program.calls == ["small", "large", "failing"]
