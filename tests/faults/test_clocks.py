"""Wall clocks that go back, ahead or nowhere, and local time: order, state and what is kept do not depend on them."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

import steplog
from steplog._cli.main import cli
from steplog._kernel.fold import fold
from steplog.stores.files import FileStore

NOW = 1_793_000_000.0  # in October 2026
HOUR, YEAR = 3600.0, 365 * 86400.0
# Shortly before one o'clock UTC on that day in 2026, three o'clock becomes two in Berlin.
BERLIN_FALLS_BACK = 1_792_889_999.0
LAST_SECOND_OF_9999 = 253_402_300_799.0

CLOCKS = {
    "an hour back": [NOW, NOW + 1, NOW + 1 - HOUR],
    "a year ahead": [NOW, NOW + 1, NOW + YEAR],
    "ahead and back": [NOW, NOW + YEAR, NOW - YEAR],
    "constant": [NOW],
    "daylight saving time ends": [BERLIN_FALLS_BACK, BERLIN_FALLS_BACK + 1, BERLIN_FALLS_BACK + 2],
    "year 9999": [NOW, LAST_SECOND_OF_9999],
    "not set": [0.0],
}


@pytest.fixture(autouse=True)
def _in_berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def play(home, tick, *, fail=False):
    """Four steps, two of them one inside the other, with a body each, which call `tick`; and which were executed."""
    executed = []

    @steplog.step
    def inner(number):
        executed.append(number)
        tick()
        return str(number) * 20_000

    @steplog.step(mode="safe")
    def outer():
        return inner(2)

    steplog.install(home=home, interceptors=[])
    try:
        with steplog.run("r"):
            results = [inner(1), outer(), inner(3)]
            if fail:
                raise ValueError
    except ValueError:
        return None, executed
    finally:
        steplog.uninstall()
    return results, executed


def state(home):
    """What the log folds to and the order of its events, without times."""
    events = FileStore(home).read("r").events
    folded = fold(events)
    steps = [(step.id, step.status, step.attempt, step.scope, step.after) for step in folded.steps.values()]
    return [(event.type, event.step, event.epoch) for event in events], steps, folded.status


def durations(tree):
    """Every number in a listing that counts time."""
    if isinstance(tree, list):
        return [found for one in tree for found in durations(one)]
    if not isinstance(tree, dict):
        return []
    own = [value for name, value in tree.items() if name in ("ms", "seconds", "total") and isinstance(value, float)]
    return own + [found for one in tree.values() for found in durations(one)]


@pytest.mark.parametrize("readings", CLOCKS.values(), ids=CLOCKS)
def test_no_clock_changes_order_state_or_what_is_kept(readings, tmp_path, monkeypatch):
    left = list(readings)

    def tick():
        if len(left) > 1:
            left.pop(0)

    results = [str(number) * 20_000 for number in (1, 2, 3)]
    for name in ("plain", "odd"):
        with monkeypatch.context() as patch:
            if name == "odd":
                patch.setattr(time, "time", lambda: left[0])
            assert play(tmp_path / name, tick if name == "odd" else bool, fail=True) == (None, [1, 2, 3])
            assert play(tmp_path / name, bool) == (results, [])
    assert len(left) == 1
    assert state(tmp_path / "odd") == state(tmp_path / "plain")

    home = str(tmp_path / "odd")
    measured = [found for event in FileStore(home).read("r").events for found in durations(event.data)]
    assert measured
    assert min(measured) >= 0

    def told(*words):
        answer = CliRunner().invoke(cli, [*words, "--home", home])
        assert answer.exit_code == 0, answer.output
        return answer.output

    listed = json.loads(told("ls", "--json"))
    assert [run["run"] for run in listed] == ["r"]
    assert min(durations(listed)) >= 0
    told("show", "r")
    told("verify", "r")
    # The files are new, whatever their events and the body store say of the day.
    told("prune", "--bodies", "30d", "--runs", "60d")
    assert play(home, bool) == (results, [])
