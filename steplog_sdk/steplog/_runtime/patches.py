"""What has been replaced in somebody else's classes, as a list that can be read and taken back.

Replacements are plain functions: they keep name, signature, `inspect.iscoroutinefunction` and `__wrapped__`, and pickle
and copy as the attribute they stand for, which a proxy object would not.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol

import wrapt

from steplog._kernel.refusal import with_article

log: Final = logging.getLogger("steplog")

_MARK: Final = "__steplog_patch__"


class Wrapper(Protocol):
    """Builds the replacement of a method.

    The replacement must call `original` and do nothing else while `patch.on` is false: it may be buried under another
    tool's patch, where it can no longer be removed.
    """

    def __call__(self, original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        """Return the function to put in place of `original`."""


class Patch:
    """One replaced method.

    Attributes:
        owner: the class that held it, or the module.
        name: name of the method.
        original: what stood in the class's own `__dict__`.
        replacement: what stands there now.
        on: False once it has been taken back.
    """

    def __init__(self, owner: type | ModuleType, name: str, wrapper: Wrapper) -> None:
        self.owner = owner
        self.name = name
        self.on = True
        self.original: Callable[..., Any] = owner.__dict__[name]
        self.replacement = functools.wraps(self.original)(wrapper(self.original, self))
        setattr(self.replacement, _MARK, self)
        setattr(owner, name, self.replacement)

    def undo(self) -> None:
        """Put the original back, unless another tool has since put its own replacement on top of ours."""
        self.on = False
        if self.owner.__dict__.get(self.name) is self.replacement:
            setattr(self.owner, self.name, self.original)

    @property
    def place(self) -> str:
        """What was replaced, as `package.module.Class.method`."""
        return f"{_named(self.owner)}.{self.name}"

    def __repr__(self) -> str:
        return f"<Patch {self.place} {'on' if self.on else 'off'}>"


def _named(owner: type | ModuleType) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"


class Hooked(NamedTuple):
    """What was done to a module.

    Attributes:
        module: its name.
        patches: what was replaced when it was imported; empty before that.
        fault: why not all of it could be replaced, or None.
    """

    module: str
    patches: tuple[Patch, ...]
    fault: str | None


Hooks = dict[str, Callable[[ModuleType], None]]

_every: Final[weakref.WeakSet[Patches]] = weakref.WeakSet()


def hooked() -> list[Hooked]:
    """What the interceptors that are installed wait for or have done, by module."""
    found: dict[str, Hooked] = {}
    for patches in list(_every):
        for one in patches.hooked():
            other = found.get(one.module, Hooked(one.module, (), None))
            found[one.module] = Hooked(one.module, (*other.patches, *one.patches), other.fault or one.fault)
    return [found[name] for name in sorted(found)]


class Patches:
    """The patches of one interceptor, applied when the modules that they concern are imported."""

    def __init__(self) -> None:
        _every.add(self)
        self._by_module: dict[str, list[Patch]] = {}
        self._faults: dict[str, str] = {}
        self._lock = threading.RLock()
        self._applied: list[Patch] = []
        self._waiting: Hooks = {}
        self._hooked: set[str] = set()
        self._installed = False

    @property
    def installed(self) -> bool:
        """Whether `install` has been called more recently than `uninstall`."""
        return self._installed

    def install(self, hooks: Hooks) -> None:
        """Run each hook with its module: now where the module is imported, else when it will be. Idempotent.

        A hook that raises is a warning, not an error: the program's `import` must go on.
        """
        with self._lock:
            if self._installed:
                return
            self._installed = True
            self._waiting = dict(hooks)
            for name in hooks:
                self._hook(name)

    def _hook(self, name: str) -> None:
        import sys

        module = sys.modules.get(name)
        if module is not None and not _being_imported(module):
            self._run(name, module)
        if name not in self._hooked:
            # A post-import hook cannot be taken back, so it is registered once and asks what is wanted when it runs.
            self._hooked.add(name)
            wrapt.register_post_import_hook(functools.partial(self._imported, name), name)

    def _imported(self, name: str, module: ModuleType) -> None:
        with self._lock:
            if name in self._waiting:
                self._run(name, module)

    def _run(self, name: str, module: ModuleType) -> None:
        before = len(self._applied)
        try:
            self._waiting[name](module)
        except Exception as fault:
            # Whatever it is, it must not break the program's `import`.
            self._faults[name] = str(fault)
            log.warning(
                "steplog cannot record calls through the module %s (%s): %s. If the file is your own and only shares "
                "the name, nothing is lost. If it is the library, this release of its interceptor does not know it: "
                "update the interceptor (pip install -U steplog, for those that come with steplog).",
                *(name, getattr(module, "__file__", None) or "no file", fault),
                exc_info=not isinstance(fault, AttributeError),
            )
        self._by_module.setdefault(name, []).extend(self._applied[before:])

    def uninstall(self) -> None:
        """Take everything back, in reverse order."""
        with self._lock:
            self._installed = False
            self._waiting = {}
            self._by_module, self._faults = {}, {}
            while self._applied:
                self._applied.pop().undo()

    def apply(self, owner: type | ModuleType, name: str, wrapper: Wrapper) -> None:
        """Replace a method that a class defines itself, or a function of a module; one that is ours stays as it is.

        A function that a program has taken out of its module before (`from acme import search`) is not replaced there.

        Raises:
            AttributeError: the class has no such method, only inherits it, or holds something else under that name.
                `install` turns that into a warning that names the module; in silence, calls would go unrecorded after
                a release of the SDK that renamed it.
        """
        with self._lock:
            current = owner.__dict__.get(name)
            if not callable(current) or isinstance(current, (staticmethod, classmethod, type)):
                raise AttributeError(_unfit(owner, name, current))  # noqa: TRY004  # to the SDK, it is a missing method
            if not _is_ours(current):
                self._applied.append(Patch(owner, name, wrapper))

    def __iter__(self) -> Iterator[Patch]:
        """The patches in place, oldest first."""
        return iter(tuple(self._applied))

    def hooked(self) -> list[Hooked]:
        """What it waits for or has done, by module."""
        with self._lock:
            return [
                Hooked(name, tuple(self._by_module.get(name, ())), self._faults.get(name)) for name in self._waiting
            ]


def _unfit(owner: type | ModuleType, name: str, found: Any) -> str:
    if found is not None:
        return f"{_named(owner)}.{name} is no plain method but {with_article(type(found).__name__)}"
    holder = next((cls for cls in getattr(owner, "__mro__", ()) if name in vars(cls)), None)
    if holder is None:
        return f"{_named(owner)} has no method {name}"
    return f"{_named(owner)} inherits {name} from {_named(holder)}; patch it there"


def _is_ours(function: Any) -> bool:
    patch = function.__dict__.get(_MARK) if hasattr(function, "__dict__") else None
    # `functools.wraps` of another tool copies our mark onto its own function; only the marked function itself is ours.
    return isinstance(patch, Patch) and patch.replacement is function and patch.on


def _being_imported(module: ModuleType) -> bool:
    spec = getattr(module, "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
