"""Every store is the same store: one script of calls has the same results and the same errors everywhere.

The scripts open, append in and out of order, close, read and list, and put and get bodies, on runs that exist and runs
that do not.
"""

from __future__ import annotations

import shutil
import tempfile
from hashlib import sha256
from itertools import chain
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from steplog._kernel.line import Chain
from steplog.errors import Interrupt, SteplogError
from steplog.stores.base import LogView, Store, Writer
from steplog.stores.files import FileStore
from steplog.stores.memory import MemoryStore
from tests.models.test_log import SHARED_MEMORY
from tests.support.examples import examples

RUNS = st.sampled_from(["a", "b", "", "../a", "a" * 129])
GOOD_RUNS = st.sampled_from(["a", "b"])
BODIES = st.sampled_from([b"", b"\0", b"text", b'{"messages":["' + b"the same words, " * 900 + b'"]}', bytes(70_000)])


class Client:
    """One program's use of a store: it remembers the writers that it opened, closed ones too."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.writers: dict[str, list[Writer]] = {}

    def do(self, name: str, *arguments: Any) -> Any:
        """The result of a call, or the class of its error."""
        try:
            return getattr(self, name)(*arguments)
        except (SteplogError, Interrupt) as error:
            return type(error)

    def open(self, run: str) -> Any:
        writer = self.store.open(run)
        self.writers.setdefault(run, []).append(writer)
        return _seen(writer.view), writer.recovered

    def append(self, run: str, which: int, count: int, skew: int, sync: bool) -> Any:
        """Append the next lines of the run, or lines that do not belong there, through its newest or another writer."""
        writers = self.writers.get(run)
        if not writers:
            return None
        sealing = Chain(run, self.store.read(run).events)
        sealing.seq += skew if sealing.seq + skew >= 0 else 0
        first = sealing.seq
        lines = [sealing.seal("t", None, "", b'{"n":%d}' % sealing.seq) for _ in range(count)]
        return writers[which % len(writers)].append(lines, first, sync=sync)

    def close(self, run: str, which: int) -> Any:
        writers = self.writers.get(run)
        return writers and writers[which % len(writers)].close()

    def read(self, run: str) -> Any:
        return _seen(self.store.read(run))

    def runs(self) -> Any:
        return sorted(self.store.runs())

    def put(self, bodies: list[bytes], misnamed: bool) -> Any:
        named = [(sha256(body).hexdigest(), body) for body in bodies]
        return self.store.bodies.put([*named, ("0" * 64, b"another")] if misnamed else named)

    def get(self, body: bytes) -> Any:
        return self.store.bodies.get(sha256(body).hexdigest())

    def has(self, body: bytes) -> Any:
        return self.store.bodies.has(sha256(body).hexdigest())

    def close_bodies(self) -> Any:
        return self.store.bodies.close()


def _seen(view: LogView) -> Any:
    return view.run_id, view.events, view.end, view.torn


NUMBERS = st.integers(0, 3)
CALLS = st.one_of(
    *[st.tuples(st.just("open"), GOOD_RUNS)] * 2,
    *[st.tuples(st.just("append"), GOOD_RUNS, st.just(-1), NUMBERS, st.just(0), st.booleans())] * 3,
    st.tuples(st.just("append"), GOOD_RUNS, NUMBERS, NUMBERS, st.integers(-2, 2), st.booleans()),
    *[st.tuples(st.just("close"), GOOD_RUNS, st.integers(-1, 2))] * 2,
    st.tuples(st.just("open"), RUNS),
    st.tuples(st.just("read"), RUNS),
    st.tuples(st.just("runs")),
    st.tuples(st.just("put"), st.lists(BODIES, max_size=3), st.booleans()),
    st.tuples(st.sampled_from(["get", "has"]), BODIES),
    st.tuples(st.just("close_bodies")),
)


@settings(max_examples=examples(100))
@given(script=st.lists(CALLS, min_size=3, max_size=25))
def test_one_script_means_the_same_on_every_store(script):
    homes = [tempfile.mkdtemp(dir=SHARED_MEMORY) for _ in range(2)]
    stores = [MemoryStore(), FileStore(homes[0]), FileStore(homes[1], durability="process")]
    clients = [Client(store) for store in stores]
    try:
        for call in script:
            first, *others = [client.do(*call) for client in clients]
            assert all(other == first for other in others), (call, first, others)
    finally:
        for writer in chain.from_iterable(chain.from_iterable(client.writers.values()) for client in clients):
            writer.close()
        for home, store in zip(homes, stores[1:], strict=True):
            store.bodies.close()
            shutil.rmtree(home)
