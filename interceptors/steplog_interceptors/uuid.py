"""`uuid.uuid4()` and the other ids that are drawn, as local steps. Opt-in.

Their code is replaced and not the functions themselves, so that a function which was handed over before `install()`
(`Field(default_factory=uuid4)`) is covered as well. `fastuuid`, which litellm uses where it is installed, is not
written in python; its functions are replaced in its module.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from steplog.plugins import Patches
from steplog_interceptors.ambient import OWN_AND_FRAMEWORKS, Functions, Source, note_installer

# Those that a Python does not have are skipped. The others are computed from their arguments.
_DRAWN: Final = ("uuid1", "uuid4", "uuid6", "uuid7", "uuid8")


class Uuids:
    """Records the ids that the program and its framework draw.

    Attributes:
        name: `uuid`.
        opt_in: it is installed where it is named.
    """

    name = "uuid"
    opt_in = True

    def __init__(self) -> None:
        self._replaced: list[tuple[FunctionType, str, CodeType, CodeType, Source]] = []
        self._fast: Functions | None = None
        self._fast_sources: list[Source] = []
        self._hooks = Patches()

    def install(self) -> None:
        """Replace the functions' code. Idempotent."""
        note_installer()
        if self._replaced:
            return
        for name in _DRAWN:
            function: Any = getattr(uuid, name, None)
            if isinstance(function, FunctionType):
                self._replace(name, function)
        self._hooks.install({"fastuuid": self._replace_fast})

    def _replace_fast(self, module: ModuleType) -> None:
        def drawing(name: str) -> Callable[..., Any]:
            original, source = getattr(module, name), Source(f"uuid.{name}", OWN_AND_FRAMEWORKS)
            self._fast_sources.append(source)

            def draw(*args: Any, **kwargs: Any) -> Any:
                fresh, at = original(*args, **kwargs), source.caller(2)
                return fresh if at is None else type(fresh)(source.record(at, str(fresh)))

            return draw

        self._fast = Functions(module)
        self._fast.replace({name: drawing(name) for name in _DRAWN if hasattr(module, name)})

    def _replace(self, name: str, function: FunctionType) -> None:
        original: Any = FunctionType(
            function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
        )
        source = Source(f"uuid.{name}", OWN_AND_FRAMEWORKS)

        def draw(*args: Any) -> Any:
            fresh = original(*args)
            # This function, and the one whose code was replaced, stand between.
            at = source.caller(2)
            return fresh if at is None else uuid.UUID(source.record(at, str(fresh)))

        private = f"__steplog_{name}__"
        function.__globals__[private] = draw
        names = ", ".join(inspect.signature(function).parameters)
        text = f"def {name}({names}): return {private}({names})"
        namespace: dict[str, Any] = {}
        exec(compile(text, function.__code__.co_filename, "exec"), namespace)  # noqa: S102 - the names are python's own
        replacement = namespace[name].__code__
        self._replaced.append((function, private, function.__code__, replacement, source))
        function.__code__ = replacement

    def uninstall(self) -> None:
        """Put the original code back. Idempotent."""
        self._hooks.uninstall()
        for source in self._fast_sources:
            source.on = False
        self._fast_sources = []
        if self._fast is not None:
            self._fast.restore()
            self._fast = None
        while self._replaced:
            function, private, original, replacement, source = self._replaced.pop()
            source.on = False
            if function.__code__ is replacement:
                function.__code__ = original
                del function.__globals__[private]


interceptor: Final = Uuids()
