"""Exceptions: written by state, raised again as the same class with the same arguments and attributes.

An exception is restored past its own `__init__`, which may want arguments that `args` does not hold. What an exception
carries is often there for a debugger only (a response, a connection): when an error is recorded, such a part is dropped
and listed under "lost", because the failure itself must be recorded whatever it carries.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, Final

from steplog._kernel.codec_classes import MARK, Decoding, Encoding, recorded_name
from steplog._kernel.refusal import Refused, class_name, key_step, shortened
from steplog.errors import StepFailed

LEVELS: Final = 3
"""Levels that an exception's wrapper may add: itself, its list of arguments, the stand-in for a lost one."""

# Set by the interpreter on every AttributeError so that it can suggest a name: the program's own object, not a fact.
_DEBUG_ONLY: Final = frozenset({"obj"})

_SHOWN: Final = 1000
# Credentials that the text of an exception may quote: noted on it so that they are taken out, and never recorded.
SECRETS: Final = "__steplog_secrets__"
_UNSET: Final = object()


class Lost:
    """Stands for an argument of a recorded exception that could not be recorded; it reads as the original read.

    Attributes:
        type_name: the class of the original.
    """

    __slots__ = ("_repr", "_str", "type_name")

    def __init__(self, type_name: str, text: str, representation: str) -> None:
        self.type_name = type_name
        self._str = text
        self._repr = representation

    def __str__(self) -> str:
        return self._str

    def __repr__(self) -> str:
        return self._repr


def lost_to(enc: Encoding, value: Any, depth: int) -> dict[str, Any]:
    """The tree of what stands for a value that cannot be recorded (or of such a stand-in, when it comes by again)."""
    name = value.type_name if isinstance(value, Lost) else class_name(type(value))
    texts = {how.__name__: enc.tree(shortened(_printed(how, value), _SHOWN), depth + 1) for how in (str, repr)}
    return {MARK: "lost", "type": name, **texts}


def _lost_of(dec: Decoding, tree: dict[str, Any]) -> Lost:
    return Lost(tree["type"], dec.value(tree["str"]), dec.value(tree["repr"]))


def _printed(how: Callable[[Any], str], value: Any) -> str:
    try:
        return str.__str__(how(value))
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the error that is being recorded
        return f"<{class_name(type(value))} that cannot be printed>"


def exception_to(enc: Encoding, exc: BaseException, depth: int) -> dict[str, Any]:
    """The tree of an exception; a lenient walk drops and lists what it cannot hold, a strict one refuses."""
    if id(exc) in enc.active:
        raise Refused("is an exception that leads back to itself.", class_name(type(exc)))
    enc.active.add(id(exc))
    try:
        return _Writer(enc, exc, depth).tree()
    finally:
        enc.active.discard(id(exc))


def unreadable(enc: Encoding, exc: BaseException) -> dict[str, Any]:
    """The least that can be said of an exception that cannot be read: its class and how it prints."""
    message = enc.tree(_printed(str, exc), 1)
    name = recorded_name(type(exc))
    return {MARK: "exception", "class": name, "unfindable": True, "message": message, "args": [], "lost": ["args"]}


class _Writer:
    """Writes one exception, keeping account of what it had to drop."""

    def __init__(self, enc: Encoding, exc: BaseException, depth: int) -> None:
        self.enc = enc
        self.exc = exc
        self.depth = depth
        self.lost: list[str] = []

    def tree(self) -> dict[str, Any]:
        exc = self.exc
        tree = {MARK: "exception", **self._class(), "message": self.enc.tree(_printed(str, exc), self.depth + 1)}
        tree["args"] = [self._arg(index, item) for index, item in enumerate(exc.args)]
        parts = {
            "attrs": self._attrs(),
            "cause": self._link("__cause__"),
            # A context that `raise ... from` hides is never shown, and following it would write shared chains twice.
            "context": None if exc.__suppress_context__ else self._link("__context__"),
            "suppress": exc.__suppress_context__ and exc.__cause__ is None,
            "lost": self.lost,
        }
        tree.update((name, part) for name, part in parts.items() if part)
        return tree

    def _class(self) -> dict[str, Any]:
        cls = type(self.exc)
        try:
            return {"class": self.enc.classes.name(cls)}
        except Refused:
            if not self.enc.lenient:
                raise
            return {"class": recorded_name(cls), "unfindable": True}

    def _part(self, step: str, item: Any, depth: int) -> Any:
        try:
            return self.enc.at(step, item, depth, self.exc)
        except Exception:
            if not self.enc.lenient:
                raise
            self.lost.append(step.removeprefix("."))
            return _UNSET

    def _arg(self, index: int, item: Any) -> Any:
        part = self._part(f".args[{index}]", item, self.depth + 2)
        return lost_to(self.enc, item, self.depth + 2) if part is _UNSET else part

    def _attrs(self) -> dict[str, Any]:
        parts = {
            name: self._part(key_step(name), item, self.depth + 2)
            for name, item in _attributes(self.exc)
            if _utf8(name)
        }
        return {name: part for name, part in parts.items() if part is not _UNSET}

    def _link(self, name: str) -> Any:
        linked = getattr(self.exc, name)
        part = None if linked is None else self._part(f".{name}", linked, self.depth + 1)
        return None if part is _UNSET else part


def _utf8(name: str) -> bool:
    return name.isascii() or "\ufffd" not in name.encode("utf-8", "replace").decode()


def _attributes(exc: BaseException) -> Iterator[tuple[str, Any]]:
    """What `args` does not restore: slots and C-level members (such as `OSError.filename`), then `__dict__`."""
    bare = _bare(type(exc), exc.args)
    for name in _members(type(exc)):
        item = getattr(exc, name, _UNSET)
        if item is not getattr(bare, name, _UNSET) and _settable(bare, name, item):
            yield name, item
    yield from ((name, item) for name, item in list(exc.__dict__.items()) if name != SECRETS)


def _members(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        if base in (BaseException, object):
            continue
        for name, member in vars(base).items():
            is_data = isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType))
            if is_data and not name.startswith("__") and name not in _DEBUG_ONLY:
                yield name


def _settable(bare: BaseException, name: str, item: Any) -> bool:
    try:
        object.__setattr__(bare, name, item)
    except (AttributeError, TypeError):  # derived from args, as the members of an ExceptionGroup are
        return False
    return True


def _bare(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An instance of `cls` with these args, made by the built-in class beneath it: no code of the program's runs."""
    base: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    bare: BaseException = base.__new__(cls, *args)
    if type(bare) is not cls:
        raise TypeError(f"{class_name(cls)} with these arguments becomes {class_name(type(bare))}")
    bare.args = args
    return bare


def exception_of(dec: Decoding, tree: dict[str, Any]) -> BaseException:
    """The exception of a tree; a lenient walk returns `StepFailed` for one that this program cannot rebuild."""
    try:
        return _rebuilt(dec, tree)
    except Exception:
        if not dec.lenient:
            raise
        name = tree["class"].replace("builtins:", "")
        return StepFailed(str(dec.value(tree["message"])), type_name=name)


def _rebuilt(dec: Decoding, tree: dict[str, Any]) -> BaseException:
    if "unfindable" in tree:
        raise Refused("is an exception of a class that could not be found by name when it was recorded.", tree["class"])
    cls = dec.classes.require(tree["class"])
    if not issubclass(cls, BaseException):
        raise Refused(f"was recorded as an exception, and {class_name(cls)} is none now.", tree["class"])
    exc = _bare(cls, tuple(dec.at(f".args[{index}]", part) for index, part in enumerate(tree["args"])))
    for name, part in tree.get("attrs", {}).items():
        object.__setattr__(exc, name, dec.at(key_step(name), part))
    if "context" in tree:
        exc.__context__ = dec.at(".__context__", tree["context"])
    if "cause" in tree:
        exc.__cause__ = dec.at(".__cause__", tree["cause"])
    exc.__suppress_context__ = "cause" in tree or "suppress" in tree
    return exc


KINDS: Final[dict[str, Callable[[Decoding, dict[str, Any]], Any]]] = {"exception": exception_of, "lost": _lost_of}
