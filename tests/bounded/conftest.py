"""The loop's tests record in memory: what is written is the same, and nothing waits for a disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import steplog
from steplog.testing import MemoryStore


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    kept = MemoryStore()
    steplog.install(interceptors=[], store=kept)
    yield kept
    steplog.uninstall()
