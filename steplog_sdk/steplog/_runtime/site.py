"""Which line of the program is executing: the innermost one that belongs to no library."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType
from typing import Final

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES: Final = tuple(
    os.path.join(directory, "")
    for directory in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        _PACKAGE,
        os.path.join(os.path.dirname(os.path.dirname(_PACKAGE)), "interceptors", "steplog_interceptors"),
    }
)


def program_line() -> str:
    """The line of the program that is executing, as `agent.py:88 in plan`; "" where there is none."""
    found: FrameType | None = sys._getframe(1)  # noqa: SLF001  # `inspect` reads source files to say the same
    while found is not None:
        file = found.f_code.co_filename
        if not file.startswith(("<", *_LIBRARIES)):
            return f"{_short(file)}:{found.f_lineno} in {found.f_code.co_qualname}"
        found = found.f_back
    return ""


def _short(file: str) -> str:
    here = os.path.join(os.getcwd(), "")
    return file.removeprefix(here) if file.startswith(here) else os.path.basename(file)
