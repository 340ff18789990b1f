"""How the log names a class, and how the class is found again without importing anything.

A log is data that somebody else may have written, so a name in it never causes an import. A class is found in one of
three places: the annotation of the function whose result it is, the codecs that the program has registered, or the
modules that the program has imported by itself. The same search runs when a value is recorded: what it could not find
again is refused at once, while the programmer is there, and not when the run is resumed at night.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from steplog._kernel import secret
from steplog._kernel.refusal import Refused, class_name
from steplog._kernel.secret import Plan, wrapped
from steplog.errors import InvalidArgument

T = TypeVar("T")

MARK: Final = secret.MARK
"""The key that makes a JSON object a wrapper; a user's dict that has it is wrapped itself."""


class Encoding(Protocol):
    """A walk from a value to its tree, as the codecs of single types see it."""

    classes: Classes
    lenient: bool
    active: set[int]

    def tree(self, value: Any, depth: int) -> Any:
        """The tree of `value`, which stands `depth` levels deep."""

    def at(self, step: str, value: Any, depth: int, holder: object) -> Any:
        """As `tree`, for the part of `holder` that `step` names in an error."""


class Decoding(Protocol):
    """A walk from a tree back to its value, as the codecs of single types see it."""

    classes: Classes
    lenient: bool

    def value(self, tree: Any) -> Any:
        """The value of `tree`."""

    def at(self, step: str, tree: Any) -> Any:
        """As `value`, for the part that `step` names in an error."""


class Codec(NamedTuple):
    """How one class, which steplog does not know, is written and read."""

    cls: type
    to: Callable[[Any], Any]
    of: Callable[[Any], Any]
    name: str


_by_class: dict[type, Codec] = {}
_by_name: dict[str, Codec] = {}


def register_codec(cls: type[T], *, to: Callable[[T], Any], of: Callable[[Any], T], name: str | None = None) -> None:
    """Teach steplog to record values of exactly this class (not of its subclasses, which may hold more).

    Args:
        cls: the class.
        to: turns a value into anything steplog can record: a dict, a str, a tuple, another registered class.
        of: turns that back into an equal value of `cls`.
        name: what the log calls it; by default `module:Class`. A given name survives a move of the class.

    Raises:
        InvalidArgument: `cls` is not a class, is a type that JSON holds anyway, or `name` belongs to another class.
    """
    given: Any = cls
    if not isinstance(given, type) or given in (str, int, float, bool, type(None), list, dict):
        raise InvalidArgument(f"register_codec: {cls!r} is not a class that needs a codec.")
    name = recorded_name(cls) if name is None else name
    holder = _by_name.get(name)
    # A reloaded module registers its new class under the name of the old one; that is not a clash.
    if holder is not None and recorded_name(holder.cls) != recorded_name(cls):
        message = f"register_codec: the name {name!r} is taken by {class_name(holder.cls)}. Give another name=."
        raise InvalidArgument(message)
    _by_class[cls] = _by_name[name] = Codec(cls, to, of, name)


def codec_for(cls: type) -> Codec | None:
    """The registered codec of exactly this class."""
    return _by_class.get(cls)


def codec_named(name: str) -> Codec | None:
    """The registered codec that the log calls `name`."""
    return _by_name.get(name)


def recorded_name(cls: type) -> str:
    """What the log calls a class: `module:Outer.Inner`."""
    return f"{cls.__module__}:{cls.__qualname__}"


class Classes:
    """Where the classes of recorded values are found.

    Args:
        known: classes by recorded name, as `classes_in` returns them; they go before the imported modules.
        plan: how to conceal what the type of the value calls secret, or None.
    """

    __slots__ = ("_known", "plan")

    def __init__(self, known: Mapping[str, type] | None = None, plan: Plan | None = None) -> None:
        self._known = dict(known or {})
        self.plan = plan

    def secret(self, tree: Any) -> Any:
        """What stands in a tree for a value that its type calls secret."""
        return wrapped(tree)

    @classmethod
    def of(cls, *annotations: Any, namespace: Mapping[str, Any] | None = None, plan: Plan | None = None) -> Classes:
        """The classes that annotations reach; see `classes_in`."""
        known: dict[str, type] = {}
        for annotation in annotations:
            known.update(classes_in(annotation, namespace))
        return cls(known, plan)

    def name(self, cls: type) -> str:
        """The recorded name of a class, once it is certain that `find` leads back to this very class."""
        name = recorded_name(cls)
        if self.find(name) is not cls:
            raise Refused(
                "is of a class that a later process cannot find by name. Define the class at the top level of a "
                "module, or name it in the return annotation of the step.",
                class_name(cls),
            )
        return name

    def find(self, name: str) -> type | None:
        """The class that the log calls `name`, or None. Imports nothing."""
        return self._known.get(name) or _imported(name) or self._across_main(name)

    def require(self, name: str) -> type:
        """As `find`, but says what to do where the class is missing."""
        found = self.find(name)
        if found is None:
            raise Refused(_missing(name), name)
        return found

    def _across_main(self, name: str) -> type | None:
        """A script's own classes live in `__main__` when it is run and under its module name when it is imported."""
        module, _, qualname = name.partition(":")
        same = [
            cls
            for cls in self._known.values()
            if cls.__qualname__ == qualname and "__main__" in (module, cls.__module__)
        ]
        return same[0] if len(same) == 1 else None


def _imported(name: str) -> type | None:
    # Through __dict__, not getattr: a module's own __getattr__ may import.
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    if found is None:
        return None
    whole = found.__dict__.get(
        qualname
    )  # a parametrised model is called `Page[int]`, dots inside the brackets included
    if isinstance(whole, type):
        return whole
    for part in qualname.split("."):
        found = found.__dict__.get(part)
        if not isinstance(found, type):
            return None
    return found if isinstance(found, type) else None


def _missing(name: str) -> str:
    module, _, qualname = name.partition(":")
    if module in sys.modules:
        return (
            f"was recorded as {module}.{qualname}, and {module} has no such class now. Restore the name, or keep the "
            f"old one as an alias: {qualname.rpartition('.')[2]} = NewName."
        )
    return (
        f"was recorded as {module}.{qualname}, and this program has not imported {module}. Add `import {module}` "
        f"before the run is opened; steplog imports nothing because a log names it."
    )


def classes_in(annotation: Any, namespace: Mapping[str, Any] | None = None) -> dict[str, type]:
    """Every class that an annotation reaches, by recorded name.

    Walks generics, unions, Annotated, Literal, type aliases and NewType, and the annotated fields of the classes found
    (dataclasses, pydantic models, NamedTuple, TypedDict and plain classes alike). What does not resolve is left out:
    an annotation is a help, not a duty.

    Args:
        annotation: a type hint, or its source text.
        namespace: names in which source text is evaluated, such as a function's `__globals__`.
    """
    found: dict[str, type] = {}
    pending: list[tuple[Any, Mapping[str, Any]]] = [(annotation, namespace or {})]
    seen: set[int] = set()
    kept: list[Any] = []  # holds every hint seen, so that no id in `seen` is used twice
    while pending:
        hint, names = pending.pop()
        if isinstance(hint, (str, typing.ForwardRef)):
            hint = _resolved(hint, names)
        if hint is None or id(hint) in seen:
            continue
        seen.add(id(hint))
        kept.append(hint)
        pending.extend((part, names) for part in _parts(hint))
        # `list[int]` passes for a class in isinstance, and is none.
        if isinstance(hint, type) and typing.get_origin(hint) is None and hint.__module__ != "builtins":
            found.setdefault(recorded_name(hint), hint)
            pending.extend(_fields(hint))
    return found


def _resolved(hint: str | typing.ForwardRef, names: Mapping[str, Any]) -> Any:
    text = hint if isinstance(hint, str) else hint.__forward_arg__
    try:
        return eval(text, dict(names))  # noqa: S307 - the program's own annotation, as typing.get_type_hints evaluates it
    except Exception:  # noqa: BLE001 - a name imported for type checkers only; the other lookups remain
        return None


def _parts(hint: Any) -> Iterator[Any]:
    """What a hint is made of: its origin, arguments, the value of an alias, the members of a Literal."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        yield from (type(member) for member in typing.get_args(hint))
        return
    if origin is not None:
        yield origin
    for part in typing.get_args(hint):
        yield from part if isinstance(part, list) else (part,)
    for attribute in ("__value__", "__supertype__", "__bound__"):  # TypeAliasType, NewType, TypeVar
        if not isinstance(hint, type):
            yield getattr(hint, attribute, None)
    yield from getattr(hint, "__constraints__", ())


def _fields(cls: type) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    for base in cls.__mro__:
        if base.__module__ == "builtins":
            continue
        hints = _hints(base)
        module = sys.modules.get(base.__module__)
        names = {**(module.__dict__ if module else {}), **base.__dict__, base.__name__: base}
        yield from ((hint, names) for hint in hints.values())
    metadata = getattr(cls, "__pydantic_generic_metadata__", None)
    if isinstance(metadata, dict):
        yield from ((part, {}) for part in metadata.get("args", ()))


def _hints(cls: type) -> dict[str, Any]:
    try:
        return dict(cls.__annotations__)
    except Exception:  # noqa: BLE001 - annotations evaluated late (3.14) may name what only type checkers import
        return {}
