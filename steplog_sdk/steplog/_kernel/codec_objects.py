"""Instances of the program's own classes: enum members, dataclasses, named tuples and pydantic models.

They are restored by state, never by calling the class: `__init__`, validators and `__post_init__` ran once, when the
value was made, and must not run (or object) again. Models in particular are often built by SDKs without validation, so
validating a dump of them fails on legal values.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from steplog._kernel.codec_classes import MARK, Decoding, Encoding
from steplog._kernel.refusal import Refused, class_name, key_step
from steplog._kernel.secret import KIND, fields_of_class

ToTree = Callable[[Encoding, Any, int], dict[str, Any]]

# pydantic's own names for the parts of a model's state, and ours in the log. Version 2, then version 1.
_MODEL_PARTS: Final = (
    {
        "__dict__": "v",
        "__pydantic_fields_set__": "set",
        "__pydantic_extra__": "extra",
        "__pydantic_private__": "private",
    },
    {"__dict__": "v", "__fields_set__": "set", "__private_attribute_values__": "private"},
)
_MODEL_MODULES: Final = ("pydantic.main", "pydantic.v1.main")


def to_tree_for(value: Any) -> tuple[ToTree, int] | None:
    """How to encode an instance, and how many levels its wrapper adds; None for a class of no known family."""
    cls = type(value)
    if isinstance(value, enum.Enum):
        return _enum_to, 1
    if isinstance(value, tuple):
        return (_namedtuple_to, 2) if isinstance(getattr(cls, "_fields", None), tuple) else None
    if _is_model(cls):
        return _model_to, 2
    if cls.__module__.partition(".")[0] == "pydantic" and hasattr(cls, "get_secret_value"):
        return _pydantic_secret_to, 2
    if hasattr(cls, "__dataclass_fields__") and _builtin_base(cls) is object:
        return _dataclass_to, 2
    return None


def _builtin_base(cls: type) -> type:
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _is_model(cls: type) -> bool:
    bases = (getattr(sys.modules.get(name), "BaseModel", None) for name in _MODEL_MODULES)
    return any(isinstance(base, type) and issubclass(cls, base) for base in bases)


def _wrapped(enc: Encoding, kind: str, value: Any) -> dict[str, Any]:
    return {MARK: kind, "class": enc.classes.name(type(value))}


def _parts(enc: Encoding, state: dict[str, Any], depth: int, holder: object) -> dict[str, Any]:
    """The attributes of an instance, leaving out what `functools.cached_property` will compute again."""
    cls = type(holder)
    for name in state:
        if enc.tree(name, 0) is not name:
            raise Refused(f"has an attribute called {name!r}, which UTF-8 cannot write.", class_name(cls))
    parts = {
        name: enc.at(key_step(name), item, depth, holder)
        for name, item in state.items()
        if not isinstance(getattr(cls, name, None), functools.cached_property)
    }
    return _concealed(enc, parts, cls)


def _concealed(enc: Encoding, parts: dict[str, Any], cls: type) -> dict[str, Any]:
    """Fields in which what their annotation calls secret is concealed."""
    plans = fields_of_class(cls)
    for name in plans.keys() & parts.keys():
        parts[name] = plans[name](parts[name], enc.classes.secret)
    return parts


# --- enum


def _enum_to(enc: Encoding, value: Any, depth: int) -> dict[str, Any]:
    tree = _wrapped(enc, "enum", value)
    if type(value).__members__.get(value.name) is value:
        return {**tree, "name": value.name}
    return {**tree, "v": enc.tree(value.value, depth + 1)}  # a combination of flags has no name of its own


def _enum_of(dec: Decoding, tree: dict[str, Any]) -> Any:
    cls = _required(dec, tree, "an Enum", lambda found: issubclass(found, enum.Enum))
    if "name" not in tree:
        return cls(dec.value(tree["v"]))
    if tree["name"] not in cls.__members__:
        problem = f"was recorded as {class_name(cls)}.{tree['name']}, which is no member now. Restore the member."
        raise Refused(problem, tree["class"])
    return cls.__members__[tree["name"]]


# --- named tuple


def _namedtuple_to(enc: Encoding, value: Any, depth: int) -> dict[str, Any]:
    names = value._fields
    if len(names) != len(value) or getattr(value, "__dict__", None):
        problem = "is a named tuple with more to it than its fields. Use a dataclass, or steplog.register_codec."
        raise Refused(problem, class_name(type(value)))
    parts = {name: enc.at(key_step(name), item, depth + 2, value) for name, item in zip(names, value, strict=True)}
    return {**_wrapped(enc, "namedtuple", value), "v": _concealed(enc, parts, type(value))}


def _namedtuple_of(dec: Decoding, tree: dict[str, Any]) -> Any:
    cls = _required(dec, tree, "a NamedTuple", lambda found: issubclass(found, tuple) and hasattr(found, "_fields"))
    parts = {name: dec.at(key_step(name), part) for name, part in tree["v"].items()}
    filled = {**cls._field_defaults, **parts}
    if set(filled) != set(cls._fields):
        raise _changed(cls, set(filled) ^ set(cls._fields), tree)
    return tuple.__new__(cls, [filled[name] for name in cls._fields])


# --- dataclass


def _dataclass_to(enc: Encoding, value: Any, depth: int) -> dict[str, Any]:
    return {**_wrapped(enc, "dataclass", value), "v": _parts(enc, _state(value), depth + 2, value)}


def _state(value: Any) -> dict[str, Any]:
    """Every attribute that is set, in `__dict__` and in slots of all bases, past a `__getstate__` of the class."""
    state: Any = object.__getstate__(value)
    if isinstance(state, tuple):
        return {**(state[0] or {}), **state[1]}
    return state or {}


def _dataclass_of(dec: Decoding, tree: dict[str, Any]) -> Any:
    cls = _required(dec, tree, "a dataclass", lambda found: hasattr(found, "__dataclass_fields__"))
    value = object.__new__(cls)
    for name, part in tree["v"].items():
        # Past a frozen class's own __setattr__, as copy and pickle go.
        object.__setattr__(value, name, dec.at(key_step(name), part))
    _fill(value, tree)
    return value


def _fill(value: Any, tree: dict[str, Any]) -> None:
    """Give fields that were added to the class since the recording their default, or refuse where there is none."""
    from dataclasses import MISSING, fields

    for field in fields(value):
        if field.name in tree["v"]:
            continue
        if field.default is not MISSING:
            object.__setattr__(value, field.name, field.default)
        elif field.default_factory is not MISSING:
            object.__setattr__(value, field.name, field.default_factory())
        elif field.init:
            raise _changed(type(value), {field.name}, tree)


# --- pydantic


def _model_to(enc: Encoding, value: Any, depth: int) -> dict[str, Any]:
    tree = _wrapped(enc, "pydantic", value)
    state = value.__getstate__()
    names = next((names for names in _MODEL_PARTS if isinstance(state, dict) and state.keys() <= names.keys()), None)
    if names is None:
        problem = (
            "is a model with a __getstate__ of its own. Register it: steplog.register_codec(Model, to=..., of=...)."
        )
        raise Refused(problem, class_name(type(value)))
    for theirs, ours in names.items():
        part = state.get(theirs)
        if ours == "set":
            # Nearly always every field; sorted, because the order of a set differs from process to process.
            part = None if part == state["__dict__"].keys() else sorted(part or ())
        if part is not None:
            tree[ours] = _parts(enc, part, depth + 2, value) if isinstance(part, dict) else part
    absent = _absent(type(value), state["__dict__"])
    if absent:
        tree["absent"] = absent
    return tree


def _model_of(dec: Decoding, tree: dict[str, Any]) -> Any:
    cls = _required(dec, tree, "a pydantic model", _is_model)
    parts: dict[str, Any] = {
        ours: {name: dec.at(key_step(name), part) for name, part in tree[ours].items()} if ours in tree else None
        for ours in ("v", "extra", "private")
    }
    parts["set"] = set(tree["set"]) if "set" in tree else set(parts["v"])
    _fill_model(cls, parts["v"], tree)
    value = cls.__new__(cls)
    names = _MODEL_PARTS[0 if hasattr(cls, "__pydantic_fields_set__") else 1]
    value.__setstate__({theirs: parts[ours] for theirs, ours in names.items()})
    return value


def _absent(cls: Any, values: Mapping[str, Any]) -> list[str]:
    """Fields that a model, built without validation, does not have."""
    return sorted(_model_fields(cls).keys() - values.keys())


def _model_fields(cls: Any) -> dict[str, Any]:
    return getattr(cls, "__pydantic_fields__", None) or getattr(cls, "__fields__", None) or {}


def _fill_model(cls: Any, values: dict[str, Any], tree: dict[str, Any]) -> None:
    """As `_fill`, for a model."""
    for name in set(_absent(cls, values)).difference(tree.get("absent", ())):
        field = _model_fields(cls)[name]
        required = field.is_required() if hasattr(field, "is_required") else field.required
        if required:
            raise _changed(cls, {name}, tree)
        values[name] = (
            field.get_default(call_default_factory=True) if hasattr(field, "is_required") else field.get_default()
        )


# --- pydantic's own types for secrets


def _pydantic_secret_to(enc: Encoding, value: Any, depth: int) -> dict[str, Any]:
    tree = enc.tree(value.get_secret_value(), depth + 2)
    kept: dict[str, Any] = enc.classes.secret({**_wrapped(enc, "pydantic-secret", value), "v": tree})
    return kept


def _pydantic_secret_of(dec: Decoding, tree: dict[str, Any]) -> Any:
    cls = _required(dec, tree, "a pydantic secret", lambda found: hasattr(found, "get_secret_value"))
    return cls(dec.value(tree["v"]))


# --- shared


def _required(dec: Decoding, tree: dict[str, Any], what: str, fits: Callable[[type], bool]) -> Any:
    cls = dec.classes.require(tree["class"])
    if not fits(cls):
        problem = f"was recorded as {what}, and {class_name(cls)} is none now. Restore the class, or start a new run."
        raise Refused(problem, tree["class"])
    return cls


def _changed(cls: type, names: set[str], tree: dict[str, Any]) -> Refused:
    listed = ", ".join(sorted(names))
    problem = (
        f"was recorded as {class_name(cls)}, whose fields have changed since: {listed}. Give a new field a default; "
        f"keep a removed one until the runs that recorded it have ended."
    )
    return Refused(problem, str(tree["class"]))


KINDS: Final[dict[str, Callable[[Decoding, dict[str, Any]], Any]]] = {
    "enum": _enum_of,
    "namedtuple": _namedtuple_of,
    "dataclass": _dataclass_of,
    "pydantic": _model_of,
    "pydantic-secret": _pydantic_secret_of,
    KIND: lambda dec, tree: dec.value(tree["v"]),
}
