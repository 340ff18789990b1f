"""Interceptors of the acme SDK with one fault each, for the contract to find.

`Hand` is an interceptor written by hand against `begin` and `Ticket`, and sound: that is where faults are made. Each
class below it breaks one thing; `caught_by` names the tests of the contract that must fail.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

from steplog import errors, plugins
from steplog._kernel.codec import decode_exception, encode_exception
from tests.support.recorded import ROOT

sys.path.append(str(ROOT / "examples" / "interceptor"))

from steplog_acme import describe  # in the folder that was added above


class Hand:
    """Records calls of `_call` by hand, and streams as the example does."""

    caught_by: ClassVar[tuple[str, ...]] = ()

    name = "acme"

    def __init__(self) -> None:
        self.patches = plugins.Patches()

    def install(self) -> None:
        self.patches.install({"acme": self.patch})

    def uninstall(self) -> None:
        self.patches.uninstall()

    def patch(self, acme: ModuleType) -> None:
        self.patches.apply(acme.Client, "_call", self.sync)
        self.patches.apply(acme.AsyncClient, "_call", self.task)
        for client in (acme.Client, acme.AsyncClient):
            self.patches.apply(client, "_lines", self.lines())

    def lines(self) -> Any:
        return plugins.recording_items(describe, last=lambda line: line == "END")

    # what the faults below replace

    def describe(self, *args: Any, **kwargs: Any) -> plugins.Call:
        return describe(*args, **kwargs)

    def begin(self, call: plugins.Call) -> plugins.Ticket | None:
        return plugins.begin(call)

    async def begin_async(self, call: plugins.Call) -> plugins.Ticket | None:
        return await plugins.begin_async(call)

    def options(self, ticket: plugins.Ticket | None, options: dict[str, Any]) -> dict[str, Any]:
        return options if ticket is None else {**options, "idempotency_key": ticket.key}

    def detail(self, answer: dict[str, Any]) -> dict[str, Any]:
        return {"result": answer}

    def failure(self, error: Exception) -> dict[str, Any]:
        told = {"type": type(error).__name__, "message": str(error)}
        return {"error": {**told, "value": encode_exception(error)}}

    def blamed(self, error: Exception) -> Exception | None:
        return error

    def replay(self, ticket: plugins.Ticket) -> Any:
        assert ticket.recorded is not None
        if ticket.recorded.outcome == "failed":
            error = decode_exception(ticket.recorded.error())
            self.replayed(ticket, error)
            raise error
        self.replayed(ticket, None)
        return ticket.recorded.value("result")

    def replayed(self, ticket: plugins.Ticket, error: BaseException | None) -> None:
        ticket.replayed(error)

    def cancelled(self, ticket: plugins.Ticket) -> None:
        ticket.cancelled()

    def is_on(self, patch: plugins.Patch) -> bool:
        return patch.on

    def sync(self, original: Callable[..., Any], patch: plugins.Patch) -> Callable[..., Any]:
        def call(client: Any, path: str, body: Any, **options: Any) -> Any:
            if not self.is_on(patch):
                return original(client, path, body, **options)
            ticket = self.begin(self.describe(client, path, body, **options))
            if ticket is not None and ticket.recorded is not None:
                return self.replay(ticket)
            try:
                answer = original(client, path, body, **self.options(ticket, options))
            except Exception as error:
                if ticket is not None:
                    ticket.finish("failed", self.failure(error), error=self.blamed(error))
                raise
            if ticket is not None:
                ticket.finish("done", self.detail(answer))
            return answer

        return call

    def task(self, original: Callable[..., Any], patch: plugins.Patch) -> Callable[..., Any]:
        async def call(client: Any, path: str, body: Any, **options: Any) -> Any:
            if not self.is_on(patch):
                return await original(client, path, body, **options)
            ticket = await self.begin_async(self.describe(client, path, body, **options))
            if ticket is not None and ticket.recorded is not None:
                return self.replay(ticket)
            try:
                answer = await original(client, path, body, **self.options(ticket, options))
            except Exception as error:
                if ticket is not None:
                    await ticket.finish_async("failed", self.failure(error), error=self.blamed(error))
                raise
            except BaseException:
                if ticket is not None:
                    self.cancelled(ticket)
                raise
            if ticket is not None:
                await ticket.finish_async("done", self.detail(answer))
            return answer

        return call


class Wrapped(Hand):
    """The same with the public method patched, so that it is the SDK's own type that has to come back."""

    def patch(self, acme: ModuleType) -> None:
        super().patch(acme)
        self.patches.apply(acme.Client, "forecast", self.forecast)

    def forecast(self, original: Callable[..., Any], patch: plugins.Patch) -> Callable[..., Any]:
        def forecast(client: Any, city: str) -> Any:
            ticket = plugins.begin(plugins.Call("tool_call", "forecast", city, "safe")) if patch.on else None
            if ticket is None:
                return original(client, city)
            if ticket.recorded is not None:
                ticket.replayed()
                return ticket.recorded.value("result")
            answer = original.__wrapped__(client, city) if hasattr(original, "__wrapped__") else original(client, city)
            ticket.finish("done", {"result": {"city": answer.city, "degrees": answer.degrees}})
            return answer

        return forecast


class ReturnsAnotherType(Wrapped):
    caught_by = ("test_a_result_is_returned_equal_and_of_its_type",)


class RecordsTwice(Hand):
    """Every call is two steps."""

    caught_by = ("test_a_result_is_returned_equal_and_of_its_type",)

    def begin(self, call: plugins.Call) -> plugins.Ticket | None:
        outer = plugins.begin(plugins.Call(call.kind, "outer", call.args, call.mode))
        if outer is not None:
            outer.finish("done", {})
        return plugins.begin(call)


class IdentifiesByPlace(Hand):
    """What is asked for is no part of what a call is."""

    caught_by = ("test_calls_that_ask_for_different_things_are_different_steps",)

    def describe(self, *args: Any, **kwargs: Any) -> plugins.Call:
        call = describe(*args, **kwargs)
        return plugins.Call(call.kind, call.target, {}, call.mode)


class LeavesTheBodyOfWritesOut(Hand):
    """What a POST says is no part of what the call is."""

    caught_by = ("test_calls_that_ask_for_different_things_are_different_steps",)

    def describe(self, client: Any, path: str, body: Any, **options: Any) -> plugins.Call:
        call = describe(client, path, body, **options)
        return plugins.Call(call.kind, call.target, {}, call.mode) if path == "/book" else call


class LeavesTheBodyOfStreamsOut(Hand):
    caught_by = ("test_calls_that_ask_for_different_things_are_different_steps",)

    def lines(self) -> Any:
        def nothing(*args: Any, **kwargs: Any) -> plugins.Call:
            call = describe(*args, **kwargs)
            return plugins.Call(call.kind, call.target, {}, call.mode)

        return plugins.recording_items(nothing, last=lambda line: line == "END")


class IdentifiesWritesByTime(Hand):
    caught_by = ("test_equal_calls_are_told_apart_by_their_number",)

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def describe(self, client: Any, path: str, body: Any, **options: Any) -> plugins.Call:
        call = describe(client, path, body, **options)
        self.count += 1
        args = {**body, "at": self.count} if path == "/book" else body
        return plugins.Call(call.kind, call.target, args, call.mode)


class RecordsNoWrite(Hand):
    caught_by = (
        "test_a_result_is_returned_equal_and_of_its_type",
        "test_outside_a_run_strict_mode_refuses",
        "test_a_crash_before_the_answer_repeats_only_what_may_be_repeated",
    )

    def begin(self, call: plugins.Call) -> plugins.Ticket | None:
        return None if call.target == "acme/book" else plugins.begin(call)

    async def begin_async(self, call: plugins.Call) -> plugins.Ticket | None:
        return None if call.target == "acme/book" else await plugins.begin_async(call)


class KeepsTheCredentialOfWrites(Hand):
    caught_by = ("test_the_credential_is_sent_and_not_kept",)

    def describe(self, client: Any, path: str, body: Any, **options: Any) -> plugins.Call:
        call = describe(client, path, body, **options)
        headers = plugins.Body(f"x-acme-key: {client._key}".encode())
        request = {"headers": headers} if path == "/book" else None
        return plugins.Call(call.kind, call.target, call.args, call.mode, request)


class IdentifiesByClient(Hand):
    """A fresh value in every call makes it another one."""

    caught_by = ("test_equal_calls_are_told_apart_by_their_number",)

    def describe(self, client: Any, *args: Any, **kwargs: Any) -> plugins.Call:
        call = describe(client, *args, **kwargs)
        return plugins.Call(
            call.kind, call.target, {"body": call.args, "client": id(object()), "of": id(client)}, call.mode
        )


class RaisesAnotherFailure(Hand):
    caught_by = ("test_a_failure_is_raised_as_it_was",)

    def failure(self, error: Exception) -> dict[str, Any]:
        return super().failure(RuntimeError(str(error)))


class BlamesNobody(Hand):
    caught_by = ("test_a_failure_that_ended_the_run_is_tried_again",)

    def blamed(self, error: Exception) -> Exception | None:
        return None


class BlamesNobodyLater(Hand):
    caught_by = ("test_a_failure_that_ends_the_run_only_when_it_is_returned_is_tried_again",)

    def replayed(self, ticket: plugins.Ticket, error: BaseException | None) -> None:
        ticket.replayed()


class ForgetsTheCancelled(Hand):
    caught_by = ("test_a_call_that_was_given_up_is_recorded_as_that",)

    def cancelled(self, ticket: plugins.Ticket) -> None:
        pass


class ChangesRequestsOutsideRuns(Hand):
    caught_by = ("test_outside_a_run_the_same_request_is_sent_and_nothing_is_recorded",)

    def options(self, ticket: plugins.Ticket | None, options: dict[str, Any]) -> dict[str, Any]:
        return {**options, "idempotency_key": "always"}


class AsksNobodyOutsideRuns(Hand):
    caught_by = ("test_outside_a_run_strict_mode_refuses",)

    def begin(self, call: plugins.Call) -> plugins.Ticket | None:
        return plugins.begin(call) if plugins.active() else None

    async def begin_async(self, call: plugins.Call) -> plugins.Ticket | None:
        return await plugins.begin_async(call) if plugins.active() else None


class SwallowsInterrupts(Hand):
    caught_by = ("test_a_halted_run_makes_no_call",)

    def begin(self, call: plugins.Call) -> plugins.Ticket | None:
        try:
            return plugins.begin(call)
        except errors.Interrupt:
            return None

    async def begin_async(self, call: plugins.Call) -> plugins.Ticket | None:
        try:
            return await plugins.begin_async(call)
        except errors.Interrupt:
            return None


class ImportsTheSdk(Hand):
    caught_by = ("test_installing_does_not_import_the_sdk",)

    def install(self) -> None:
        import acme

        assert acme
        super().install()


class PatchesAgain(Hand):
    caught_by = ("test_patches_go_in_once_and_come_out",)

    def install(self) -> None:
        self.patches = plugins.Patches()
        self.patches.install({"acme": self.patch_again})

    def patch_again(self, acme: ModuleType) -> None:
        acme.Client._call = functools.wraps(acme.Client._call)(self.sync(acme.Client._call, _On()))


class StaysIn(Hand):
    caught_by = ("test_patches_go_in_once_and_come_out",)

    def uninstall(self) -> None:
        for patch in self.patches:
            patch.on = False


class _On:
    on = True


class HidesTheSignature(Hand):
    caught_by = ("test_a_patched_method_looks_like_the_original",)

    def patch(self, acme: ModuleType) -> None:
        super().patch(acme)
        hidden = self.sync(acme.Client._call.__wrapped__, _On())
        hidden.__steplog_patch__ = acme.Client._call.__steplog_patch__
        hidden.__steplog_patch__.replacement = hidden
        acme.Client._call = hidden


class IsNoCoroutineFunction(Hand):
    caught_by = ("test_a_patched_method_looks_like_the_original",)

    def task(self, original: Callable[..., Any], patch: plugins.Patch) -> Callable[..., Any]:
        made = super().task(original, patch)

        def call(*args: Any, **kwargs: Any) -> Any:
            return made(*args, **kwargs)

        assert not inspect.iscoroutinefunction(call)
        return call


class GoesOnWhenBuried(Hand):
    caught_by = ("test_a_patch_that_another_tool_has_buried_falls_silent",)

    def is_on(self, patch: plugins.Patch) -> bool:
        return True


class CallsEverythingSafe(Hand):
    caught_by = ("test_a_crash_before_the_answer_repeats_only_what_may_be_repeated",)

    def describe(self, *args: Any, **kwargs: Any) -> plugins.Call:
        call = describe(*args, **kwargs)
        return plugins.Call(call.kind, call.target, call.args, "safe")


class SendsNoKey(Hand):
    caught_by = ("test_a_crash_before_the_answer_repeats_only_what_may_be_repeated",)

    def options(self, ticket: plugins.Ticket | None, options: dict[str, Any]) -> dict[str, Any]:
        return options


class SubmitsAfterwards(Hand):
    """The intent is written when the effect has happened."""

    caught_by = ("test_a_crash_before_the_answer_repeats_only_what_may_be_repeated",)

    def sync(self, original: Callable[..., Any], patch: plugins.Patch) -> Callable[..., Any]:
        def call(client: Any, path: str, body: Any, **options: Any) -> Any:
            answer = original(client, path, body, **options)
            ticket = plugins.begin(describe(client, path, body))
            if ticket is not None:
                ticket.finish("done", {"result": answer})
            return answer

        return call


class MixesThreadsUp(Hand):
    caught_by = ("test_each_thread_gets_the_answer_to_its_own_request",)

    def __init__(self) -> None:
        super().__init__()
        self.all_there = threading.Barrier(6, timeout=20)
        self.answer: Any = None

    def sync(self, original: Callable[..., Any], patch: plugins.Patch) -> Callable[..., Any]:
        made = super().sync(original, patch)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.answer = made(*args, **kwargs)
            self.all_there.wait()
            return self.answer

        return call


class MixesTasksUp(Hand):
    caught_by = ("test_each_task_gets_the_answer_to_its_own_request",)

    def task(self, original: Callable[..., Any], patch: plugins.Patch) -> Callable[..., Any]:
        made = super().task(original, patch)
        first: list[Any] = []

        async def call(*args: Any, **kwargs: Any) -> Any:
            first.append(await made(*args, **kwargs))
            return first[0]

        return call


class KeepsTheCredential(Hand):
    caught_by = ("test_the_credential_is_sent_and_not_kept",)

    def describe(self, client: Any, *args: Any, **kwargs: Any) -> plugins.Call:
        call = describe(client, *args, **kwargs)
        headers = plugins.Body(f"x-acme-key: {client._key}".encode())
        return plugins.Call(call.kind, call.target, call.args, call.mode, {"body": call.args, "headers": headers})


class KeepsTheCredentialOfFailures(Hand):
    caught_by = ("test_the_credential_is_sent_and_not_kept",)

    def sync(self, original: Callable[..., Any], patch: plugins.Patch) -> Callable[..., Any]:
        def call(client: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(client, *args, **kwargs)
            except Exception as error:
                error.client = vars(client)["_key"]
                raise

        return super().sync(call, patch)


class ReadsAhead(Hand):
    caught_by = ("test_an_item_is_handed_on_before_the_next_is_sent",)

    def lines(self) -> Any:
        recording = super().lines()

        def wrap(original: Callable[..., Any], patch: plugins.Patch) -> Callable[..., Any]:
            if inspect.isasyncgenfunction(original):

                async def all_async(*args: Any) -> Any:
                    for line in [line async for line in original(*args)]:
                        yield line

                return recording(all_async, patch)

            def all_(*args: Any) -> Any:
                yield from list(original(*args))

            return recording(all_, patch)

        return wrap


class RecordsNoStream(Hand):
    caught_by = ("test_a_stream_is_returned_item_by_item",)

    def lines(self) -> Any:
        return lambda original, _patch: functools.partialmethod(original).func


class ReadsOnAfterTheReaderLeft(Hand):
    caught_by = ("test_a_stream_that_was_left_gives_what_it_gave_and_no_more",)

    def lines(self) -> Any:
        recording = super().lines()

        def wrap(original: Callable[..., Any], patch: plugins.Patch) -> Callable[..., Any]:
            made = recording(original, patch)
            if inspect.isasyncgenfunction(original):
                return made

            def drained(*args: Any) -> Any:
                lines = made(*args)
                try:
                    yield from _unclosed(lines)
                finally:
                    list(lines)

            return drained

        return wrap


def _unclosed(lines: Any) -> Any:
    yield from (line for line in lines)


class TakesABrokenStreamForAWholeOne(Hand):
    caught_by = ("test_a_stream_that_broke_breaks_again_at_the_same_place",)

    def lines(self) -> Any:
        recording = super().lines()

        def wrap(original: Callable[..., Any], patch: plugins.Patch) -> Callable[..., Any]:
            made = recording(original, patch)
            if inspect.isasyncgenfunction(original):
                return made

            def ended(*args: Any) -> Any:
                yield from made(*args)
                yield "END"

            return ended

        return wrap


SOUND = Hand()

FAULTS = [
    kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, Hand) and kind.caught_by
]

# An entry point names an object.
for fault in FAULTS:
    globals()[fault.__name__ + "_"] = fault()
