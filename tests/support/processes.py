"""Other processes: a provider that outlives the program under test, and programs to kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.recorded import ROOT


def environment(**more: str) -> dict[str, str]:
    """Return this environment, in which a child also finds both packages and `tests`, installed or not."""
    roots = [str(ROOT / "steplog_sdk"), str(ROOT / "interceptors"), str(ROOT)]
    path = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **more}


@contextmanager
def provider_process(folder: Path, *arguments: str | Path) -> Iterator[str]:
    """Run `python -m steplog.testing.provider` and yield its URL; its hits go to `folder / "hits"`."""
    port = folder / "port"
    port.unlink(missing_ok=True)
    command = [sys.executable, "-m", "steplog.testing.provider", "--port-file", port, "--hits-file", folder / "hits"]
    process = subprocess.Popen([*map(str, command), *map(str, arguments)], env=environment(), cwd=folder)
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port.read_text().strip()}"
    finally:
        process.terminate()
        process.wait(30)


def wait_for(file: Path, process: subprocess.Popen[bytes] | subprocess.Popen[str], seconds: float = 30.0) -> None:
    """Return when a file exists. Raises `RuntimeError` when its process ends first, else `TimeoutError`."""
    end = time.monotonic() + seconds
    while not file.exists():
        if process.poll() is not None:
            raise RuntimeError(f"exit status {process.returncode} before {file.name} was written")
        if time.monotonic() > end:
            raise TimeoutError(f"{file.name} is not there after {seconds} s")
        time.sleep(0.01)


def hits(folder: Path) -> list[dict[str, object]]:
    """Return what `provider_process` has counted in this folder, over all its lives."""
    file = folder / "hits"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
