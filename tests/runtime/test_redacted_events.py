"""Every event in which a program, its environment or an operator has a say is without the secrets of what they say.

One test an event, so that each fails by itself where that event is written as it came.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import steplog
from steplog._runtime.resolve import resolve
from steplog.stores.files import FileStore

SECRET = "sk-proj-" + "a1B2c3D4" * 6
MARKER = "[redacted:openai-key]"


@steplog.step
def cut_off():
    raise KeyboardInterrupt


def ask_the_bank():
    raise ValueError(f"asked with {SECRET}")


@steplog.step(mode="verify", verify=ask_the_bank)
def asked_about():
    raise KeyboardInterrupt


def events_of(home: Path, type_: str, run: str = "r") -> list[dict]:
    return [event.data for event in FileStore(str(home)).read(run).events if event.type == type_]


def without_it(node: object) -> str:
    """The data of events as text, in which the secret is not, nor half of it, and its marker is."""
    text = json.dumps(node)
    assert SECRET[:16] not in text, text
    assert SECRET[-16:] not in text, text
    assert MARKER in text
    return text


def test_the_beginning_of_a_run(home, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["agent.py", "--key", SECRET])
    with steplog.run("r", goal=f"use {SECRET}", trigger=f"asked with {SECRET}"):
        pass
    (created,) = events_of(home, "run.created")
    assert without_it(created["goal"]) == f'"use {MARKER}"'
    without_it(created["trigger"])
    without_it(created["entry"]["argv"])
    without_it(created)


def test_an_escalation(home):
    with steplog.run("r") as run:
        run.escalate(f"look at {SECRET}")
    without_it(events_of(home, "run.ended"))


@pytest.mark.parametrize("error", [ValueError(f"with {SECRET}"), SystemExit(f"with {SECRET}")], ids=["error", "exit"])
def test_the_error_that_ends_a_run(error, home):
    error.__cause__ = KeyError(SECRET)
    with pytest.raises(type(error)), steplog.run("r"):
        raise error
    (ended,) = events_of(home, "run.ended")
    without_it(ended["error"])
    without_it(ended)


def test_an_interruption_that_says_something(home):
    with pytest.raises(KeyboardInterrupt), steplog.run("r"):
        raise KeyboardInterrupt(f"stopped by {SECRET}")
    without_it(events_of(home, "run.suspended"))


def test_what_stopped_a_run(home):
    with pytest.raises(KeyboardInterrupt), steplog.run("r"):
        asked_about()
    with pytest.raises(steplog.RunStopped), steplog.run("r"):
        asked_about()
    stopped = events_of(home, "run.suspended")[-1]
    assert stopped["reason"] == "indeterminate"
    without_it(stopped["message"])


def test_drift_that_names_what_differs(home):
    def asking(text: str) -> None:
        with steplog.run("r"):
            said(text)
            raise ZeroDivisionError

    @steplog.step
    def said(text):
        return len(text)

    with pytest.raises(ZeroDivisionError):
        asking(f"one {SECRET}")
    with pytest.raises(steplog.RunStopped) as caught:
        asking(f"another {SECRET}")
    without_it(events_of(home, "run.suspended")[-1]["message"])
    without_it(str(caught.value))


@pytest.mark.parametrize("how", ["failed", "retry", "unknown"])
def test_what_an_operator_says(how, home):
    with pytest.raises(KeyboardInterrupt), steplog.run("r"):
        cut_off()
    store = FileStore(str(home))
    step = next(event.step for event in store.read("r").events if event.step)
    resolve(store, "r", step, how=how, message=f"it said {SECRET}", by=SECRET, note=f"see {SECRET}")
    (resolved,) = events_of(home, "step.resolved")
    for name in ("by", "note", *(("error",) if how != "retry" else ())):
        without_it(resolved[name])
