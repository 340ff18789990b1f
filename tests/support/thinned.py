"""Long enumerations, of which `make test` tries another part each day, and `make test-nightly` all.

    @pytest.mark.parametrize("point", thinned(range(90), every=3))

Which part a day tries follows from the day, or from STEPLOG_THINNED=N, which pytest prints first. Each point keeps its
id on every day, so `pytest -m "" ID` repeats a failure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

_DAY = 86_400


def seed() -> int:
    """The number that chooses, the same in every worker of one run."""
    return int(os.environ.setdefault("STEPLOG_THINNED", str(int(time.time()) // _DAY)))


# Asked for by the first process, before its workers inherit the answer and before a test takes it away.
SEED = seed()


def thinned(
    points: Iterable[Any],
    *,
    every: int,
    ids: Callable[[Any], str] | None = None,
    by: Callable[[Any], int] | None = None,
) -> list[Any]:
    """Return all points as parameters, marked `part` where it is their turn today and `nightly` where it is not.

    Args:
        points: values, tuples of values, or what `pytest.param` makes.
        every: one of how many is tried.
        ids: the name of a point; left out, pytest names it.
        by: a point's place in the turn; its position by default.
    """
    found = []
    for position, point in enumerate(points):
        turn = position if by is None else by(point)
        mark = pytest.mark.part if turn % every == SEED % every else pytest.mark.nightly
        if hasattr(point, "marks"):
            found.append(pytest.param(*point.values, id=point.id, marks=(*point.marks, mark)))
        else:
            values = point if isinstance(point, tuple) else (point,)
            found.append(pytest.param(*values, id=ids(point) if ids else None, marks=mark))
    return found
