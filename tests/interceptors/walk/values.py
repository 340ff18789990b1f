"""Plausible values from type hints: arguments to call a method with, and the tree that a provider would answer."""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import types
import typing
from collections import abc
from typing import Any, Final, Literal, Union

import typing_extensions
from pydantic import BaseModel

from tests.interceptors.walk.inventory import hints_of

FILE: Final = b"\x89PNG\r\n\x1a\n\x00\xff a small file\n"
MARK: Final = "@@"
"""Stands in generated texts for the number of the call, so that no two answers are alike."""

_DEEP: Final = 6
_ALL_FIELDS_UNTIL: Final = 3
# A job that has ended, so that who waits for it need not ask again.
_ENDED: Final = ("completed", "succeeded", "ended", "processed", "complete")


class Answer(BaseModel):
    """What a structured answer is parsed as."""

    text: str


class NoValue(Exception):
    """No value is known for a type."""


def arguments(function: Any, hints: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Arguments by keyword for every parameter without a default; those in `given` as they are."""
    found = dict(given)
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self" or name in given or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            found[name] = argument(hints.get(name, str), name)
    return found


def argument(hint: Any, name: str = "value", depth: int = 0) -> Any:
    """A minimal value of a parameter's type."""
    if depth > 12:
        raise NoValue(f"{name}: {hint} is too deep")
    hint, origin, inner = unwrapped(hint)
    if origin in (Union, types.UnionType):
        return _first(inner, name, depth)
    if origin is Literal:
        return inner[0]
    if typing_extensions.is_typeddict(hint):
        hints = hints_of(hint)
        return {key: argument(hints[key], key, depth + 1) for key in _required(hint, hints)}
    if origin in (list, abc.Iterable, abc.Sequence, abc.Collection, set, frozenset, abc.MutableSequence):
        return [argument(inner[0], name, depth + 1)] if inner else []
    if origin in (dict, abc.Mapping, abc.MutableMapping):
        return {"key": argument(inner[1], name, depth + 1)} if inner else {}
    if origin is tuple:
        return tuple(argument(each, name, depth + 1) for each in inner if each is not Ellipsis)
    if origin is type:
        return Answer
    return _plain(hint, name)


def unwrapped(hint: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """A type without `Annotated`, `Required` and aliases, its origin, and the origin's arguments."""
    while True:
        origin = typing.get_origin(hint)
        if origin is typing.Annotated or str(origin).endswith(("Required", "ReadOnly")):
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, getattr(typing_extensions, "TypeAliasType", ())):
            hint = hint.__value__
        else:
            return hint, (hint if origin is None else origin), typing.get_args(hint)


def _first(arms: tuple[Any, ...], name: str, depth: int) -> Any:
    if any(arm is bytes for arm in _leaves(arms)):
        return (f"{name}.png", FILE, "image/png")
    for arm in arms:
        if arm is type(None) or getattr(arm, "__name__", "") in ("Omit", "NotGiven"):
            continue
        try:
            return argument(arm, name, depth)
        except NoValue:
            continue
    raise NoValue(f"{name}: none of {arms}")


def _leaves(arms: tuple[Any, ...]) -> abc.Iterator[Any]:
    for arm in arms:
        if typing.get_origin(arm) in (Union, types.UnionType):
            yield from _leaves(typing.get_args(arm))
        else:
            yield arm


def _plain(hint: Any, name: str) -> Any:
    if inspect.isclass(hint) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    if hint is str or hint is object or hint is Any or isinstance(hint, typing.TypeVar):
        return f"{name}_a1b2c3d4"
    if hint is bool:
        return True
    if hint in (int, float):
        return hint(1)
    if hint is bytes:
        return FILE
    if hint is dt.datetime:
        return dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    if hint is dt.date:
        return dt.date(2026, 1, 2)
    raise NoValue(f"{name}: {hint}")


def _required(hint: Any, hints: dict[str, Any]) -> list[str]:
    # Under `from __future__ import annotations` a class does not see the `Required` in its own text.
    marked = {
        key for key, value in hints.items() if typing.get_origin(value) in (typing.Required, typing_extensions.Required)
    }
    optional = {
        key
        for key, value in hints.items()
        if typing.get_origin(value) in (typing.NotRequired, typing_extensions.NotRequired)
    }
    return sorted((marked | set(hint.__required_keys__)) - optional)


def tree(hint: Any, name: str = "value", depth: int = 0) -> Any:
    """The JSON that a provider would send for a declared type."""
    hint, origin, inner = unwrapped(hint)
    if origin in (Union, types.UnionType):
        arms = [arm for arm in inner if arm is not type(None)]
        return None if depth > _DEEP and len(arms) < len(inner) else tree(arms[0], name, depth)
    if origin is Literal:
        return next((value for value in inner if value in _ENDED), inner[0])
    if inspect.isclass(origin) and issubclass(origin, BaseModel):
        return model(
            hint if origin is hint or not inner else origin, depth, dict(zip(_variables(origin), inner, strict=False))
        )
    if origin in (list, abc.Sequence, abc.Iterable, tuple, set):
        return [] if depth > _DEEP or not inner else [tree(inner[0], name, depth + 1)]
    if origin in (dict, abc.Mapping):
        return {} if depth > _DEEP or not inner else {"key": tree(inner[1], name, depth + 1)}
    if typing_extensions.is_typeddict(hint):
        hints = hints_of(hint)
        return {key: tree(hints[key], key, depth + 1) for key in _required(hint, hints)}
    return _leaf(origin, name)


def _variables(cls: Any) -> tuple[Any, ...]:
    metadata = getattr(cls, "__pydantic_generic_metadata__", {})
    return tuple(metadata.get("parameters", ()))


def model(cls: Any, depth: int, variables: dict[Any, Any]) -> dict[str, Any]:
    """The JSON of a model: all of its fields near the root, the required ones below."""
    found = {}
    for name, field in cls.model_fields.items():
        if depth > _ALL_FIELDS_UNTIL and not field.is_required():
            continue
        if field.exclude:
            continue
        hint = variables.get(field.annotation, field.annotation)
        found[field.alias or name] = tree(hint, name, depth + 1)
    return found


def _leaf(hint: Any, name: str) -> Any:
    if hint is bool:
        return True
    if hint is int:
        # What is counted here is what a poller waits for.
        return 0 if name == "in_progress" else 7
    if hint is float:
        return 0.5
    if hint is dt.datetime:
        return "2026-01-02T03:04:05.678900Z"
    if hint is dt.date:
        return "2026-01-02"
    if inspect.isclass(hint) and issubclass(hint, enum.Enum):
        return next(iter(hint)).value
    # Text, `object`, and what nobody knows: a text is a legal answer for each.
    return f"{name}_{MARK}" if name.endswith("id") else f"{name} {MARK}"
