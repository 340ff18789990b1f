"""Words that messages have in common."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """A number of things, as `1 run` and `2 runs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
