"""Runs that were recorded with a key are returned by every later release: what was withheld, and what a type hides.

The home in `withheld/` is what `program()` recorded with `KEY`. It stays as it is.
"""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Annotated

import pytest

import steplog
from steplog.errors import KeyMissing
from steplog.stores.cipher import keyring

GOLDEN = Path(__file__).parent / "withheld/home"
KEY = base64.b64encode(bytes(range(32))).decode()
SECRET = "sk-proj-" + "a1B2c3D4" * 6
executed: list[str] = []


@steplog.step(name="small", mode="unsafe")
def small(pin: Annotated[str, steplog.Secret]) -> dict:
    executed.append("small")
    return {"key": SECRET, "of": len(pin)}


@steplog.step(name="large", mode="unsafe")
def large() -> list:
    executed.append("large")
    return [SECRET, "x" * 10_000]


@steplog.step(name="plain", mode="unsafe")
def plain() -> Annotated[str, steplog.Secret]:
    executed.append("plain")
    return "correct horse"


@steplog.step(name="failing", mode="unsafe")
def failing() -> None:
    executed.append("failing")
    raise ValueError(f"refused {SECRET}")


def program() -> list:
    with steplog.run("golden"):
        found = [small("4711"), large(), plain()]
        with pytest.raises(ValueError, match="refused") as caught:
            failing()
        return [*found, str(caught.value)]


RETURNED = [{"key": SECRET, "of": 4}, [SECRET, "x" * 10_000], "correct horse", f"refused {SECRET}"]


@pytest.fixture
def recorded(home, monkeypatch):
    shutil.copytree(GOLDEN, home, dirs_exist_ok=True)
    monkeypatch.setenv("STEPLOG_KEY", KEY)
    steplog.install(interceptors=[])
    executed.clear()
    yield home
    steplog.uninstall()


def test_an_encrypted_home_of_another_release_is_returned_exactly(recorded):
    log = (recorded / "runs/golden/events.jsonl").read_text()
    assert log.count('"withheld":') == 4
    assert '"exact":[{"body":' in log
    assert SECRET not in log
    assert program() == RETURNED
    assert executed == []


def test_it_is_returned_behind_a_newer_key_and_refused_without_its_own(recorded, monkeypatch):
    newer = base64.b64encode(bytes(range(32, 64))).decode()
    monkeypatch.setenv("STEPLOG_KEY", f"{newer},{KEY}")
    assert program() == RETURNED
    ring = keyring(KEY)
    assert ring is not None
    monkeypatch.setenv("STEPLOG_KEY", newer)
    with pytest.raises(KeyMissing, match=f"needs the key {ring.key_id.hex()}"):
        program()
    assert executed == []
