"""The contract applied to faulty interceptors, and wrongly used. Not collected by itself: most of it must fail."""

from __future__ import annotations

from typing import Any

from steplog.testing import InterceptorContract, Reply
from tests.examples.test_interceptor import TestAcme as Sound
from tests.testing import faulty


class TestHand(Sound):
    interceptor = "tests.testing.faulty:SOUND"


for fault in faulty.FAULTS:
    name = f"Test{fault.__name__}"
    attributes = {"interceptor": f"tests.testing.faulty:{fault.__name__}_", "patience": 1.0, "__module__": __name__}
    globals()[name] = type(name, (Sound,), attributes)


class Entry:
    def __init__(self, value: Any) -> None:
        self.value = value


class TestGivesWhatCannotBeCompared(Sound):
    """The results of the SDK have no `__eq__`."""

    told = ("test_equal_calls_are_told_apart_by_their_number", "of Entry cannot be compared", "`facts(self, value)`")

    def facts(self, value: Any) -> Any:
        return Entry(value)


class TestAnswersAlwaysTheSame(Sound):
    told = ("test_calls_that_ask_for_different_things_are_different_steps", "put the text of the request into")

    def answer(self, hit: Any) -> Reply:
        if hit.path == "/report":
            return Reply.lines("sun", "mild", "no rain", "END")
        return Reply.json({"reference": "r"} if hit.path == "/book" else {"city": "c", "degrees": 21.5})


class TestAnswersAlwaysTheSameToThreads(TestAnswersAlwaysTheSame):
    told = ("test_each_thread_gets_the_answer_to_its_own_request", "the call for 'one' got", "or the text is not in it")


class TestRefusesNothing(Sound):
    told = ("test_a_failure_is_raised_as_it_was", "raised nothing: let `refusal(hit)`")

    def refusal(self, hit: Any) -> Reply:
        return self.answer(hit)


class TestStreamsTooLittle(Sound):
    told = ("test_a_stream_is_returned_item_by_item", "at least three items, not 1")

    def answer(self, hit: Any) -> Reply:
        return Reply.lines("sun", "END") if hit.path == "/report" else super().answer(hit)


class TestLeavesTheCallOut(Sound):
    told = ("test_a_halted_run_makes_no_call", "define `def call(self, client, text)` in the test class")

    def call(self, client: Any, text: str) -> Any:
        return InterceptorContract.call(self, client, text)


class TestTakesABrokenStreamForAWholeOneByItself(Sound):
    """The SDK does, whatever the interceptor: its end mark counts for nothing."""

    excused = ("test_a_stream_that_broke_breaks_again_at_the_same_place", "the SDK itself, unpatched, takes a broken")

    def stream(self, client: Any, text: str) -> Any:
        return client._lines("/report", {"city": text})


class TestReadsAheadByItself(Sound):
    """The SDK gives nothing before it has all."""

    excused = ("test_an_item_is_handed_on_before_the_next_is_sent", "the SDK itself, unpatched, holds the first item")
    patience = 1.0

    def stream(self, client: Any, text: str) -> Any:
        report = client.report(text)
        return _all_async(report) if hasattr(report, "__aiter__") else _all(report)


def _all(report: Any) -> Any:
    yield from list(report)


async def _all_async(report: Any) -> Any:
    for line in [line async for line in report]:
        yield line


MISTAKES = [kind for kind in list(globals().values()) if "told" in getattr(kind, "__dict__", ())]
EXCUSED = [kind for kind in list(globals().values()) if "excused" in getattr(kind, "__dict__", ())]

del Sound
