"""Values that the program's own types call secret: `Annotated[str, Secret]`, and pydantic's `SecretStr`.

In a tree a secret stands as `{"$steplog": "secret", "v": …}`. What becomes of `v` is decided where the tree is used: in
arguments a fingerprint takes its place at once, in results the sink shows `[redacted:secret]`, and only a store that
encrypts ever gets it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

MARK: Final = "$steplog"
KIND: Final = "secret"
SHOWN: Final = "[redacted:secret]"

Conceal = Callable[[Any], Any]
Plan = Callable[[Any, Conceal], Any]
"""Conceals the secret parts of a tree, given what a secret becomes; returns the tree, or a copy where it has some."""


class Secret:
    """Marks a value that is never shown in a log: `Annotated[str, steplog.Secret]`.

    For parameters and return values of tools, and for fields of dataclasses, pydantic models, named tuples and
    TypedDicts that they take or return. The log shows `[redacted:secret]`. A secret argument still tells one call from
    another, by a fingerprint.
    """


def is_marked(hint: Any) -> bool:
    """Whether a hint itself is annotated as secret."""
    return any(_is_mark(part) for part in getattr(hint, "__metadata__", ()))


def _is_mark(part: Any) -> bool:
    return part is Secret or isinstance(part, Secret)


def plan_of(hint: Any, seen: tuple[Any, ...] = ()) -> Plan | None:
    """How to conceal what a hint calls secret; None where it calls nothing so.

    Classes whose instances the codec takes apart itself (dataclasses, models, named tuples) are not looked into: it
    asks for their fields.
    """
    if is_marked(hint):
        return _whole
    if hint in seen or len(seen) > 32:
        return None
    seen = (*seen, hint)
    if hasattr(hint, "__required_keys__"):  # a TypedDict, of `typing` or of its backport
        return _fields(fields_of(hint, seen))
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return plan_of(arguments[0], seen)
    if origin in (typing.Required, typing.NotRequired, typing.Union, types.UnionType):
        return _several([plan_of(part, seen) for part in arguments])
    if not isinstance(hint, type) and hasattr(hint, "__value__"):  # an alias made by `type`
        return plan_of(hint.__value__, seen)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        return _items(plan_of(arguments[1], seen))
    if origin is tuple and ... not in arguments:
        return _positions([plan_of(part, seen) for part in arguments])
    if isinstance(origin, type) and origin is not type and arguments:
        return _items(_several([plan_of(part, seen) for part in arguments if part is not ...]))
    return None


def _whole(tree: Any, conceal: Conceal) -> Any:
    # That there is none is no secret.
    return tree if tree is None else conceal(tree)


def _several(plans: list[Plan | None]) -> Plan | None:
    found = [plan for plan in plans if plan is not None]
    if len(found) < 2:
        return found[0] if found else None

    def plan(tree: Any, conceal: Conceal) -> Any:
        for one in found:
            changed = one(tree, conceal)
            if changed is not tree:
                return changed
        return tree

    return plan


def _items(inner: Plan | None) -> Plan | None:
    """For every item of a list, a tuple or a set, and every value of a mapping."""
    if inner is None:
        return None

    def plan(tree: Any, conceal: Conceal) -> Any:
        if isinstance(tree, list):
            return [inner(part, conceal) for part in tree]
        if not isinstance(tree, dict):
            return tree
        if MARK not in tree:
            return {name: inner(part, conceal) for name, part in tree.items()}
        if tree[MARK] == "map":
            return {**tree, "v": [[key, inner(part, conceal)] for key, part in tree["v"]]}
        if isinstance(tree.get("v"), list):
            return {**tree, "v": [inner(part, conceal) for part in tree["v"]]}
        return tree

    return plan


def _positions(plans: list[Plan | None]) -> Plan | None:
    if not any(plans):
        return None

    def plan(tree: Any, conceal: Conceal) -> Any:
        if not isinstance(tree, dict) or len(tree.get("v", ())) != len(plans):
            return tree
        pairs = zip(plans, tree["v"], strict=True)
        return {**tree, "v": [part if one is None else one(part, conceal) for one, part in pairs]}

    return plan


def _fields(plans: Mapping[str, Plan]) -> Plan | None:
    if not plans:
        return None

    def plan(tree: Any, conceal: Conceal) -> Any:
        if not isinstance(tree, dict) or MARK in tree or not plans.keys() & tree.keys():
            return tree
        return {name: plans[name](part, conceal) if name in plans else part for name, part in tree.items()}

    return plan


@functools.lru_cache(maxsize=4096)
def fields_of_class(cls: type) -> dict[str, Plan]:
    """By the name of a field of a class, how to conceal what is secret in it."""
    return fields_of(cls, (cls,))


def fields_of(cls: Any, seen: tuple[Any, ...] = ()) -> dict[str, Plan]:
    """The same, for a hint."""
    hints = _hints(cls)
    # pydantic takes the annotation apart.
    declared = getattr(cls, "__pydantic_fields__", None) or {}
    marked = {name for name, field in declared.items() if any(map(_is_mark, getattr(field, "metadata", ())))}
    found = {name: plan for name, hint in hints.items() if (plan := plan_of(hint, seen)) is not None}
    return found | dict.fromkeys(marked, _whole)


def parameters_of(fn: Callable[..., Any]) -> dict[str, Plan]:
    """By the name of a parameter of a function, how to conceal what is secret in it; `return` for its result."""
    return {name: plan for name, hint in _hints(fn).items() if (plan := plan_of(hint)) is not None}


def _hints(holder: Any) -> dict[str, Any]:
    annotations = _annotations(holder)
    if not annotations:
        return {}
    try:
        return typing.get_type_hints(holder, include_extras=True)
    except Exception:  # noqa: BLE001 - a name that is imported for type checkers only; each hint is tried by itself
        return {name: _resolved(hint, holder) for name, hint in annotations.items()}


def _annotations(holder: Any) -> dict[str, Any]:
    bases = holder.__mro__ if isinstance(holder, type) else (holder,)
    found: dict[str, Any] = {}
    for base in reversed(bases):
        if getattr(base, "__module__", "builtins") != "builtins":  # a bound method of a builtin has none
            with contextlib.suppress(Exception):  # evaluated late (3.14), they may name what only type checkers import
                found |= dict(base.__annotations__)
    return found


def _resolved(hint: Any, holder: Any) -> Any:
    if not isinstance(hint, str):
        return hint
    names = getattr(holder, "__globals__", None) or getattr(sys.modules.get(holder.__module__), "__dict__", {})
    try:
        return eval(hint, dict(names))  # noqa: S307 - the program's own annotation, as typing.get_type_hints evaluates it
    except Exception:  # noqa: BLE001 - it names what is not here
        # Better a value too few in the log than one too many.
        return typing.Annotated[object, Secret] if "Secret]" in hint else None


def wrapped(tree: Any) -> dict[str, Any]:
    """A secret in a tree."""
    return {MARK: KIND, "v": tree}


def hidden(tree: Any) -> tuple[Any, int]:
    """A tree as it is shown, and how many secrets were taken out of it."""
    if isinstance(tree, dict):
        if tree.get(MARK) == KIND and "id" not in tree:
            return {**tree, "v": SHOWN}, int(tree["v"] != SHOWN)
        parts = {name: hidden(part) for name, part in tree.items()}
        return {name: part for name, (part, _) in parts.items()}, sum(count for _, count in parts.values())
    if isinstance(tree, list):
        found = [hidden(part) for part in tree]
        return [part for part, _ in found], sum(count for _, count in found)
    return tree, 0
