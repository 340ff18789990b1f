"""A log outlives the SDK releases that it was recorded with in a replay too: each row replays what others wrote."""

from __future__ import annotations

import json
import shutil

import pytest

import steplog
from steplog.testing import LocalProvider
from tests.matrix import agent
from tests.matrix.test_logs import RECORDINGS, both_colours


@both_colours
@pytest.mark.parametrize("name", RECORDINGS)
def test_a_log_of_another_release_is_identical(name, asynchronous, home, monkeypatch):
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    shutil.copytree(agent.LOGS / name / "home", home, dirs_exist_ok=True)
    recorded = json.loads((agent.LOGS / name / "said.json").read_text())

    with LocalProvider() as provider:
        with steplog.replay(f"{agent.RUN}-{'async' if asynchronous else 'sync'}") as replayed:
            said = agent.perform(provider.url, asynchronous=asynchronous)
        assert not provider.hits

    assert said == recorded["said"]
    assert (replayed.verdict, replayed.live_calls, replayed.refused) == ("identical", 0, [])
    assert replayed.replayed == len(recorded["said"])
