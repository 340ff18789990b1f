"""What is known of a step before it has ended is in the log, in order, and an outcome that builds on it is whole."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import steplog
from steplog import plugins
from steplog._kernel.fold import fold
from steplog._runtime.resolve import resolve
from steplog.errors import OutcomeUnknown, StepFailed, StoreError
from steplog.plugins import Body, Call
from steplog.stores.bodies import SqliteBodies
from steplog.stores.files import FileStore
from steplog.stores.writer import FileWriter


def call(mode: str = "unsafe", *, attaches: bool = False, name: str = "job") -> Call:
    asked = Call("llm_call", name, {"ask": 1}, mode)
    asked.attaches = attaches
    return asked


class Died(BaseException):
    """Stands for the death of the process: the step is left as it is."""


def notes_of(state_of: Any, run: str = "r") -> list[dict[str, Any]]:
    (step,) = state_of(run).steps.values()
    return step.progressed


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_note_is_on_disk_when_it_returns(asynchronous, state_of):
    async def body() -> None:
        async with steplog.run("r"):
            ticket = await plugins.begin_async(call())
            await ticket.progress_async({"job": {"id": "job_1"}, "n": 1})
            ticket.progress({"n": 2})
            assert [note["n"] for note in notes_of(state_of)] == [1, 2]
            await ticket.finish_async("done", {"result": 7})

    def plain() -> None:
        with steplog.run("r"):
            ticket = plugins.begin(call())
            ticket.progress({"job": {"id": "job_1"}, "n": 1})
            ticket.progress({"n": 2})
            assert [note["n"] for note in notes_of(state_of)] == [1, 2]
            ticket.finish("done", {"result": 7})

    asyncio.run(body()) if asynchronous else plain()
    (step,) = state_of("r").steps.values()
    assert (step.finished["progressed"], step.job) == (2, None)


def test_a_job_is_taken_up_by_code_that_can_and_in_doubt_for_code_that_cannot(state_of):
    with pytest.raises(Died), steplog.run("r"):
        plugins.begin(call()).progress({"job": {"id": "job_1"}, "n": 1})
        raise Died
    for attempt in (2, 3):
        with pytest.raises(Died), steplog.run("r"):
            ticket = plugins.begin(call(attaches=True))
            assert (ticket.attempt, ticket.earlier.job) == (attempt, {"id": "job_1"})
            assert [note["n"] for note in ticket.earlier.progressed] == ([1] if attempt == 2 else [])
            raise Died
    with pytest.raises(steplog.RunStopped, match="no outcome is recorded"), steplog.run("r"):
        plugins.begin(call())


def test_what_a_ticket_calls_later_is_called_by_another_thread_and_written(state_of):
    called = threading.Event()
    threads = []
    with steplog.run("r"):
        ticket = plugins.begin(call())

        def later() -> None:
            threads.append(threading.get_ident())
            ticket.notes.put({"n": 1})
            called.set()

        ticket.notes.later(later, 0.0)
        assert called.wait(20)
        ticket.finish("done", {"result": 7})
    assert threads != [threading.get_ident()]
    (step,) = state_of("r").steps.values()
    assert (step.finished["progressed"], len(step.progressed)) == (1, 1)


def test_calls_come_in_the_order_of_their_time():
    order: list[int] = []
    done = threading.Event()
    with steplog.run("r"):
        notes = plugins.begin(call()).notes
        notes.later(lambda: (order.append(3), done.set()), 0.3)
        notes.later(lambda: order.append(1), 0.0)
        notes.later(lambda: order.append(2), 0.1)
        assert done.wait(20)
    assert order == [1, 2, 3]


@pytest.mark.parametrize("mode", ["safe", "unsafe"])
def test_an_outcome_whose_pieces_could_not_be_written_is_not_returned(mode, monkeypatch, state_of):
    real = FileWriter.append
    full = True

    def append(self: Any, lines: Any, first_seq: int, *, sync: bool) -> None:
        if full and any(b'"type":"step.progressed"' in line for line in lines):
            raise StoreError("disk full", errno=28)
        real(self, lines, first_seq, sync=sync)

    monkeypatch.setattr(FileWriter, "append", append)
    with pytest.raises(steplog.RunStopped) as stopped, steplog.run("r") as run:
        ticket = plugins.begin(call(mode))
        ticket.notes.put({"n": 1})
        run._open_recorder().journal._commit._lead()
        ticket.finish("done", {"result": 7})
    assert stopped.value.reason == "log_failed"
    full = False
    (step,) = state_of("r").steps.values()
    assert step.status == "done"
    if mode == "safe":
        with steplog.run("r"):
            assert plugins.begin(call(mode)).recorded is None
    else:
        with pytest.raises(steplog.RunStopped, match="pieces"), steplog.run("r"):
            plugins.begin(call(mode))


def test_pieces_are_as_durable_as_the_outcome_that_builds_on_them(monkeypatch):
    """Their bodies are stored without a sync; the outcome, which has no body of its own, sees to it."""
    steps: list[str] = []
    put, append = SqliteBodies.put, FileWriter.append

    def noting_put(self: Any, bodies: Any, *, sync: bool = True) -> None:
        steps.append(f"bodies {len(list(bodies))} {sync}")
        put(self, bodies, sync=sync)

    def noting_append(self: Any, lines: Any, first_seq: int, *, sync: bool) -> None:
        steps.append(f"line {sync}")
        append(self, lines, first_seq, sync=sync)

    with steplog.run("r") as run:
        ticket = plugins.begin(call())
        monkeypatch.setattr(SqliteBodies, "put", noting_put)
        monkeypatch.setattr(FileWriter, "append", noting_append)
        ticket.notes.put({"body": Body(bytes(10_000))})
        run._open_recorder().journal._commit._lead()
        assert steps == ["bodies 1 False", "line False"]
        ticket.finish("done", {"result": 7})
        assert steps[2:] == ["bodies 0 True", "line True"]


def test_a_secret_in_a_piece_is_taken_out_and_counts_for_the_outcome(home):
    secret = "sk-proj-" + "a1B2" * 10
    with steplog.run("r"):
        ticket = plugins.begin(call("safe"))
        ticket.progress({"body": Body(f"the key is {secret}".encode())})
        ticket.finish("done", {"result": 7})
    assert secret.encode() not in (home / "runs/r/events.jsonl").read_bytes()
    with pytest.raises(steplog.RunStopped, match="a secret was taken out"), steplog.run("r"):
        plugins.begin(call("safe"))


def test_what_is_noted_of_a_step_that_has_ended_is_not_written(state_of):
    with steplog.run("r"):
        ticket = plugins.begin(call())
        ticket.finish("done", {"result": 7})
        ticket.progress({"n": 1})
        ticket.notes.put({"n": 2})
    assert notes_of(state_of) == []


def test_a_run_tells_what_is_under_way_and_which_attempt_it_is():
    with pytest.raises(Died), steplog.run("r"):
        plugins.begin(call("safe"))
        raise Died
    with steplog.run("r") as run:
        assert run.under_way == []
        ticket = plugins.begin(call("safe"))
        ticket.progress({"n": 1})
        (step,) = run.under_way
        assert (step.id, step.attempt, [note["n"] for note in step.progressed]) == (ticket.step, 2, [1])
        ticket.finish("done", {"result": 7})
        assert run.under_way == []


def test_an_unknown_outcome_reaches_the_program_as_an_exception_that_says_so(home, state_of):
    happened = []

    @steplog.step
    def pay(amount: int) -> None:
        happened.append(amount)
        raise Died

    with pytest.raises(Died), steplog.run("r"):
        pay(7)
    (step,) = state_of("r").steps
    # Nobody has resumed it: what a dead process left running can be settled all the same.
    resolve(FileStore(str(home)), "r", step, how="unknown", by="ada")
    for _ in range(2):
        with steplog.run("r"), pytest.raises(OutcomeUnknown, match="may or may not have had its effect") as caught:
            pay(7)
        assert isinstance(caught.value, StepFailed)
        assert "pay" in str(caught.value)
    assert happened == [7]
    log = FileStore(str(home)).read("r").events
    assert [event.data["how"] for event in log if event.type == "step.resolved"] == ["unknown"]
    assert fold(log).steps[step].status == "failed"
