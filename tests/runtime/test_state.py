"""What a process knows of its run while it writes is what anybody reads in the log afterwards."""

from __future__ import annotations

import threading
from dataclasses import fields

import pytest

import steplog
from steplog._kernel.state import StepState
from steplog._runtime.context import frame
from steplog._runtime.record import record
from steplog._runtime.ticket import Call

_KEPT = {"start", "end", "notes", "source"}


@steplog.step(mode="safe")
def look_up(name, *, details=None):
    if name == "lost":
        raise LookupError(name)
    return {"name": name, "details": details}


@steplog.step(mode="keyed", retries=1, backoff=0)
def pay(cents, *, idempotency_key):
    if cents < 0:
        raise ValueError(cents)
    return look_up(f"receipt {cents} {idempotency_key[:2]}")


@steplog.step(ignore=["client"])
def mail(to, client):
    return (to, client is None)


def agent():
    steplog.step("now", lambda: 12.5)
    look_up("ordinary")
    look_up("ordinary")
    look_up("large", details="x" * 10_000)
    look_up("secret", details="Authorization: Bearer 0123456789abcdef0123456789abcdef")
    mail("ada@example.com", object())
    pay(4200)
    record(Call("tool_call", "acme", {"q": 1}, "safe", account="key of ada"), lambda _ticket: 1)
    for call in (lambda: look_up("lost"), lambda: pay(-1)):
        with pytest.raises((LookupError, ValueError)):
            call()
    branch = threading.Thread(target=look_up, args=("in a branch",))
    branch.start()
    branch.join()


def test_the_state_of_the_writer_is_what_its_log_says(state_of):
    with steplog.run("r"):
        agent()
        found = frame()
        assert found is not None
        mine = found.recorder.journal.state
        theirs = state_of("r")
        assert list(mine.steps) == list(theirs.steps)
        for step_id, step in mine.steps.items():
            other = theirs.steps[step_id]
            for field in fields(StepState):
                if field.name not in _KEPT:
                    assert getattr(step, field.name) == getattr(other, field.name), (step.target, field.name)
            assert step.started == other.started
            assert step.finished == other.finished
            assert step.progressed == other.progressed
        for field in fields(type(mine)):
            if field.name not in {"steps", "source", "names"}:
                assert getattr(mine, field.name) == getattr(theirs, field.name), field.name
