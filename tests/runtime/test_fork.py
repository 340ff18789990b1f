"""A fork shares what was done, changes one step, goes live from there, and has no side effects unless it may."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

import steplog
from steplog._kernel.fold import RunState
from steplog._runtime.resolve import resolve
from steplog.errors import InvalidArgument, KeyMissing, RunStopped, Simulated, UnknownStep
from steplog.stores.base import folded
from steplog.stores.files import FileStore
from steplog.stores.upkeep import begin, prune
from steplog.testing import Hit, LocalProvider, MemoryStore, Reply
from tests.support.chats import Model, agent, in_turn

ORDER = "ord_1001"
effects: list[str] = []


@steplog.step(mode="safe")
def look(order: str) -> dict[str, Any]:
    effects.append(f"look {order}")
    return {"order": order, "cents": 4200}


@steplog.step
def refund(order: str, cents: int) -> str:
    effects.append(f"refund {order} {cents}")
    return f"re_{order}"


@steplog.step
def mail(to: str) -> str:
    effects.append(f"mail {to}")
    return f"sent to {to}"


TOOLS = {"look": look, "refund": refund, "mail": mail}
LOOK, REFUND = ("look", {"order": ORDER}), ("refund", {"order": ORDER, "cents": 4200})
MAIL = ("mail", {"to": "ada@example.com"})
SAID = (LOOK, REFUND, MAIL, "Refunded and told.")


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    effects.clear()
    steplog.install(interceptors=["openai"])
    yield
    steplog.uninstall()


@pytest.fixture
def model() -> Iterator[Model]:
    with Model(in_turn(*SAID)) as served:
        yield served


def play(run: str, model: Model, **options: Any) -> str:
    with steplog.run(run):
        return agent(model.client(), TOOLS, "Refund the jacket.", **options)


def store() -> FileStore:
    return FileStore(os.environ["STEPLOG_HOME"])


def state_of(run: str) -> RunState:
    return folded(store().read(run))


def steps_of(run: str) -> list[tuple[str, str]]:
    return [(step.target, step.status) for step in state_of(run).steps.values()]


# what is shared -------------------------------------------------------------------------------------------------------


def test_a_fork_returns_what_was_recorded_and_goes_live_from_the_step(model: Model):
    play("r", model)
    before = list(effects)
    effects.clear()
    assert before == [f"look {ORDER}", f"refund {ORDER} 4200", "mail ada@example.com"]

    forked = steplog.fork("r", at=5, live_tools=True)
    assert forked == "r-fork-1"
    assert [target for target, _ in steps_of(forked)] == ["gpt-5.2", "look", "gpt-5.2", "refund"]
    asked = len(model.asked)
    assert play(forked, model) == "Refunded and told."

    # Two more calls of the model, one tool: what comes behind the refund.
    assert len(model.asked) == asked + 2
    assert effects == ["mail ada@example.com"]
    assert state_of(forked).status == "completed"


def test_the_other_run_is_not_touched_and_no_body_is_copied(model: Model, tmp_path: Any):
    play("r", model)
    home = tmp_path / "home"
    log, bodies = (home / "runs/r/events.jsonl").read_bytes(), FileStore(str(home)).bodies.check().bodies
    forked = steplog.fork("r", at=5)

    assert (home / "runs/r/events.jsonl").read_bytes() == log
    assert FileStore(str(home)).bodies.check().bodies == bodies
    assert FileStore(str(home)).read(forked).torn == 0


def test_a_simulation_stops_before_a_side_effect_with_both_ways_on(model: Model):
    play("r", model)
    effects.clear()
    forked = steplog.fork("r", at=5)
    with pytest.raises(RunStopped) as stopped:
        play(forked, model)
    halt = stopped.value.__cause__

    assert isinstance(halt, Simulated)
    assert effects == []
    assert halt.asked == "tool_call mail"
    assert halt.commands == (
        f"steplog resolve {forked} {halt.step} --done JSON",
        f"steplog fork {forked} --live-tools",
    )
    # Recorded, so it holds on the next start as well.
    with pytest.raises(RunStopped, match="simulated"):
        play(forked, model)
    assert effects == []
    assert steps_of(forked)[-1] == ("mail", "skipped")


def test_a_refused_effect_is_given_a_result_and_the_simulation_goes_on(model: Model):
    play("r", model)
    effects.clear()
    forked = steplog.fork("r", at=5)
    with pytest.raises(RunStopped) as stopped:
        play(forked, model)
    resolve(store(), forked, stopped.value.__cause__.step, how="done", result="sent, as if", by="ada")

    assert play(forked, model) == "Refunded and told."
    assert effects == []
    assert model.asked[-1][-1]["content"] == '"sent, as if"'


def test_a_fork_with_live_tools_of_the_simulation_goes_on_for_real(model: Model):
    play("r", model)
    effects.clear()
    forked = steplog.fork("r", at=5)
    with pytest.raises(RunStopped):
        play(forked, model)
    asked = len(model.asked)
    real = steplog.fork(forked, live_tools=True)

    assert play(real, model) == "Refunded and told."
    assert effects == ["mail ada@example.com"]
    # The answer that proposed the mail was recorded in the simulation, and is not paid for again.
    assert len(model.asked) == asked + 1
    assert state_of(real).created["fork"]["line"] == [forked, "r"]


def test_new_effects_of_any_mode_but_safe_are_refused():
    done: list[str] = []

    @steplog.step(mode="keyed")
    def pay(cents: int, *, idempotency_key: str) -> str:
        done.append(idempotency_key)
        return "paid"

    with steplog.run("r"):
        steplog.step("first", lambda: 1)
    forked = steplog.fork("r", at=None)
    with pytest.raises(RunStopped, match="simulated"), steplog.run(forked):
        steplog.step("first", lambda: 1)
        pay(5)
    assert done == []


# what is changed ------------------------------------------------------------------------------------------------------


def test_a_changed_request_is_what_the_provider_gets_and_what_the_log_holds(model: Model):
    play("r", model)
    forked = steplog.fork("r", at=5, set={"messages[0].content": "Be terse.", "temperature": 0.5}, live_tools=True)
    asked = len(model.asked)
    play(forked, model)
    hits = model.provider.hits[asked:]

    assert model.asked[asked][0]["content"] == "Be terse."
    assert hits[0].json["temperature"] == 0.5
    # The program's own next request is its own.
    assert model.asked[asked + 1][0]["content"] == "You are a clerk."
    assert "temperature" not in hits[1].json
    step = list(state_of(forked).steps.values())[4]
    assert step.id == list(state_of("r").steps)[4]
    assert step.started["request"]["changed"] == ["messages[0].content", "temperature"]


def test_a_changed_step_is_found_again_on_a_resume(model: Model):
    play("r", model)
    forked = steplog.fork("r", at=5, set={"messages[0].content": "Be terse."})
    with pytest.raises(RunStopped, match="simulated"):
        play(forked, model)
    asked = len(model.asked)
    with pytest.raises(RunStopped, match="simulated"):
        play(forked, model)

    assert len(model.asked) == asked


def test_another_model_is_asked(model: Model):
    play("r", model)
    forked = steplog.fork("r", at=1, model="gpt-5.2-mini")
    with pytest.raises(RunStopped, match="simulated"):
        play(forked, model)

    assert model.models[-2:] == ["gpt-5.2-mini", "gpt-5.2"]


def test_the_arguments_of_a_tool_are_changed(model: Model):
    play("r", model)
    effects.clear()
    forked = steplog.fork("r", at=4, set={"cents": 100}, live_tools=True)
    play(forked, model)

    assert effects == [f"refund {ORDER} 100", "mail ada@example.com"]
    assert list(state_of(forked).steps.values())[3].started["args"] == {"order": ORDER, "cents": 100}


def test_a_step_returns_the_result_that_it_is_given(model: Model):
    play("r", model)
    effects.clear()
    forked = steplog.fork("r", at=2, result={"order": ORDER, "cents": 1})
    with pytest.raises(RunStopped, match="simulated"):
        play(forked, model)

    assert effects == []
    assert model.asked[-1][-1]["content"] == json.dumps({"order": ORDER, "cents": 1})


def test_a_model_call_returns_the_answer_that_it_is_given(model: Model):
    play("r", model)
    asked = len(model.asked)
    message = {"role": "assistant", "content": "Nothing to do."}
    body = {
        "id": "chatcmpl-x",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5.2",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
    }
    forked = steplog.fork("r", at=3, result=body)

    assert play(forked, model) == "Nothing to do."
    assert len(model.asked) == asked


def test_a_program_that_does_not_ask_for_the_changed_step_stops(model: Model):
    play("r", model)
    forked = steplog.fork("r", at=5, set={"messages[0].content": "Be terse."}, live_tools=True)
    effects.clear()

    def other(order: str, cents: int) -> str:
        return refund(order, cents) + "!"

    with pytest.raises(RunStopped) as stopped, steplog.run(forked):
        agent(model.client(), {**TOOLS, "refund": other}, "Refund the jacket.")
    assert "nothing would be changed" in str(stopped.value)
    assert effects == []


@pytest.mark.parametrize(
    "options, words",
    [
        ({"at": 1, "set": {"messages[9].content": "x"}}, "there is no place"),
        ({"at": 1, "set": {"messages[*].content": "x"}}, "names many places"),
        ({"at": 4, "set": {"nobody": {}}, "result": 1}, "is given a result"),
        ({"set": {"model": "x"}}, "belong to one step"),
        ({"at": 9}, "no steps"),
        ({"at": 1, "new_id": "r"}, "there is a run 'r' already"),
        ({"at": 1, "new_id": "a/b"}, "no run id"),
    ],
)
def test_what_cannot_be_forked_is_refused_and_nothing_is_written(model: Model, options: dict[str, Any], words: str):
    play("r", model)
    with pytest.raises((InvalidArgument, UnknownStep), match=words):
        steplog.fork("r", **options)
    assert store().runs() == ["r"]


# of what --------------------------------------------------------------------------------------------------------------


def test_a_failed_run_is_forked_before_its_failure(model: Model):
    def broken(order: str, cents: int) -> str:
        raise ValueError("the bank is closed")

    fails = steplog.step(name="refund")(broken)
    with pytest.raises(ValueError, match="closed"), steplog.run("r"):
        agent(model.client(), {**TOOLS, "refund": fails}, "Refund the jacket.")
    before, end = steplog.fork("r", at=4, live_tools=True), steplog.fork("r", live_tools=True)
    effects.clear()

    assert play(before, model) == "Refunded and told."
    assert effects == [f"refund {ORDER} 4200", "mail ada@example.com"]
    # At the end the failure is part of what it begins with; as on a resume it is tried again, since it ended the run.
    assert play(end, model) == "Refunded and told."


def test_a_fork_of_a_fork_of_a_fork(model: Model):
    play("r", model)
    one = steplog.fork("r", at=7)
    two = steplog.fork(one, at=3)
    three = steplog.fork(two, at=2, new_id="third")

    assert [len(state_of(run).steps) for run in (one, two, three)] == [6, 2, 1]
    assert state_of("third").created["fork"]["line"] == [two, one, "r"]
    with pytest.raises(RunStopped, match="simulated"):
        play("third", model)


def test_names_are_counted_on(model: Model):
    play("r", model)
    assert [steplog.fork("r", at=1) for _ in range(3)] == ["r-fork-1", "r-fork-2", "r-fork-3"]


def test_of_concurrent_steps_those_are_shared_that_had_finished(model: Model):
    """Three branches; the slow one is under way when the step begins at which the run is forked."""
    ran: list[str] = []

    @steplog.step(mode="safe")
    async def work(name: str, seconds: float) -> str:
        ran.append(name)
        await asyncio.sleep(seconds)
        return name

    async def program(run: str) -> list[str]:
        async def branch(name: str) -> str:
            await work(name, 0.01)
            return await work(f"{name} again", 0.01)

        async with steplog.run(run):
            return await asyncio.gather(branch("a"), work("slow", 0.3), branch("b"))

    assert asyncio.run(program("r")) == ["a again", "slow", "b again"]
    number = next(n for n, step in enumerate(state_of("r").steps.values(), 1) if "again" in str(step.started["args"]))
    forked = steplog.fork("r", at=number)
    shared = {step.started["args"]["name"] for step in state_of(forked).steps.values()}
    ran.clear()

    assert "slow" not in shared
    assert shared <= {"a", "b"}
    assert asyncio.run(program(forked)) == ["a again", "slow", "b again"]
    assert sorted(ran) == sorted({"a", "b", "slow", "a again", "b again"} - shared)


def test_two_accounts_find_their_own_steps_in_a_fork():
    """What tells accounts apart is keyed with the first run's id, and must be so in the fork."""

    def answer(hit: Hit) -> Reply:
        said = {"role": "assistant", "content": hit.headers["authorization"][-5:]}
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        return Reply.json({"id": "c", "object": "chat.completion", "created": 1, "model": "x", "choices": [choice]})

    def play_both(run: str, url: str, *names: str) -> dict[str, str]:
        found = {}
        with steplog.run(run), ThreadPoolExecutor(1) as pool:
            for name in names:
                with openai.OpenAI(api_key=name * 8, base_url=url, max_retries=0) as client:
                    found[name] = pool.submit(agent, client, {}, "Hello").result()
        return found

    with LocalProvider(handler=answer) as provider:
        before = play_both("r", provider.url, "north", "south")
        forked = steplog.fork("r")
        # The other one asks first now; places and order say nothing.
        assert play_both(forked, provider.url, "south", "north") == before == {"north": "north", "south": "south"}
        assert len(provider.hits) == 2


def test_a_prune_that_has_begun_leaves_what_a_fork_names(model: Model):
    long = steplog.step(mode="safe", name="long")(lambda: "tea " * 5_000)
    with steplog.run("r"):
        long()
    bodies = store().bodies
    number = begin(bodies, 20_000)
    forked = steplog.fork("r")
    # It has read the logs before the fork was there, and the other run is gone.
    pruned = prune(bodies, number, lambda _name, _day: False, ())

    assert pruned.bodies == []
    with steplog.run(forked) as run:
        assert long() == "tea " * 5_000
        assert run.executed == 0


def test_a_fork_inside_a_step_asks_for_that_step_anew_and_shares_what_it_had_done():
    ran: list[str] = []

    @steplog.step(mode="safe")
    def part(name: str) -> str:
        ran.append(name)
        return name

    @steplog.step(mode="safe")
    def whole() -> list[str]:
        ran.append("whole")
        return [part("a"), part("b"), part("c")]

    with steplog.run("r"):
        whole()
    ran.clear()
    forked = steplog.fork("r", at=3)
    with steplog.run(forked):
        assert whole() == ["a", "b", "c"]
    assert ran == ["whole", "b", "c"]


def test_a_tool_in_a_task_is_changed_and_refused_too():
    sent: list[str] = []

    @steplog.step
    async def send(to: str, copies: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        sent.append(f"{to} {copies}")
        return to

    async def program(run: str) -> str:
        async with steplog.run(run):
            return await send("ada", copies={"bcc": ["eve"]})

    asyncio.run(program("r"))
    with pytest.raises(RunStopped, match="simulated"):
        asyncio.run(program(steplog.fork("r", at=1)))
    changed = {"to": "bob", "copies.bcc[0]": "mallory"}
    assert asyncio.run(program(steplog.fork("r", at=1, set=changed, live_tools=True))) == "bob"
    assert sent == ["ada {'bcc': ['eve']}", "bob {'bcc': ['mallory']}"]


def test_a_run_inside_a_simulation_has_no_effects_either(model: Model):
    def program(run: str) -> None:
        with steplog.run(run):
            steplog.step("first", lambda: 1)
            with steplog.run():
                mail("ada")

    program("r")
    effects.clear()
    forked = steplog.fork("r")
    with pytest.raises(RunStopped, match="simulated"):
        program(forked)
    inner = f"{forked}.1"
    with pytest.raises(RunStopped, match="simulated"), steplog.run(inner):
        mail("ada")
    assert effects == []


def test_a_real_run_is_not_gone_on_with_inside_a_simulation(model: Model):
    with pytest.raises(ValueError, match="later"), steplog.run("real"):
        raise ValueError("later")
    with steplog.run("r"):
        pass
    forked = steplog.fork("r")
    with pytest.raises(InvalidArgument, match="which is real and not over"), steplog.run(forked):
        with steplog.run("real"):
            mail("ada")
    assert effects == []
    assert state_of("real").epoch == 1


def test_a_fork_replays(model: Model):
    play("r", model)
    forked = steplog.fork("r", at=5, set={"messages[0].content": "Be terse."}, live_tools=True)
    answer = play(forked, model)
    asked = len(model.asked)
    with steplog.replay(forked) as replayed:
        assert play(forked, model) == answer

    assert replayed.identical
    assert len(model.asked) == asked


def test_no_fork_is_made_in_a_replay(model: Model):
    play("r", model)
    with pytest.raises(RunStopped, match="a fork of run r is not recorded"), steplog.replay("r"):
        steplog.fork("r")
    assert store().runs() == ["r"]


def test_a_run_whose_key_is_not_at_hand_is_not_forked(model: Model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STEPLOG_KEY", base64.urlsafe_b64encode(bytes(32)).decode())
    steplog.install()
    play("r", model)
    monkeypatch.delenv("STEPLOG_KEY")
    steplog.install()
    with pytest.raises(KeyMissing, match="needs the key"):
        steplog.fork("r", at=3)
    assert store().runs() == ["r"]


def test_a_memory_store_is_forked_too():
    memory = MemoryStore()
    with steplog.run("r", store=memory):
        look(ORDER)
        refund(ORDER, 1)
    effects.clear()
    forked = steplog.fork("r", at=2, store=memory)
    with pytest.raises(RunStopped, match="simulated"), steplog.run(forked, store=memory):
        look(ORDER)
        refund(ORDER, 1)
    assert effects == []


@pytest.mark.parametrize(
    "changes, told", [({"set": {"reason": "x"}}, "no argument 'reason'"), ({"model": "m"}, "asks no")]
)
def test_an_argument_that_a_tool_does_not_have_is_refused(changes, told):
    with steplog.run("r"):
        refund(ORDER, 4200)

    with pytest.raises(InvalidArgument, match=told):
        steplog.fork("r", at=1, **changes)
