"""Code that runs beside the program's course: how often it runs, and when, is not the same on a resume.

The recorder logs, encodes with codecs of the program and takes locks. A log formatter, a codec, a finalizer or a signal
handler that runs on top of it must not record: it would call the recorder again, without end, or in the middle of an
append. What the stack holds tells so soundly: a frame is on it exactly while its thread is inside, also where tasks of
an event loop take turns.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal.getsignal` takes twenty times as long
import functools
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any, Final

from steplog._runtime.context import frame

# What records. Not the modules that call the program's own functions: step, record, items, threads.
_RECORDING: Final = frozenset(
    f"steplog._runtime.{name}"
    for name in "blame collector commit dispatch drift_message drive evidence explain extend journal lines messages "
    "outcome pack progress recorder ticket turns".split()
)
_PACKAGES: Final = ("steplog._kernel.", "steplog.stores.")
# How many lines are logged depends on a level, and on what libraries find worth a line.
_LOGGING: Final = frozenset({"logging", "loguru", "structlog"})

_verdicts: Final[dict[str, bool]] = {}


def aside() -> bool:
    """Whether the calling code runs beside the program's course, and has to do without recording.

    So it is in a forked child, which must not write to the run of its parent nor be given what that recorded; in a
    handler of signals; in what a logging library calls; and in whatever the recorder calls or was interrupted by.
    """
    place = frame()
    if place is not None and place.recorder.journal.pid != os.getpid():
        return True
    handlers = _handlers() if threading.get_ident() == threading.main_thread().ident else frozenset()
    found: FrameType | None = sys._getframe(1)  # noqa: SLF001 - `inspect` reads source files to say the same
    while found is not None:
        if found.f_code in handlers or _is_aside(found.f_globals.get("__name__")):
            return True
        found = found.f_back
    return False


def _is_aside(module: Any) -> bool:
    if not isinstance(module, str):
        return False
    found = _verdicts.get(module)
    if found is None:
        found = module in _RECORDING or module.startswith(_PACKAGES) or module.partition(".")[0] in _LOGGING
        _verdicts[module] = found
    return found


def _handlers() -> frozenset[CodeType]:
    """The code of the handlers of signals in force. Those of C, and the default ones, have none."""
    found = (_code(_signal.getsignal(number)) for number in range(1, _signal.NSIG))
    return frozenset(code for code in found if code is not None)


def _code(handler: Any) -> CodeType | None:
    if handler is None or isinstance(handler, int):
        return None
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__") and not hasattr(handler, "__func__"):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 - its code is wanted, not whether it has one
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
