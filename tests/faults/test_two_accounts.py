"""P2, P5: two branches that ask the same thing for two accounts; after SIGKILL each gets what is its own.

The server counts what it did for which account. The second process reaches the two requests in the other order.
"""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from steplog._cli.main import cli
from steplog.testing import Hit, LocalProvider, Reply
from tests.support.processes import environment

PROGRAM = Path(__file__).with_name("programs") / "accounts.py"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def account_of(hit: Hit) -> str:
    """For whom a request is, by everything that may tell."""
    headers = hit.headers
    told = headers.get("authorization", "")
    if told.startswith("Basic "):
        told = base64.b64decode(told[6:]).decode()
    told += headers.get("x-api-key", "") + headers.get("openai-organization", "")
    if headers["host"].startswith("localhost"):
        told += "south"
    elif "sk-both" in told and "org-" not in told:
        told += "north"
    return "south" if "south" in told else "north"


class Programs:
    """The program's lives, and what the server did in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: Counter[str] = Counter()
        self.kill_in: str | None = None
        self.provider = LocalProvider(handler=self._reply)
        self.way = self.style = ""

    def _reply(self, hit: Hit) -> Reply:
        name = account_of(hit)
        self.done[name] += 1
        if self.kill_in == name:
            self.kill_in = None
            assert self.process is not None
            self.process.send_signal(signal.SIGKILL)
        batch = {"object": "batch", "endpoint": "/v1/x", "input_file_id": "f", "completion_window": "24h"}
        return Reply.json({**batch, "id": name, "status": "validating", "created_at": 1})

    def run(self, first: str, plan: str = "go", keys: str = "", **more: str) -> tuple[int, str]:
        words = [self.way, self.style, self.provider.url, first, plan, keys]
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *words],
            cwd=self.folder,
            env=environment(STEPLOG_HOME=str(self.folder / "home"), **more),
            stderr=subprocess.PIPE,
            text=True,
        )
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def counts(self) -> dict[str, int]:
        """How often the effect has happened for each account."""
        if self.way != "mcp":
            return dict(self.done)
        return {
            name: len((self.folder / name).read_text().splitlines())
            for name in ("north", "south")
            if (self.folder / name).exists()
        }

    def answers(self) -> dict[str, str]:
        told: dict[str, str] = json.loads((self.folder / "answers.json").read_text())
        return told

    def started(self) -> list[dict[str, Any]]:
        log = (self.folder / "home" / "runs" / "two" / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in log]
        return [event["data"] for event in events if event["type"] == "step.started"]


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path)
    yield made
    made.provider.close()


def _nightly(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)


# What costs seconds of imports, or differs little from another one, at night.
WAYS = [
    ("http", "threads", "between"),
    ("http", "asyncio", "after"),
    ("key", "asyncio", "between"),
    _nightly("mcp", "asyncio", "between"),
    _nightly("http", "threads", "after"),
    _nightly("http", "asyncio", "between"),
    _nightly("key", "asyncio", "after"),
    _nightly("key", "threads", "between"),
    _nightly("key", "threads", "after"),
    _nightly("organization", "threads", "between"),
    _nightly("organization", "threads", "after"),
    _nightly("host", "asyncio", "between"),
    _nightly("host", "asyncio", "after"),
    _nightly("basic", "threads", "between"),
    _nightly("basic", "threads", "after"),
    _nightly("requests", "threads", "between"),
    _nightly("requests", "threads", "after"),
    _nightly("mcp", "asyncio", "after"),
]
OWN = {"north": "north", "south": "south"}
ONCE = {"north": 1, "south": 1}


@pytest.mark.parametrize("way, style, plan", WAYS)
def test_each_account_gets_its_own_in_another_order(programs: Programs, way: str, style: str, plan: str) -> None:
    if way == "mcp":
        pytest.importorskip("mcp", reason="the mcp SDK is not installed")
    if way == "requests":
        pytest.importorskip("requests", reason="the requests library is not installed")
    programs.way, programs.style = way, style

    assert programs.run("north", plan)[0] == -signal.SIGKILL
    assert programs.counts() == ({"north": 1} if plan == "between" else ONCE)
    code, said = programs.run("south")

    assert code == 0, said
    assert programs.counts() == ONCE
    assert programs.answers() == OWN


STYLES = ["threads", pytest.param("asyncio", marks=pytest.mark.nightly)]
SOON = {"GRACE": "0.5"}


def concluded(programs: Programs) -> int:
    file = programs.folder / "concluded"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.parametrize("plan", ["after", pytest.param("between", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("style", STYLES)
def test_one_account_goes_on_with_another_key_whoever_asks_first(programs: Programs, style: str, plan: str) -> None:
    programs.way, programs.style = "one", style

    assert programs.run("north", plan)[0] == -signal.SIGKILL
    code, said = programs.run("south", "go", "-changed", GRACE="3")

    assert (code, said) == (0, "")
    assert programs.counts() == {"north": 2}
    assert programs.answers() == {"north": "north", "south": "north"}


@pytest.mark.parametrize("first", ["south", pytest.param("north", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("style", STYLES)
def test_what_changed_keys_leave_open_is_not_guessed(programs: Programs, style: str, first: str) -> None:
    programs.way, programs.style = "http", style

    assert programs.run("north", "after")[0] == -signal.SIGKILL
    code, said = programs.run(first, "go", "-changed", **SOON)

    assert code == 1
    assert "DriftDetected" in said
    assert "its credentials have changed" in said
    assert "steplog resume two --on-drift run" in said
    assert all(step["account"] in said for step in programs.started())
    assert (programs.counts(), concluded(programs)) == (ONCE, 0)

    # The other account has to be there before patience ends, on a machine under load too.
    code, said = programs.run(first, "go", "south=-changed", GRACE="3")

    assert code == 0, said
    assert (programs.counts(), concluded(programs)) == (ONCE, 1)
    assert programs.answers() == OWN


@pytest.mark.nightly
@pytest.mark.parametrize("first", ["south", "north"])
@pytest.mark.parametrize("style", ["threads", "asyncio"])
def test_an_account_that_had_not_asked_is_not_taken_for_one_with_a_changed_key(
    programs: Programs, style: str, first: str
) -> None:
    programs.way, programs.style = "http", style

    assert programs.run("north", "between")[0] == -signal.SIGKILL
    code, said = programs.run(first, "go", "-changed", **SOON)

    assert code == 1
    assert "DriftDetected" in said
    assert (programs.counts(), concluded(programs)) == ({"north": 1}, 0)
    code, said = programs.run(first)
    assert (code, said) == (0, "")
    assert (programs.counts(), concluded(programs)) == (ONCE, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("style", ["threads", "asyncio"])
def test_an_account_in_doubt_is_named_whoever_asks_first(programs: Programs, style: str) -> None:
    programs.way, programs.style, programs.kill_in = "http", style, "north"

    # On a busy machine too, the other one has not asked when the process is killed.
    assert programs.run("north", SOON="60")[0] == -signal.SIGKILL
    code, said = programs.run("south")

    assert code == 1
    assert "Indeterminate" in said
    step = re.findall(r"s_[a-z2-7]{26}", said)[-1]
    settled = CliRunner().invoke(
        cli, ["resolve", "two", step, "--done", '{"id": "north"}', "--home", str(programs.folder / "home")]
    )
    assert settled.exit_code == 0, settled.output
    code, said = programs.run("south")
    assert (code, said) == (0, "")
    assert (programs.counts(), concluded(programs)) == (ONCE, 1)
    assert programs.answers() == OWN


@pytest.mark.nightly
@pytest.mark.parametrize("style", ["threads", "asyncio"])
def test_a_run_that_has_ended_is_replayed_without_any_credentials(programs: Programs, style: str) -> None:
    programs.way, programs.style = "http", style

    assert programs.run("north")[0] == 0
    code, said = programs.run("north", "go", "=dummy")

    assert code == 0, said
    assert (programs.counts(), concluded(programs)) == (ONCE, 1)
    assert sorted(programs.answers().values()) == ["north", "south"]
