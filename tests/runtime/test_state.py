"""What a process knows of its run while it writes is what anybody reads in the log afterwards."""

from __future__ import annotations

import threading
from dataclasses import fields

import pytest

import steplog
from steplog._kernel.state import StepState
from steplog._runtime.context import frame
from steplog._runtime.looking import Body
from steplog._runtime.record import begin, record
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


def model_call(number, outcome, detail, *, stream=False, secret="", progress=None):
    """A call as an interceptor records it, and what becomes of it."""
    body = Body(b'{"number":%d,"text":"%b"}' % (number, secret.encode()))
    call = Call("llm_call", "m", {"n": number}, "safe", request={"path": "/v1", "stream": stream, "body": body})
    ticket = begin(call)
    assert ticket is not None
    if progress:
        ticket.progress(progress)
    ticket.finish(outcome, detail, waited=0.5)


def model_calls():
    answer = Body(b'{"usage":{"total_tokens":3}}')
    model_call(1, "done", {"exchanges": [{"status": 200, "body": answer}], "parse": "ok"})
    model_call(2, "done", {"exchanges": [{"status": 200, "body": answer}]}, stream=True)
    model_call(3, "failed", {"exchanges": [{"status": 500}], "error": {"type": "E"}, "final": True})
    model_call(4, "failed", {"error": {"type": "E"}, "job_open": True}, progress={"job": {"id": "j"}})
    model_call(5, "done", {"exchanges": []}, progress={"chunks": [answer]}, stream=True)
    model_call(6, "done", {"exchanges": []}, secret=_SECRET)
    model_call(7, "done", {"exchanges": [{"status": 200, "body": Body(_SECRET.encode())}]})
    model_call(8, "done", {"exchanges": [], "unreplayable": {"message": "no"}})


_SECRET = "Authorization: Bearer 0123456789abcdef0123456789abcdef"


def agent():
    model_calls()
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
