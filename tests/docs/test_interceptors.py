"""The guide for authors of interceptors: its files, put together, are an interceptor that keeps the contract."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from steplog import plugins
from tests.support.processes import environment
from tests.support.recorded import ROOT

GUIDE = (ROOT / "docs" / "interceptors.md").read_text()
EXAMPLE = ROOT / "examples" / "interceptor"
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the guide, each under the name in its first line."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    return tmp_path


def run(folder: Path, *words: str) -> Any:
    variables = environment(STEPLOG_HOME=str(folder / "home"))
    # The guide's own interceptor goes before that of the example, whose SDK it is for.
    variables["PYTHONPATH"] = f"{folder}:{variables['PYTHONPATH']}:{EXAMPLE}"
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)


def test_every_block_of_code_is_a_file_of_this_test_or_the_entry_point_of_the_example():
    assert len(FILES) == len(re.findall(r"^```python", GUIDE, re.MULTILINE)) == 4
    (toml,) = re.findall(r"^```toml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    points = tomllib.loads(toml)["project"]["entry-points"]
    assert points == tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    assert len(re.findall(r"^ *```\w", GUIDE, re.MULTILINE)) == 5


def test_the_interceptor_of_the_guide_keeps_the_contract_of_the_guide(folder):
    done = run(
        folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", "test_acme.py"
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    passed, skipped = (re.search(rf"(\d+) {word}", done.stdout) for word in ("passed", "skipped"))
    assert int(passed[1]) > 30
    assert skipped is None


def test_the_code_without_a_patch_and_the_codec_work(folder):
    program = """
import steplog
import shop, codec

class Bank:
    keys = []
    def charge(self, cents, key):
        self.keys.append(key)
        return codec.Map([cents])

steplog.install(interceptors=[])
for _ in range(2):
    with steplog.run("r"):
        assert shop.charge(Bank(), 5).tiles == [5]
shop.charge(Bank(), 5)
assert Bank.keys[0].startswith("r:s_") and Bank.keys[1:] == [None], Bank.keys
"""
    done = run(folder, "-c", program)
    assert done.returncode == 0, done.stderr


def test_every_name_of_the_page_for_authors_is_explained():
    source = (ROOT / "steplog_sdk/steplog/plugins.py").read_text()
    explained = GUIDE + (ast.get_docstring(ast.parse(source)) or "")
    assert [name for name in plugins.__all__ if not re.search(rf"\b{name}\b", explained)] == []
    assert [name for name in plugins.__all__ if not (getattr(plugins, name).__doc__ or name == "log")] == []
