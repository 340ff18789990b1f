"""Make the environment of a group of frameworks that resolve together.

    python -m tests.frameworks.build GROUP

An environment carries the digests of what it was made from, so one that is interrupted or outdated is made anew.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.recorded import ROOT

PINS = Path(__file__).parent / "requirements"


class NotInstallable(Exception):
    """The packages of a group cannot be had here."""


def python_of(group: str) -> Path:
    """The interpreter of a group's environment."""
    return ROOT / ".venv-frameworks" / group / "bin/python"


def is_built(group: str) -> bool:
    """Whether the environment is there and holds what its pins say, and steplog as it is declared."""
    return _holds(group, "pins") and _holds(group, "steplog")


def build(group: str) -> Path:
    """Make an environment unless it is there; returns its interpreter. Raises NotInstallable."""
    python = python_of(group)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if not _holds(group, "pins"):
        shutil.rmtree(python.parents[1], ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(python.parents[1]))
        # Every package is pinned, those that others need as well: nothing is left to resolve.
        _run(*pip, "-r", str(PINS / f"{group}.txt"))
        _note(group, "pins")
    if not _holds(group, "steplog"):
        _run(*pip, "-e", str(ROOT))
        _note(group, "steplog")
    return python


def _digest(group: str, what: str) -> str:
    file = PINS / f"{group}.txt" if what == "pins" else ROOT / "pyproject.toml"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _holds(group: str, what: str) -> bool:
    note = python_of(group).parents[1] / what
    return note.exists() and note.read_text() == _digest(group, what)


def _note(group: str, what: str) -> None:
    (python_of(group).parents[1] / what).write_text(_digest(group, what))


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstallable(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    build(sys.argv[1])
