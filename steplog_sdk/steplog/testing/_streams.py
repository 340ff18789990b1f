# ruff: noqa: FBT001  the names of the tests say what must hold; pytest passes the flags
"""What the contract of interceptors asks of streams alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from steplog.errors import DriftDetected, RunStopped
from steplog.testing import _rig
from steplog.testing._hooks import Hooks
from steplog.testing._rig import following, read, settled
from steplog.testing.provider import Fault, LocalProvider


class Streams(Hooks):
    """The part of the contract that is about the hook `stream`."""

    def test_a_stream_is_returned_item_by_item(self, home: Path, provider: LocalProvider, asynchronous: bool) -> None:
        async def use(client: Any) -> Any:
            stream = await settled(self.stream(client, "one"))
            items = await read(stream)
            return type(stream), [type(item) for item in items], [self.facts(item) for item in items]

        live = self.perform(use, provider.url, asynchronous=asynchronous)
        assert len(live[2]) >= 3, (
            f"`stream` has to give at least three items, not {len(live[2])}: let `answer` send more"
        )
        kinds = [event["type"] for event in _rig.log_of(home)]
        assert kinds == ["step.started", "step.finished"], "one stream has to be one step with its outcome"
        self.same(self.again(use, provider, asynchronous=asynchronous), live)

    def test_an_item_is_handed_on_before_the_next_is_sent(self, provider: LocalProvider, asynchronous: bool) -> None:
        if self._hands_on(provider, asynchronous=asynchronous, run="r"):
            return
        with self.unpatched(), LocalProvider(handler=self._handle) as other:
            own = self._hands_on(other, asynchronous=asynchronous, run=None)
        assert not own, "the interceptor holds the first item back until the next one comes: hand on each at once"
        pytest.skip("the SDK itself, unpatched, holds the first item back until the next one comes")

    def _hands_on(self, provider: LocalProvider, *, asynchronous: bool, run: str | None) -> bool:
        provider.inject(Fault("hang", after=1))

        async def use(client: Any) -> Any:
            given_up = threading.Timer(self.patience, provider.release)
            given_up.daemon = True
            given_up.start()
            stream = _rig.iterator(await settled(self.stream(client, "one")))
            first = await following(stream)
            in_time = given_up.is_alive()
            given_up.cancel()
            provider.release()
            return in_time, [first, *await read(stream)]

        in_time, items = self.perform(use, provider.url, asynchronous=asynchronous, run=run)
        assert len(items) >= 3, f"`stream` has to give at least three items, not {len(items)}: let `answer` send more"
        return bool(in_time)

    def test_a_stream_that_was_left_gives_what_it_gave_and_no_more(
        self, provider: LocalProvider, asynchronous: bool
    ) -> None:
        async def leave(client: Any) -> Any:
            stream = await settled(self.stream(client, "one"))
            first = self.facts(await following(_rig.iterator(stream)))
            await _rig.close(stream)
            return first

        async def read_on(client: Any) -> Any:
            return await read(await settled(self.stream(client, "one")))

        live = self.perform(leave, provider.url, asynchronous=asynchronous)
        self.same(self.again(leave, provider, asynchronous=asynchronous), live)
        with _rig.raising(RunStopped, "a stream that was left early was read further than its recording") as stopped:
            self.again(read_on, provider, asynchronous=asynchronous)
        assert isinstance(stopped[0].__cause__, DriftDetected)

    def test_a_stream_that_broke_breaks_again_at_the_same_place(
        self, provider: LocalProvider, asynchronous: bool
    ) -> None:
        async def use(client: Any) -> Any:
            found: list[Any] = []
            stream = _rig.iterator(await settled(self.stream(client, "one")))
            try:
                while True:
                    found.append(self.facts(await following(stream)))
            except StopAsyncIteration:
                return found, None, ""
            except Exception as error:  # noqa: BLE001  # whatever the SDK raises
                return found, type(error), str(error)

        provider.inject(Fault("drop", after=2))
        live = self.perform(use, provider.url, asynchronous=asynchronous)
        if live[1] is None:
            provider.inject(Fault("drop", after=2))
            with self.unpatched():
                own = self.perform(use, provider.url, asynchronous=asynchronous, run=None)
            assert own[1] is None, (
                f"the SDK raises {own[1]} where its stream breaks; with the interceptor the stream looks whole: "
                "let the exception pass"
            )
        self.same(self.again(use, provider, asynchronous=asynchronous), live)
        if live[1] is None:
            pytest.skip("the SDK itself, unpatched, takes a broken stream for a whole one")
