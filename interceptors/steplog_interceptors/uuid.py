"""`uuid.uuid4()` and the other ids that are drawn, as local steps. Opt-in.

Their code is replaced and not the functions themselves, so that a function which was handed over before `install()`
(`Field(default_factory=uuid4)`) is covered as well.
"""

from __future__ import annotations

import inspect
import uuid
from types import CodeType, FunctionType
from typing import Any, Final

from steplog_interceptors.ambient import OWN_AND_FRAMEWORKS, Source, note_installer

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

    def install(self) -> None:
        """Replace the functions' code. Idempotent."""
        note_installer()
        if self._replaced:
            return
        for name in _DRAWN:
            function: Any = getattr(uuid, name, None)
            if isinstance(function, FunctionType):
                self._replace(name, function)

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
        while self._replaced:
            function, private, original, replacement, source = self._replaced.pop()
            source.on = False
            if function.__code__ is replacement:
                function.__code__ = original
                del function.__globals__[private]


interceptor: Final = Uuids()
