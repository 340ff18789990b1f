"""A test of a run that was interrupted: it plays what was recorded, and ends where the program asks for more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from steplog.errors import Unrecorded
from steplog.testing._tapes import named

if TYPE_CHECKING:
    from steplog.testing.session import Session


class Mismatch(AssertionError):
    """A test did something else than its cassette holds."""


@contextmanager
def cut(session: Session) -> Iterator[None]:
    """See `Session.until_interrupted`."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        # A framework may have made anything of the interrupt, an exit status included.
        if not _is_at_the_end(session):
            raise
    left = session.left_out() if session.replaying else []
    if left:
        raise Mismatch(
            f"{session.test} did not get as far as its cassette {session.path}: {len(left)} of the recorded steps were "
            f"not asked for:{named(left)}\nIf that is right, record it again:\n  {session.again}"
        )
    session.interrupted = True


def _is_at_the_end(session: Session) -> bool:
    """Whether what stopped the program is that nothing more is recorded."""
    runs = (run.recorder.halted for run in session.opened)
    stops = [stop for stop in (*runs, *session.refused) if stop is not None]
    return bool(stops) and all(isinstance(stop, Unrecorded) for stop in stops)
