"""Recorded exceptions: raised again as the same class, and recorded whatever they carry."""

from __future__ import annotations

import json
import threading
from typing import Any

import orjson
import pytest

from steplog._kernel.codec import Classes, decode, decode_exception, encode, encode_exception
from steplog.errors import DecodeError, EncodeError, StepFailed, StoreError
from tests.kernel.strategies import Declined, failing, same


def again(error: BaseException, classes: Classes | None = None) -> BaseException:
    tree = encode_exception(error, classes or Classes())
    assert orjson.loads(orjson.dumps(tree)) == json.loads(json.dumps(tree))
    return decode_exception(orjson.loads(orjson.dumps(tree)), classes or Classes())


def raised(function: Any, *args: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:
        function(*args)
    return caught.value


ERRORS = {
    "builtin": lambda: ValueError("bad", 1, (2,)),
    "no args": RuntimeError,
    "key": lambda: raised({}.__getitem__, "k"),
    "os": lambda: raised(open, "/nonexistent/file"),
    "decode": lambda: raised(b"\xff".decode),
    "json": lambda: raised(json.loads, "{"),
    "attribute": lambda: raised(getattr, object(), "gone"),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "own": lambda: Declined("no", code=(1, 2)),
    "ours": lambda: StoreError("disk full", errno=28, path="p", run_id="r"),
    "surrogates": lambda: ValueError("\ud800"),
    **{f"made {kind}": lambda kind=kind: failing(kind, {1: 2}) for kind in range(6)},
}


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)
def test_comes_back_as_the_same_error(make):
    error = make()
    back = again(error)
    assert same(back, error)
    assert repr(back) == repr(error)
    assert "lost" not in encode_exception(error)


def test_attributes_of_the_system_come_back():
    back = again(raised(open, "/nonexistent/file"))
    assert isinstance(back, FileNotFoundError)
    assert (back.errno, back.filename) == (2, "/nonexistent/file")


def test_causes_and_notes_come_back():
    error = ValueError("outer")
    error.__cause__ = Declined("inner", code=1)
    error.__cause__.__context__ = KeyError("innermost")
    error.add_note("while refunding")
    back = again(error)
    assert same(back, error)
    assert back.__suppress_context__
    assert isinstance(back.__cause__.__context__, KeyError)


def test_a_hidden_context_stays_hidden():
    error = ValueError("outer")
    error.__context__ = KeyError("k")
    error.__suppress_context__ = True
    back = again(error)
    assert back.__suppress_context__
    assert back.__context__ is None


def test_a_group_comes_back_with_its_errors():
    group = ExceptionGroup("several", [ValueError(1), ExceptionGroup("inner", [Declined("no", code=2)])])
    back = again(group)
    assert type(back) is ExceptionGroup
    assert back.message == "several"
    assert same(back.exceptions[0], group.exceptions[0])
    assert same(back.exceptions[1].exceptions[0], group.exceptions[1].exceptions[0])


def test_what_cannot_be_recorded_is_dropped_and_named():
    lock = threading.Lock()
    error = Declined("no", code=lock)
    error.args = ("no", lock)
    error.response = lock
    error.status = 429
    error.__cause__ = ValueError(lock)
    tree = encode_exception(error)
    assert sorted(tree["lost"]) == ["args[1]", "code", "response"]
    assert tree["cause"]["lost"] == ["args[0]"]
    back = again(error)
    assert type(back) is Declined
    assert back.status == 429
    assert not hasattr(back, "response")
    # The model or a log may have read the message, so it must read the same on replay.
    assert (str(back), repr(back)) == (str(error), repr(error))
    assert str(back.__cause__) == str(error.__cause__)
    assert same(str(again(back)), str(error))


def test_a_class_that_cannot_be_found_becomes_step_failed():
    class Local(Exception):
        pass

    error = Local("declined")
    tree = encode_exception(error)
    assert tree["unfindable"]
    back = decode_exception(tree)
    assert type(back) is StepFailed
    assert (str(back), back.type_name) == ("declined", f"{__name__}:{Local.__qualname__}")
    assert type(again(error, Classes.of(Local))) is Local


def test_a_class_that_is_gone_on_replay_becomes_step_failed():
    tree = encode_exception(ValueError("bad"))
    back = decode_exception({**tree, "class": "gone.module:Declined"})
    assert type(back) is StepFailed
    assert (str(back), back.type_name) == ("bad", "gone.module:Declined")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unreadable(Exception):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no attributes")


def looped() -> BaseException:
    first, second = ValueError(1), ValueError(2)
    first.__cause__, second.__cause__ = second, first
    first.self = first
    return first


def chained(levels: int) -> BaseException:
    error: BaseException = ValueError(0)
    for level in range(levels):
        outer = ValueError(level)
        outer.__cause__ = error
        error = outer
    return error


HARD = {
    "unprintable": Unprintable("x"),
    "unreadable": Unreadable("x"),
    "looped": looped(),
    "long chain": chained(500),
    "deep": ValueError(json.loads("[" * 200 + "]" * 200)),
    "long int": ValueError(10**5000),
}


@pytest.mark.parametrize("error", HARD.values(), ids=HARD)
def test_never_refuses(error):
    tree = encode_exception(error)
    assert orjson.loads(orjson.dumps(tree)) == tree
    assert isinstance(decode_exception(tree), (type(error), StepFailed))
    text = json.dumps(tree)
    assert '"lost"' in text or "cannot be printed" in text


def test_as_part_of_a_value_nothing_is_dropped_in_silence():
    error = ValueError("bad", threading.Lock())
    with pytest.raises(EncodeError) as caught:
        encode({"outcome": [error]})
    assert caught.value.path == "result.outcome[0].args[1]"
    looped_error = looped()
    with pytest.raises(EncodeError, match="leads back to itself"):
        encode(looped_error)


def test_as_part_of_a_value_a_missing_class_is_an_error():
    tree = {**encode_exception(ValueError("bad")), "class": "gone.module:Declined"}
    with pytest.raises(DecodeError, match=r"import gone\.module"):
        decode([tree])


def test_what_is_no_exception_is_not_raised():
    with pytest.raises(DecodeError, match="not as an exception"):
        decode_exception({"a": 1})
