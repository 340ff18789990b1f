# ruff: noqa: D102, FBT001  the names of the tests say what must hold; pytest passes the flags
"""What every interceptor must do, as a test class to inherit from.

    class TestAcme(InterceptorContract):
        interceptor = "acme_steplog:interceptor"
        sdk = "acme"

        def client(self, url, key, *, asynchronous):
            return (acme.AsyncClient if asynchronous else acme.Client)(url, key=key)

        def call(self, client, text):
            return client.search(text)

        def answer(self, hit):
            return Reply.json({"hits": [hit.json["query"]]})

The SDK is the real one; the provider is a server on 127.0.0.1. A crash is a process of its own that is killed, so the
class must stand at the top of an importable file, and its hooks must do without fixtures.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

import steplog
from steplog.errors import DriftDetected, Indeterminate, NotInRun, RunStopped
from steplog.testing import _rig
from steplog.testing._hooks import Hooks
from steplog.testing._rig import following, read, settled
from steplog.testing.provider import Fault, LocalProvider

WORDS: Final = ("one", "two", "three", "four", "five", "six")


@pytest.mark.usefixtures("home")
class InterceptorContract(Hooks):
    """The contract of an interceptor; inherit, set the attributes and define `client`, `call` and `answer`.

    Define `write` and `stream` too where the SDK has such calls.
    """

    # a call ----------------------------------------------------------------------------------------------------------

    def test_a_result_is_returned_equal_and_of_its_type(
        self, home: Path, provider: LocalProvider, asynchronous: bool
    ) -> None:
        async def use(client: Any) -> Any:
            return await settled(self.call(client, "one"))

        live = self.perform(use, provider.url, asynchronous=asynchronous)
        assert [event["type"] for event in _rig.log_of(home)] == ["step.started", "step.finished"]
        recorded = self.again(use, provider, asynchronous=asynchronous)
        assert type(recorded) is type(live)
        assert self.facts(recorded) == self.facts(live)
        assert len(_rig.log_of(home)) == 2

    def test_calls_that_ask_for_different_things_are_different_steps(
        self, home: Path, provider: LocalProvider, asynchronous: bool
    ) -> None:
        async def use(client: Any, *texts: str) -> Any:
            return [self.facts(await settled(self.call(client, text))) for text in texts]

        live = self.perform(lambda client: use(client, "one", "two"), provider.url, asynchronous=asynchronous)
        assert live[0] != live[1]
        assert len({event["step"] for event in _rig.log_of(home)}) == len(provider.hits) == 2
        # In another order: an answer belongs to its request, not to its place.
        recorded = self.again(lambda client: use(client, "two", "one"), provider, asynchronous=asynchronous)
        assert recorded == [live[1], live[0]]

    def test_equal_calls_are_told_apart_by_their_number(self, provider: LocalProvider, asynchronous: bool) -> None:
        async def use(client: Any) -> Any:
            return [self.facts(await settled(self.call(client, "one"))) for _ in range(3)]

        live = self.perform(use, provider.url, asynchronous=asynchronous)
        assert len(provider.hits) == 3
        assert self.again(use, provider, asynchronous=asynchronous) == live

    def test_a_failure_is_raised_as_it_was(self, home: Path, provider: LocalProvider, asynchronous: bool) -> None:
        self.answer_with(self.refusal)

        async def use(client: Any) -> Any:
            with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever the SDK raises
                await settled(self.call(client, "one"))
            return type(caught.value), str(caught.value)

        live = self.perform(use, provider.url, asynchronous=asynchronous)
        assert [event["data"].get("outcome") for event in _rig.log_of(home)] == [None, "failed"]
        assert self.again(use, provider, asynchronous=asynchronous) == live

    def test_a_failure_that_ended_the_run_is_tried_again(self, provider: LocalProvider, asynchronous: bool) -> None:
        self.answer_with(self.refusal)

        async def use(client: Any) -> Any:
            return self.facts(await settled(self.call(client, "one")))

        with pytest.raises(Exception):  # noqa: B017, PT011  # whatever the SDK raises
            self.perform(use, provider.url, asynchronous=asynchronous)
        self.answer_with(self.answer)
        live = self.perform(use, provider.url, asynchronous=asynchronous)
        assert len(provider.hits) == 2
        assert self.again(use, provider, asynchronous=asynchronous) == live

    def test_a_failure_that_ends_the_run_only_when_it_is_returned_is_tried_again(
        self, provider: LocalProvider, asynchronous: bool
    ) -> None:
        self.answer_with(self.refusal)

        async def use(client: Any) -> Any:
            return self.facts(await settled(self.call(client, "one")))

        async def handle(client: Any) -> None:
            with suppress(Exception):
                await use(client)
            raise _Stop

        with pytest.raises(_Stop):
            self.perform(handle, provider.url, asynchronous=asynchronous)
        with _rig.unreachable() as tried, pytest.raises(Exception):  # noqa: B017, PT011  # whatever the SDK raises
            self.perform(use, provider.url, asynchronous=asynchronous)
        assert tried == []
        self.answer_with(self.answer)
        self.perform(use, provider.url, asynchronous=asynchronous)
        assert len(provider.hits) == 2

    def test_a_call_that_was_given_up_is_recorded_as_that(self, home: Path, provider: LocalProvider) -> None:
        if "async" not in self.colours:
            pytest.skip("this SDK has no async client")
        provider.inject(Fault("hang"))

        async def use(client: Any) -> None:
            task = asyncio.ensure_future(settled(self.call(client, "one")))
            await asyncio.to_thread(provider.wait_for_hits, 1, _rig.SECONDS)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        self.perform(use, provider.url, asynchronous=True)
        assert [event["data"].get("outcome") for event in _rig.log_of(home)][-1:] == ["cancelled"]

    # where steplog has no part ---------------------------------------------------------------------------------------

    def test_outside_a_run_the_same_request_is_sent_and_nothing_is_recorded(
        self, home: Path, provider: LocalProvider, asynchronous: bool
    ) -> None:
        async def use(client: Any) -> Any:
            return self.facts(await settled(self.call(client, "one")))

        installed = self.perform(use, provider.url, asynchronous=asynchronous, run=None)
        _rig.load(self.interceptor).uninstall()
        assert self.perform(use, provider.url, asynchronous=asynchronous, run=None) == installed
        with_, without = ((hit.method, hit.path, hit.body, sorted(hit.headers)) for hit in provider.hits)
        assert with_ == without
        assert not home.exists()

    def test_outside_a_run_strict_mode_refuses(self, home: Path, provider: LocalProvider, asynchronous: bool) -> None:
        steplog.install(home=home, strict=True, interceptors=())

        async def use(client: Any) -> None:
            with pytest.raises(NotInRun):
                await settled(self.call(client, "one"))

        self.perform(use, provider.url, asynchronous=asynchronous, run=None)
        assert provider.hits == []

    def test_a_halted_run_makes_no_call(self, provider: LocalProvider, asynchronous: bool) -> None:
        async def ask(client: Any, text: str = "one") -> None:
            await settled(self.call(client, text))

        self.perform(ask, provider.url, asynchronous=asynchronous)

        async def go_on(client: Any) -> None:
            for text in ("two", "three"):
                with pytest.raises(DriftDetected):  # the run has ended; nothing new belongs to it
                    await ask(client, text)

        with pytest.raises(RunStopped):
            self.perform(go_on, provider.url, asynchronous=asynchronous)
        assert len(provider.hits) == 1

    # patches ---------------------------------------------------------------------------------------------------------

    def test_installing_does_not_import_the_sdk(self) -> None:
        module, _, name = self.interceptor.partition(":")
        code = f"import sys, {module}\n{module}.{name}.install()\nprint({self.sdk!r} in sys.modules)"
        assert _rig.python(code) == "False"

    def test_patches_go_in_once_and_come_out(self) -> None:
        interceptor, packages = _rig.load(self.interceptor), self.packages or (self.sdk,)
        once = _rig.surface(packages)
        interceptor.install()
        assert _rig.changed(once, _rig.surface(packages)) == [], "installing twice patched twice"
        interceptor.uninstall()
        interceptor.uninstall()
        bare = _rig.surface(packages)
        assert _rig.changed(once, bare), "nothing was patched"
        interceptor.install()
        interceptor.uninstall()
        assert _rig.changed(bare, _rig.surface(packages)) == [], "uninstalling did not restore what was there"

    def test_a_patched_method_looks_like_the_original(self) -> None:
        packages = self.packages or (self.sdk,)
        patched = _rig.surface(packages)
        _rig.load(self.interceptor).uninstall()
        bare = _rig.surface(packages)
        for place in _rig.changed(patched, bare):
            replacement, original = patched[place], bare[place]
            assert inspect.signature(replacement) == inspect.signature(original), place
            assert _rig.kind_of(replacement) == _rig.kind_of(original), place
            assert replacement.__name__ == original.__name__, place

    def test_a_patch_that_another_tool_has_buried_falls_silent(
        self, home: Path, provider: LocalProvider, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interceptor, packages = _rig.load(self.interceptor), self.packages or (self.sdk,)
        patched = _rig.surface(packages)
        interceptor.uninstall()
        places = _rig.changed(patched, _rig.surface(packages))
        interceptor.install()
        for owner, name in places:
            monkeypatch.setattr(owner, name, _buried(vars(owner)[name]))
        interceptor.uninstall()

        async def use(client: Any) -> None:
            await settled(self.call(client, "one"))

        self.perform(use, provider.url, asynchronous=asynchronous)
        assert _rig.log_of(home) == []

    # crashes ---------------------------------------------------------------------------------------------------------

    def test_a_crash_before_the_answer_repeats_only_what_may_be_repeated(
        self, home: Path, provider: LocalProvider
    ) -> None:
        hooks = [hook for hook in ("call", "write") if getattr(type(self), hook) is not getattr(Hooks, hook)]
        cases = [(hook, colour) for hook in hooks for colour in self.colours]
        provider.inject(Fault("hang", times=len(cases)))
        with _rig.process(type(self), home, provider.url, cases) as kill:
            provider.wait_for_hits(len(cases), _rig.SECONDS)
            kill()
        for hook, colour in cases:
            self.resume(hook, home, provider, asynchronous=colour == "async")

    def resume(self, hook: str, home: Path, provider: LocalProvider, *, asynchronous: bool) -> None:
        """Go on with a run whose only call was under way when its process died."""
        run = f"{hook}-{'async' if asynchronous else 'sync'}"

        async def use(client: Any) -> Any:
            return self.facts(await settled(getattr(self, hook)(client, "one")))

        (started,) = _rig.log_of(home, run)
        mode, before = started["data"]["mode"], len(provider.hits)
        assert hook == "call" or mode != "safe", "a call that must not be made twice is recorded as safe to repeat"
        if mode == "unsafe":
            with pytest.raises(RunStopped) as stopped:
                self.perform(use, provider.url, asynchronous=asynchronous, run=run)
            assert isinstance(stopped.value.__cause__, Indeterminate)
            assert len(provider.hits) == before
            return
        live = self.perform(use, provider.url, asynchronous=asynchronous, run=run)
        assert len(provider.hits) == before + 1
        if mode == "keyed":
            with_key = [hit for hit in provider.hits if started["data"]["key"] in _rig.sent(hit)]
            assert len(with_key) == 2, "the provider does not get the idempotency key with both attempts"
        assert self.perform(use, provider.url, asynchronous=asynchronous, run=run) == live
        assert len(provider.hits) == before + 1

    # concurrency -----------------------------------------------------------------------------------------------------

    def test_each_thread_gets_the_answer_to_its_own_request(self, provider: LocalProvider) -> None:
        if "sync" not in self.colours:
            pytest.skip("this SDK has no sync client")

        async def use(client: Any) -> Any:
            with ThreadPoolExecutor(len(WORDS)) as pool:
                return [self.facts(value) for value in pool.map(lambda text: self.call(client, text), WORDS)]

        live = self.perform(use, provider.url, asynchronous=False)
        assert all(text in str(value) for text, value in zip(WORDS, live, strict=True))
        assert self.again(use, provider, asynchronous=False) == live

    def test_each_task_gets_the_answer_to_its_own_request(self, provider: LocalProvider) -> None:
        if "async" not in self.colours:
            pytest.skip("this SDK has no async client")

        async def use(client: Any) -> Any:
            values = await asyncio.gather(*(settled(self.call(client, text)) for text in WORDS))
            return [self.facts(value) for value in values]

        live = self.perform(use, provider.url, asynchronous=True)
        assert all(text in str(value) for text, value in zip(WORDS, live, strict=True))
        assert self.again(use, provider, asynchronous=True) == live

    # secrets ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("outcome", ["answer", "refusal"])
    def test_the_credential_is_sent_and_not_kept(
        self, outcome: str, home: Path, provider: LocalProvider, asynchronous: bool
    ) -> None:
        self.answer_with(getattr(self, outcome))

        async def use(client: Any) -> None:
            try:
                await settled(self.call(client, "one"))
            except Exception:  # noqa: BLE001  # what is kept of a failure is looked at below
                assert outcome == "refusal"

        self.perform(use, provider.url, asynchronous=asynchronous)
        (hit,) = provider.hits
        assert self.key in _rig.sent(hit), "the client does not send `key`, so this test would prove nothing"
        assert len(_rig.log_of(home)) == 2
        assert self.key.encode() not in _rig.everything_in(home)

    # streams ---------------------------------------------------------------------------------------------------------

    def test_a_stream_is_returned_item_by_item(self, home: Path, provider: LocalProvider, asynchronous: bool) -> None:
        async def use(client: Any) -> Any:
            stream = await settled(self.stream(client, "one"))
            items = await read(stream)
            return type(stream), [type(item) for item in items], [self.facts(item) for item in items]

        live = self.perform(use, provider.url, asynchronous=asynchronous)
        assert len(live[2]) >= 3
        assert [event["type"] for event in _rig.log_of(home)] == ["step.started", "step.finished"]
        assert self.again(use, provider, asynchronous=asynchronous) == live

    def test_an_item_is_handed_on_before_the_next_is_sent(self, provider: LocalProvider, asynchronous: bool) -> None:
        provider.inject(Fault("hang", after=1))

        async def use(client: Any) -> Any:
            stream = _rig.iterator(await settled(self.stream(client, "one")))
            given_up = threading.Timer(self.patience, provider.release)
            given_up.daemon = True
            given_up.start()
            first = await following(stream)
            assert given_up.is_alive(), "the first item was held back until the next one came"
            given_up.cancel()
            provider.release()
            return [first, *await read(stream)]

        assert len(self.perform(use, provider.url, asynchronous=asynchronous)) >= 3

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
        assert self.again(leave, provider, asynchronous=asynchronous) == live
        with pytest.raises(RunStopped) as stopped:
            self.again(read_on, provider, asynchronous=asynchronous)
        assert isinstance(stopped.value.__cause__, DriftDetected)

    def test_a_stream_that_broke_breaks_again_at_the_same_place(
        self, provider: LocalProvider, asynchronous: bool
    ) -> None:
        provider.inject(Fault("drop", after=2))

        async def use(client: Any) -> Any:
            found: list[Any] = []
            stream = _rig.iterator(await settled(self.stream(client, "one")))
            try:
                while True:
                    found.append(self.facts(await following(stream)))
            except StopAsyncIteration:
                pytest.fail("the SDK takes a broken stream for a whole one")
            except Exception as error:  # noqa: BLE001  # whatever the SDK raises
                return found, type(error), str(error)

        live = self.perform(use, provider.url, asynchronous=asynchronous)
        assert self.again(use, provider, asynchronous=asynchronous) == live


class _Stop(Exception):  # no error: how a test ends a run
    pass


def _buried(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as another tool might put it on top of ours."""

    def on_top(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return on_top
