"""A recorder that dies at any event of waiting or cancellation: the next one gives the same signals, each once."""

from __future__ import annotations

import pytest

import steplog
from steplog._kernel.fold import fold
from steplog._runtime import commit
from steplog.errors import RunStopped, StoreError
from steplog.stores.memory import MemoryStore


class Death:
    """From an event on nothing reaches the log any more, as after SIGKILL: not that one either, or it as the last."""

    def __init__(self, monkeypatch, type_, when):
        original = commit.Commit._append
        self.struck = False

        def append(writer, batch, *, sync):
            hit = any(entry.type == type_ for entry in batch)
            if self.struck:
                raise StoreError("dead")
            self.struck = hit
            if hit and when == "after":
                original(writer, batch, sync=sync)
            if hit:
                raise StoreError("dead")
            original(writer, batch, sync=sync)

        monkeypatch.setattr(commit.Commit, "_append", append)


@pytest.fixture(params=["before", "after"])
def dies_at(request, monkeypatch):
    def arm(type_):
        death = Death(monkeypatch, type_, request.param)
        return death, monkeypatch.undo

    return arm


def program(store, effects, *, cancels):
    with steplog.run("r", store=store) as run:

        @steplog.step(name="note")
        def note(text):
            effects.append(text)

        note("begun")
        steplog.sleep(0)
        try:
            got = [run.wait("go", timeout=5), run.wait("go", timeout=5)]
            if cancels:
                steplog.cancel("r", by="ann", store=store)
            note(f"got {got}")
        finally:
            note("cleanup")


@pytest.mark.parametrize("type_", ["signal.received", "wait.began", "signal.consumed"])
def test_a_death_while_it_waits(dies_at, type_):
    store, effects = MemoryStore(), []
    with pytest.raises(KeyboardInterrupt), steplog.run("r", store=store):
        raise KeyboardInterrupt
    for number in range(2):
        steplog.signal("r", "go", number, store=store)
    death, revive = dies_at(type_)
    with pytest.raises((RunStopped, StoreError)):
        program(store, effects, cancels=False)
    assert death.struck
    revive()
    for _ in range(2):
        program(store, effects, cancels=False)
    assert effects == ["begun", "got [0, 1]", "cleanup"]
    events = store.read("r").events
    for type_of, count in (("signal.received", 2), ("signal.consumed", 2)):
        assert sum(event.type == type_of for event in events) == count


@pytest.mark.parametrize("type_", ["cancel.requested", "cancel.delivered"])
def test_a_death_while_it_is_cancelled(dies_at, type_):
    store, effects = MemoryStore(), []
    with pytest.raises(KeyboardInterrupt), steplog.run("r", store=store):
        raise KeyboardInterrupt
    for number in range(2):
        steplog.signal("r", "go", number, store=store)
    death, revive = dies_at(type_)
    with pytest.raises((RunStopped, StoreError)):
        program(store, effects, cancels=True)
    assert death.struck
    assert effects == ["begun"]
    revive()
    for _ in range(2):
        with pytest.raises(RunStopped) as stopped:
            program(store, effects, cancels=False)
        assert stopped.value.reason == "cancelled"
    assert effects == ["begun", "cleanup"]
    state = fold(store.read("r").events)
    assert (state.status, state.ended["by"]) == ("cancelled", "ann")
    assert sum(event.type == "cancel.requested" for event in store.read("r").events) == 1
