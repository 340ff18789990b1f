"""Runs on real files in the test's own folder, with nothing but the runtime installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import steplog
from steplog._kernel.fold import RunState, fold
from steplog.stores.files import FileStore


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def installed(home: Path) -> Iterator[None]:
    steplog.install(home=home, interceptors=[])
    yield
    steplog.uninstall()


@pytest.fixture
def state_of(home: Path) -> Callable[[str], RunState]:
    """Fold the log of a run as a stranger would: from the file."""
    return lambda run_id: fold(FileStore(str(home)).read(run_id).events)
