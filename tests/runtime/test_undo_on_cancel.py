"""A run that is cancelled undoes what it has done, where its program wants that."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import steplog
from steplog.errors import RunBusy, RunStopped
from tests.support.processes import environment

DONE: list[str] = []
BROKEN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    DONE.clear()
    BROKEN.clear()


@steplog.step(mode="safe")
def cancel(result, order):
    if order in BROKEN:
        raise ConnectionError("shop is down")
    DONE.append(f"cancel {order} {result}")


@steplog.step(undo=cancel)
def buy(order):
    DONE.append(f"buy {order}")
    return order.upper()


async def take_back(result):
    DONE.append(f"take back {result}")


@steplog.step(undo=take_back)
def send(text):
    DONE.append(f"send {text}")
    return text.upper()


@steplog.step
def mail(text):
    DONE.append(f"mail {text}")


@steplog.step(mode="safe")
def clean():
    DONE.append("clean")


def shop(*orders, step=buy):
    with steplog.run("r", undo_on_cancel=True):
        mail("hi")
        try:
            for order in orders:
                step(order)
            steplog.cancel("r", by="ann")
            step("late")
        finally:
            clean()


def stopped(program, *args, **options):
    with pytest.raises(RunStopped) as caught:
        program(*args, **options)
    return caught.value


def test_it_undoes_after_the_program_has_unwound_and_says_so(state_of):
    error = stopped(shop, "a", "b")

    assert DONE == ["mail hi", "buy a", "buy b", "clean", "cancel b B", "cancel a A"]
    state = state_of("r")
    assert (state.status, state.created["undo_on_cancel"]) == ("cancelled", True)
    assert state.ended["undo"] == {"run": "r.undo", "undone": 2, "left": ["mail"]}
    assert error.reason == "cancelled"
    assert "Undone: 2 step(s), by run r.undo.\nNot undone, since it has no undo: mail" in str(error)
    undo = state_of("r.undo")
    assert (undo.status, undo.created["trigger"]["by"]) == ("completed", "ann")
    assert "inside" not in undo.created

    stopped(shop, "a", "b")
    assert len(DONE) == 6, "what is undone is not undone twice"


def test_a_replay_of_it_undoes_nothing_and_is_identical():
    stopped(shop, "a")
    DONE.clear()

    with pytest.raises(RunStopped), steplog.replay("r") as replayed:
        shop("a")

    assert replayed.identical, replayed.divergence
    assert DONE == []


def test_without_it_nothing_is_undone(state_of):
    def program():
        with steplog.run("r"):
            buy("a")
            steplog.cancel("r")
            buy("b")

    stopped(program)

    assert DONE == ["buy a"]
    assert "undo" not in state_of("r").ended


def test_what_cannot_be_undone_is_told_and_left_to_the_command(state_of):
    BROKEN.append("a")
    error = stopped(shop, "a", "b")

    assert DONE[-1] == "cancel b B"
    assert "not undone to the end" in str(error)
    assert any(command.startswith("steplog undo r") for command in error.commands)
    state = state_of("r")
    assert (state.status, state.ended["undo"]["rest"]) == ("cancelled", 1)
    assert state.ended["undo"]["error"]["type"] == "UndoFailed"

    BROKEN.clear()
    steplog.undo("r")
    assert DONE[-1] == "cancel a A"


@pytest.mark.parametrize("plain", [True, False])
def test_in_an_event_loop_with_an_async_undo(plain, state_of):
    async def agent():
        async with steplog.run("r", undo_on_cancel=True):
            send("a")
            await asyncio.to_thread(steplog.cancel, "r")
            send("b")

    async def around():
        shop("a", step=send)

    stopped(lambda: asyncio.run(around() if plain else agent()))

    assert DONE[-1] == "take back A"
    assert state_of("r").ended["undo"]["undone"] == 1


def test_a_step_in_doubt_is_settled_before_anything_is_undone(state_of):
    @steplog.step(undo=take_back)
    async def slow():
        steplog.cancel("r")
        await asyncio.sleep(5)

    async def other():
        await asyncio.sleep(0.05)
        send("late")

    async def agent():
        async with steplog.run("r", undo_on_cancel=True), asyncio.TaskGroup() as group:
            send("a")
            group.create_task(slow())
            group.create_task(other())

    error = stopped(lambda: asyncio.run(agent()))

    assert DONE == ["send a"]
    assert "steplog resolve r s_" in str(error)
    assert error.commands[-1] == "steplog undo r"
    state = state_of("r")
    assert (state.status, "not known whether" in state.ended["undo"]["error"]["message"]) == ("cancelled", True)


def test_a_workflow_has_the_same_option(state_of):
    @steplog.workflow(undo_on_cancel=True)
    def order(what):
        buy(what)
        steplog.cancel("w")
        buy("more")

    stopped(order.run, "w", "a")

    assert DONE == ["buy a", "cancel a A"]
    assert state_of("w").ended["undo"]["undone"] == 1


def test_undoing_a_run_that_a_process_holds_names_the_holder():
    with steplog.run("r") as run, pytest.raises(RunBusy, match="pid") as caught:
        buy("a")
        steplog.undo("r")
    assert caught.value.pid
    assert run.run_id in str(caught.value)
    assert DONE == ["buy a"]


PROGRAM = """
import os, signal, sys
import steplog

def note(text):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(text + "\\n")

@steplog.step(mode="keyed")
def cancel(result, order, *, idempotency_key):
    if order == os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    note("cancel " + result)

@steplog.step(undo=cancel)
def buy(order):
    note("buy " + order)
    return "id_" + order

def main():
    steplog.install(interceptors=[])
    with steplog.run("r", undo_on_cancel=True):
        for order in "abc":
            buy(order)
        if not steplog.current_run().resumed:
            steplog.cancel("r")
        buy("d")

if __name__ == "__main__":
    main()
"""


def test_a_process_that_dies_while_it_undoes_is_taken_up_by_resume_due(tmp_path, home, state_of):
    (tmp_path / "shop.py").write_text(PROGRAM)
    variables = environment(STEPLOG_HOME=str(home), EFFECTS=str(tmp_path / "effects"))
    first = [sys.executable, "shop.py"]
    killed = subprocess.run(first, cwd=tmp_path, env={**variables, "DIE": "b"}, check=False)
    assert killed.returncode == -9

    due = [sys.executable, "-m", "steplog", "resume", "--due"]
    subprocess.run(due, env=variables, capture_output=True, check=False)

    effects = (tmp_path / "effects").read_text().split("\n")
    assert effects == ["buy a", "buy b", "buy c", "cancel id_c", "cancel id_b", "cancel id_a", ""]
    state = state_of("r")
    assert (state.status, state.ended["undo"]["undone"]) == ("cancelled", 3)
