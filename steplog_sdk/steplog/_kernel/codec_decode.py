"""The walk from a JSON tree back to its value; `codec` says what the trees look like."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Any, Final

from steplog._kernel import codec_errors, codec_objects
from steplog._kernel.codec_classes import MARK, Classes, Decoding, codec_named
from steplog._kernel.codec_values import BY_KIND
from steplog._kernel.refusal import Refused, key_step

# What stands in a tree for itself.
_ATOMS: Final = frozenset({str, int, float, bool, type(None)})


class Decoder:
    """One walk from a tree back to its value.

    Args:
        classes: where classes are found.
        lenient: whether an exception that cannot be rebuilt becomes `StepFailed`.
    """

    __slots__ = ("classes", "lenient")

    def __init__(self, classes: Classes, *, lenient: bool = False) -> None:
        self.classes = classes
        self.lenient = lenient

    def value(self, tree: Any) -> Any:
        """The value of `tree`. Raises `Refused`."""
        kind = type(tree)
        if kind is dict:
            return self._wrapped(tree) if MARK in tree else self._dict(tree)
        if kind is list:
            return self._list(tree)
        return tree

    def at(self, step: str, tree: Any) -> Any:
        """As `value`, for the part that `step` names in an error."""
        try:
            return self.value(tree)
        except Refused as refused:
            raise refused.inside(step, tree) from refused.__cause__

    def _dict(self, tree: dict[str, Any]) -> dict[str, Any]:
        value = {}
        key = ""
        try:
            for key, item in tree.items():
                value[key] = item if type(item) in _ATOMS else self.value(item)
        except Refused as refused:
            raise refused.inside(key_step(key), tree) from refused.__cause__
        return value

    def _list(self, tree: list[Any]) -> list[Any]:
        value = list(tree)
        index = 0
        try:
            for index, item in enumerate(tree):
                if type(item) not in _ATOMS:
                    value[index] = self.value(item)
        except Refused as refused:
            raise refused.inside(f"[{index}]", tree) from refused.__cause__
        return value

    def _wrapped(self, tree: dict[str, Any]) -> Any:
        kind = str(tree[MARK])
        row = BY_KIND.get(kind)
        restore = _row_of if row is not None else _KINDS.get(kind)
        if restore is None:
            problem = f"was recorded as {kind!r}, a kind that this release of steplog does not know. Use a newer one."
            raise Refused(problem, kind)
        try:
            return restore(self, tree)
        except (Refused, MemoryError):
            raise
        except Exception as error:
            name = str(tree.get("class", tree.get("name", kind)))
            raise Refused(f"cannot be restored as {name}: {type(error).__name__}: {error}", name) from error


def _row_of(dec: Decoding, tree: dict[str, Any]) -> Any:
    row = BY_KIND[str(tree[MARK])]
    return row.of(row.cls(), dec.value(tree["v"]))


def _items(dec: Decoding, tree: dict[str, Any]) -> list[Any]:
    return [dec.at(f"[{index}]", part) for index, part in enumerate(tree["v"])]


def _text_of(_dec: Decoding, tree: dict[str, Any]) -> str:
    return "".join(chr(run) if isinstance(run, int) else run for run in tree["v"])


def _bytes_of(_dec: Decoding, tree: dict[str, Any]) -> bytes:
    return tree["text"].encode("utf-8") if "text" in tree else binascii.a2b_base64(tree["base64"], strict_mode=True)


def _map_of(dec: Decoding, tree: dict[str, Any]) -> dict[Any, Any]:
    value = {}
    for part, item in tree["v"]:
        key = dec.value(part)
        value[key] = dec.at(key_step(key), item)
    return value


def _custom_of(dec: Decoding, tree: dict[str, Any]) -> Any:
    codec = codec_named(tree["name"])
    if codec is None:
        problem = (
            f"was recorded with the registered codec {tree['name']!r}, which this program has not registered. "
            f"Import the module that calls steplog.register_codec for it before the run is opened."
        )
        raise Refused(problem, tree["name"])
    return codec.of(dec.at("", tree["v"]))


_KINDS: Final[dict[str, Callable[[Decoding, dict[str, Any]], Any]]] = {
    "str": _text_of,
    "int": lambda _dec, tree: int(tree["v"]),
    "float": lambda _dec, tree: float(tree["v"]),
    "bytes": _bytes_of,
    "bytearray": lambda dec, tree: bytearray(_bytes_of(dec, tree)),
    "tuple": lambda dec, tree: tuple(_items(dec, tree)),
    "set": lambda dec, tree: set(_items(dec, tree)),
    "frozenset": lambda dec, tree: frozenset(_items(dec, tree)),
    "map": _map_of,
    "custom": _custom_of,
    **codec_objects.KINDS,
    **codec_errors.KINDS,
}
