"""Whether this thread is inside the garbage collector.

A dropped stream is often part of a cycle, so the collector closes it: at any allocation, also while a lock of the
recorder is held by the very code that allocated. Nothing may be written from there.
"""

from __future__ import annotations

import gc
import threading
from typing import Any, Final

_inside: Final[set[int]] = set()


def collecting() -> bool:
    """Whether the executing code was called by a collection in this thread."""
    return threading.get_ident() in _inside


def watch() -> None:
    """Begin to follow the collector. Idempotent."""
    if _note not in gc.callbacks:
        gc.callbacks.append(_note)


def unwatch() -> None:
    """Stop following it."""
    if _note in gc.callbacks:
        gc.callbacks.remove(_note)
    _inside.clear()


def _note(phase: str, _info: dict[str, Any]) -> None:
    if phase == "start":
        _inside.add(threading.get_ident())
    else:
        _inside.discard(threading.get_ident())
