"""Events that are read again from a log file: the right ones, checked again, for as long as anybody holds them."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
from hashlib import sha256
from pathlib import Path

import pytest

import steplog
from steplog._kernel.fold import fold
from steplog._kernel.line import Chain, first_prev
from steplog.errors import Corrupt, RunStopped, StoreError
from steplog.stores.files import FileStore
from steplog.stores.source import Events

STAMP = "2026-01-01T00:00:00.000Z"


def write(store: FileStore, steps: int) -> None:
    writer = store.open("r")
    chain = Chain("r", writer.view.events)
    first = chain.seq
    lines = [] if first else [chain.seal("run.created", None, STAMP, b'{"format":"steplog/1","run_id":"r"}')]
    for number in range(len(lines) + first, len(lines) + first + 2 * steps, 2):
        data = b'{"kind":"tool_call","target":"t","mode":"safe","args":{"n":%d}}' % number
        lines.append(chain.seal("step.started", f"s_{number}", STAMP, data))
        lines.append(chain.seal("step.finished", f"s_{number}", STAMP, b'{"outcome":"done","result":%d}' % number))
    writer.append(lines, first, sync=False)
    writer.close()


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "home")
    write(store, 20)
    return store


def test_a_view_is_the_sequence_of_the_logs_events(store):
    events = store.read("r").events
    whole = list(events)

    assert [event.seq for event in whole] == list(range(41))
    assert (events[0], events[-1], events[3:6], len(events)) == (whole[0], whole[-1], whole[3:6], 41)
    assert events == whole
    assert whole == events
    assert events != whole[:-1]
    with pytest.raises(IndexError):
        events[41]


@pytest.mark.parametrize("comma, colon", [(",", ":"), (", ", ": "), (",", ": "), (", ", ":")])
def test_data_is_found_however_a_line_is_spaced(store, comma, colon):
    """Another program may have written the log; only the seals stand where they stand."""
    prev, lines, data = (
        first_prev("r"),
        [],
        {"format": "steplog/1", "run_id": "r", "data": {"data": {}, "x": ',"data":{'}},
    )
    for seq in range(3):
        event = {"seq": seq, "type": "noted", "step": None, "epoch": 0, "ts": STAMP, "data": data}
        body = f'{json.dumps(event, separators=(comma, colon))[:-1]},"prev":"{prev}"'.encode()
        prev = sha256(body).hexdigest()[:32]
        lines.append(b'%b,"h":"%b"}\n' % (body, prev.encode()))
    Path(store.path_of("r")).write_bytes(b"".join(lines))
    view = store.read("r")

    assert [view.state.source.read(seq)[0] for seq in range(3)] == [data] * 3
    assert [event.data for event in view.events] == [data] * 3


def test_the_state_of_a_view_is_the_fold_of_its_events(store):
    view = store.read("r")
    assert isinstance(view.events, Events)

    assert loaded(view.state) == loaded(fold(list(view.events)))


def loaded(state):
    """A state with all event data read, comparable whatever holds it."""
    steps = {}
    for step in state.steps.values():
        twin = step.copy()
        twin.start, twin.end, twin.notes, twin.incomplete = step.started, step.finished, step.progressed, False
        steps[step.id] = twin
    twin = state.copy()
    twin.steps = steps
    return twin


def test_a_view_is_the_log_as_it_was_read_whatever_becomes_of_the_file(store):
    view = store.read("r")
    expected = list(view.events)
    write(store, 1)
    assert list(view.events) == expected

    path = Path(store.path_of("r"))
    path.rename(path.with_name("kept"))

    assert list(view.events) == expected
    assert view.state.steps["s_5"].finished == {"outcome": "done", "result": 5}


def test_a_line_that_changes_after_it_was_verified_is_refused(store):
    state = store.read("r").state
    path = Path(store.path_of("r"))
    lines = path.read_bytes().split(b"\n")
    lines[6] = lines[6].replace(b'"result":5', b'"result":6')
    path.write_bytes(b"\n".join(lines))

    with pytest.raises(Corrupt, match=r"line 7 .* no longer what it was") as caught:
        _ = state.steps["s_5"].finished

    assert (caught.value.line, caught.value.offset) == (7, sum(len(line) + 1 for line in lines[:6]))
    assert state.steps["s_3"].finished == {"outcome": "done", "result": 3}


def test_a_file_that_was_cut_short_is_refused(store):
    state = store.read("r").state
    os.truncate(store.path_of("r"), 700)

    with pytest.raises(Corrupt):
        _ = state.steps["s_39"].started


def test_a_writers_state_finds_what_was_appended_and_what_was_closed(store):
    writer = store.open("r")
    state = writer.view.state
    chain = Chain("r", writer.view.events)
    line = chain.seal("step.finished", "s_39", STAMP, b'{"outcome":"done","result":"later"}')
    writer.append([line], 41, sync=False)

    assert state.source.read(41)[0] == {"outcome": "done", "result": "later"}
    with pytest.raises(StoreError, match=r"cannot read|no longer"):
        state.source.read(42)
    writer.close()
    assert state.source.read(41)[0]["result"] == "later"


def test_a_states_copies_find_their_data(store):
    state = store.read("r").state

    for twin in (state.copy(), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert twin.steps["s_7"].finished == {"outcome": "done", "result": 7}


def test_a_view_that_nobody_holds_keeps_no_file_open(store):
    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))

    before = descriptors()
    views = [store.read("r") for _ in range(10)]
    assert descriptors() == before + 10
    states = [view.state for view in views]
    del views, states

    assert descriptors() == before


def test_a_recorded_result_that_is_damaged_while_the_run_is_open_is_not_returned(tmp_path):
    calls = []

    @steplog.step(mode="safe")
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    steplog.install(home=tmp_path / "home", interceptors=[])
    try:
        with steplog.run("r"):
            assert [double(1), double(2)] == [2, 4]
        path = tmp_path / "home/runs/r/events.jsonl"
        with pytest.raises(RunStopped, match="steplog verify r") as stopped, steplog.run("r"):
            path.write_bytes(path.read_bytes().replace(b'"result":4', b'"result":5'))
            assert double(1) == 2
            double(2)
    finally:
        steplog.uninstall()

    assert stopped.value.reason == "unreplayable"
    assert calls == [1, 2]
