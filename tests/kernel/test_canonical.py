"""One spelling for every JSON tree: RFC 8785, with the two departures that `canonical` documents."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._kernel.canonical import _any, canonical, digest, is_plain, plain_bytes
from steplog._kernel.codec import encode
from steplog.errors import EncodeError
from tests.kernel.strategies import JSON, VALUES

# RFC 8785, appendix B. A value that is an integer is written there without a point; here it keeps one.
RFC_NUMBERS = {
    "0000000000000000": "0.0",
    "8000000000000000": "-0.0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992.0",
    "c340000000000000": "-9007199254740992.0",
    "4430000000000000": "295147905179352830000.0",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000.0",
    "444b1ae4d6e2ef4f": "999999999999999900000.0",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize("bits,text", RFC_NUMBERS.items())
def test_writes_floats_as_the_rfc_lists_them(bits, text):
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value) == text.encode()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_reads_back_as_the_same_float(value):
    back = json.loads(canonical(value))
    assert type(back) is float
    assert struct.pack(">d", back) == struct.pack(">d", value)


@given(st.integers() | st.sampled_from([2**53, 2**64, 10**4299, -(10**4299)]))
def test_an_int_is_plain_decimal_at_any_size(value):
    assert canonical(value) == str(value).encode()


def test_an_int_and_the_float_that_equals_it_differ():
    assert len({canonical(value) for value in (1, 1.0, True, "1", 0, 0.0, -0.0)}) == 7


def test_orders_keys_by_utf16_code_units():
    # The example of RFC 8785, section 3.2.3; by code point the last two would change places.
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    ordered = json.loads(canonical(dict.fromkeys(keys, 0)), object_pairs_hook=lambda pairs: [key for key, _ in pairs])
    assert ordered == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_writes_strings_as_the_rfc_does():
    text = '\u20ac$\u000f\nA\'B"\\\\"/\x7f\u2028\b\t\f\r\x00'
    expected = '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/\x7f\u2028\\b\\t\\f\\r\\u0000"'
    assert canonical(text) == expected.encode()


def test_is_compact_and_writes_a_tuple_as_a_list():
    assert canonical({"b": [None, True, False], "a": (), "": {}}) == b'{"":{},"a":[],"b":[null,true,false]}'


@given(JSON)
def test_has_equal_bytes_whichever_encoder_stored_the_tree(tree):
    expected = canonical(tree)
    stored = [
        json.loads(json.dumps(tree)),
        json.loads(json.dumps(tree, ensure_ascii=False, indent=1)),
        orjson.loads(orjson.dumps(tree)),
        json.loads(orjson.dumps(tree, option=orjson.OPT_SORT_KEYS)),
        json.loads(expected),
    ]
    assert [canonical(other) for other in stored] == [expected] * len(stored)
    assert digest(tree) == hashlib.sha256(expected).hexdigest()


FEW = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 0.0, -0.0, 1.0, "", "a", "0", "null"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["", "a", "b"]), inner, max_size=2),
    max_leaves=4,
)


def _typed(tree: Any) -> Any:
    """A form in which `==` means the same content and types, whatever the order of keys."""
    if isinstance(tree, dict):
        return "dict", {key: _typed(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return "list", [_typed(item) for item in tree]
    return type(tree).__name__, repr(tree)


@given(FEW, FEW)
def test_bytes_are_equal_exactly_where_content_is(a, b):
    assert (canonical(a) == canonical(b)) == (_typed(a) == _typed(b))


BAD = {
    "nan": ({"a": [math.nan]}, "value.a[0]", "float"),
    "infinity": ([-math.inf], "value[0]", "float"),
    "surrogate": ({"a b": ["x", "\ud800"]}, "value['a b'][1]", "str"),
    "surrogate key": ({"a": {"\udfff": 1}}, "value.a['\\udfff']", "str"),
    "int key": ({"a": {1: 2}}, "value.a[1]", "int"),
    "long int": ({"n": 10**4300}, "value.n", "int"),
    "bytes": ({"a": b""}, "value.a", "bytes"),
    "subclass": ([type("Text", (str,), {"__module__": "app"})("x")], "value[0]", "app.Text"),
}


@pytest.mark.parametrize("tree,path,type_name", BAD.values(), ids=BAD)
def test_refuses_what_json_cannot_say(tree, path, type_name):
    with pytest.raises(EncodeError) as caught:
        canonical(tree)
    assert (caught.value.path, caught.value.type_name) == (path, type_name)
    assert str(caught.value).startswith(path)


def nested(levels: int, kind: type) -> Any:
    tree: Any = kind()
    for _ in range(levels - 1):
        tree = [tree] if kind is list else {"k": tree}
    return tree


@pytest.mark.parametrize("kind", [list, dict])
def test_holds_a_hundred_levels_and_refuses_more(kind):
    for levels in (99, 100):
        assert json.loads(canonical(nested(levels, kind))) == nested(levels, kind)
    for levels in (101, 100_000):
        with pytest.raises(EncodeError, match="deeper than 100 levels") as caught:
            canonical(nested(levels, kind))
        assert caught.value.path == "value" + {list: "[0]", dict: ".k"}[kind] * 100
        assert len(str(caught.value)) < 400


def test_names_the_tree_as_it_is_told():
    with pytest.raises(EncodeError, match=r"^args\.x is NaN"):
        digest({"x": math.nan}, "args")


# the short way -------------------------------------------------------------------------------------------------------


@given(JSON | st.floats() | st.dictionaries(st.text(), st.floats() | st.integers()))
def test_the_short_way_writes_what_the_walk_writes(tree):
    """Most trees are written by orjson with sorted keys; ids must not depend on which way a tree took."""
    if is_plain(tree):
        assert canonical(tree) == _any(tree, 0)
        assert encode(tree) is tree


@given(JSON | VALUES | st.dictionaries(st.sampled_from(["a", "é", "$steplog", "$"]), JSON | st.just("$steplog")))
def test_what_is_written_at_once_is_what_is_plain(value):
    written = plain_bytes(value)
    assert (written is not None) == is_plain(value)
    if written is not None:
        assert written == _any(value, 0)


@pytest.mark.parametrize(
    "tree",
    [1e-5, 1e15, math.nan, 2**53, {"\u00fc": 1}, {"$steplog": 1}, ("a",), "\ud800", {"a": ["\ud800"]}, {1: 2}, b""],
)
def test_what_the_short_way_might_write_otherwise_takes_the_walk(tree):
    assert not is_plain(tree)
    assert not is_plain([tree])
    assert not is_plain({"a": tree})
    assert plain_bytes(tree) is plain_bytes([tree]) is plain_bytes({"a": tree}) is None


def test_a_tree_that_is_too_deep_takes_the_walk():
    tree: list[Any] = []
    for _ in range(100):
        tree = [tree]
    assert not is_plain(tree)
    assert is_plain(tree[0])
    assert plain_bytes(tree) is None
    assert plain_bytes(tree[0]) == canonical(tree[0])
