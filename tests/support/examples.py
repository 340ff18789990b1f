"""How many examples a generated test tries."""

from __future__ import annotations

import hypothesis

ORDINARY = 100


def examples(count: int) -> int:
    """Return `count`, or as many times more as the profile in force tries of everything (`make test-nightly`: 20)."""
    return max(1, count * hypothesis.settings.default.max_examples // ORDINARY)
