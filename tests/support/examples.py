"""How many examples a generated test tries."""

from __future__ import annotations

import hypothesis

ORDINARY = 100


def examples(count: int, *, most: int | None = None) -> int:
    """Return `count`, or as many times more as the profile in force tries of everything (`make test-nightly`: 20).

    Args:
        count: examples of an ordinary run.
        most: examples of the longest run, for a test that waits in each of them.
    """
    found = max(1, count * hypothesis.settings.default.max_examples // ORDINARY)
    return found if most is None else min(found, most)
