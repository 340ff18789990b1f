"""What has been replaced in somebody else's classes, as a list that can be read and taken back.

Replacements are plain functions: they keep name, signature, `inspect.iscoroutinefunction` and `__wrapped__`, and pickle
and copy as the attribute they stand for, which a proxy object would not.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, Protocol

import wrapt

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
        owner: the class that held it.
        name: name of the method.
        original: what stood in the class's own `__dict__`.
        replacement: what stands there now.
        on: False once it has been taken back.
    """

    def __init__(self, owner: type, name: str, wrapper: Wrapper) -> None:
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

    def __repr__(self) -> str:
        return f"<Patch {self.owner.__module__}.{self.owner.__qualname__}.{self.name} {'on' if self.on else 'off'}>"


class Patches:
    """The patches of one interceptor, applied when the modules that they concern are imported."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._applied: list[Patch] = []
        self._waiting: dict[str, Callable[[ModuleType], None]] = {}
        self._hooked: set[str] = set()
        self._installed = False

    @property
    def installed(self) -> bool:
        """Whether `install` has been called more recently than `uninstall`."""
        return self._installed

    def install(self, hooks: dict[str, Callable[[ModuleType], None]]) -> None:
        """Run each hook with its module: now where the module is imported, else when it will be."""
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
            _run(self._waiting[name], module)
        if name not in self._hooked:
            # A post-import hook cannot be taken back, so it is registered once and asks what is wanted when it runs.
            self._hooked.add(name)
            wrapt.register_post_import_hook(functools.partial(self._imported, name), name)

    def _imported(self, name: str, module: ModuleType) -> None:
        with self._lock:
            hook = self._waiting.get(name)
            if hook is not None:
                _run(hook, module)

    def uninstall(self) -> None:
        """Take everything back, in reverse order."""
        with self._lock:
            self._installed = False
            self._waiting = {}
            while self._applied:
                self._applied.pop().undo()

    def apply(self, owner: type, name: str, wrapper: Wrapper) -> None:
        """Replace a method that the class defines itself; a method that is already ours stays as it is.

        Raises:
            AttributeError: the class has no such method, or only inherits it. `install` turns that into a warning that
                names the module; in silence, calls would go unrecorded after a release of the SDK that renamed it.
        """
        with self._lock:
            current = owner.__dict__.get(name)
            if current is None:
                raise AttributeError(_absent(owner, name))
            if not _is_ours(current):
                self._applied.append(Patch(owner, name, wrapper))

    def __iter__(self) -> Iterator[Patch]:
        """The patches in place, oldest first."""
        return iter(tuple(self._applied))


def _run(hook: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a hook; one that does not find what it patches must not break the program's `import`."""
    try:
        hook(module)
    except AttributeError as missing:
        log.warning(
            "steplog cannot record calls through the module %s (%s): %s. If the file is your own and only shares the "
            "name, nothing is lost. If it is the library, this release of steplog does not know it yet: "
            "pip install -U steplog",
            *(module.__name__, getattr(module, "__file__", None) or "no file", missing),
        )


def _absent(owner: type, name: str) -> str:
    holder = next((cls for cls in owner.__mro__ if name in vars(cls)), None)
    if holder is None:
        return f"{owner.__qualname__} has no method {name}"
    return f"{owner.__qualname__} inherits {name} from {holder.__qualname__}; patch it there"


def _is_ours(function: Any) -> bool:
    patch = function.__dict__.get(_MARK) if hasattr(function, "__dict__") else None
    # `functools.wraps` of another tool copies our mark onto its own function; only the marked function itself is ours.
    return isinstance(patch, Patch) and patch.replacement is function and patch.on


def _being_imported(module: ModuleType) -> bool:
    spec = getattr(module, "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
