"""A run that stopped and that nobody catches: its text stands once in the traceback, not twice.

`RunStopped` says all that the interrupt says, because a program may print it alone; and the interrupt is its cause, so
a traceback would print both. While one is printed for a program that ends of it, the interrupt says its first line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from steplog.errors import Interrupt, RunStopped

_before: Any = None


def watch() -> None:
    """See to it, once and for the rest of the process or until `unwatch`. For when a run has stopped."""
    global _before
    if _before is None:
        _before, sys.excepthook = sys.excepthook, _print


def unwatch() -> None:
    """Put the hook back that was there before, unless somebody has put another one around this one."""
    global _before
    if sys.excepthook is _print:
        sys.excepthook, _before = _before, None


def _print(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    with ExitStack() as stack:
        for interrupt in _carried(error):
            stack.enter_context(_brief(interrupt))
        _before(kind, error, traceback)


def _carried(error: BaseException) -> list[Interrupt]:
    """The interrupts whose text a `RunStopped` says, in the error and what it comes from."""
    found: dict[int, Interrupt] = {}
    left, seen = [error], set()
    while left:
        current = left.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, RunStopped) and isinstance(current.__cause__, Interrupt):
            found[id(current.__cause__)] = current.__cause__
        left += [one for one in (current.__cause__, current.__context__) if one is not None]
    return list(found.values())


@contextmanager
def _brief(interrupt: Interrupt) -> Iterator[None]:
    kept = interrupt.args
    interrupt.args = (str(interrupt).partition("\n")[0],)
    try:
        yield
    finally:
        interrupt.args = kept
