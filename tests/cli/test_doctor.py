"""`steplog doctor` names every method that is recorded, and says where one that should be is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import environment

ENTRY = "[steplog.interceptors]\n"
SDK = "__version__ = '3.1'\nclass Client:\n    def send(self): ...\n"
INTERCEPTOR = """
from steplog import plugins

class Sound:
    name = "sound"
    def __init__(self, method):
        self.patches = plugins.Patches()
        self.method = method
    def install(self):
        self.patches.install({"somesdk": self.patch, "not_on_this_machine": self.patch})
    def patch(self, module):
        self.patches.apply(module.Client, self.method, plugins.recording(lambda self: None))
    def uninstall(self):
        self.patches.uninstall()

class Raises(Sound):
    def install(self):
        raise OSError("no licence")

sound, renamed, raises, no_object = Sound("send"), Sound("post"), Raises("send"), "a text"
"""


def examine(folder: Path, **points: str) -> tuple[int, Any, str, str]:
    """Examine a machine on which a third party's interceptors are installed: (exit code, JSON, text, stderr)."""
    site = folder / "site"
    info = site / "third_party-1.dist-info"
    info.mkdir(parents=True)
    (site / "somesdk.py").write_text(SDK)
    (site / "third_party.py").write_text(INTERCEPTOR)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1\n")
    lines = [f"{name} = third_party:{target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text(ENTRY + "\n".join(lines))
    variables = environment(STEPLOG_HOME=str(folder / "home"))
    variables["PYTHONPATH"] += f":{site}"
    texts = []
    for words in (["--json"], ["--all"]):
        command = [sys.executable, "-m", "steplog", "doctor", *words]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
        texts.append(done)
    assert texts[0].returncode == texts[1].returncode
    assert not (folder / "home").exists()
    return texts[0].returncode, json.loads(texts[0].stdout), texts[1].stdout, texts[0].stderr


# Each start imports every SDK, which takes seconds; so the tests share two machines.
@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return examine(tmp_path_factory.mktemp("sound"), sound="sound")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Any:
    broken = {name: name for name in ("renamed", "raises", "absent", "no_object")}
    return examine(tmp_path_factory.mktemp("faulty"), sound="sound", **broken)


def module(found: Any, name: str) -> Any:
    (only,) = [module for module in found["modules"] if module["module"] == name]
    return only


def test_every_patched_method_is_named_with_the_version_of_its_package(sound):
    code, found, text, complaints = sound
    assert (code, complaints) == (0, "")
    assert "sound" in found["interceptors"]
    assert module(found, "somesdk") == {
        "module": "somesdk",
        "version": "3.1",
        "absent": None,
        "patches": [{"method": "somesdk.Client.send", "on": True}],
        "fault": None,
    }
    assert "somesdk 3.1\n  on   somesdk.Client.send\n" in text
    assert "not here: not_on_this_machine (ModuleNotFoundError" in text
    for method in ("openai._base_client.SyncAPIClient.request", "anthropic._base_client.AsyncAPIClient.request"):
        assert f"on   {method}\n" in text


def test_each_sdk_is_one_line_first(faulty):
    _, found, text, _ = faulty
    summary, _, details = text.partition("\n\n")[2].partition("\n\n")
    lines = summary.splitlines()
    assert [line for line in lines if line.startswith("somesdk")] == [next(s for s in lines if "partly recorded" in s)]
    assert [line.split() for line in lines if line.startswith("not_on")] == [["not_on_this_machine", "not", "here"]]
    assert any(line.split()[::2] == ["openai", "recorded"] for line in lines)
    assert "_base_client" not in summary
    assert "_base_client" in details
    assert {sdk["package"] for sdk in found["sdks"]} >= {"somesdk", "openai"}
    brief = next(sdk for sdk in found["sdks"] if sdk["package"] == "somesdk")
    assert brief == {"package": "somesdk", "version": "3.1", "status": "partly recorded", "why": None}


def test_a_method_that_is_not_there_is_an_exit_code_and_a_line(faulty):
    code, found, text, complaints = faulty
    assert code == 1
    assert module(found, "somesdk")["fault"] == "somesdk.Client has no method post"
    assert "NOT RECORDED: somesdk: somesdk.Client has no method post" in text
    assert "steplog cannot record calls through the module somesdk" in complaints


def test_a_broken_interceptor_of_a_third_party_stops_nobody_else(faulty):
    code, found, text, complaints = faulty
    assert code == 1
    assert "sound" in found["interceptors"]
    assert found["broken"]["raises"] == "OSError: no licence"
    assert "AttributeError" in found["broken"]["absent"]
    assert "a str without `install` and `uninstall`" in found["broken"]["no_object"]
    assert "interceptor raises cannot be used: OSError: no licence" in text
    assert "its calls are not recorded" in complaints
