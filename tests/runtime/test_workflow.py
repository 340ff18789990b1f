"""Workflows: a call is a run, once."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import subprocess
import sys

import pytest
from click.testing import CliRunner

import steplog
from steplog._cli.main import cli
from steplog.errors import EncodeError, InvalidArgument
from tests.support.processes import environment

DONE: list[object] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    DONE.clear()


@dataclasses.dataclass(frozen=True)
class Order:
    id: str
    cents: int = 100


@dataclasses.dataclass(frozen=True)
class Receipt:
    order: Order
    text: str


@steplog.step
def pay(order: Order) -> str:
    DONE.append(order.id)
    return f"paid {order.cents}"


@steplog.workflow
def refund(order: Order, *, note: str = "") -> Receipt:
    """Refund an order."""
    return Receipt(order, pay(order) + note)


@steplog.workflow(name="refund later", version="v7")
async def refund_async(order: Order) -> Receipt:
    return Receipt(order, pay(order))


def test_the_same_id_is_the_same_run_and_its_result_comes_from_the_log(state_of):
    first = refund.run("r", Order("a"))
    before = state_of("r").seq

    assert refund.run("r", Order("a"), note="") == first == Receipt(Order("a"), "paid 100")
    assert DONE == ["a"]
    assert state_of("r").seq == before  # nobody has taken the run
    created = state_of("r").created
    assert (created["workflow"], created["call"]["module"], created["call"]["name"]) == ("refund", __name__, "refund")
    assert refund.__doc__ == "Refund an order."


def test_an_async_workflow(state_of):
    first = asyncio.run(refund_async.run("r", Order("a")))

    assert asyncio.run(refund_async.run("r", Order("a"))) == first
    assert DONE == ["a"]
    assert (state_of("r").created["workflow"], state_of("r").created["version"]) == ("refund later", "v7")


def test_without_an_id_every_call_is_a_run_of_its_own():
    refund(Order("a"))
    refund(Order("a"))

    assert DONE == ["a", "a"]


def test_the_difference_of_other_arguments_shows_no_secret():
    one, other = ("sk-ant-api03-" + letter * 40 for letter in "ab")
    refund.run("r", Order(one))

    with pytest.raises(InvalidArgument, match="other arguments") as caught:
        refund.run("r", Order(other))

    assert one not in str(caught.value)
    assert other not in str(caught.value)


def test_other_arguments_are_refused_with_the_difference_before_the_run_is_taken(state_of):
    refund.run("r", Order("a"))
    before = state_of("r").seq

    with pytest.raises(InvalidArgument, match="other arguments") as caught:
        refund.run("r", Order("b"))
    assert '  order: recorded {"id":"a","cents":100}, now {"id":"b","cents":100}\n' in str(caught.value)
    assert "steplog resume r" in str(caught.value)
    with pytest.raises(InvalidArgument, match="of workflow refund"):
        asyncio.run(refund_async.run("r", Order("a")))
    with steplog.run("plain"):
        pass
    with pytest.raises(InvalidArgument, match="was not started by a workflow"):
        refund.run("plain", Order("a"))
    assert (DONE, state_of("r").seq) == (["a"], before)


@steplog.workflow
def keep(value: object) -> object:
    return value


@pytest.mark.parametrize(
    "first, second, says",
    [
        (1, True, "value: recorded 1, now true"),
        ([0], [False], "value: recorded [0], now [false]"),
        (Order("a"), {"id": "a", "cents": 100}, ':Order","v"'),
    ],
)
def test_equal_arguments_of_other_types_are_other_arguments(first, second, says):
    keep.run("r", first)

    with pytest.raises(InvalidArgument, match="other arguments") as caught:
        keep.run("r", second)
    assert says in str(caught.value)


def test_arguments_that_do_not_fit_into_the_first_line_are_named():
    with pytest.raises(EncodeError, match=r"arguments of workflow keep are 2,\d{3},\d{3} bytes"):
        keep.run("r", "x" * 2_000_000)


def test_a_run_that_failed_goes_on_and_one_that_is_under_way_is_refused():
    healthy = False

    @steplog.workflow
    def flaky(number):
        pay(Order(str(number)))
        if not healthy:
            raise ConnectionError("down")
        return number

    with pytest.raises(ConnectionError):
        flaky.run("r", 1)
    healthy = True
    assert flaky.run("r", 1) == 1
    assert DONE == ["1"]

    @steplog.workflow
    def twice():
        with pytest.raises(steplog.RunBusy):
            twice.run("t")
        return "once"

    assert twice.run("t") == "once"


def test_a_result_that_cannot_be_recorded_is_computed_again_and_its_effects_are_not(caplog):
    @steplog.workflow
    def opaque():
        pay(Order("a"))
        return {"handle": object()}

    with caplog.at_level(logging.WARNING, "steplog"):
        opaque.run("r")
    assert isinstance(opaque.run("r")["handle"], object)
    assert DONE == ["a"]
    assert "cannot be recorded" in caplog.text


def test_a_result_with_a_secret_and_a_large_one(state_of):
    @steplog.workflow
    def told(size: int) -> str:
        return "x" * size if size else "sk-proj-" + "a1B2" * 12

    assert told.run("large", 50_000) == told.run("large", 50_000) == "x" * 50_000
    assert told.run("secret", 0) == told.run("secret", 0) == "sk-proj-" + "a1B2" * 12
    assert "a1B2a1B2" not in str(state_of("secret").ended)


@pytest.mark.parametrize("bad", [3, Order, "name"])
def test_what_is_no_function_is_refused(bad):
    with pytest.raises(InvalidArgument, match="goes on a plain or async function"):
        steplog.workflow(bad)


def test_a_call_inside_a_run_is_a_run_of_its_own_that_is_found_again():
    def outer():
        with steplog.run("outer"):
            return refund(Order("a"))

    assert outer() == outer()
    assert DONE == ["a"]


MODULE = """
import os, signal, steplog

@steplog.step
def pay(order):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(order + "\\n")
    return "paid"

@steplog.step(mode="safe")
def check(order):
    if os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "checked"

@steplog.workflow
async def refund(order, *, note="none"):
    return pay(order), check(order), note
"""


def test_a_fresh_process_goes_on_with_a_killed_run_by_the_name_of_its_function(tmp_path, state_of):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "shop.py").write_text(MODULE)
    start = (
        f"import sys, asyncio; sys.path.insert(0, {str(tmp_path / 'lib')!r}); import shop; "
        "asyncio.run(shop.refund.run('r', 'ord', note='n'))"
    )
    variables = environment(STEPLOG_HOME=str(tmp_path / "home"), EFFECTS=str(tmp_path / "effects"))
    killed = subprocess.run([sys.executable, "-c", start], env={**variables, "DIE": "1"}, check=False)
    assert killed.returncode == -9
    (tmp_path / "lib" / "shop.py").write_text(MODULE + "\n# another revision\n")

    resume = [sys.executable, "-m", "steplog", "resume", "r"]
    done = subprocess.run(resume, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    state = state_of("r")
    assert (tmp_path / "effects").read_text() == "ord\n"
    assert state.status == "completed"
    assert state.ended["result"] == {"$steplog": "tuple", "v": ["paid", "checked", "n"]}
    assert state.claim["version"] != state.created["version"]
    told = CliRunner().invoke(cli, ["show", "r", "--home", str(tmp_path / "home")]).stdout
    assert 'shop.refund(order="ord", note="n")' in told
    assert " -> " in told

    (tmp_path / "lib" / "shop.py").write_text("")
    gone = subprocess.run(resume, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert gone.returncode == 1
    assert "cannot be imported" in gone.stderr
