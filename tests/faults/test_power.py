"""The loss of power: before any call, with any part of what was not synced on the medium.

Every subset of the unsynced pages and names is tried, with and without the lengths of the files: the page cache writes
what it likes, in any order.
"""

from __future__ import annotations

import shutil
from itertools import count, product
from pathlib import Path

import pytest

from steplog._kernel.line import Chain, scan
from steplog.errors import Corrupt
from steplog.stores.files import FileStore
from steplog.testing import FaultyFS, PowerFailure
from steplog.testing.contract import fill, sealed
from steplog.testing.faults import PAGE
from tests.faults.scenario import Scenario, release, repetitions


@pytest.fixture
def homes(tmp_path):
    """A new home for each repetition."""
    return (tmp_path / f"home-{number}" for number in count())


def subsets(things):
    return [
        {one for one, kept in zip(things, mask, strict=True) if kept} for mask in product((0, 1), repeat=len(things))
    ]


def crashes(home, fs, start):
    """Play every loss of power that may happen now; yields after each, with what the medium holds."""
    pages, names = fs.unsynced()
    for kept_pages, kept_names, grow in product(subsets(pages), subsets(names), (False, True)):
        shutil.rmtree(home, ignore_errors=True)  # what the last check wrote
        start(home)
        fs.lose_power(
            keep_page=lambda path, page, kept=kept_pages: (path, page) in kept,
            keep_name=lambda path, kept=kept_names: path in kept,
            grow=grow,
        )
        yield frozenset(pages) - kept_pages


def outages(homes, play, *, start=lambda home: None):
    """Play a scenario again and again, with the power lost before its first, second, third ... call."""
    for nth in repetitions():
        home = next(homes)
        start(home)
        fs = FaultyFS()
        fs.stop(nth=nth)
        try:
            scenario = play(home, fs)
        except PowerFailure:
            pass
        else:
            scenario.calls = nth
            return
        yield home, fs
        release(FileStore(home))


class Once:
    """Tells which of the states of a disk are new: many choices come to the same."""

    def __init__(self):
        self._seen = set()
        self.count = 0

    def is_new(self, home, *more):
        files = sorted(path for path in Path(home).rglob("*") if path.is_file()) if Path(home).exists() else []
        state = (*more, *((str(path), path.read_bytes()) for path in files))
        new = state not in self._seen
        self._seen.add(state)
        self.count += new
        return new


def power_fails(homes, batches, durability, *, pad, start=lambda home: None, before=()):
    """Every state that a loss of power leaves of a scenario, checked; how many there were."""
    once = Once()
    scenario = None

    def play(home, fs):
        nonlocal scenario
        scenario = Scenario(home, fs, pad=pad, durability=durability)
        scenario.acknowledged = scenario.tried = list(before)
        scenario.run(batches)
        return scenario

    for home, fs in outages(homes, play, start=start):
        for lost in crashes(home, fs, start):
            if once.is_new(home, len(scenario.acknowledged), len(scenario.tried)):
                (check_durable if durability.startswith("durable") else check_chain)(scenario, lost)
    return once.count


def check_durable(scenario, lost):
    try:
        scenario.check()
    except Corrupt as refused:
        error = refused
    else:
        return
    # A later page of the batch under way was kept without an earlier one, and holds a whole line: what may have
    # been acknowledged is never cut, so this is for a person to decide. Nothing acknowledged is behind the damage.
    assert lost
    assert (-1 if error.last_good_seq is None else error.last_good_seq) + 1 >= len(scenario.acknowledged)


def check_chain(scenario, lost):
    """What was not synced may be lost, in any order; what is left is read as it was written, or refused."""
    store = FileStore(scenario.store.home)
    try:
        writer = store.open("r")
    except Corrupt:
        assert lost
        return
    expected = scan(b"".join(scenario.tried), "r").events
    assert writer.view.events == expected[: len(writer.view.events)]
    fill(writer, Chain("r", writer.view.events))
    writer.close()


@pytest.mark.parametrize("durability, least", [("durable", 60), ("process", 60)])
def test_power_may_fail_before_any_call(homes, durability, least):
    """At level durable every acknowledged event survives; at level process what is left is a chain."""
    assert power_fails(homes, (1, 2), durability, pad=PAGE // 2) >= least


@pytest.mark.nightly
@pytest.mark.parametrize("durability", ["durable", "process"])
@pytest.mark.parametrize("batches", [(1, 1, 1, 1), (3, 1, 2), (4,), (1, 4, 1)])
def test_power_may_fail_before_any_call_of_four_appends(homes, durability, batches):
    assert power_fails(homes, batches, durability, pad=PAGE // 2 if len(batches) < 4 else 900) >= 50


@pytest.mark.parametrize("tail", ["torn", "unterminated", "zeros"])
def test_power_may_fail_while_a_torn_tail_is_cut(homes, tail):
    """The repair itself is interrupted, and its length may reach the medium later than what is written behind it."""
    chain = Chain("r")
    lines = sealed(chain, 2)
    third = sealed(Chain("r", scan(b"".join(lines), "r").events), 1)[0]
    left = {"torn": third[:-10], "unterminated": third[:-1], "zeros": bytes(2 * PAGE)}[tail]

    def start(home):
        log = Path(FileStore(home).path_of("r"))
        log.parent.mkdir(parents=True)
        log.write_bytes(b"".join(lines) + left)

    before = [*lines, third] if tail == "unterminated" else lines
    assert power_fails(homes, (1,), "durable", pad=100, start=start, before=before) >= 5


def test_the_model_loses_what_was_not_synced_and_nothing_else(tmp_path):
    fs = FaultyFS()
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    fd = fs.create(one, 2)
    fs.write(fd, b"a" * PAGE)
    fs.sync(fd)
    fs.sync_dir(str(tmp_path))
    fs.write(fd, b"b" * PAGE + b"c")
    other = fs.create(two, 2)
    fs.write(other, b"new")
    fs.rename(two, one)
    assert fs.unsynced() == ([(one, 0)], [one])

    fs.lose_power()
    assert Path(one).read_bytes() == b"a" * PAGE
    fs.lose_power(keep_name=lambda _path: True)
    assert Path(one).read_bytes() == b"", "the name was written, the bytes were not"
    fs.lose_power(keep_name=lambda _path: True, grow=True)
    assert Path(one).read_bytes() == bytes(3)
    fs.lose_power(keep_name=lambda _path: True, keep_page=lambda _path, _page: True)
    assert Path(one).read_bytes() == b"new"


@pytest.mark.parametrize(
    "page, grow, left", [(1, False, bytes(PAGE) + b"c"), (0, True, b"b" * PAGE + b"\0"), (9, False, b"")]
)
def test_the_model_writes_pages_in_any_order(tmp_path, page, grow, left):
    fs = FaultyFS()
    path = str(tmp_path / "log")
    fd = fs.create(path, 2)
    fs.sync_dir(str(tmp_path))
    fs.write(fd, b"b" * PAGE + b"c")
    fs.lose_power(keep_page=lambda _path, number: number == page, grow=grow)
    assert Path(path).read_bytes() == left
