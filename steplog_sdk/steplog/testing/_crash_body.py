"""The body of one effect: how long it is, so that a process can be killed in the middle of it.

What the middle of a body is, the baseline tells. Of a plain function it is the line before which half of its lines have
been executed, or, of one that waits for somebody, half of its time; of an async function half of its suspensions.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

# Below this a body is a computation, and a clock cannot hit it.
_LONG_SECONDS: Final = 0.05


class Body:
    """One execution of an effect's function.

    Attributes:
        step: the step.
        run: its run.
        world: what the ledger said before it, or None.
    """

    def __init__(
        self,
        step: str,
        run: str,
        fn: Callable[..., Any],
        inside: dict[str, Any] | None,
        die: Callable[[str], None],
        *,
        measured: bool,
    ) -> None:
        self.step = step
        self.run = run
        self.world: Any = None
        self._code = getattr(inspect.unwrap(fn), "__code__", None)
        self._inside = inside or {}
        self._die = die
        self._measured = measured
        self._lines = 0
        self._pauses = 0
        self._began = time.perf_counter()
        self._over = threading.Event()
        if "seconds" in self._inside:
            threading.Thread(target=self._wait_and_die, daemon=True).start()

    def extent(self) -> dict[str, Any] | None:
        """How far into such a body its middle is, or None where it has none."""
        seconds = time.perf_counter() - self._began
        if self._lines > 1:
            return {"lines": self._lines // 2 + 1}
        if self._pauses:
            return {"pauses": (self._pauses + 1) // 2}
        return {"seconds": seconds / 2} if seconds >= _LONG_SECONDS else None

    def over(self) -> None:
        """The body has ended; nobody may die in it any more."""
        self._over.set()

    def _wait_and_die(self) -> None:
        if not self._over.wait(self._inside["seconds"]):
            self._die(self.step)

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Count the lines of the function that are executed in this thread, where that matters."""
        if self._code is None or not (self._measured or "lines" in self._inside):
            yield
            return
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        return self._line if frame.f_code is self._code else None

    def _line(self, _frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            self._lines += 1
            if self._lines == self._inside.get("lines"):
                self._die(self.step)
        return self._line

    def stepped(self, coroutine: Awaitable[Any]) -> Awaitable[Any]:
        """The coroutine, whose suspensions are counted."""
        return _Stepped(coroutine, self._paused)

    def _paused(self) -> None:
        self._pauses += 1
        if self._pauses == self._inside.get("pauses"):
            self._die(self.step)


class _Stepped:
    def __init__(self, inner: Awaitable[Any], paused: Callable[[], None]) -> None:
        self._inner = inner
        self._paused = paused

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._inner.__await__()
        try:
            asked = next(steps)
            while True:
                self._paused()
                try:
                    given = yield asked
                except BaseException as error:  # noqa: BLE001  # it belongs to the coroutine, which decides
                    asked = steps.throw(error) if hasattr(steps, "throw") else _raise(error)
                else:
                    asked = steps.send(given) if hasattr(steps, "send") else next(steps)
        except StopIteration as stop:
            return stop.value


def _raise(error: BaseException) -> Any:
    raise error


def entered(entry: Any) -> str:
    """An entry of a ledger as text, so that entries can be counted whatever they are."""
    return entry if isinstance(entry, str) else json.dumps(entry, sort_keys=True, default=repr, ensure_ascii=False)


def load(module: str, name: str, file: str | None = None) -> Any:
    """A function by its module, or by the file that the module was read from, where only that can be found.

    Raises:
        ImportError: there is no such module.
        AttributeError: it has no such function.
    """
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
    except ModuleNotFoundError as missing:
        spec = None if file is None else importlib.util.spec_from_file_location(module, file)
        if spec is None or spec.loader is None or missing.name not in (module, module.partition(".")[0]):
            raise
        found = sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    for part in name.split("."):
        found = getattr(found, part)
    return found
