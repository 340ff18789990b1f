"""One spelling for every JSON tree, so that equal content has equal bytes, and so equal step ids.

The spelling is RFC 8785 (JSON Canonicalization Scheme): keys in the order of their UTF-16 code units, no white space,
UTF-8, the shortest escapes, numbers as ECMAScript writes them. It departs from the RFC where Python code can tell apart
what ECMAScript cannot, because a step must never be given the result of another one:

* a float that equals an integer keeps its point: `1.0` is not `1`, `-0.0` is not `0`;
* an int is written in plain decimal at any size, not rounded to a double.

Storage encoders differ in float spelling, key order and escapes. Strings are written by orjson, whose escapes are the
RFC's; everything else is decided here, so ids do not depend on which library wrote or read the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

import orjson

from steplog._kernel.codec_classes import MARK
from steplog._kernel.refusal import (
    DEPTH,
    INT_LIMIT,
    Refused,
    key_step,
    shortened,
    too_deep,
    too_long,
    type_name,
    with_article,
)
from steplog.errors import EncodeError

_text = orjson.dumps

# Beyond this, jq and JavaScript round; orjson reads 2**64 as a float without a word.
EXACT: Final = 2**53 - 1
"""The largest int that every JSON tool reads back as it was written."""


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is a JSON tree that every encoder writes alike but for the order of its keys.

    So it needs no encoding, and orjson, told to sort, writes its canonical bytes. False is no verdict: a tree may hold
    a float or a key that only a closer look can write.
    """
    kind = type(value)
    if kind is dict:
        return depth < DEPTH and _has_plain_members(value, depth + 1)
    if kind is list:
        return depth < DEPTH and _has_plain_items(value, depth + 1)
    is_plain_leaf = _PLAIN_LEAVES.get(kind)
    return is_plain_leaf is not None and is_plain_leaf(value)


def _has_plain_members(tree: dict[Any, Any], depth: int) -> bool:
    for key, item in tree.items():
        if type(key) is not str or not key.isascii() or key == MARK:
            return False
        kind = type(item)
        if (kind is str and item.isascii()) or (kind is int and -EXACT <= item <= EXACT):
            continue
        if not is_plain(item, depth):
            return False
    return True


def _has_plain_items(tree: list[Any], depth: int) -> bool:
    for item in tree:
        if type(item) is str and item.isascii():
            continue
        if not is_plain(item, depth):
            return False
    return True


def is_utf8(text: str) -> bool:
    """Whether a text has no lone surrogate, which no encoder could write."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_exact(value: int) -> bool:
    return -EXACT <= value <= EXACT


def _has_no_exponent(value: float) -> bool:
    # There `repr` and orjson agree, since both find the shortest digits.
    return 1e-4 <= value < 1e15 or -1e15 < value <= -1e-4 or value == 0.0


_PLAIN_LEAVES: Final[dict[type, Callable[[Any], bool]]] = {
    str: is_utf8,
    int: _is_exact,
    float: _has_no_exponent,
    bool: lambda _value: True,
    type(None): lambda _value: True,
}


def plain_bytes(tree: Any) -> bytes:
    """The canonical bytes of a tree that `is_plain`."""
    return _text(tree, option=orjson.OPT_SORT_KEYS)


def canonical(tree: Any, where: str = "value") -> bytes:
    """Return the canonical bytes of a JSON tree.

    Args:
        tree: None, bool, int, float, str, list, or dict with str keys, nested at most 100 levels deep. A tuple is
            written as a list.
        where: what to call the tree in an error.

    Raises:
        EncodeError: NaN, an infinity, a lone surrogate, an int of more than 4,300 digits, more than 100 levels, or a
            type that JSON does not have; `path` says where.
    """
    try:
        return plain_bytes(tree) if is_plain(tree) else _any(tree, 0)
    except Refused as refused:
        path = refused.path(where)
        message = f"{shortened(path)} {refused.problem}"
        raise EncodeError(message, path=path, type_name=refused.type_name) from None


def digest(tree: Any, where: str = "value") -> str:
    """Return the SHA-256 of `canonical(tree)` as 64 hex digits. Raises as `canonical` does."""
    return sha256(canonical(tree, where)).hexdigest()


def _any(tree: Any, depth: int) -> bytes:
    kind = type(tree)
    if kind is str:
        return _string(tree)
    if kind is dict:
        return _object(tree, depth)
    if kind is list or kind is tuple:
        return _array(tree, depth)
    if kind is int:
        return _integer(tree)
    if tree is None:
        return b"null"
    if kind is bool:
        return b"true" if tree else b"false"
    if kind is float:
        return _float(tree).encode()
    raise Refused(f"is {with_article(type_name(tree))}, which is not JSON. Encode the value first.", type_name(tree))


def _string(text: str) -> bytes:
    try:
        return _text(text)
    except orjson.JSONEncodeError:
        raise Refused("holds a lone surrogate, which UTF-8 cannot write. Encode the value first.", "str") from None


def _integer(value: int) -> bytes:
    if not -INT_LIMIT < value < INT_LIMIT:
        raise too_long(value)
    try:
        return b"%d" % value
    except ValueError:  # the program has lowered sys.set_int_max_str_digits
        raise too_long(value) from None


def _array(tree: list[Any] | tuple[Any, ...], depth: int) -> bytes:
    if depth >= DEPTH:
        raise too_deep(tree)
    index = 0
    items = []
    try:
        for item in tree:
            items.append(_text(item) if type(item) is str and item.isascii() else _any(item, depth + 1))
            index += 1
    except Refused as refused:
        raise refused.inside(f"[{index}]", tree) from None
    return b"[" + b",".join(items) + b"]"


def _object(tree: dict[Any, Any], depth: int) -> bytes:
    if depth >= DEPTH:
        raise too_deep(tree)
    items = []
    keys = _ordered(tree)
    key = ""
    try:
        for key in keys:
            item = tree[key]
            text = _text(item) if type(item) is str and item.isascii() else _any(item, depth + 1)
            items.append(_string(key) + b":" + text)
    except Refused as refused:
        raise refused.inside(key_step(key), tree) from None
    return b"{" + b",".join(items) + b"}"


def _ordered(tree: Mapping[Any, Any]) -> Iterable[str]:
    """Keys by UTF-16 code units. Python sorts by code point, which differs only beyond the basic plane."""
    ascii_only = True
    for key in tree:
        if type(key) is not str:
            problem = f"is a key of type {type_name(key)}; JSON keys are str. Encode the value first."
            raise Refused(problem, type_name(key)).inside(key_step(key), tree)
        ascii_only = ascii_only and key.isascii()
    return sorted(tree) if ascii_only else sorted(tree, key=_utf16)


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _float(value: float) -> str:
    """ECMAScript's Number::toString over the shortest digits that read back, which is what `repr` finds as well."""
    if value - value != 0.0:
        raise Refused("is NaN or infinite, which JSON cannot write. Encode the value first.", "float")
    text = repr(value)
    if "e" not in text:
        return text
    mantissa, _, exponent = text.partition("e")
    sign, unsigned = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa)
    digits = unsigned.replace(".", "")
    point = int(exponent) + 1
    return sign + _place(digits, point)


def _place(digits: str, point: int) -> str:
    """Put the decimal point behind the first `point` digits, within the bounds of ECMA-262, Number::toString."""
    if 0 < point <= 21:
        return digits.ljust(point, "0") + ".0"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    fraction = "." + digits[1:] if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"
