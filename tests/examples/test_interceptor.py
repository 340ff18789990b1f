"""The example of an interceptor keeps the contract, is found by its entry point, and its demonstration holds."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from steplog.testing import InterceptorContract, Reply
from steplog.testing.provider import Hit
from tests.support.processes import environment
from tests.support.recorded import ROOT

EXAMPLE = ROOT / "examples" / "interceptor"
sys.path.append(str(EXAMPLE))

import acme  # noqa: E402  # in the folder that was added above


class TestAcme(InterceptorContract):
    interceptor = "steplog_acme:interceptor"
    sdk = "acme"

    def client(self, url: str, key: str, *, asynchronous: bool) -> Any:
        return (acme.AsyncClient if asynchronous else acme.Client)(url, key)

    def call(self, client: Any, text: str) -> Any:
        return client.forecast(text)

    def write(self, client: Any, text: str) -> Any:
        return client.book(text)

    def stream(self, client: Any, text: str) -> Any:
        return client.report(text)

    def answer(self, hit: Hit) -> Reply:
        city = hit.json["city"]
        if hit.path == "/report":
            return Reply.lines(city, "mild", "no rain", "END")
        return Reply.json({"reference": city} if hit.path == "/book" else {"city": city, "degrees": 21.5})


@pytest.fixture
def distribution(tmp_path: Path) -> Path:
    """A folder with what pip leaves of the example's distribution: its metadata. The code is found beside it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    return folder.parent


def test_it_is_found_by_its_entry_point(distribution):
    code = (
        "import sys, steplog\n"
        f"sys.path += [{str(distribution)!r}, {str(EXAMPLE)!r}]\n"
        "steplog.install()\n"
        "import acme\n"
        "print(hasattr(acme.Client._call, '__wrapped__'))\n"
        "steplog.uninstall()\n"
        "print(hasattr(acme.Client._call, '__wrapped__'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
    assert done.stderr == ""


def test_the_demonstration_is_killed_and_carries_on_without_the_network(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLE / "demo.py"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == ""
    told = [line for line in done.stdout.splitlines() if not line.startswith("--")]
    *first, figures = told
    assert first[:3] == first[3:]
    assert "Lisbon: a mild evening; wind from the west; no rain" in first
    assert figures == "0 calls made, 3 returned from the log"
    assert "-- 3 requests in all" in done.stdout
