"""The processes of the demo: the provider, and one process of an agent after the other."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30.0
KILLED = -9
STOPPED = 75


@dataclass
class Provider:
    """A local model provider, or the real one."""

    environment: dict[str, str] = field(default_factory=dict)
    hits_file: Path | None = None

    def hits(self) -> list[str]:
        """The body of every request that has arrived, by its digest."""
        if self.hits_file is None or not self.hits_file.exists():
            return []
        return [json.loads(line)["body_sha256"] for line in self.hits_file.read_text().splitlines()]


@contextlib.contextmanager
def local_provider(folder: Path, hang: int | None = None) -> Iterator[Provider]:
    """Start a provider that answers from `cassettes/`; it never answers request number `hang`."""
    folder.mkdir(parents=True)
    port_file, hits_file = folder / "port", folder / "hits.jsonl"
    words = [sys.executable, "-m", "steplog.testing.provider", "--port-file", port_file, "--hits-file", hits_file]
    words += [] if hang is None else ["--hang", str(hang)]
    process = subprocess.Popen([*words, ROOT / "cassettes" / "openai", ROOT / "cassettes" / "anthropic"])
    try:
        wait_until(port_file.exists, process)
        url = f"http://127.0.0.1:{port_file.read_text().strip()}"
        # No key of the user's goes anywhere: the local provider takes any.
        environment = {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
        yield Provider(environment | {"OPENAI_API_KEY": "local", "ANTHROPIC_API_KEY": "local"}, hits_file)
    finally:
        process.terminate()
        process.wait()


def wait_until(true: Callable[[], bool], process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> bool:
    """Wait for something that a process does; False when it ends without having done it."""
    deadline = time.monotonic() + SECONDS
    while not true():
        if process.poll() is not None:
            return true()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{process.args} did not get there in {SECONDS:.0f} seconds")
        time.sleep(0.005)
    return True


@dataclass(frozen=True)
class Ended:
    """A process of an agent that has ended."""

    pid: int
    code: int
    out: str
    err: str


class Stage:
    """One agent's run: its home, its ledger, and how to start a process that works on it."""

    def __init__(self, folder: Path, script: str, run_id: str, provider: Provider) -> None:
        folder.mkdir(parents=True)
        self.script = Path(__file__).with_name(script)
        self.run_id = run_id
        self.home = folder / "home"
        self.log = self.home / "runs" / run_id / "events.jsonl"
        self.ledger = folder / "ledger.jsonl"
        self.here = folder / "here"
        self.provider = provider
        self.ended: list[Ended] = []

    def start(self, *words: str, stand_still_in: str = "") -> subprocess.Popen[str]:
        """Start `steplog WORDS`."""
        self.here.unlink(missing_ok=True)
        environment = {
            **os.environ,
            **self.provider.environment,
            "STEPLOG_HOME": str(self.home),
            "DEMO_LEDGER": str(self.ledger),
            "DEMO_STAND_STILL_IN": stand_still_in,
            "DEMO_HERE": str(self.here),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "steplog", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def first(self) -> list[str]:
        """The words that begin the run."""
        return ["run", "--id", self.run_id, str(self.script)]

    def finish(self, process: subprocess.Popen[str]) -> Ended:
        """Wait for the end of an agent's process."""
        out, err = process.communicate(timeout=SECONDS)
        self.ended.append(Ended(process.pid, process.returncode, out, err))
        return self.ended[-1]

    def kill_when(self, true: Callable[[], bool], process: subprocess.Popen[str]) -> Ended:
        """Send SIGKILL as soon as something is so; nothing in the process gets to run after that."""
        if wait_until(true, process):
            process.kill()
        return self.finish(process)
