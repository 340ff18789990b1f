"""A JSON value that a person wrote, as the type that a function says it returns.

What an operator gives for a step stands for the function's own result, so the program must get the type that it would
have got. The annotation says which that is. Where it says nothing, or nothing that can be checked, the value stays as
it is; where the value does not fit, that is an error and no guess.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

from steplog._kernel.codec_classes import codec_for
from steplog._kernel.refusal import Misfit, class_name


def coerce(value: Any, hint: Any, names: Mapping[str, Any] | None = None, where: str = "the value") -> Any:
    """The value as the type that an annotation names.

    Args:
        value: a JSON value, or an object that the type accepts as it is.
        hint: the annotation, or its source text.
        names: names in which source text is evaluated, such as a function's `__globals__`.
        where: what to call the value in an error.

    Raises:
        Misfit: it does not fit.
    """
    hint = _plain(hint, names or {})
    if hint is None:
        return value
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _any_of(value, typing.get_args(hint), names, where)
    if origin is typing.Literal:
        return _one_of(value, typing.get_args(hint), where)
    cls = _CONCRETE.get(origin or hint, origin or hint)
    if not isinstance(cls, type) or cls is object:
        return value
    return _as(cls, value, typing.get_args(hint), names, where)


def _plain(hint: Any, names: Mapping[str, Any]) -> Any:
    """A hint without what does not matter here; None where it says nothing."""
    if isinstance(hint, str):
        try:
            hint = eval(hint, dict(names))  # noqa: S307 - the program's own annotation
        except Exception:  # noqa: BLE001 - a name imported for type checkers only: it says nothing here
            return None
        hint = type(None) if hint is None else hint
    while True:
        if typing.get_origin(hint) in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final):
            hint = typing.get_args(hint)[0]
        elif not isinstance(hint, type) and hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif not isinstance(hint, type) and typing.get_origin(hint) is None and hasattr(hint, "__value__"):
            hint = hint.__value__
        else:
            break
    return None if hint is Any or isinstance(hint, (typing.TypeVar, typing.ForwardRef)) else hint


def _misfit(value: Any, wanted: str, where: str) -> Misfit:
    found = "null" if value is None else f"{value!r}"
    return Misfit(f"{where} is {found[:80]}, and the function returns {wanted} there.")


def _any_of(value: Any, hints: tuple[Any, ...], names: Mapping[str, Any] | None, where: str) -> Any:
    why: list[str] = []
    fits: list[Any] = []
    for hint in hints:
        try:
            fits.append(coerce(value, type(None) if hint is None else hint, names, where))
        except Misfit as misfit:
            why.append(str(misfit))
    if not fits:
        raise Misfit(why[0] if len(why) == 1 else " Or: ".join(dict.fromkeys(why)))
    # `int | float` of 1 is 1, and `str | date` of a text is the text.
    return next((one for one in fits if type(one) is type(value)), fits[0])


def _one_of(value: Any, members: tuple[Any, ...], where: str) -> Any:
    for member in members:
        told = member.value if isinstance(member, enum.Enum) else member
        if type(told) is type(value) and told == value:
            return member
    raise _misfit(value, f"one of {members!r}", where)


def _as(cls: type, value: Any, parts: tuple[Any, ...], names: Mapping[str, Any] | None, where: str) -> Any:
    scalar = _SCALARS.get(cls)
    if scalar is not None:
        return _made(lambda: scalar(value), value, cls, where)
    if cls in _HOLDERS:
        return _holder(cls, value, parts, names, where)
    if typing.is_typeddict(cls) or dataclasses.is_dataclass(cls) or hasattr(cls, "_field_defaults"):
        return _record(cls, value, where)
    if getattr(cls, "_is_protocol", False) or isinstance(value, cls):
        return value
    return _object(cls, value, where)


def _made(make: Callable[[], Any], value: Any, cls: type, where: str) -> Any:
    try:
        return make()
    except Misfit:
        raise
    except Exception as error:
        raise Misfit(f"{_misfit(value, class_name(cls), where)} {error}".rstrip()) from error


def _exactly(*kinds: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) in kinds:
            return value
        raise TypeError

    return check


def _read(cls: Any, parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return parse(value)
        raise TypeError

    return read


def _number(value: Any) -> float:
    return float(_exactly(int, float)(value))


def _decimal(value: Any) -> Decimal:
    # A float has digits that nobody has written.
    return value if isinstance(value, Decimal) else Decimal(_exactly(str, int)(value))


_SCALARS: Final[dict[type, Callable[[Any], Any]]] = {
    type(None): _exactly(type(None)),
    bool: _exactly(bool),
    int: _exactly(int),
    str: _exactly(str),
    bytes: _exactly(bytes),
    float: _number,
    Decimal: _decimal,
    datetime: _read(datetime, datetime.fromisoformat),
    date: _read(date, date.fromisoformat),
    time: _read(time, time.fromisoformat),
}
_CONCRETE: Final[dict[Any, type]] = {
    abc.Sequence: list,
    abc.Iterable: list,
    abc.Collection: list,
    abc.Mapping: dict,
    abc.MutableMapping: dict,
}
_HOLDERS: Final = frozenset({list, tuple, set, frozenset, dict})


def _holder(cls: type, value: Any, parts: tuple[Any, ...], names: Mapping[str, Any] | None, where: str) -> Any:
    if cls is dict:
        if not isinstance(value, dict):
            raise _misfit(value, "a dict", where)
        of_key, of_value = parts or (Any, Any)
        return {
            _key(key, of_key, names, where): coerce(one, of_value, names, f"{where}[{key!r}]")
            for key, one in value.items()
        }
    if not isinstance(value, (list, cls)):
        raise _misfit(value, f"a {cls.__name__}", where)
    items = list(typing.cast("list[Any]", value))
    hints = parts[:1] * len(items) or (Any,) * len(items)
    if cls is tuple and parts and parts[-1] is not Ellipsis:
        hints = parts
        if len(items) != len(hints):
            raise _misfit(value, f"a tuple of {len(hints)}", where)
    return cls(
        coerce(one, hint, names, f"{where}[{n}]") for n, (one, hint) in enumerate(zip(items, hints, strict=True))
    )


def _key(key: Any, hint: Any, names: Mapping[str, Any] | None, where: str) -> Any:
    # JSON has no other keys than texts.
    if _plain(hint, names or {}) is int and isinstance(key, str):
        return _made(lambda: int(key), key, int, f"a key of {where}")
    return coerce(key, hint, names, f"a key of {where}")


def _record(cls: Any, value: Any, where: str) -> Any:
    """A dataclass, a NamedTuple or a TypedDict of an object with its fields."""
    plain = typing.is_typeddict(cls)
    if not plain and isinstance(value, cls):
        return value
    if hasattr(cls, "_fields") and isinstance(value, list):
        value = dict(zip(cls._fields, value, strict=False))
    if not isinstance(value, dict):
        raise _misfit(value, class_name(cls), where)
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - a name imported for type checkers only: its fields are taken as they are
        hints = {}
    found = {name: coerce(one, hints.get(name, Any), None, f"{where}.{name}") for name, one in value.items()}
    if plain:
        # Where annotations are source text, `__required_keys__` knows nothing of NotRequired.
        optional = {name for name, hint in hints.items() if typing.get_origin(hint) is typing.NotRequired}
        missing = sorted(cls.__required_keys__ - optional - found.keys())
        if missing:
            raise Misfit(f"{where} has no {missing[0]!r}, which {class_name(cls)} has.")
        return found
    return _made(lambda: cls(**found), value, cls, where)


def _object(cls: Any, value: Any, where: str) -> Any:
    """An object of a class that says itself how it is made of a JSON value."""
    codec = codec_for(cls)
    if codec is not None:
        return _made(lambda: codec.of(value), value, cls, where)
    if hasattr(cls, "model_validate"):
        return _made(lambda: cls.model_validate(value), value, cls, where)
    if issubclass(cls, enum.Enum):
        by_name = isinstance(value, str) and value in cls.__members__
        return _made(lambda: cls[value] if by_name else cls(value), value, cls, where)
    if hasattr(cls, "__attrs_attrs__") and isinstance(value, dict):
        return _made(lambda: cls(**value), value, cls, where)
    if isinstance(value, str) and _is_made_of_text(cls):
        return _made(lambda: cls(value), value, cls, where)
    if cls.__module__ in ("collections.abc", "typing"):
        return value
    raise _misfit(value, class_name(cls), where)


def _is_made_of_text(cls: type) -> bool:
    """Paths, secret texts, and UUIDs (whose module draws random numbers, so that it has no place here)."""
    return hasattr(cls, "__fspath__") or hasattr(cls, "get_secret_value") or cls.__module__ == "uuid"
