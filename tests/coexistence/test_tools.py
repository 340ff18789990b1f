"""With another tool in the same SDKs, in either order: one call is one step, and it replays with the provider gone."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from tests.coexistence.program import CALLS
from tests.coexistence.tools import TOOLS
from tests.interceptors.support import chat, chat_events, message, message_events, rate_limited
from tests.support.recorded import ROOT

SAID = ["hello", "hello", "a", "hello", "hello", "a", "hello"]


def provider() -> LocalProvider:
    refused: list[int] = []

    def answer(hit: Hit) -> Reply:
        body = hit.json or {}
        if "again" in hit.body.decode() and not refused:
            refused.append(hit.number)
            return rate_limited()
        if "messages" in hit.path:
            return Reply.sse(message_events("hello")) if body.get("stream") else Reply.json(message())
        return Reply.sse(chat_events("a")) if body.get("stream") else Reply.json(chat())

    return LocalProvider(handler=answer)


def there(name: str) -> bool:
    try:
        return importlib.util.find_spec(TOOLS[name].module) is not None
    except ModuleNotFoundError:
        return False


def perform(tool: str, order: str, leaves: str, home: Path, url: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.coexistence.program", tool, order, leaves, str(home), url]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("order", ["tool", "steplog"], ids=["tool first", "steplog first"])
@pytest.mark.parametrize("tool", TOOLS)
def test_one_call_is_one_step_and_replays(tool, order, tmp_path):
    if not there(tool):
        pytest.skip(f"{TOOLS[tool].module} is not installed here; make test-coexistence installs it")
    with provider() as server:
        live = perform(tool, order, "steplog", tmp_path, server.url)
        hits = len(server.hits)
        url = server.url
    # The tool that came last leaves last, and the other way round.
    replayed = perform(tool, order, "tool", tmp_path, url)
    assert live["said"][:7] == SAID
    assert hits == CALLS + 1, "one of the calls is tried twice"
    assert (live["executed"], live["replayed"]) == (CALLS, 0)
    assert replayed["said"] == live["said"]
    assert (replayed["executed"], replayed["replayed"]) == (0, CALLS)
    assert live["left"] == replayed["left"] == []
    if live["spans"] is not None:
        assert live["spans"] > 0, "the other tool no longer sees the calls"
