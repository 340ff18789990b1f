"""Which run an effect is submitted to, and what happens to one that belongs to none."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any, Final

from steplog._runtime.context import PASSING, Frame, frame
from steplog._runtime.settings import Settings
from steplog.errors import NotInRun

log: Final = logging.getLogger("steplog")


class Process:
    """What there is once per process: the settings in force and the runs that are open.

    Attributes:
        settings: what `install()` decided, or None before it was called.
        runs: open recorders by run id.
        opened: ids of the last hundred runs that this process has opened, in order.
    """

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.runs: dict[str, Any] = {}
        self.opened: deque[str] = deque(maxlen=100)
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def warn_once(self, topic: str, message: str) -> None:
        """Log a warning the first time a topic comes up in this process."""
        with self._lock:
            first = topic not in self._warned
            self._warned.add(topic)
        if first:
            log.warning(message)

    def forget_warnings(self) -> None:
        """Warn again about everything; for `uninstall`."""
        with self._lock:
            self._warned.clear()


PROCESS: Final = Process()


def place_of(kind: str, target: str) -> Frame | None:
    """The place in the open run that an effect belongs to, or None when it is to pass through untouched.

    Raises:
        NotInRun: under `install(strict=True)`, for an effect that would escape the log.
    """
    found = frame()
    if PASSING.get():
        return None
    if found is None:
        _outside(kind, target)
    return found


def active() -> bool:
    """Whether an effect submitted here would be recorded."""
    return not PASSING.get() and frame() is not None


def _outside(kind: str, target: str) -> None:
    settings = PROCESS.settings
    if PROCESS.runs:
        topic = "lost"
        what = (
            f"{kind} {target} was called in a thread or task that has lost its run (open: {', '.join(PROCESS.runs)}); "
            f"it is not recorded. Start the worker inside the run, or open the run in the worker."
        )
    else:
        topic = "outside"
        what = (
            f"{kind} {target} was called outside any run; it is not recorded. "
            f'Put the agent inside: with steplog.run("my-run-id"): ...'
        )
    if settings is not None and settings.strict and kind != "local":
        raise NotInRun(what)
    if settings is not None:
        PROCESS.warn_once(topic, f"{what} (Said once; further ones are logged at debug level.)")
    log.debug(what)
