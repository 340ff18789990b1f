"""What a `verify` function may answer."""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Happened(NamedTuple, Generic[T]):
    """Answer of a `verify` function: the effect happened, with this result.

    Attributes:
        result: what the step would have returned.
    """

    result: T


class _Answer:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"steplog.{self._name}"


NOT_HAPPENED: Final = _Answer("NOT_HAPPENED")
"""Answer of a `verify` function: the effect did not happen; the step runs."""

UNKNOWN: Final = _Answer("UNKNOWN")
"""Answer of a `verify` function: it cannot tell; the run halts with `Indeterminate`."""
