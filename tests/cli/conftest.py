from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from steplog._cli.main import cli

Invoke = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def invoke(home: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a verb in this process; its home is this test's."""
    monkeypatch.setenv("STEPLOG_HOME", str(home))
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*words: str) -> Result:
        return CliRunner().invoke(cli, list(words), prog_name="steplog")

    return call


@pytest.fixture
def ask(invoke: Invoke) -> Callable[..., Any]:
    """The JSON that a verb prints."""

    def call(*words: str) -> Any:
        return json.loads(invoke(*words, "--json").stdout)

    return call
