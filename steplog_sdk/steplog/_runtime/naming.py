"""The id of a run that the program does not name.

`steplog resume` starts a program again for one of its runs, and says by `STEPLOG_RUN_NTH` which of its unnamed ones
that was. A run inside another run is named after its place there, so that a resumed program finds it again.
"""

from __future__ import annotations

import os

from steplog._runtime import ulid
from steplog._runtime.context import frame

_unnamed = 0


def nth() -> int:
    """How many runs of this process had no name so far."""
    return _unnamed


def default() -> str:
    """The id of the next run without one."""
    global _unnamed  # counts for the whole process, since the environment names runs of a process
    place = frame()
    if place is not None:
        return place.recorder.dispatch.name_of_inner_run(place.scope)
    number, _unnamed = _unnamed, _unnamed + 1
    named = os.environ.get("STEPLOG_RUN_ID")
    return named if named and number == int(os.environ.get("STEPLOG_RUN_NTH", "0")) else ulid.new()
