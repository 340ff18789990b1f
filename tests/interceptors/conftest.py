"""Real SDKs against a real HTTP server; what is recorded is replayed with the server gone and connecting forbidden."""

from __future__ import annotations

import importlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import steplog
from steplog.testing import LocalProvider
from steplog_interceptors import anthropic, openai
from tests.interceptors import support


@pytest.fixture(autouse=True)
def _close_clients() -> Iterator[None]:
    yield
    while support.opened:
        support.opened.pop().close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The log's directory, with steplog and both interceptors installed."""
    folder = tmp_path / "home"
    steplog.install(home=folder, durability="process", interceptors=())
    openai.interceptor.install()
    anthropic.interceptor.install()
    yield folder
    openai.interceptor.uninstall()
    anthropic.interceptor.uninstall()
    steplog.uninstall()


@pytest.fixture
def events(home: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Read a run's log; with `notes` also what was noted of streams under way, of which a slow machine writes more."""

    def read(run_id: str = "r", *, notes: bool = False) -> list[dict[str, Any]]:
        log = [json.loads(line) for line in (home / "runs" / run_id / "events.jsonl").read_bytes().splitlines()]
        return [event for event in log if notes or event["type"] != "step.progressed"]

    return read


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[LocalProvider], None]:
    """Take the provider away and forbid every connection from then on."""

    def forbidden(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"a replayed call connects to {address}")

    def cut(provider: LocalProvider) -> None:
        provider.close()
        monkeypatch.setattr(socket.socket, "connect", forbidden)
        monkeypatch.setattr(socket.socket, "connect_ex", forbidden)

    return cut


class Sleepless:
    """A module in which sleeping is an error."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        assert name != "sleep", "a replayed call sleeps"
        return getattr(self._module, name)


@pytest.fixture
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, neither SDK may sleep."""

    def cut() -> None:
        names = ("openai._base_client", "openai._resource", "anthropic._base_client", "anthropic._resource")
        for name in names:
            module = importlib.import_module(name)
            for used in ("time", "anyio"):
                monkeypatch.setattr(module, used, Sleepless(getattr(module, used)))

    return cut
