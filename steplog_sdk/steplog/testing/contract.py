# ruff: noqa: D102  the names of the tests say what must hold
"""What every store must do, as a test class to inherit from.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            return MyStore(...)

The fixture returns a new, empty store for each test.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from hashlib import sha256

import pytest

from steplog._kernel.line import Chain
from steplog.errors import BodyMissing, ForkedWriter, InvalidArgument, RunBusy, StoreError, UnknownRun
from steplog.stores.base import Store, Writer

BAD_RUN_IDS = ("", ".", "..", ".hidden", "-x", "a/b", "../x", "a\\b", "a b", "a\n", "a\0b", "é", "x" * 129)

BODIES = (
    b"",
    b"\0",
    b"plain text, no JSON",
    b'{"messages":[{"role":"user","content":"hello"}],"model":"m"}',
    bytes(range(256)) * 700,
    b'{"a":[' + b",".join(b'{"n":%d,"text":"the same words again and again"}' % n for n in range(900)) + b"]}",
    ('["' + "ü€𝄞 " * 5000 + '"]').encode(),
)


def sealed(chain: Chain, count: int = 1) -> list[bytes]:
    """Seal the next lines of a chain."""
    return [
        chain.seal("step.finished", "s_x", "2026-01-01T00:00:00.000000Z", b'{"n":%d}' % chain.seq) for _ in range(count)
    ]


def named(data: bytes) -> tuple[str, bytes]:
    """Pair a body with its name."""
    return sha256(data).hexdigest(), data


def fill(writer: Writer, chain: Chain, count: int = 1) -> None:
    """Append one batch of the next lines of a chain."""
    first = chain.seq
    writer.append(sealed(chain, count), first, sync=True)


class StoreContract:
    """The contract of `steplog.stores.base.Store`; inherit and define the fixture `store`."""

    @pytest.fixture
    def store(self) -> Store:
        """Return a new, empty store."""
        raise NotImplementedError

    def test_a_new_store_holds_no_run(self, store: Store) -> None:
        assert store.runs() == []
        with pytest.raises(UnknownRun) as caught:
            store.read("absent")
        assert caught.value.run_id == "absent"

    @pytest.mark.parametrize("run_id", BAD_RUN_IDS)
    def test_a_bad_run_id_is_refused(self, store: Store, run_id: str) -> None:
        for refuse in (store.read, store.open):
            with pytest.raises(InvalidArgument):
                refuse(run_id)
        assert store.runs() == []

    def test_an_inbox_keeps_lines_in_order_while_somebody_writes_the_run(self, store: Store) -> None:
        inbox_of = getattr(store, "inbox", None)
        if inbox_of is None:
            pytest.skip("this store has no inbox")
        writer = store.open("r")
        assert (inbox_of("r").size(), inbox_of("r").read()) == (0, b"")
        for line in (b"one\n", b"two\n"):
            inbox_of("r").append(line)
        writer.close()
        assert (inbox_of("r").size(), inbox_of("r").read(), inbox_of("r").read(4)) == (8, b"one\ntwo\n", b"two\n")

    def test_what_was_appended_is_read(self, store: Store) -> None:
        chain = Chain("r")
        writer = store.open("r")
        assert (writer.view.events, writer.view.end, writer.recovered) == ([], 0, None)
        fill(writer, chain)
        fill(writer, chain, 3)
        view = store.read("r")
        assert [event.seq for event in view.events] == [0, 1, 2, 3]
        assert [event.data for event in view.events] == [{"n": n} for n in range(4)]
        assert (view.run_id, view.torn, view.events[-1].h) == ("r", 0, chain.prev)
        writer.close()

    def test_a_run_goes_on_where_it_was_left(self, store: Store) -> None:
        chain = Chain("r")
        for count in (1, 2, 3):
            writer = store.open("r")
            assert writer.view.events == store.read("r").events
            assert Chain("r", writer.view.events).mark() == chain.mark()
            fill(writer, chain, count)
            writer.close()
        assert len(store.read("r").events) == 6

    def test_a_batch_out_of_order_is_refused_whole(self, store: Store) -> None:
        chain = Chain("r")
        writer = store.open("r")
        fill(writer, chain, 2)
        ahead = Chain("r", store.read("r").events)
        sealed(ahead)
        for first, lines in ((3, sealed(ahead)), (0, sealed(Chain("r"), 1))):
            with pytest.raises(StoreError):
                writer.append(lines, first, sync=True)
        assert len(store.read("r").events) == 2
        fill(writer, chain)
        assert len(store.read("r").events) == 3
        writer.close()

    def test_an_empty_batch_writes_nothing(self, store: Store) -> None:
        writer = store.open("r")
        fill(writer, Chain("r"))
        writer.append([], 1, sync=True)
        assert len(store.read("r").events) == 1
        writer.close()

    def test_a_run_has_one_writer(self, store: Store) -> None:
        writer = store.open("r")
        with pytest.raises(RunBusy) as caught:
            store.open("r")
        assert (caught.value.run_id, caught.value.pid) == ("r", os.getpid())
        other = store.open("other")
        other.close()
        writer.close()
        store.open("r").close()

    def test_a_closed_writer_writes_no_more(self, store: Store) -> None:
        writer = store.open("r")
        writer.close()
        writer.close()
        with pytest.raises(StoreError):
            fill(writer, Chain("r"))
        assert store.open("r").view.events == []

    def test_closing_twice_does_not_free_the_next_writer(self, store: Store) -> None:
        first = store.open("r")
        first.close()
        second = store.open("r")
        first.close()
        with pytest.raises(RunBusy):
            store.open("r")
        second.close()

    def test_runs_are_listed_newest_first(self, store: Store) -> None:
        for run_id in ("b", "a", "c"):
            writer = store.open(run_id)
            fill(writer, Chain(run_id))
            writer.close()
            time.sleep(0.02)  # file systems stamp with a clock that may stand still for ten milliseconds
        store.open("never-written").close()
        assert store.runs() == ["c", "a", "b"]
        writer = store.open("b")
        fill(writer, Chain("b", writer.view.events))
        writer.close()
        assert store.runs() == ["b", "c", "a"]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_a_forked_child_cannot_write(self, store: Store) -> None:
        chain = Chain("r")
        writer = store.open("r")
        fill(writer, chain)
        assert in_child(lambda: fill(writer, Chain("r", store.read("r").events))) == ForkedWriter.__name__
        assert in_child(writer.close) == ""
        fill(writer, chain)
        with pytest.raises(RunBusy):
            store.open("r")
        assert len(store.read("r").events) == 2
        writer.close()

    @pytest.mark.parametrize("data", BODIES, ids=len)
    def test_a_body_is_returned_exactly(self, store: Store, data: bytes) -> None:
        name, _ = named(data)
        assert not store.bodies.has(name)
        store.bodies.put([(name, data)])
        assert store.bodies.has(name)
        assert store.bodies.get(name) == data

    def test_a_body_is_put_under_the_name_that_the_store_gives_it(self, store: Store) -> None:
        data = BODIES[5]
        name = store.bodies.name(data)
        with store.bodies.held(), store.bodies.held():
            store.bodies.put([(name, data)], sync=False)
        store.bodies.rest()
        assert len(bytes.fromhex(name)) == 32
        assert store.bodies.get(name) == data

    def test_many_bodies_are_put_at_once(self, store: Store) -> None:
        store.bodies.put(named(data) for data in BODIES)
        store.bodies.put([named(BODIES[3]), named(BODIES[3])], sync=False)
        store.bodies.close()
        assert [store.bodies.get(named(data)[0]) for data in BODIES] == list(BODIES)

    def test_a_missing_body_is_an_error_that_names_it(self, store: Store) -> None:
        name = "0" * 64
        with pytest.raises(BodyMissing) as caught:
            store.bodies.get(name)
        assert caught.value.sha256 == name
        assert not store.bodies.has(name)

    def test_a_body_under_a_wrong_name_stores_nothing(self, store: Store) -> None:
        good = named(b"good")
        with pytest.raises(InvalidArgument):
            store.bodies.put([good, ("0" * 64, b"bad")])
        assert not store.bodies.has(good[0])


def in_child(action: Callable[[], object]) -> str:
    """Run a callable in a forked child; return the name of the exception that it raised, or an empty string."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  the parent judges it
            os.write(sender, type(error).__name__.encode())
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as pipe:
        name = pipe.read().decode()
    os.waitpid(child, 0)
    return name
