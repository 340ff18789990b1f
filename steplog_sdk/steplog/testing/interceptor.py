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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

import steplog
from steplog.errors import DriftDetected, Indeterminate, NotInRun, RunStopped
from steplog.testing import _rig
from steplog.testing._rig import settled
from steplog.testing._streams import Streams
from steplog.testing.provider import Fault, LocalProvider

WORDS: Final = ("one", "two", "three", "four", "five", "six")


@pytest.mark.usefixtures("home")
class InterceptorContract(Streams):
    """The contract of an interceptor; inherit, set the attributes and define `client`, `call` and `answer`.

    Define `write` and `stream` too where the SDK has such calls: what holds for `call` is asked of each of them.
    """

    # a call ----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("hook", ["call", "write"], indirect=True)
    def test_a_result_is_returned_equal_and_of_its_type(
        self, hook: str, home: Path, provider: LocalProvider, asynchronous: bool
    ) -> None:
        async def use(client: Any) -> Any:
            return await settled(getattr(self, hook)(client, "one"))

        live = self.perform(use, provider.url, asynchronous=asynchronous)
        kinds = [event["type"] for event in _rig.log_of(home)]
        assert kinds == ["step.started", "step.finished"], "one call has to be one step with its outcome"
        recorded = self.again(use, provider, asynchronous=asynchronous)
        assert type(recorded) is type(live), "what the log gives back is of another type than what the SDK gave"
        self.same(self.facts(recorded), self.facts(live))
        assert len(_rig.log_of(home)) == 2, "a call that was returned from the log was recorded again"

    def test_calls_that_ask_for_different_things_are_different_steps(
        self, hook: str, home: Path, provider: LocalProvider, asynchronous: bool
    ) -> None:
        async def use(client: Any, *texts: str) -> Any:
            return [await self.ask(hook, client, text) for text in texts]

        live = self.perform(lambda client: use(client, "one", "two"), provider.url, asynchronous=asynchronous)
        assert live[0] != live[1], (
            f"two calls of `{hook}` with different texts got equal answers, so they cannot be told apart: put the text "
            "of the request into what `answer(hit)` returns, and let `facts` keep it"
        )
        steps = {event["step"] for event in _rig.log_of(home)}
        assert len(steps) == len(provider.hits) == 2, f"two calls of `{hook}` have to be two requests and two steps"
        # In another order: an answer belongs to its request, not to its place.
        recorded = self.again(lambda client: use(client, "two", "one"), provider, asynchronous=asynchronous)
        crossed = recorded == live
        assert not crossed, (
            f"`{hook}`: a call got the answer to another text; put all that it asks for into `Call.args`"
        )
        self.same(recorded, [live[1], live[0]])

    def test_equal_calls_are_told_apart_by_their_number(
        self, hook: str, provider: LocalProvider, asynchronous: bool
    ) -> None:
        async def use(client: Any) -> Any:
            return [await self.ask(hook, client, "one") for _ in range(3)]

        live = self.perform(use, provider.url, asynchronous=asynchronous)
        assert len(provider.hits) == 3, f"three equal calls of `{hook}` have to be three requests"
        self.same(self.again(use, provider, asynchronous=asynchronous), live)

    def test_a_failure_is_raised_as_it_was(
        self, hook: str, home: Path, provider: LocalProvider, asynchronous: bool
    ) -> None:
        self.answer_with(self.refusal)

        async def use(client: Any) -> Any:
            error = await self.refused(hook, client)
            return type(error), str(error)

        live = self.perform(use, provider.url, asynchronous=asynchronous)
        outcomes = [event["data"].get("outcome") for event in _rig.log_of(home)]
        assert outcomes == [None, "failed"], "a call that failed has to be one step with the outcome `failed`"
        self.same(self.again(use, provider, asynchronous=asynchronous), live)

    def test_a_failure_that_ended_the_run_is_tried_again(
        self, hook: str, provider: LocalProvider, asynchronous: bool
    ) -> None:
        self.answer_with(self.refusal)

        async def use(client: Any) -> Any:
            return await self.ask(hook, client, "one")

        async def fail(client: Any) -> None:
            raise await self.refused(hook, client)

        with _rig.raising(Exception, "a failure of the SDK did not leave the run"):
            self.perform(fail, provider.url, asynchronous=asynchronous)
        self.answer_with(self.answer)
        live = self.perform(use, provider.url, asynchronous=asynchronous)
        assert len(provider.hits) == 2, "a call whose failure ended the run was not made again"
        self.same(self.again(use, provider, asynchronous=asynchronous), live)

    def test_a_failure_that_ends_the_run_only_when_it_is_returned_is_tried_again(
        self, hook: str, provider: LocalProvider, asynchronous: bool
    ) -> None:
        self.answer_with(self.refusal)

        async def use(client: Any) -> Any:
            return await self.ask(hook, client, "one")

        async def handle(client: Any) -> None:
            await self.refused(hook, client)
            raise _Stop

        with pytest.raises(_Stop):
            self.perform(handle, provider.url, asynchronous=asynchronous)
        with (
            _rig.unreachable() as tried,
            _rig.raising(Exception, "a failure that is in the log was not raised when it was returned"),
        ):
            self.perform(use, provider.url, asynchronous=asynchronous)
        assert tried == [], "a failure that is in the log was asked for again"
        self.answer_with(self.answer)
        self.perform(use, provider.url, asynchronous=asynchronous)
        assert len(provider.hits) == 2, "tell `ticket.replayed(error)` of the failure, or the run never gets past it"

    # A stream is left open instead: nobody knows what its reader would have done with the rest.
    @pytest.mark.parametrize("hook", ["call", "write"], indirect=True)
    def test_a_call_that_was_given_up_is_recorded_as_that(self, hook: str, home: Path, provider: LocalProvider) -> None:
        if "async" not in self.colours:
            pytest.skip("this SDK has no async client")
        provider.inject(Fault("hang"))

        async def use(client: Any) -> None:
            task = asyncio.ensure_future(self.ask(hook, client, "one"))
            await asyncio.to_thread(provider.wait_for_hits, 1, _rig.SECONDS)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        self.perform(use, provider.url, asynchronous=True)
        outcomes = [event["data"].get("outcome") for event in _rig.log_of(home)]
        assert outcomes[-1:] == ["cancelled"], "a call that its task gave up has to end with `ticket.cancelled()`"

    # where steplog has no part ---------------------------------------------------------------------------------------

    def test_outside_a_run_the_same_request_is_sent_and_nothing_is_recorded(
        self, hook: str, home: Path, provider: LocalProvider, asynchronous: bool
    ) -> None:
        async def use(client: Any) -> Any:
            return await self.ask(hook, client, "one")

        installed = self.perform(use, provider.url, asynchronous=asynchronous, run=None)
        with self.unpatched():
            self.same(self.perform(use, provider.url, asynchronous=asynchronous, run=None), installed)
        with_, without = ((hit.method, hit.path, hit.body, sorted(hit.headers)) for hit in provider.hits)
        assert with_ == without, "outside every run the request must be the SDK's own"
        assert not home.exists(), "outside every run nothing is recorded"

    def test_outside_a_run_strict_mode_refuses(
        self, hook: str, home: Path, provider: LocalProvider, asynchronous: bool
    ) -> None:
        steplog.install(home=home, strict=True, interceptors=())

        async def use(client: Any) -> None:
            with _rig.raising(NotInRun, f"`{hook}` outside a run under `strict`: no NotInRun; ask `begin` every time"):
                await self.ask(hook, client, "one")

        self.perform(use, provider.url, asynchronous=asynchronous, run=None)
        assert provider.hits == [], "the call was refused after its request had been sent"

    def test_a_halted_run_makes_no_call(self, hook: str, provider: LocalProvider, asynchronous: bool) -> None:
        async def use(client: Any) -> None:
            await self.ask(hook, client, "one")

        self.perform(use, provider.url, asynchronous=asynchronous)

        async def go_on(client: Any) -> None:
            for text in ("two", "three"):
                # The run has ended; nothing new belongs to it.
                with _rig.raising(DriftDetected, f"`{hook}` in a halted run: the interrupt of `begin` was swallowed"):
                    await self.ask(hook, client, text)

        with pytest.raises(RunStopped):
            self.perform(go_on, provider.url, asynchronous=asynchronous)
        assert len(provider.hits) == 1, "a halted run sent a request"

    # patches ---------------------------------------------------------------------------------------------------------

    def test_installing_does_not_import_the_sdk(self) -> None:
        module, _, name = self.interceptor.partition(":")
        code = f"import sys, {module}\n{module}.{name}.install()\nprint({self.sdk!r} in sys.modules)"
        assert _rig.python(code) == "False", f"`install()` imports {self.sdk}: patch in a hook of `Patches.install`"

    def test_patches_go_in_once_and_come_out(self) -> None:
        interceptor, packages = _rig.load(self.interceptor), self.packages or (self.sdk,)
        once = _rig.surface(packages)
        interceptor.install()
        assert _rig.changed(once, _rig.surface(packages)) == [], "installing twice patched twice"
        interceptor.uninstall()
        interceptor.uninstall()
        bare = _rig.surface(packages)
        assert _rig.changed(once, bare), f"no function of {packages} was patched: name the packages in `packages`"
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
            what = f"{place[0].__name__}.{place[1]}: use `Patches.apply`, and write the wrapper in the original's kind"
            assert inspect.signature(replacement) == inspect.signature(original), what
            assert _rig.kind_of(replacement) == _rig.kind_of(original), what
            assert replacement.__name__ == original.__name__, what

    def test_a_patch_that_another_tool_has_buried_falls_silent(
        self, hook: str, home: Path, provider: LocalProvider, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
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
            await self.ask(hook, client, "one")

        self.perform(use, provider.url, asynchronous=asynchronous)
        assert _rig.log_of(home) == [], "uninstalled under another tool's patch, a wrapper must only call the original"

    # crashes ---------------------------------------------------------------------------------------------------------

    def test_a_crash_before_the_answer_repeats_only_what_may_be_repeated(
        self, home: Path, provider: LocalProvider
    ) -> None:
        hooks = [hook for hook in ("call", "write") if self.has(hook)]
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
            return await self.ask(hook, client, "one")

        events = _rig.log_of(home, run)
        assert [event["type"] for event in events] == ["step.started"], (
            f"`{hook}` was on its way and the log holds no intent of it: `begin` comes before the request"
        )
        started = events[0]
        mode, before = started["data"]["mode"], len(provider.hits)
        assert hook == "call" or mode != "safe", "a call that must not be made twice is recorded as safe to repeat"
        if mode == "unsafe":
            with pytest.raises(RunStopped) as stopped:
                self.perform(use, provider.url, asynchronous=asynchronous, run=run)
            assert isinstance(stopped.value.__cause__, Indeterminate)
            assert len(provider.hits) == before, f"`{hook}` is `unsafe` and was made twice"
            return
        live = self.perform(use, provider.url, asynchronous=asynchronous, run=run)
        assert len(provider.hits) == before + 1, f"`{hook}` is `{mode}` and was not made again, once"
        if mode == "keyed":
            with_key = [hit for hit in provider.hits if started["data"]["key"] in _rig.sent(hit)]
            assert len(with_key) == 2, "the provider does not get the idempotency key with both attempts"
        self.same(self.perform(use, provider.url, asynchronous=asynchronous, run=run), live)
        assert len(provider.hits) == before + 1, f"`{hook}` is in the log and was made again"

    # concurrency -----------------------------------------------------------------------------------------------------

    def test_each_thread_gets_the_answer_to_its_own_request(self, provider: LocalProvider) -> None:
        if "sync" not in self.colours:
            pytest.skip("this SDK has no sync client")

        async def use(client: Any) -> Any:
            with ThreadPoolExecutor(len(WORDS)) as pool:
                return [self.facts(value) for value in pool.map(lambda text: self.call(client, text), WORDS)]

        live = self.perform(use, provider.url, asynchronous=False)
        _rig.holding(WORDS, live)
        self.same(self.again(use, provider, asynchronous=False), live)

    def test_each_task_gets_the_answer_to_its_own_request(self, provider: LocalProvider) -> None:
        if "async" not in self.colours:
            pytest.skip("this SDK has no async client")

        async def use(client: Any) -> Any:
            values = await asyncio.gather(*(settled(self.call(client, text)) for text in WORDS))
            return [self.facts(value) for value in values]

        live = self.perform(use, provider.url, asynchronous=True)
        _rig.holding(WORDS, live)
        self.same(self.again(use, provider, asynchronous=True), live)

    # secrets ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("outcome", ["answer", "refusal"])
    def test_the_credential_is_sent_and_not_kept(
        self, outcome: str, hook: str, home: Path, provider: LocalProvider, asynchronous: bool
    ) -> None:
        self.answer_with(getattr(self, outcome))

        async def use(client: Any) -> None:
            try:
                await self.ask(hook, client, "one")
            except Exception:
                # What is kept of a failure is looked at below.
                if outcome != "refusal":
                    raise

        self.perform(use, provider.url, asynchronous=asynchronous)
        assert len(provider.hits) == 1, f"`{hook}` has to make one request; let the client not retry"
        assert self.key in _rig.sent(provider.hits[0]), "the client does not send `key`, so this test proves nothing"
        assert len(_rig.log_of(home)) == 2, "one call has to be one step with its outcome"
        kept = self.key.encode() in _rig.everything_in(home)
        assert not kept, "the credential is on disk: leave it out of args, request, results and recorded exceptions"


class _Stop(Exception):  # no error: how a test ends a run
    pass


def _buried(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as another tool might put it on top of ours."""

    def on_top(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return on_top
