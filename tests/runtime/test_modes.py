"""P4: an effect that is not declared safe to repeat is never repeated after a crash. P3: what was seen is on disk.

Each crash is a real SIGKILL of a real process in the middle of the effect.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import steplog
from steplog._kernel.fold import fold
from steplog._runtime.resolve import resolve
from steplog.errors import InvalidArgument, UnknownStep
from steplog.stores.files import FileStore
from steplog.testing import MemoryStore
from tests.support.processes import environment

PROGRAM = """
import json, os, signal, sys
import steplog

steplog.install(home=sys.argv[1], interceptors=[])
die = sys.argv[2] == "die"

def effect(name, key=None):
    with open("effects", "a") as file:
        file.write(json.dumps([name, key]) + "\\n")
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    return name

@steplog.step(mode="safe")
def safe(): return effect("safe")

@steplog.step(mode="keyed")
def keyed(*, idempotency_key): return effect("keyed", idempotency_key)

@steplog.step
def unsafe(): return effect("unsafe")

def find(*args):
    word = sys.argv[4]
    if word == "happened": return steplog.Happened("found")
    if word == "boom": raise OSError("no answer")
    return {"not": steplog.NOT_HAPPENED, "unknown": steplog.UNKNOWN, "nonsense": True}[word]

@steplog.step(mode="verify", verify=find)
def verify(): return effect("verify")

try:
    with steplog.run("r"):
        before = steplog.step("before", lambda: effect("before") if not die else "b")
        print(json.dumps(globals()[sys.argv[3]]()))
except steplog.RunStopped as stopped:
    print(json.dumps([type(stopped.__cause__).__name__, stopped.reason, stopped.step, list(stopped.commands)]))
    sys.exit(75)
"""


class Agent:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "agent.py").write_text(PROGRAM)

    def run(self, fate: str, tool: str, answer: str = "") -> tuple[int, object]:
        command = [sys.executable, "agent.py", "home", fate, tool, answer]
        done = subprocess.run(
            command, cwd=self.folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    def effects(self, name: str) -> list[list[str | None]]:
        lines = (self.folder / "effects").read_text().splitlines()
        return [effect for effect in map(json.loads, lines) if effect[0] == name]

    @property
    def store(self) -> FileStore:
        return FileStore(str(self.folder / "home"))


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def test_safe_runs_again(agent):
    assert agent.run("die", "safe")[0] == -9

    assert agent.run("live", "safe") == (0, "safe")
    assert len(agent.effects("safe")) == 2
    assert agent.effects("before") == []


def test_keyed_runs_again_under_the_same_key(agent):
    assert agent.run("die", "keyed")[0] == -9

    assert agent.run("live", "keyed") == (0, "keyed")
    (first, second) = agent.effects("keyed")
    assert first == second
    assert first[1].startswith("r:s_")


def test_unsafe_halts_until_somebody_settles_it_and_is_never_repeated(agent):
    assert agent.run("die", "unsafe")[0] == -9

    for _ in range(2):
        code, (cause, reason, step, commands) = agent.run("live", "unsafe")
        assert (code, cause, reason) == (75, "Indeterminate", "indeterminate")
        assert commands[0] == f"steplog resolve r {step} --done JSON"
    assert len(agent.effects("unsafe")) == 1

    resolve(agent.store, "r", step, how="done", result={"sent": True}, by="ops")
    assert agent.run("live", "unsafe") == (0, {"sent": True})
    assert len(agent.effects("unsafe")) == 1


def test_resolve_retry_allows_exactly_one_more_attempt(agent):
    agent.run("die", "unsafe")
    step = agent.run("live", "unsafe")[1][2]

    resolve(agent.store, "r", step, how="retry")
    assert agent.run("die", "unsafe")[0] == -9
    assert agent.run("live", "unsafe")[0] == 75
    assert len(agent.effects("unsafe")) == 2

    resolve(agent.store, "r", step, how="retry")
    assert agent.run("live", "unsafe") == (0, "unsafe")
    assert len(agent.effects("unsafe")) == 3


def test_what_has_happened_on_somebodys_word_does_not_happen_again_without_force(agent):
    """P4: `--retry` after `--done`, in a run that has completed, would be a second effect with nobody aware of it."""
    agent.run("die", "unsafe")
    step = agent.run("live", "unsafe")[1][2]
    resolve(agent.store, "r", step, how="done", result="sent", by="ada")
    assert agent.run("live", "unsafe") == (0, "sent")
    before = len(list(agent.store.read("r").events))

    with pytest.raises(InvalidArgument, match="done by ada: it has happened") as refused:
        resolve(agent.store, "r", step, how="retry")
    assert f"steplog resolve r {step} --retry --force" in str(refused.value)
    assert len(list(agent.store.read("r").events)) == before

    resolve(agent.store, "r", step, how="done", result="sent at noon")
    assert agent.run("live", "unsafe") == (0, "sent at noon")
    assert len(agent.effects("unsafe")) == 1
    resolve(agent.store, "r", step, how="retry", force=True)
    assert agent.run("live", "unsafe") == (0, "unsafe")
    assert len(agent.effects("unsafe")) == 2


def test_what_is_allowed_once_more_is_not_held_up_by_what_was_recorded_behind_it():
    """A side effect whose result lost a secret stops a resume; a person allows its repeat, and the rest is replayed."""
    store, done = MemoryStore(), []

    @steplog.step
    def tool(name):
        done.append(name)
        return "ghp_" + "a1B2" * 9

    def agent(*names):
        with steplog.run("r", store=store):
            for name in names:
                tool(name)

    steplog.install(interceptors=[])
    agent("first", "second")
    with pytest.raises(steplog.RunStopped) as stopped:
        agent("first", "second")
    assert stopped.value.reason == "unreplayable"

    resolve(store, "r", stopped.value.step, how="retry")
    with pytest.raises(steplog.RunStopped) as stopped:
        agent("first", "second")

    assert (stopped.value.reason, done) == ("unreplayable", ["first", "second", "first"])


@pytest.mark.parametrize("options", [{"mode": "unsafe"}, {"mode": "keyed"}, {"retries": 2}, {"name": "other"}])
def test_a_local_value_is_safe_and_says_so_to_whoever_wants_more(options):
    """An effect that its author calls unsafe must not become a value that is computed again."""
    done = []
    with pytest.raises(InvalidArgument, match="make a tool of it") as refused:
        steplog.step("mail", lambda: done.append(1), **options)
    assert not done
    assert 'steplog.step(mode="unsafe", name="mail")(fn)()' in str(refused.value)
    assert steplog.step("mail", lambda: 1, mode="safe") == 1


@pytest.mark.parametrize("mode", ["unsafe", "keyed"])
@pytest.mark.parametrize("how", ["failed", "unknown"])
def test_an_operators_word_holds_until_somebody_says_otherwise(agent, how, mode):
    """P4: its failure ends the run, and yet nothing is tried again by itself."""
    agent.run("die", mode)
    state = fold(agent.store.read("r").events)
    (step,) = (found.id for found in state.steps.values() if found.mode == mode)
    resolve(agent.store, "r", step, how=how, message="the mail server says no")

    for _ in range(3):
        code, output = agent.run("live", mode)
        assert code == 1
        assert {"failed": "StepFailed", "unknown": "OutcomeUnknown"}[how] in output
        assert "the mail server says no" in output
        assert len(agent.effects(mode)) == 1

    resolve(agent.store, "r", step, how="retry")
    assert agent.run("live", mode) == (0, mode)
    assert len(agent.effects(mode)) == 2


def test_resolve_refuses_what_is_not_in_doubt(agent):
    agent.run("live", "safe")
    step = list(agent.store.read("r").events)[2].step

    with pytest.raises(InvalidArgument, match="nothing to settle"):
        resolve(agent.store, "r", step, how="retry")
    with pytest.raises(UnknownStep, match="steplog show r"):
        resolve(agent.store, "r", "s_nothing", how="retry")


@pytest.mark.parametrize(
    "answer, code, result, effects",
    [
        ("happened", 0, "found", 1),
        ("not", 0, "verify", 2),
        ("unknown", 75, None, 1),
        ("boom", 75, None, 1),
        ("nonsense", 75, None, 1),
    ],
)
def test_verify_asks_the_tool(agent, answer, code, result, effects):
    assert agent.run("die", "verify")[0] == -9

    got, output = agent.run("live", "verify", answer)

    assert got == code
    if code == 0:
        assert output == result
        assert agent.run("live", "verify", "boom") == (0, result)
    else:
        assert output[0] == "Indeterminate"
    assert len(agent.effects("verify")) == effects
