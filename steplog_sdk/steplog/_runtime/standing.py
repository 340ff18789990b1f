"""Whether threads of this process are at work or wait for something."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

_TASK: Final = "/proc/self/task/{}/{}"


class Place(NamedTuple):
    """Where a thread stands.

    Attributes:
        frame: its innermost frame.
        instruction: the last one in it.
        worked: nanoseconds of processor time so far; 0 where the system does not tell.
        runs: it runs, or would if it were given a processor; False where the system does not tell.
    """

    frame: int
    instruction: int
    worked: int
    runs: bool


def standing(threads: Iterable[int]) -> dict[int, Place]:
    """Where threads stand, by their idents; those that have ended are left out.

    A thread that waits stands at the same place when it is looked at again.
    """
    frames = sys._current_frames()  # noqa: SLF001  # documented; there is no other
    numbers = {thread.ident: thread.native_id for thread in threading.enumerate()}
    return {
        thread: Place(
            id(frames[thread]), frames[thread].f_lasti, _worked(numbers.get(thread)), _runs(numbers.get(thread))
        )
        for thread in threads
        if thread in frames
    }


def _worked(number: int | None) -> int:
    # Not by `time.pthread_getcpuclockid`, which may crash where the thread ends meanwhile.
    return int(_read(number, "schedstat").split(b" ")[0] or 0)


def _runs(number: int | None) -> bool:
    # Behind the name, which stands in parentheses and may hold any.
    return _read(number, "stat").rpartition(b") ")[2][:1] == b"R"


def _read(number: int | None, what: str) -> bytes:
    try:
        with open(_TASK.format(number, what), "rb") as file:
            return file.read()
    except OSError:
        return b""  # another system, or the thread has ended
