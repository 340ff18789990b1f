"""A log outlives the SDK releases that it was recorded with: every row replays what the oldest and the newest wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import anthropic
import openai
import pytest

from steplog.testing import LocalProvider
from tests.matrix import agent

RECORDINGS = sorted(path.name for path in agent.LOGS.glob("sdk-*"))
both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def test_there_are_recordings_of_both_ends_of_the_range():
    assert {"sdk-oldest", "sdk-newest"} <= set(RECORDINGS)


@both_colours
@pytest.mark.parametrize("name", RECORDINGS)
def test_a_log_of_another_release_is_replayed(name, asynchronous, home, offline, events):
    shutil.copytree(agent.LOGS / name / "home", home, dirs_exist_ok=True)
    colour = "async" if asynchronous else "sync"
    before = events(f"{agent.RUN}-{colour}")
    gone = LocalProvider()
    offline(gone)
    said = agent.perform(gone.url, asynchronous=asynchronous)
    recorded = json.loads((agent.LOGS / name / "said.json").read_text())
    here = f"openai {openai.__version__} and anthropic {anthropic.__version__}"
    assert said == recorded["said"], f"{here} read a log of {recorded['sdks']} differently"
    # Nothing but the claim of the new process has been added: no step ran again.
    added = [event["type"] for event in events(f"{agent.RUN}-{colour}")[len(before) :]]
    assert not [kind for kind in added if kind.startswith("step.")]


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_holds_every_kind_of_call(name, home):
    lines = [
        json.loads(line)
        for line in Path(agent.LOGS, name, "home/runs/golden-sync/events.jsonl").read_text().splitlines()
    ]
    finished = [line["data"] for line in lines if line["type"] == "step.finished"]
    assert len(finished) == len(json.loads((agent.LOGS / name / "said.json").read_text())["said"])
    assert [step["outcome"] for step in finished].count("failed") == 2
    assert max(len(step["exchanges"]) for step in finished) == 2
    assert any("chunks" in exchange for step in finished for exchange in step["exchanges"])
