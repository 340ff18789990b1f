"""What is printed of a run is what its lines say; what a key has kept beside them is printed when asked for."""

from __future__ import annotations

import json
import zipfile

import pytest

import steplog
from steplog.stores.cipher import new_key

SECRET = "sk-proj-" + "a1B2c3D4" * 6
VERBS = (
    ("show", "r"),
    ("ls",),
    ("verify", "r"),
    ("verify", "--all"),
    ("du",),
    ("doctor",),
)


@pytest.fixture
def encrypted(home, monkeypatch):
    """A run with a key; each of its steps has met the secret: small, large, in an error, and one is in doubt."""
    monkeypatch.setenv("STEPLOG_KEY", new_key())
    monkeypatch.setenv("STEPLOG_HOME", str(home))
    steplog.install(interceptors=[])

    @steplog.step
    def small(given):
        return {"key": given}

    @steplog.step
    def large(_given):
        return [SECRET, "x" * 10_000]

    @steplog.step(mode="safe")
    def failing(_given):
        raise ValueError(f"refused {SECRET}")

    @steplog.step
    def cut_off(_given):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), steplog.run("r", goal=f"use {SECRET}"):
        small(SECRET)
        large(SECRET)
        with pytest.raises(ValueError, match="refused"):
            failing(SECRET)
        cut_off(SECRET)
    yield
    steplog.uninstall()


def steps_of(invoke) -> dict[str, str]:
    return {node["target"].rpartition(".")[2]: node["step"] for node in ask_json(invoke, "show", "r")["tree"]}


def ask_json(invoke, *words):
    return json.loads(invoke(*words, "--json").stdout)


@pytest.mark.usefixtures("encrypted")
def test_no_verb_prints_a_secret_by_itself_though_the_key_is_at_hand(invoke, home):
    steps = steps_of(invoke)
    assert len(steps) == 4
    asked = [*VERBS, *(("show", "r", step) for step in steps.values())]
    asked += [("resolve", "r", steps["cut_off"], "--failed", f"it said {SECRET}", "--by", SECRET, "--note", SECRET)]
    asked += [("resolve", "r", steps["cut_off"], "--done", SECRET), ("show", "r", steps["cut_off"])]
    asked += [("export", "r", "-o", str(home / "r.steplog"))]
    for words in asked:
        for more in ((), ("--json",)):
            result = invoke(*words, *more)
            if words[0] == "show":
                assert result.exit_code == 0, result.output
            assert SECRET not in result.output.replace("\n", ""), words
    with zipfile.ZipFile(home / "r.steplog") as exported:
        assert all(SECRET.encode() not in exported.read(name) for name in exported.namelist())


@pytest.mark.usefixtures("encrypted")
def test_reveal_prints_what_was_withheld_and_needs_the_key(invoke, monkeypatch):
    steps = steps_of(invoke)
    plain = {name: ask_json(invoke, "show", "r", step) for name, step in steps.items()}
    whole = {name: ask_json(invoke, "show", "r", step, "--reveal") for name, step in steps.items()}
    assert plain["small"]["output"] == {"key": "[redacted:openai-key]"}
    assert plain["small"]["withheld"] == 1
    assert "--reveal shows what is there" in invoke("show", "r", steps["small"]).stdout
    assert whole["small"]["input"] == {"given": "[redacted:openai-key]"}, (
        "of what is asked for, only the identity is kept"
    )
    assert whole["small"]["output"] == {"key": SECRET}
    assert whole["large"]["output"] == [SECRET, "x" * 10_000]
    for error in (whole["failing"]["error"], whole["failing"]["attempts"][0]["error"]):
        assert error["message"] == f"refused {SECRET}"
    assert {detail["more"] for detail in (*plain.values(), *whole.values())} == {None}
    monkeypatch.delenv("STEPLOG_KEY")
    refused = invoke("show", "r", steps["small"], "--reveal")
    assert refused.exit_code != 0
    assert SECRET not in refused.output
    assert ask_json(invoke, "show", "r", steps["small"])["output"] == {"key": "[redacted:openai-key]"}


@pytest.mark.usefixtures("encrypted")
def test_reveal_is_of_one_step(invoke):
    refused = invoke("show", "r", "--reveal")
    assert refused.exit_code == 2
    assert "name a STEP" in refused.output
