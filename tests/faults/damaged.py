"""A log that is damaged in the middle, to be repaired up to event 4."""

from __future__ import annotations

from pathlib import Path

import orjson

from steplog._kernel.line import Chain
from steplog.stores.files import FileStore

STEPS = {"s_one": "unsafe", "s_two": "safe", "s_three": "keyed", "s_four": "unsafe"}


def lines():
    """A log with two events of the run and two of each step."""
    chain = Chain("r")
    chain.epoch = 3
    sealed = [chain.seal("run.created", None, "", b'{"run_id":"r","format":"steplog/1"}')]
    sealed.append(chain.seal("run.claimed", None, "", b"{}"))
    for step, mode in STEPS.items():
        data = orjson.dumps({"kind": "tool_call", "target": step, "mode": mode, "args": {}})
        sealed.append(chain.seal("step.started", step, "", data))
        sealed.append(chain.seal("step.finished", step, "", b'{"outcome":"done","result":1}'))
    return sealed


def damaged(home, line=5, fs=None):
    """A store with a log whose line (from 0) was changed."""
    store = FileStore(home, fs=fs)
    path = Path(store.path_of("r"))
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = lines()
    path.write_bytes(b"".join([*whole[:line], whole[line].replace(b'"seq"', b'"SEQ"'), *whole[line + 1 :]]))
    return store, path


def is_old_or_new(store, path, before):
    """The log is the old one, byte for byte, or the new one, which verifies; then the old one is kept."""
    if path.read_bytes() == before:
        return "old"
    view = store.read("r")
    assert [event.type for event in view.events[5:]] == ["log.recovered", "step.started", "step.started"]
    assert Path(view.events[5].data["saved_as"]).read_bytes() == before
    return "new"
