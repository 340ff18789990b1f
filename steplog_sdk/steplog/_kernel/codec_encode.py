"""The walk from a value to its JSON tree; `codec` says what the trees look like."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from typing import Any, Final

from steplog._kernel import codec_errors, codec_objects
from steplog._kernel.canonical import EXACT, canonical, is_utf8
from steplog._kernel.codec_classes import MARK, Classes, Encoding, codec_for
from steplog._kernel.codec_errors import Lost
from steplog._kernel.codec_values import row_for
from steplog._kernel.refusal import DEPTH, INT_LIMIT, Refused, class_name, key_step, too_deep, too_long, with_article

_SURROGATES: Final = re.compile("([\ud800-\udfff])")


class Encoder:
    """One walk from a value to its tree; `depth` counts the containers above a value in that tree.

    Args:
        classes: where classes will be found again.
        lenient: whether exceptions drop what they cannot hold instead of being refused.
    """

    __slots__ = ("active", "classes", "lenient")

    def __init__(self, classes: Classes, *, lenient: bool = False) -> None:
        self.classes = classes
        self.lenient = lenient
        self.active: set[int] = set()

    def tree(self, value: Any, depth: int) -> Any:
        """The tree of `value`: itself where JSON holds it exactly. Raises `Refused`."""
        kind = type(value)
        if kind is str:
            return value if value.isascii() or is_utf8(value) else _text_to(value, depth)
        if kind is dict:
            return self._dict(value, depth)
        if kind is list:
            return self._list(value, depth)
        if value is None or kind is bool or (kind is int and -EXACT <= value <= EXACT):
            return value
        if kind is float and value - value == 0.0:  # neither NaN nor infinite
            return value
        return self._wrapped(value, kind, depth)

    def at(self, step: str, value: Any, depth: int, holder: object) -> Any:
        """As `tree`, for the part of `holder` that `step` names in an error."""
        try:
            return self.tree(value, depth)
        except Refused as refused:
            raise refused.inside(step, holder) from refused.__cause__

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if depth >= DEPTH:
            raise too_deep(value)
        changed = None
        key: Any = None
        as_map = False
        try:
            for key, item in value.items():
                if type(key) is not str or key == MARK or not (key.isascii() or is_utf8(key)):
                    as_map = True
                    break
                if type(item) is str and item.isascii():
                    continue
                tree = self.tree(item, depth + 1)
                if tree is not item:
                    changed = dict(value) if changed is None else changed
                    changed[key] = tree
        except Refused as refused:
            raise refused.inside(key_step(key), value) from refused.__cause__
        if as_map:
            return _map_to(self, value, depth)
        return value if changed is None else changed

    def _list(self, value: list[Any], depth: int) -> Any:
        if depth >= DEPTH:
            raise too_deep(value)
        changed = None
        index = 0
        try:
            for index, item in enumerate(value):
                if type(item) is str and item.isascii():
                    continue
                tree = self.tree(item, depth + 1)
                if tree is not item:
                    changed = list(value) if changed is None else changed
                    changed[index] = tree
        except Refused as refused:
            raise refused.inside(f"[{index}]", value) from refused.__cause__
        return value if changed is None else changed

    def _wrapped(self, value: Any, kind: type, depth: int) -> Any:
        found = _by_type(value, kind)
        if found is None:
            raise _no_codec(value, kind)
        to_tree, levels = found
        if depth + levels > DEPTH:
            raise too_deep(value)
        return to_tree(self, value, depth)


_ToTree = Callable[[Encoding, Any, int], dict[str, Any]]


def _by_type(value: Any, kind: type) -> tuple[_ToTree, int] | None:
    """How to write a value of this class, and the levels that its wrapper adds."""
    if codec_for(kind) is not None:
        return _custom_to, 1
    exact = _EXACT_TYPES.get(kind)
    if exact is not None:
        return exact
    if row_for(kind) is not None:
        return _row_to, 1
    if isinstance(value, BaseException):
        return codec_errors.exception_to, codec_errors.LEVELS
    return codec_objects.to_tree_for(value)


def _no_codec(value: Any, kind: type) -> Refused:
    name = class_name(kind)
    base = next((base for base in (str, int, float, bytes, list, tuple, dict, set) if isinstance(value, base)), None)
    short = kind.__qualname__.rpartition(".")[2]
    first = (
        "Use a dict or a dataclass with what is needed of it"
        if base is None
        else f"Convert it with {base.__name__}(...), if its own class does not matter"
    )
    teach = f", or teach steplog the class: steplog.register_codec({short}, to=..., of=...)."
    # A function or a generator has no class that a codec could be registered for to any use.
    return Refused(
        f"is {with_article(name)}, which steplog cannot restore. "
        f"{first}{'.' if kind.__module__ == 'builtins' else teach}",
        name,
    )


def _text_to(text: str, depth: int) -> dict[str, Any]:
    """A str with lone surrogates: runs of text, and code points in between. Stays readable, so it can be redacted."""
    if depth + 2 > DEPTH:
        raise too_deep(text)
    runs = [run for run in _SURROGATES.split(text) if run]
    return {MARK: "str", "v": [ord(run) if "\ud800" <= run[0] <= "\udfff" else run for run in runs]}


def _int_to(_enc: Encoding, value: int, _depth: int) -> dict[str, Any]:
    if not -INT_LIMIT < value < INT_LIMIT:
        raise too_long(value)
    try:
        return {MARK: "int", "v": str(value)}
    except ValueError:  # the program has lowered sys.set_int_max_str_digits
        raise too_long(value) from None


def _float_to(_enc: Encoding, value: float, _depth: int) -> dict[str, Any]:
    return {MARK: "float", "v": repr(value)}


def _bytes_to(_enc: Encoding, value: bytes | bytearray, _depth: int) -> dict[str, Any]:
    """Text where it is text: readable, and open to redaction, which cannot see through base64."""
    kind = type(value).__name__
    try:
        return {MARK: kind, "text": value.decode("utf-8")}
    except UnicodeDecodeError:
        return {MARK: kind, "base64": binascii.b2a_base64(value, newline=False).decode("ascii")}


def _tuple_to(enc: Encoding, value: tuple[Any, ...], depth: int) -> dict[str, Any]:
    return {MARK: "tuple", "v": [enc.at(f"[{index}]", item, depth + 2, value) for index, item in enumerate(value)]}


def _set_to(enc: Encoding, value: set[Any] | frozenset[Any], depth: int) -> dict[str, Any]:
    # A set's own order differs from process to process; the order of canonical bytes does not, so ids are stable.
    items = [enc.at(f"[{index}]", item, depth + 2, value) for index, item in enumerate(value)]
    return {MARK: type(value).__name__, "v": sorted(items, key=canonical)}


def _map_to(enc: Encoding, value: dict[Any, Any], depth: int) -> dict[str, Any]:
    if depth + 3 > DEPTH:
        raise too_deep(value)
    pairs = []
    for key, item in value.items():
        step = key_step(key)
        pairs.append([enc.at(step, key, depth + 3, value), enc.at(step, item, depth + 3, value)])
    return {MARK: "map", "v": pairs}


def _row_to(enc: Encoding, value: Any, depth: int) -> dict[str, Any]:
    row = row_for(type(value))
    assert row is not None
    return {MARK: row.kind, "v": enc.tree(row.to(value), depth + 1)}


def _custom_to(enc: Encoding, value: Any, depth: int) -> dict[str, Any]:
    codec = codec_for(type(value))
    assert codec is not None
    try:
        simpler = codec.to(value)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        problem = f"is {with_article(class_name(codec.cls))}, whose registered codec raised {told}"
        raise Refused(problem, class_name(codec.cls)) from error
    return {MARK: "custom", "name": codec.name, "v": enc.at("", simpler, depth + 1, value)}


_EXACT_TYPES: Final[dict[type, tuple[_ToTree, int]]] = {
    int: (_int_to, 1),
    float: (_float_to, 1),
    bytes: (_bytes_to, 1),
    bytearray: (_bytes_to, 1),
    tuple: (_tuple_to, 2),
    set: (_set_to, 2),
    frozenset: (_set_to, 2),
    Lost: (codec_errors.lost_to, 2),
}
