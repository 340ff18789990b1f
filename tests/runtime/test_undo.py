"""Compensation: what was done is undone once, the newest first."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

import steplog
from steplog._cli.main import cli
from steplog.errors import InvalidArgument, RunStopped, UndoFailed
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
    DONE.append(f"cancel {order} {result['id']}")


def take_back(result):
    DONE.append(f"take back {result}")


@steplog.step(undo=cancel)
def buy(order, cents=5):
    DONE.append(f"buy {order}")
    return {"id": f"id_{order}"}


@steplog.step(undo=take_back)
async def send(text):
    DONE.append(f"send {text}")
    return text.upper()


@steplog.step
def mail(text):
    DONE.append(f"mail {text}")


@steplog.step(mode="safe")
def look():
    return 1


def shop(*orders, end=None):
    with steplog.run("r"):
        look()
        for order in orders:
            buy(order)
        mail("hi")
        if end is not None:
            raise end


def test_finished_steps_are_undone_newest_first_and_once(state_of):
    shop("a", "b")
    DONE.clear()

    found = steplog.undo("r", by="ann")
    assert DONE == ["cancel b id_b", "cancel a id_a"]
    assert (found.run_id, len(found.undone)) == ("r.undo", 2)
    state = state_of("r")
    assert [state.steps[step].target for step in found.left] == ["mail"]

    assert steplog.undo("r") == found
    assert len(DONE) == 2
    undone = state_of("r.undo")
    assert (undone.status, undone.created["trigger"]) == ("completed", {"kind": "undo", "by": "ann", "steps": 2})
    assert [(step.target, step.mode) for step in undone.steps.values()] == [("cancel", "safe")] * 2
    assert state.status == "completed"


def test_a_run_that_has_not_ended_is_cancelled_first_and_does_not_go_on(state_of):
    with pytest.raises(KeyboardInterrupt):
        shop("a", end=KeyboardInterrupt())
    DONE.clear()

    steplog.undo("r")

    assert DONE == ["cancel a id_a"]
    assert state_of("r").status == "cancelled"


def test_an_undo_that_fails_stops_with_the_rest_listed_and_goes_on_later():
    shop("a", "b", "c")
    DONE.clear()
    BROKEN.append("b")
    for _ in range(2):
        with pytest.raises(UndoFailed, match="1 of 3 steps are undone") as caught:
            steplog.undo("r")
        assert len(caught.value.rest) == 2
        assert isinstance(caught.value.__cause__, ConnectionError)
    BROKEN.clear()

    steplog.undo("r")

    assert DONE == ["cancel c id_c", "cancel b id_b", "cancel a id_a"]


def test_an_async_step_with_a_plain_undo_that_is_unsafe(state_of):
    async def agent():
        async with steplog.run("r"):
            await send("hi")

    asyncio.run(agent())
    DONE.clear()
    steplog.undo("r")

    assert DONE == ["take back HI"]
    assert [(step.target, step.mode) for step in state_of("r.undo").steps.values()] == [("undo send", "unsafe")]

    async def inside():
        steplog.undo("r")

    with pytest.raises(InvalidArgument, match=r"asyncio\.to_thread"):
        asyncio.run(inside())


@pytest.mark.parametrize("mode", ["unsafe", "safe"])
def test_a_step_in_doubt_is_settled_first(home, mode):
    program = (
        "import os, signal, steplog\n"
        f"steplog.install(home={str(home)!r}, interceptors=[])\n"
        f"@steplog.step(mode={mode!r})\n"
        "def buy(order): os.kill(os.getpid(), signal.SIGKILL)\n"
        "with steplog.run('r'): buy('a')\n"
    )
    subprocess.run([sys.executable, "-c", program], env=environment(), check=False)

    with pytest.raises(InvalidArgument, match="steplog resolve r s_"):
        steplog.undo("r")
    assert DONE == []


@pytest.mark.parametrize("bad", [3, lambda: None, lambda result, nothing: None])
def test_an_undo_that_cannot_be_called_is_refused_when_it_is_named(bad):
    with pytest.raises(InvalidArgument, match="undo"):

        @steplog.step(undo=bad)
        def tool(order): ...


def test_show_says_when_and_how_far_a_run_was_undone(home):
    def show(*words):
        return CliRunner().invoke(cli, ["show", "r", "--home", str(home), *words]).stdout

    shop("a", "b")
    assert "undone" not in show()
    BROKEN.append("a")
    with pytest.raises(UndoFailed):
        steplog.undo("r", by="ann")
    text = show()
    assert "undone     1 of 2 steps by ann, 20" in text
    assert "run r.undo failed (error): ConnectionError: shop is down" in text
    assert "next: steplog undo r" in text

    BROKEN.clear()
    steplog.undo("r")
    known = json.loads(show("--json"))
    assert (known["undo"]["undone"], known["undo"]["of"], known["undo"]["status"]) == (2, 2, "completed")
    assert known["next"] == []
    assert "undone     2 of 2 steps by ann" in show()


def test_a_halted_undo_leaves_as_run_stopped(monkeypatch):
    shop("a")
    DONE.clear()
    monkeypatch.setenv("STEPLOG_BUDGET", "max_steps=0")

    with pytest.raises(RunStopped, match="max_steps"):
        steplog.undo("r")
    assert DONE == []


SHOP = """
import os, signal, sys
import steplog

def note(text):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(text + "\\n")

@steplog.step
def cancel(result, order):
    if order == os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    note("cancel " + result)

@steplog.step(undo=cancel)
def buy(order):
    note("buy " + order)
    return "id_" + order

def main():
    steplog.install()
    with steplog.run("r"):
        for order in "abc":
            buy(order)

if __name__ == "__main__":
    main()
"""


def test_a_killed_undo_goes_on_where_it_was_by_command(tmp_path, home):
    (tmp_path / "shop.py").write_text(SHOP)
    variables = environment(STEPLOG_HOME=str(home), EFFECTS=str(tmp_path / "effects"))
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, env=variables, check=True)
    undo = [sys.executable, "-m", "steplog", "undo", "r"]
    killed = subprocess.run(undo, env={**variables, "DIE": "b"}, check=False)
    assert killed.returncode == -9

    doubtful = subprocess.run(undo, env=variables, capture_output=True, text=True, check=False)
    assert doubtful.returncode == 75
    settled = CliRunner().invoke(cli, ["resolve", "r.undo", "2", "--retry", "--home", str(home)])
    assert settled.exit_code == 0, settled.output
    done = subprocess.run(undo, env=variables, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("undone ") == 3
    effects = (tmp_path / "effects").read_text().split("\n")
    assert effects == ["buy a", "buy b", "buy c", "cancel id_c", "cancel id_b", "cancel id_a", ""]

    (tmp_path / "shop.py").write_text(SHOP.replace('if __name__ == "__main__":', "if True:"))
    refused = CliRunner().invoke(cli, ["undo", "r", "--home", str(home)])
    assert refused.exit_code == 1
    assert "would start its work" in refused.output + refused.stderr


def test_a_tool_is_not_undone_by_the_undo_of_a_function_that_is_called_like_it(state_of):
    @steplog.step(name="send")
    def other(text):
        return text

    with steplog.run("r"):
        other("hello")
    undone = steplog.undo("r")

    assert (undone.undone, len(undone.left)) == ((), 1)
