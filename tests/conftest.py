"""What holds for every test: no key, no network beyond this machine, no log outside the test's own folder."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from steplog.testing import LocalProvider
from tests.support.recorded import OWN
from tests.support.thinned import SEED

# A deadline would measure the machine, not the code; on a build machine the same examples are tried every time.
hypothesis.settings.register_profile("steplog", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "steplog")


def pytest_report_header() -> str:
    """Which part of the long enumerations is tried."""
    return f"part of the day: STEPLOG_THINNED={SEED}"


def pytest_collection_finish() -> None:
    """Put a million objects of the SDKs and of the tests aside, which no collection of garbage need look through."""
    gc.collect()
    gc.freeze()


_SETTINGS = ("OPENAI_", "ANTHROPIC_", "AZURE_OPENAI_", "STEPLOG_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Forget the developer's keys, endpoints and proxies, and log below the test's folder."""
    for name in list(os.environ):
        if name.upper().startswith(_SETTINGS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STEPLOG_HOME", str(tmp_path / "home"))
    # No test speaks TLS, and each client of an SDK would read every certificate of the machine: 20 ms.
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))


@pytest.fixture(autouse=True)
def _this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that would reach another machine fails, whatever that machine would have answered."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and address[0] not in {"127.0.0.1", "::1", "localhost"}:
            raise AssertionError(f"a test tried to connect to {address[0]}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    """A provider that knows every exchange of `cassettes/`."""
    with LocalProvider(OWN / "openai", OWN / "anthropic") as server:
        yield server
