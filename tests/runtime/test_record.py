"""`plugins.record`, `recording` and `recording_items`: what they take off the author of an interceptor."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

import steplog
from steplog import plugins
from steplog._runtime.resolve import resolve
from steplog.errors import (
    DriftDetected,
    EncodeError,
    Indeterminate,
    InvalidArgument,
    NotInRun,
    RunStopped,
    StepFailed,
    Unreplayable,
)
from steplog.plugins import Call
from steplog.stores.files import FileStore


@dataclass
class Answer:
    text: str


class Sdk:
    """Somebody's SDK, which counts what it sends."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def ask(self, text: str, *, key: str | None = None) -> Answer:
        self.sent.append((text, key))
        return Answer(text)

    async def ask_async(self, text: str, *, key: str | None = None) -> Answer:
        return self.ask(text, key=key)

    def lines(self, text: str) -> Any:
        self.sent.append(text)
        yield from text

    async def lines_async(self, text: str) -> Any:
        for letter in self.lines(text):
            yield letter

    def opened(self, text: str) -> Any:
        return iter(list(self.lines(text)))

    async def opened_async(self, text: str) -> Any:
        return self.lines_async(text)

    def later(self, text: str) -> Any:
        return self.ask_async(text)


def describe(_sdk: Sdk, text: str, **_options: Any) -> Call:
    return Call("tool_call", "ask", {"text": text}, "safe")


@pytest.fixture
def patch() -> Any:
    """Replace a method of the SDK."""
    patches = plugins.Patches()

    def apply(name: str, wrapper: plugins.Wrapper) -> Sdk:
        patches.apply(Sdk, name, wrapper)
        return Sdk()

    yield apply
    patches.uninstall()


def twice(program: Callable[[], Any]) -> Any:
    """Record a run and return it, each in its turn."""
    results = []
    for _ in range(2):
        with steplog.run("r"):
            results.append(program())
    assert results[0] == results[1]
    return results[0]


# what is described ---------------------------------------------------------------------------------------------------


def test_a_call_that_is_not_described_passes(patch, state_of):
    sdk = patch("ask", plugins.recording(lambda *_args, **_options: None))
    assert twice(lambda: sdk.ask("one")) == Answer("one")
    assert len(sdk.sent) == 2
    assert state_of("r").steps == {}


def test_a_description_that_fails_stops_the_call_only_where_it_would_be_recorded(patch):
    def broken(*_args: Any, **_options: Any) -> Call:
        raise LookupError("a fault of the interceptor")

    sdk = patch("ask", plugins.recording(broken))
    assert sdk.ask("one") == Answer("one")
    with pytest.raises(LookupError), steplog.run("r"):
        sdk.ask("two")
    steplog.install(strict=True, interceptors=[])
    with pytest.raises(LookupError):
        sdk.ask("three")
    assert [text for text, _ in sdk.sent] == ["one"]


def test_wrong_arguments_are_the_sdks_own_complaint(patch):
    sdk = patch("ask", plugins.recording(describe))
    with pytest.raises(TypeError, match=r"Sdk.ask\(\) got an unexpected keyword argument 'txt'"), steplog.run("r"):
        sdk.ask(txt="one")


@pytest.mark.parametrize(
    "wrong", [Call("chat", "ask", {}), Call("llm_call", "ask", {}, "Safe"), Call("local", "a", {}, "verify")]
)
def test_a_kind_or_mode_that_does_not_exist_is_refused_before_anything_happens(wrong, patch):
    sdk = patch("ask", plugins.recording(lambda *_args, **_options: wrong))
    with pytest.raises(InvalidArgument, match=r"kind|mode"), steplog.run("r"):
        sdk.ask("one")
    assert sdk.sent == []


# keys ----------------------------------------------------------------------------------------------------------------


def keyed(_sdk: Sdk, text: str, **_options: Any) -> Call:
    return Call("tool_call", "ask", {"text": text}, "keyed")


def test_the_steps_key_is_passed_on_unless_the_caller_has_one(patch, state_of):
    sdk = patch("ask", plugins.recording(keyed, key="key"))
    with steplog.run("r"):
        sdk.ask("one")
        sdk.ask("two", key="mine")
    sdk.ask("three")
    first = next(iter(state_of("r").steps))
    assert sdk.sent == [("one", f"r:{first}"), ("two", "mine"), ("three", None)]


def test_mode_keyed_without_a_way_to_pass_the_key_on_is_refused(patch):
    sdk = patch("ask", plugins.recording(keyed))
    with pytest.raises(InvalidArgument, match="recording\\(describe, key="), steplog.run("r"):
        sdk.ask("one")
    assert sdk.sent == []


# results -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        {"when": datetime(2026, 1, 2, tzinfo=UTC)},
        (b"x", {1}),
        2**70,
        Answer("a"),
        {1: 2},
        float("nan"),
        {"$steplog": "x"},
    ],
    ids=repr,
)
def test_arguments_are_any_value_that_can_be_recorded(args):
    sent = []

    def program() -> list[str]:
        return [
            plugins.record(Call("tool_call", "m", each), lambda _ticket: sent.append(1) or "x") for each in (args, 0)
        ]

    assert twice(program) == ["x", "x"]
    assert len(sent) == 2


def test_arguments_that_cannot_be_recorded_stop_the_call():
    with pytest.raises(EncodeError, match=r"args\['socket'\]|args.socket"), steplog.run("r"):
        plugins.record(Call("tool_call", "m", {"socket": object()}), lambda _ticket: pytest.fail("it was made"))


def test_a_function_of_a_module_can_be_patched(monkeypatch):
    module = types.ModuleType("acme_functions")
    module.search = lambda text: [text]
    patches = plugins.Patches()
    patches.apply(module, "search", plugins.recording(lambda text: Call("tool_call", "search", text, "safe")))
    assert [patch.place for patch in patches] == ["acme_functions.search"]
    assert twice(lambda: module.search("one")) == ["one"]
    with pytest.raises(AttributeError, match="acme_functions has no method post"):
        patches.apply(module, "post", plugins.recording(lambda: None))
    patches.uninstall()
    assert not hasattr(module.search, "__wrapped__")


@pytest.mark.parametrize("name", ["later", "opened"])
def test_a_plain_method_whose_result_is_still_to_come_is_refused_in_a_run_alone(name, patch):
    sdk = patch(name, plugins.recording(describe))
    outside = getattr(sdk, name)("one")
    if inspect.iscoroutine(outside):
        outside.close()
    with pytest.raises(InvalidArgument, match="before it is seen"), steplog.run("r"):
        getattr(sdk, name)("two")


def test_a_result_that_cannot_be_recorded_halts_the_run_and_is_not_made_again():
    made = []

    def effect(_ticket: Any) -> Any:
        made.append(1)
        return object()

    for _ in range(2):
        with pytest.raises(RunStopped) as stopped, steplog.run("r"):
            plugins.record(Call("tool_call", "odd", {}), effect)
        assert isinstance(stopped.value.__cause__, Unreplayable)
    assert made == [1]


def test_what_an_effect_does_inside_belongs_to_its_step(state_of):
    inner = []

    def effect(_ticket: Any) -> str:
        return steplog.step("inner", lambda: inner.append(1) or "x") + "y"

    def program() -> list[str]:
        return [plugins.record(Call("tool_call", "outer", {}), effect), steplog.step("after", lambda: "z")]

    assert twice(program) == ["xy", "z"]
    assert inner == [1]
    outer, within, _ = state_of("r").steps.values()
    assert within.scope == outer.id


def test_the_effect_is_told_its_attempt():
    attempts = []

    def effect(ticket: plugins.Ticket | None) -> str:
        attempts.append(None if ticket is None else ticket.attempt)
        if len(attempts) == 1:
            raise OSError("try again")
        return "done"

    call = Call("tool_call", "flaky", {})
    with pytest.raises(OSError, match="try again"), steplog.run("r"):
        plugins.record(call, effect)
    with steplog.run("r"):
        assert plugins.record(call, effect) == "done"
    plugins.record(call, effect)
    assert attempts == [1, 2, None]


def test_strict_mode_reaches_the_caller(patch):
    steplog.install(strict=True, interceptors=[])
    sdk = patch("ask", plugins.recording(describe))
    with pytest.raises(NotInRun):
        sdk.ask("one")
    assert sdk.sent == []


def in_doubt(perform: Callable[[], Any]) -> str:
    """Leave the only step of run `r` as a crash would; its id."""
    with pytest.raises(KeyboardInterrupt), steplog.run("r"):
        perform()
    with pytest.raises(RunStopped) as stopped, steplog.run("r"):
        perform()
    assert isinstance(stopped.value.__cause__, Indeterminate)
    return stopped.value.step


def interrupted(_ticket: Any) -> Any:
    raise KeyboardInterrupt


def test_an_interrupted_effect_is_in_doubt_until_somebody_settles_it(home):
    call = Call("tool_call", "pay", {"cents": 5})
    step = in_doubt(lambda: plugins.record(call, interrupted))
    resolve(FileStore(str(home)), "r", step, how="done", result={"paid": 5})
    with steplog.run("r"):
        assert plugins.record(call, interrupted) == {"paid": 5}


def test_a_step_that_somebody_settled_as_failed_raises(home):
    call = Call("tool_call", "pay", {"cents": 5})
    step = in_doubt(lambda: plugins.record(call, interrupted))
    resolve(FileStore(str(home)), "r", step, how="failed", message="the bank says no")
    with pytest.raises(StepFailed, match="the bank says no"), steplog.run("r"):
        plugins.record(call, interrupted)


# items ---------------------------------------------------------------------------------------------------------------


def spelled(_sdk: Sdk, text: str) -> Call:
    return Call("llm_call", "spell", {"text": text}, "safe")


@pytest.mark.parametrize("name", ["lines", "opened"])
def test_items_are_given_again(name, patch):
    sdk = patch(name, plugins.recording_items(spelled))
    assert inspect.isgeneratorfunction(getattr(Sdk, name)) == (name == "lines")
    assert twice(lambda: list(getattr(sdk, name)("abc"))) == ["a", "b", "c"]
    assert sdk.sent == ["abc"]


@pytest.mark.parametrize("name", ["lines_async", "opened_async"])
def test_async_items_are_given_again(name, patch):
    sdk = patch(name, plugins.recording_items(spelled))
    assert inspect.isasyncgenfunction(getattr(Sdk, name)) == (name == "lines_async")

    async def program() -> list[str]:
        async with steplog.run("r"):
            opened = getattr(sdk, name)("abc")
            return [letter async for letter in (await opened if inspect.isawaitable(opened) else opened)]

    assert asyncio.run(program()) == asyncio.run(program()) == ["a", "b", "c"]
    assert sdk.sent == ["abc"]


def test_a_generator_that_nobody_starts_asks_for_nothing(patch, state_of):
    sdk = patch("lines", plugins.recording_items(spelled))
    with steplog.run("r"):
        sdk.lines("abc")
    assert state_of("r").steps == {}


def test_a_secret_in_pieces_is_on_no_disk(tmp_path, monkeypatch):
    secret = "sk-proj-" + "a1B2c3D4" * 6

    def effect(_ticket: Any) -> Any:
        yield from ("The key: ", secret[:11], secret[11:40], secret[40:], " was made")

    call = Call("llm_call", "m", {}, "unsafe")
    with steplog.run("r"):
        assert "".join(plugins.record_items(call, effect)) == f"The key: {secret} was made"

    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"[redacted:openai-key]" in kept
    assert not any(secret[at : at + 12].encode() in kept for at in range(len(secret) - 12))
    assert b"a1B2" not in kept
    with pytest.raises(steplog.RunStopped, match="secret"), steplog.run("r"):
        list(plugins.record_items(call, effect))


def test_an_item_is_recorded_as_it_was_handed_over():
    def effect(_ticket: Any) -> Any:
        yield {"n": 1}
        yield {"n": 2}

    def program() -> Any:
        found = []
        for item in plugins.record_items(Call("llm_call", "m", {}, "safe"), effect):
            found.append(dict(item))
            item["n"] = "changed by its reader"
        return found

    assert twice(program) == [{"n": 1}, {"n": 2}]


def outcomes(state: Any) -> list[str | None]:
    return [(step.finished or {}).get("end") for step in state.steps.values()]


def test_the_step_is_on_disk_before_its_last_item_is_seen(patch, state_of):
    sdk = patch("lines", plugins.recording_items(spelled, last=lambda letter: letter == "c"))
    with steplog.run("r"):
        for letter in sdk.lines("abc"):
            assert outcomes(state_of("r")) == ["last" if letter == "c" else None]


def test_a_reader_that_leaves_gets_no_more_than_it_had(patch, state_of):
    sdk = patch("lines", plugins.recording_items(spelled))

    def leave() -> str:
        lines = sdk.lines("abc")
        first = next(lines)
        lines.close()
        return first

    assert twice(leave) == "a"
    assert outcomes(state_of("r")) == ["closed_early"]
    with pytest.raises(RunStopped) as stopped, steplog.run("r"):
        list(sdk.lines("abc"))
    assert isinstance(stopped.value.__cause__, DriftDetected)


def test_a_reader_that_is_gone_is_noticed_at_the_next_call(patch, state_of):
    sdk = patch("opened", plugins.recording_items(spelled))
    with steplog.run("r"):
        next(sdk.opened("abc"))
        gc.collect()
        assert outcomes(state_of("r")) == [None]
        list(sdk.opened("xyz"))
        assert outcomes(state_of("r")) == ["abandoned", "exhausted"]


def test_what_is_open_when_the_run_ends_is_concluded_and_when_it_fails_is_not(patch, state_of):
    sdk = patch("opened", plugins.recording_items(spelled))
    with pytest.raises(OSError, match="elsewhere"), steplog.run("r"):
        lines = sdk.opened("abc")
        next(lines)
        raise OSError("elsewhere")
    assert outcomes(state_of("r")) == [None]
    with steplog.run("r"):
        lines = sdk.opened("abc")
        next(lines)
    assert outcomes(state_of("r")) == ["abandoned"]
    assert len(sdk.sent) == 2


@pytest.mark.parametrize("name", ["lines", "opened"])
def test_a_loop_that_the_program_breaks_off_is_concluded_when_it_goes_on(name, patch, state_of):
    sdk = patch(name, plugins.recording_items(spelled))

    def program() -> list[str]:
        found = []
        for letter in getattr(sdk, name)("abc"):
            found.append(letter)
            break
        gc.collect()
        return found + list(getattr(sdk, name)("xyz"))

    assert twice(program) == ["a", "x", "y", "z"]
    assert outcomes(state_of("r")) == ["closed_early" if name == "lines" else "abandoned", "exhausted"]
    assert sdk.sent == ["abc", "xyz"]


def test_a_stream_that_was_left_when_the_run_was_stopped_stays_open(patch, state_of):
    sdk = patch("lines", plugins.recording_items(spelled))

    def halt() -> None:
        with pytest.raises(Unreplayable):
            plugins.record(Call("tool_call", "odd", {}), lambda _ticket: object())

    with pytest.raises(RunStopped), steplog.run("r"):
        for _letter in sdk.lines("abc"):
            halt()
            break
        gc.collect()
        halt()
    assert outcomes(state_of("r"))[0] is None


def failing(_ticket: Any) -> Any:
    yield "a"
    raise OSError("the line broke")


def test_a_stream_that_fails_fails_again_after_the_same_items():
    def program() -> Any:
        found: list[str] = []
        try:
            for item in plugins.record_items(Call("llm_call", "m", {}, "safe"), failing):
                found.append(item)  # what came before the failure counts
        except OSError as error:
            return found, str(error)

    assert twice(program) == (["a"], "the line broke")


def test_a_stream_whose_failure_ended_the_run_is_read_anew(state_of):
    call = Call("llm_call", "m", {}, "safe")
    with pytest.raises(OSError, match="the line broke"), steplog.run("r"):
        list(plugins.record_items(call, failing))
    with steplog.run("r"):
        assert list(plugins.record_items(call, lambda _ticket: iter("ab"))) == ["a", "b"]
    (step,) = state_of("r").steps.values()
    assert step.attempt == 2


def test_a_stream_whose_reader_was_interrupted_is_in_doubt_until_somebody_settles_it(home, patch):
    sdk = patch("lines", plugins.recording_items(lambda _sdk, text: Call("tool_call", "spell", text)))

    def read() -> list[str]:
        found = []
        for letter in sdk.lines("abc"):
            found.append(letter)
            raise KeyboardInterrupt
        return found

    step = in_doubt(read)
    resolve(FileStore(str(home)), "r", step, how="done", result=["x", "y"])
    with steplog.run("r"):
        assert list(sdk.lines("abc")) == ["x", "y"]


def test_an_item_that_cannot_be_recorded_halts_the_run():
    with pytest.raises(RunStopped) as stopped, steplog.run("r"):
        list(plugins.record_items(Call("llm_call", "m", {}), lambda _ticket: iter([1, object()])))
    assert isinstance(stopped.value.__cause__, Unreplayable)
    assert "result[1]" in str(stopped.value.__cause__)


# patches -------------------------------------------------------------------------------------------------------------


def test_a_hook_that_raises_does_not_break_the_import(tmp_path, monkeypatch, caplog):
    (tmp_path / "a_new_module.py").write_text("HERE = 1")
    monkeypatch.syspath_prepend(tmp_path)
    patches = plugins.Patches()

    def hook(_module: Any) -> None:
        raise ValueError("a fault of the interceptor")

    patches.install({"a_new_module": hook})
    with caplog.at_level(logging.WARNING):
        import a_new_module

    patches.uninstall()
    assert a_new_module.HERE == 1
    assert "cannot record calls through the module a_new_module" in caplog.text
    assert "ValueError: a fault of the interceptor" in caplog.text
