"""From a call's arguments to the named arguments that identify it."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Collection
from typing import Any

from steplog.errors import InvalidArgument

_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Binder:
    """Binds calls of one function, with defaults applied.

    Attributes:
        takes_key: whether the function has a parameter for the idempotency key.
        receiver: name of the parameter that a method is called on, or None.
    """

    def __init__(self, fn: Callable[..., Any], *, owner: str, ignore: Collection[str] = (), key: str) -> None:
        # The function's own signature, not that of what it wraps: a decorator in between may take other arguments.
        self._signature = _signature(fn, follow=False)
        parameters = self._signature.parameters
        if isinstance(ignore, str):
            message = f"{owner}: ignore takes names of parameters in a list: ignore=[{ignore!r}]"
            raise InvalidArgument(message)
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        named = set(parameters) | (set(_signature(fn, follow=True).parameters) if takes_any else set())
        unknown = set(ignore) - named
        if unknown:
            message = f"{owner}: ignore names {sorted(unknown)}, which are not parameters of the function."
            raise InvalidArgument(message)
        self._key = key
        self.takes_key = key in named
        self._key_default = parameters[key].default if key in parameters else inspect.Parameter.empty
        self.receiver = _receiver(fn, list(parameters))
        self._ignored = frozenset(ignore) | ({self.receiver} if self.receiver else frozenset())
        plain = all(parameter.kind in _PLAIN for parameter in parameters.values())
        self._names = tuple(parameters) if plain else None
        self._positional = sum(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters.values())
        self._defaults = {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}
        self._required = frozenset(
            name
            for name, p in parameters.items()
            if p.default is inspect.Parameter.empty and p.kind in _PLAIN and name != key
        )
        # Nothing to leave out, nothing to make up: a call that names every parameter by its place is bound by counting.
        self._counted = self._names is not None and not self.takes_key and not self._ignored

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Named arguments without the receiver, the ignored ones and a key that steplog supplies.

        A call that does not fit the signature is identified by what was given. It is not let through: signatures can
        lie, and then the call would have its effect unrecorded.
        """
        names = self._names
        if self._counted and not kwargs and names is not None and len(args) == len(names) == self._positional:
            return dict(zip(names, args))  # noqa: B905  # both were counted; to have it done again takes as long as this
        named = self._bind_plain(args, kwargs) if self._names is not None else self._bind_any(args, kwargs)
        if named is None:
            return {"args": list(args), "kwargs": dict(kwargs)}
        if self.takes_key and not self._given(args, kwargs):
            named.pop(self._key, None)
        for name in self._ignored:
            value = named.pop(name, None)
            if name == self.receiver and _is_value(value):
                named[name] = value
            if self._names is None and isinstance(extra := named.get("kwargs"), dict):
                extra.pop(name, None)
        return named

    def _bind_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        # `Signature.bind` costs more than everything else that a step does in memory; this covers ordinary functions.
        names = self._names
        assert names is not None
        if len(args) > self._positional:
            return None
        named = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name in named or name not in names:
                return None
            named[name] = value
        if not self._required <= named.keys():
            return None
        return {**self._defaults, **named} if len(named) < len(names) else named

    def _bind_any(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        declared = self._key in self._signature.parameters
        supplied = {self._key: ""} if declared and self._key not in kwargs else {}
        try:
            bound = self._signature.bind(*args, **kwargs, **supplied)
        except TypeError:
            return None
        bound.apply_defaults()
        return dict(bound.arguments)

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the caller supplies a key of its own, which is then an argument like any other."""
        if self._key in kwargs:
            return bool(kwargs[self._key])
        names = list(self._signature.parameters)
        return self._key in names and names.index(self._key) < min(len(args), self._positional)

    def with_key(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: str) -> dict[str, Any]:
        """The keyword arguments with steplog's key in them, unless the caller gave its own."""
        return kwargs if self._given(args, kwargs) else {**kwargs, self._key: key}

    def without_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments for a call outside every run.

        A key that the function requires and the caller leaves to steplog is made up for this one call: without a log
        there is nothing that a later call could share it with.
        """
        if not self.takes_key or self._given(args, kwargs) or self._key_default is not inspect.Parameter.empty:
            return kwargs
        import uuid

        return {**kwargs, self._key: str(uuid.uuid4())}


def _signature(fn: Callable[..., Any], *, follow: bool) -> inspect.Signature:
    try:
        return inspect.signature(fn, follow_wrapped=follow)
    except ValueError:
        # Builtins such as `time.time` have none; whatever they are called with identifies the call.
        return inspect.signature(lambda *args, **kwargs: None)  # noqa: ARG005  # only its shape is used


def _receiver(fn: Callable[..., Any], parameters: list[str]) -> str | None:
    """The `self` or `cls` of a function that is defined in a class body."""
    in_class = "." in getattr(fn, "__qualname__", "").rsplit("<locals>.", 1)[-1]
    return parameters[0] if in_class and parameters and parameters[0] in ("self", "cls") else None


def _is_value(receiver: Any) -> bool:
    """Whether an object is what it holds, for good, so that it can tell calls on it from calls on others."""
    frozen = getattr(getattr(type(receiver), "__dataclass_params__", None), "frozen", False)
    return bool(frozen) or isinstance(receiver, (tuple, enum.Enum))
