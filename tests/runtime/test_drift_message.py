"""What a drift says: where, what it looks like, what to write instead, and never more than 25 lines."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

import steplog
from steplog import plugins

HUGE = "the quick brown fox jumps over the lazy dog\n" * 40_000


@steplog.step(mode="safe")
def ask(text: Any) -> str:
    return "answered"


@steplog.step(mode="safe")
def look(order: str) -> dict[str, str]:
    return {"order": order, "total": "41,200 EUR"}


def chat(messages: list[dict[str, Any]]) -> str:
    """A model call as an interceptor submits one."""
    body = json.dumps({"model": "gpt-x", "messages": messages}).encode()
    request = {"method": "POST", "path": "/v1/chat/completions", "body": plugins.Body(body)}
    call = plugins.Call("llm_call", "gpt-x", {"body": json.loads(body)}, "safe", request)
    return plugins.record(call, lambda _ticket: "answered")


def drift(recorded: Callable[[], Any], now: Callable[[], Any]) -> steplog.DriftDetected:
    with steplog.run("r"):
        recorded()
    with pytest.raises(steplog.RunStopped) as stopped, steplog.replay("r"), steplog.run("r"):
        now()
    found = stopped.value.__cause__
    assert isinstance(found, steplog.DriftDetected)
    lines = str(found).splitlines()
    assert len(lines) <= 25, found
    assert max(map(len, lines)) < 300, found
    return found


def fresh(make: Callable[[], str], around: str = "It is {} here.") -> tuple[Callable[[], Any], Callable[[], Any]]:
    one, other = make(), make()
    assert one != other
    return lambda: ask(around.format(one)), lambda: ask(around.format(other))


MOMENTS = iter(range(10**6))


def moment(form: str) -> Callable[[], str]:
    return lambda: time.strftime(form, time.gmtime(1.7e9 + 100_000 * next(MOMENTS)))


@pytest.mark.parametrize(
    "source, make",
    [
        pytest.param("uuid", lambda: str(uuid.uuid4()), id="uuid"),
        pytest.param("uuid", lambda: uuid.uuid4().hex, id="uuid without dashes"),
        pytest.param("clock", moment("%Y-%m-%d"), id="date"),
        pytest.param("clock", moment("%Y-%m-%dT%H:%M:%S"), id="moment"),
        pytest.param("clock", moment("%d %B %Y"), id="date in words"),
        pytest.param("clock", lambda: str(1.7e9 + next(MOMENTS)), id="seconds"),
        pytest.param("random", lambda: str(random.random()), id="fraction"),
        pytest.param("random", lambda: f"{random.getrandbits(64):016x}", id="token"),
        pytest.param("address", lambda: f"<Client object at {hex(2**40 + 16 * next(MOMENTS))}>", id="address"),
        pytest.param("path", lambda: f"/tmp/tmp{random.getrandbits(40):08x}"[:16] + "/x", id="path"),
    ],
)
@pytest.mark.parametrize("around", ["It is {} here.", HUGE + " {} " + HUGE], ids=["short", "huge"])
def test_the_source_is_named_with_the_line_that_mends_it(source, make, around):
    found = drift(*fresh(make, around))

    assert found.source == source
    assert f"({source}). Record it, or keep it out:" in str(found)


@pytest.mark.parametrize(
    "recorded, now",
    [
        (json.dumps({"a": 1, "b": 2}), json.dumps({"b": 2, "a": 1})),
        (["tea", "cup", "pot"], ["pot", "tea", "cup"]),
        ({"tags": [{"n": 1}, {"n": 2}]}, {"tags": [{"n": 2}, {"n": 1}]}),
    ],
    ids=["dict in a text", "list", "list inside"],
)
def test_another_order_is_told_as_such(recorded, now):
    found = drift(lambda: ask(recorded), lambda: ask(now))

    assert found.source == "order"
    assert "sorted(...)" in str(found)


@pytest.mark.parametrize(
    "recorded, now",
    [("Pay the bill.", "Send the bill."), (1, 2), ("short", "a longer text"), ({"a": 1}, {"b": 1}), (None, "x")],
    ids=["words", "numbers", "length", "fields", "nothing"],
)
def test_what_does_not_look_like_anything_is_not_given_a_source(recorded, now):
    assert drift(lambda: ask(recorded), lambda: ask(now)).source is None


def test_the_line_of_the_program_is_named():
    def plan() -> None:
        ask("two")

    found = drift(lambda: ask("one"), plan)

    assert found.site.startswith("tests/runtime/test_drift_message.py:")
    assert found.site.endswith("plan")
    assert found.site in str(found)


def conversation(turns: int, **changed: str) -> list[dict[str, Any]]:
    messages = [{"role": "user" if n % 2 else "assistant", "content": f"turn {n} " + "x" * 6_000} for n in range(turns)]
    for number, text in changed.items():
        messages[int(number[1:])]["content"] = text
    return messages


def test_a_conversation_is_told_message_by_message():
    before = conversation(300)
    now = conversation(300, n200="turn 200 " + "x" * 3_000 + "y" + "x" * 2_999)
    del now[100]

    found = drift(lambda: chat(before), lambda: chat(now))

    text = str(found)
    assert "message 101 of 300 (assistant, 6,009 characters): left out" in text
    assert "message 200 of 299 (assistant, 6,009 characters): changed, recorded as number 201" in text
    assert "First difference, at messages[100].role" in text


def test_many_changed_messages_stay_a_few_lines():
    now = conversation(300, **{f"n{n}": f"changed {n}" for n in range(50, 250)})

    text = str(drift(lambda: chat(conversation(300)), lambda: chat(now)))

    assert "and 197 more messages" in text


def test_what_a_tool_has_answered_is_told_as_such():
    def asked(total: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "?"}, {"role": "tool", "tool_call_id": "c", "content": f"total {total}"}]

    text = str(drift(lambda: chat(asked("41,200 EUR")), lambda: chat(asked("41,900 EUR"))))

    assert "messages[1].content" in text
    assert "what a tool has answered" in text
    assert "@steplog.step" in text


def test_the_nearest_of_several_recorded_steps_is_compared():
    def recorded() -> None:
        # Three calls at one place: none of them follows another one.
        async def one(text: str) -> None:
            await asyncio.to_thread(ask, {"city": text, "unit": "C", "days": 3})

        async def main() -> None:
            await asyncio.gather(one("Oslo"), one("Rome"), one("Bern"))

        asyncio.run(main())

    found = drift(recorded, lambda: ask({"city": "Rome", "unit": "F", "days": 3}))

    assert (found.field, found.recorded, found.found) == ("text.unit", "C", "F")
    assert "It is the nearest: 1 difference(s) in it" in str(found)


def test_the_step_that_a_recorded_value_came_from_is_named():
    def program(today: str) -> None:
        ask(f"Today is {today}.")

    found = drift(
        lambda: program(steplog.step("today", lambda: "2026-11-30")),
        lambda: (steplog.step("today", lambda: "?"), program("2026-12-01")),
    )

    assert "First cause: the recorded value is the result of #1 local today" in str(found)
    assert found.source == "clock"


def test_a_recorded_step_that_was_left_out_is_the_first_cause():
    def recorded() -> None:
        found = look("o-1")
        ask(f"Summarise {found['order']}.")
        ask("Go on.")

    def now() -> None:
        ask("Summarise o-1.")
        ask("Go on, please.")

    with steplog.run("r"):
        recorded()
    with pytest.raises(steplog.RunStopped) as stopped, steplog.run("r"):
        look("o-2")

    assert "look" in str(stopped.value)
    with pytest.raises(steplog.RunStopped) as stopped, steplog.replay("r"), steplog.run("r"):
        now()
    assert "First cause: #1 tool_call look" in str(stopped.value.__cause__)
    assert "was not asked for" in str(stopped.value.__cause__)


def test_the_answer_of_a_later_attempt_is_the_one_that_counts():
    answers = iter(["41,200", "41,900"])

    @steplog.step(mode="safe")
    def flaky(fail: bool) -> str:
        value = next(answers)
        if value == "41,200":
            raise ConnectionError(value)
        return value

    def program() -> None:
        try:
            value = flaky(fail=True)
        except ConnectionError:
            ask("It failed.")
            raise
        ask(f"It is {value}.")
        ask("And again.")

    with pytest.raises(ConnectionError), steplog.run("r"):
        program()
    with steplog.run("r"):
        program()

    with pytest.raises(steplog.RunStopped) as stopped, steplog.replay("r"), steplog.run("r"):
        assert flaky(fail=True) == "41,900"
        ask("It is 42,000.")
    found = stopped.value.__cause__
    assert "the recorded value is the result of #1 tool_call" in str(found)


@pytest.mark.parametrize("times, told", [(1, "once, and was"), (3, "3 times, and each was")])
def test_a_call_that_is_made_once_more_than_it_is_recorded_is_said_to_be_that(times, told):
    def program(count: int, last: str) -> None:
        for _ in range(count):
            chat([{"role": "user", "content": "Tell me a joke."}])
        ask(last)

    def message(count: int, last: str, live: bool) -> str:
        with pytest.raises(steplog.RunStopped) as stopped:
            if live:
                with steplog.run("r"):
                    program(count, last)
            else:
                with steplog.replay("r"), steplog.run("r"):
                    program(count, last)
        return str(stopped.value.__cause__)

    with steplog.run("r"):
        program(times, "end")

    for live in (True, False):
        assert f"An equal call is recorded {told} already played" in message(times + 1, "end", live)
        assert "An equal call" not in message(times, "another end", live)
    with pytest.raises(steplog.RunStopped) as stopped, steplog.replay("r"), steplog.run("r"):
        program(times, "end")
        ask("end")
    assert "the run was recorded to its end without it.\nAn equal call is recorded once, and" in str(
        stopped.value.__cause__
    )
