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


# What one level of a tree may hold before the walk below leaves it to the other one. A list that holds itself twice
# doubles with every level.
_WIDEST: Final = 1 << 16

_STR: Final = frozenset({str})
_MARK: Final = _text(MARK)
_DOLLAR: Final = ord("$")


def is_plain(value: Any, above: int = 0) -> bool:
    """Whether a value is a JSON tree that every encoder writes alike but for the order of its keys.

    `above` levels of the tree that it becomes part of are taken already.

    So it needs no encoding, and orjson, told to sort, writes its canonical bytes. False is no verdict: a tree may hold
    a float or a key that only a closer look can write.
    """
    level: list[Any] = [value]
    try:
        # Level by level and not by recursion: this is a tenth of the cost of a recorded step.
        for _ in range(DEPTH - above):
            below: list[Any] = []
            for item in level:
                kind = type(item)
                if kind is dict:
                    if not (_STR.issuperset(map(type, item)) and "".join(item).isascii()) or MARK in item:
                        return False
                    below += item.values()
                elif kind is list:
                    below += item
                elif not (
                    (kind is str and item.isascii())
                    or (kind is int and -EXACT <= item <= EXACT)
                    or kind is bool
                    or item is None
                    or (kind in _PLAIN_LEAVES and _PLAIN_LEAVES[kind](item))
                ):
                    return False
            if not below:
                return True
            if len(below) > _WIDEST:
                break
            level = below
    except RuntimeError:  # another thread changes it; the walk that comes now says which part
        return False
    return False


def _is_plain_float(value: float) -> bool:
    # Where no spelling has an exponent; there `repr` and orjson agree, since both find the shortest digits.
    return 1e-4 <= value < 1e15 or -1e15 < value <= -1e-4 or value == 0.0


def is_utf8(text: str) -> bool:
    """Whether a text has no lone surrogate, which no encoder could write."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_PLAIN_LEAVES: Final[dict[type, Callable[[Any], bool]]] = {str: is_utf8, float: _is_plain_float}


# Beside the types of its parts, a tree that is plain has what orjson looks at while it writes: keys that are str, ints
# that are exact, text that is UTF-8.
_LEAVES: Final = frozenset({str, int, bool, type(None)})
_STRICT: Final = (
    orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
_SORTED: Final = _STRICT | orjson.OPT_SORT_KEYS


def plain_bytes(value: Any) -> bytes | None:
    """The canonical bytes of a value that `is_plain`, else None. Half as dear as asking first."""
    return _plain(value, _SORTED)


def plain_text(value: Any) -> bytes | None:
    """The same as JSON whose keys are in their own order, which is part of what a program gets back."""
    return _plain(value, _STRICT)


def _plain(value: Any, option: int) -> bytes | None:
    try:
        # Before its types are looked at, because this refuses what contains itself.
        text = _text(value, option=option)
        if not (_are_plain(value.values(), DEPTH - 1) if type(value) is dict else _are_plain((value,), DEPTH)):
            return None
    except (RuntimeError, orjson.JSONEncodeError):  # another thread changes it, or it is not plain
        return None
    # Text may be anything, keys may not. So it takes a closer look where one of both is not ASCII, or could be a key
    # that marks a wrapper.
    if text.isascii() and (_DOLLAR not in text or _MARK not in text):
        return text
    return text if is_plain(value) else None


def _are_plain(items: Iterable[Any], levels: int) -> bool:
    """Whether all parts of these items are of the types of a plain tree, and no deeper than so many levels."""
    if not levels:
        return not any(True for _ in items)
    for item in items:
        kind = type(item)
        if kind in _LEAVES:
            continue
        if kind is dict:
            if not _are_plain(item.values(), levels - 1):
                return False
        elif kind is list:
            if not _are_plain(item, levels - 1):
                return False
        elif kind is not float or not _is_plain_float(item):
            return False
    return True


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
        text = plain_bytes(tree)
        return _any(tree, 0) if text is None else text
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
