"""Values to JSON trees and back: the same value, of the same type, through any JSON encoder, or one typed refusal."""

from __future__ import annotations

import datetime as dt
import json
import pathlib
import subprocess
import sys
import zoneinfo
from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from steplog._kernel.canonical import canonical
from steplog._kernel.codec import Classes, decode, encode, holds_wrapped
from steplog.errors import EncodeError
from tests.kernel.strategies import (
    JSON,
    VALUES,
    Model,
    Order,
    Pair,
    Point,
    Receipt,
    same,
    stored,
    through,
)
from tests.support.examples import examples


@given(VALUES)
@settings(max_examples=examples(400), deadline=None)
def test_any_value_comes_back_as_it_was(value):
    tree = encode(value)
    read = stored(tree)
    assert canonical(read) == canonical(tree)
    assert same(decode(read), value)


@given(JSON)
def test_plain_json_stands_for_itself(value):
    assert encode(value) is value or same(encode(value), value)
    assert same(decode(stored(encode(value))), value)


@given(VALUES)
@settings(deadline=None)
def test_what_holds_nothing_wrapped_is_its_own_value(value):
    text = orjson.dumps(encode(value))
    if not holds_wrapped(text):
        assert same(orjson.loads(text), value)


@pytest.mark.parametrize("mark", ["$steplog", "\\u0024steplog", "$\\u0073teplog", "$steplo\\u0067"])
def test_a_wrapped_value_is_seen_however_its_mark_is_written(mark):
    text = f'{{"a":[{{"{mark}":"tuple","v":[1]}}]}}'.encode()
    assert holds_wrapped(text)
    assert decode(orjson.loads(text)) == {"a": [(1,)]}


def test_plain_json_is_not_copied_but_decoding_is_fresh():
    value = {"a": [1, "x", {"b": 0.5}]}
    assert encode(value) is value
    again = decode(value)
    assert again == value
    assert again["a"] is not value["a"]
    assert again["a"][2] is not value["a"][2]


def test_does_not_change_what_it_encodes():
    inner = [1, (2, 3)]
    value = {"a": inner, "b": {"c": b"x"}}
    encode(value)
    assert value == {"a": [1, (2, 3)], "b": {"c": b"x"}}
    assert value["a"] is inner


# Table 36 of the fault list: what JSON encoders disagree about.
ODD = {
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "-0.0": -0.0,
    "2**53-1": 2**53 - 1,
    "2**53": 2**53,
    "2**53+1": 2**53 + 1,
    "-2**53": -(2**53),
    "2**64": 2**64,
    "10**400": 10**400,
    "4,300 digits": -(10**4299),
    "lone surrogate": "a\ud800b",
    "split pair": "\ud83d\ude00",
    "nul": "\x00",
    "line separator": "\u2028\u0085",
    "bom": "\ufeff",
    "astral": "\U0001f600",
    "combining": "e\u0301",
    "keys of all kinds": {1: "int", "1": "str", None: 0, 1.5: 0, (1, 2): 0, b"k": 0, "\ud800": 0},
    "surrogate key": {"a": 1, "\ud800": 2},
    "marked dict": {"$steplog": "tuple", "v": [1]},
    "marked twice": {"$steplog": {"$steplog": 1}},
    "bytes": b"\x00\xff",
    "text bytes": b"plain",
    "offset of a microsecond": dt.time(tzinfo=dt.timezone(dt.timedelta(microseconds=1))),
    "fold": dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    "named offset": dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(0), "GMT")),
    "a million characters": "x" * 1_000_000,
}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_what_encoders_disagree_about_is_exact(value):
    tree = encode(value)
    assert same(through(value), value)
    spellings = {canonical(json.loads(json.dumps(tree))), canonical(orjson.loads(orjson.dumps(tree))), canonical(tree)}
    assert len(spellings) == 1


def test_an_int_that_other_tools_would_round_is_written_as_text():
    assert encode([2**53 - 1, -(2**53) + 1]) == [2**53 - 1, -(2**53) + 1]
    assert encode(2**53) == {"$steplog": "int", "v": "9007199254740992"}
    assert encode(-(2**53)) == {"$steplog": "int", "v": "-9007199254740992"}


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Table(dict):
    pass


REFUSED = {
    "5,000 digits": (10**5000, "result", "int"),
    "str subclass": ({"a": Text("x")}, "result.a", "tests.kernel.test_codec.Text"),
    "int subclass": ([Number(1)], "result[0]", "tests.kernel.test_codec.Number"),
    "dict subclass": ({"two words": Table()}, "result['two words']", "tests.kernel.test_codec.Table"),
    "function": ({"items": [1, 2, 3, {"call": len}]}, "result.items[3].call", "builtin_function_or_method"),
    "generator": ((n for n in "a"), "result", "generator"),
    "module": (Receipt(Pair(1, sys)), "result.order.right", "module"),
    "object": ({1: object()}, "result[1]", "object"),
    "in maps": ({1: {"$steplog": {(2,): object}}}, "result[1]['$steplog'][(2,)]", "type"),
    "file": (Model(a=1, b=sys.__stdout__), "result.b", "_io.TextIOWrapper"),
    "class": ([int], "result[0]", "type"),
}


@pytest.mark.parametrize("value,path,type_name", REFUSED.values(), ids=REFUSED)
def test_refuses_with_the_path_and_the_type(value, path, type_name):
    with pytest.raises(EncodeError) as caught:
        encode(value)
    assert (caught.value.path, caught.value.type_name) == (path, type_name)
    assert str(caught.value).startswith(path + " ")


def test_a_refusal_says_what_to_do():
    with pytest.raises(EncodeError, match=r"^args\.t .*Convert it with str\(\.\.\.\).*register_codec\(Text, to="):
        encode({"t": Text("x")}, where="args")


def nested(levels: int, wrap: Any) -> Any:
    value: Any = wrap(1)
    for _ in range(levels - 1):
        value = wrap(value)
    return value


# A wrapper counts as the levels that it adds to the tree.
WRAPS = {
    "list": (lambda inner: [inner], 1),
    "dict": (lambda inner: {"k": inner}, 1),
    "tuple": (lambda inner: (inner,), 2),
    "map": (lambda inner: {1: inner}, 3),
    "dataclass": (Receipt, 2),
    "model": (lambda inner: Model(a=inner), 2),
    "codec": (lambda inner: Point(inner, 0), 3),
}


@pytest.mark.parametrize("wrap,levels", WRAPS.values(), ids=WRAPS)
def test_holds_a_hundred_levels_and_refuses_more(wrap, levels):
    most = 100 // levels
    value = nested(most, wrap)
    tree = encode(value)
    assert canonical(orjson.loads(orjson.dumps(tree))) == canonical(tree)
    assert type(decode(tree)) is type(value)
    with pytest.raises(EncodeError, match="deeper than 100 levels"):
        encode(nested(most + 1, wrap))


def test_a_hundred_thousand_levels_are_refused_and_not_a_crash():
    with pytest.raises(EncodeError, match="deeper than 100 levels") as caught:
        encode(nested(100_000, lambda inner: [inner]))
    assert caught.value.path == "result" + "[0]" * 100


def test_a_value_that_contains_itself_is_refused_with_both_places():
    order = Order("o")
    order.items = [{"back": order}]
    with pytest.raises(EncodeError) as caught:
        encode({"orders": [order]})
    assert caught.value.path == "result.orders[0].items[0].back"
    assert str(caught.value).startswith("result.orders[0].items[0].back is result.orders[0] itself")


def test_a_shared_part_is_written_at_each_place():
    part = (1,)
    first, second = through([part, part])
    assert first == second == part


def test_a_value_that_raises_while_it_is_read_is_refused_with_the_cause():
    class Bad(Model):
        def __getstate__(self):
            raise ZeroDivisionError

    with pytest.raises(EncodeError) as caught:
        encode([Bad(a=1)], classes=Classes.of(Bad))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_sets_and_models_have_one_spelling_in_every_process():
    program = (
        "from steplog._kernel.canonical import digest; from steplog._kernel.codec import encode\n"
        "from tests.kernel.strategies import Open\n"
        "print(digest(encode([{'a', 'b', 'c', ('d', 1)}, frozenset('xyz'), Open(x=1, y=2, z=3)])))"
    )
    env = {"PYTHONPATH": "steplog_sdk:."}
    outputs = {
        subprocess.check_output(
            [sys.executable, "-c", program], env={**env, "PYTHONHASHSEED": seed}, cwd=pathlib.Path(__file__).parents[2]
        )
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


def test_bytes_that_are_text_stay_readable():
    assert encode(b"key=1") == {"$steplog": "bytes", "text": "key=1"}
    assert encode(b"\xff") == {"$steplog": "bytes", "base64": "/w=="}
