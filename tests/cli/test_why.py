"""`steplog why` tells a failed run's kind: the classic scenarios of a looping agent, as real programs with a real SDK.

The agent is the usual one: it shows the model a state instead of the whole conversation, checks its limits before each
call, and ends with a reason. Its model is a function behind a real HTTP server.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import steplog
from steplog._runtime import commit
from tests.cli.logs import LogFile, refund_run
from tests.support.chats import MODEL, Messages, Model, Say, agent, in_turn

PLAN = [
    {"id": "s1", "tool": "get_order"},
    {"id": "s2", "tool": "issue_refund"},
    {"id": "s3", "tool": "send_status_email"},
]


class NotFound(Exception):
    """What the shop answers of an order that it does not have."""


class Stop(Exception):
    """The agent's own limits end it."""


@steplog.step(mode="safe")
def get_order(order_id: str) -> dict[str, Any]:
    if order_id != "ord_1001":
        raise NotFound(f"no order {order_id}")
    return {"order_id": order_id, "total_cents": 4200}


@steplog.step(mode="safe")
def search_policy(q: str) -> str:
    return f"{q[::-1]}: " + "Returns are accepted within 30 days of delivery. " * 90


@steplog.step
def issue_refund(order_id: str, cents: int) -> str:
    return f"refunded {cents} of {order_id}"


@steplog.step(name="issue_refund")
def slow_refund(order_id: str, cents: int) -> str:
    raise TimeoutError("the bank did not answer in 30 s")


@steplog.step
def send_status_email(order_id: str) -> str:
    return f"mailed about {order_id}"


TOOLS = {tool.__name__: tool for tool in (get_order, search_policy, issue_refund, send_status_email)}


@pytest.fixture(autouse=True)
def _installed():
    steplog.install(interceptors=["openai"])
    yield
    steplog.uninstall()


def loop(client: Any, tools: dict[str, Callable[..., Any]], *, steps: int = 8, plan: bool = False) -> str:
    """An agent that shows the model its state, and stops at its limits."""
    state: dict[str, Any] = {"goal": "refund the damaged item", "facts": {}, "last_result": None}
    if plan:
        state["plan"] = [{**item, "status": "pending"} for item in PLAN]
    for _ in range(steps):
        view = [{"role": "user", "content": json.dumps(state)}]
        message = client.chat.completions.create(model=MODEL, messages=view).choices[0].message
        if not message.tool_calls:
            return message.content
        call = message.tool_calls[0].function
        try:
            state["last_result"] = tools[call.name](**json.loads(call.arguments))
        except NotFound as error:
            state["last_result"] = {"error": str(error)}
        for item in state.get("plan", ()):
            if item["tool"] == call.name:
                item["status"] = "done"
    raise Stop(f"stopped: max_steps ({steps}) reached")


def read_state(messages: Messages) -> dict[str, Any]:
    return json.loads(messages[-1]["content"])


def policy(messages: Messages) -> Say:
    """Works through the plan, and says when it is done."""
    state = read_state(messages)
    for item in state["plan"]:
        if item["status"] == "pending":
            args: dict[str, Any] = {"order_id": "ord_1001"}
            return item["tool"], args | ({"cents": 3000} if item["tool"] == "issue_refund" else {})
    return "Refund issued and confirmation sent."


def run(say: Callable[[Messages], Say], tools: dict[str, Any] | None = None, **options: Any) -> None:
    with Model(say) as model, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "none")
        with steplog.run("r"):
            loop(model.client(), {**TOOLS, **(tools or {})}, **options)


def rows(ask: Any) -> list[str]:
    return [finding["row"] for finding in ask("why", "r")["findings"]]


def test_a_normal_run_shows_no_failure(ask, invoke):
    run(policy, plan=True)
    found = ask("why", "r")

    assert found["findings"] == []
    assert found["first_error"] is None
    assert [effect["target"] for effect in found["effects"]] == ["issue_refund", "send_status_email"]
    assert "no known kind of failure" in invoke("why", "r").stdout


def test_the_same_call_again_and_again_is_a_repeated_call(ask, invoke):
    asked = iter(range(10))

    def once_more(_messages: Messages) -> Say:
        if next(asked) == 3:
            raise AssertionError("the agent should have stopped")
        return "get_order", {"order_id": "ord_9999"}

    with pytest.raises(Stop):
        run(once_more, steps=3)
    found = ask("why", "r")

    assert rows(ask)[0] == "repeated call"
    assert 'get_order({"order_id": "ord_9999"}) was made 3 times' in found["findings"][0]["text"]
    assert found["first_error"]["type"] == "NotFound"
    assert found["first_error"]["number"] == 2
    assert found["most_repeated"][0]["made"] == 3
    assert found["next"][-1] == "steplog show r 6"
    assert "most repeated get_order" in invoke("why", "r").stdout


def test_a_call_that_the_agent_refused_to_make_again_counts_as_asked_for(ask):
    asked = in_turn(("get_order", {"order_id": "ord_1001"}))
    made = []

    def only_twice(order_id: str) -> Any:
        made.append(order_id)
        if len(made) > 2:
            raise Stop("repeated_call")
        return get_order(order_id)

    with pytest.raises(Stop):
        run(asked, {"get_order": only_twice})
    (finding, *_) = ask("why", "r")["findings"]

    assert finding["row"] == "repeated call"
    assert "made 2 times and asked for 3 times" in finding["text"]


def test_other_arguments_with_no_effect_are_no_progress(ask):
    numbers = iter(range(9001, 9100))

    with pytest.raises(Stop):
        run(lambda _messages: ("get_order", {"order_id": f"ord_{next(numbers)}"}), steps=3)
    (finding,) = ask("why", "r")["findings"]

    # No call is repeated; the results are the same but for the arguments that they quote.
    assert finding["row"] == "no progress"
    assert finding["text"] == "3 calls of get_order with different arguments all gave NotFound"
    assert finding["steps"] == [2, 4, 6]


def test_a_prompt_that_swells_is_context_growth(ask):
    numbers = iter(range(1, 100))

    with pytest.raises(Stop):
        run(lambda _messages: ("search_policy", {"q": f"returns policy {next(numbers)}"}), steps=4)
    found = ask("why", "r")
    (finding,) = found["findings"]

    assert finding["row"] == "context growth"
    sizes = found["prompts"]["tokens"]
    assert sizes[0] < 50
    assert all(size > 1_000 for size in sizes[1:])
    assert f"from {sizes[0]} to {max(sizes):,} tokens" in finding["text"]
    assert found["first_error"] is None


def test_an_answer_before_the_plan_is_done_is_a_premature_completion(ask):
    def hasty(messages: Messages) -> Say:
        state = read_state(messages)
        return policy(messages) if state["plan"][1]["status"] == "pending" else "All done, a mail is on its way."

    run(hasty, plan=True)
    (finding,) = ask("why", "r")["findings"]

    assert finding["row"] == "premature completion"
    assert "1 of 3 items of its plan were open: s3" in finding["text"]
    assert "All done" in finding["text"]


def test_a_plan_without_states_is_checked_against_the_tools_that_succeeded(ask):
    """The model says its plan once; nobody notes in it what was done."""

    def say(messages: Messages) -> Say:
        spoken = sum(message["role"] == "assistant" for message in messages)
        return [
            ("note_plan", {"plan": PLAN}),
            ("get_order", {"order_id": "ord_1001"}),
            ("issue_refund", {"order_id": "ord_1001", "cents": 3000}),
            "Done.",
        ][spoken]

    note_plan = steplog.step(mode="safe", name="note_plan")(lambda plan: "noted")
    with Model(say) as model, steplog.run("r"):
        agent(model.client(), {**TOOLS, "note_plan": note_plan}, "Refund the jacket.")
    (finding,) = ask("why", "r")["findings"]

    assert finding["row"] == "premature completion"
    assert finding["text"].endswith("1 of 3 items of its plan were open: s3")


def test_a_cap_that_is_too_low_is_a_partial_completion(ask, invoke):
    with pytest.raises(Stop):
        run(policy, plan=True, steps=2)
    found = ask("why", "r")
    (finding,) = found["findings"]

    assert finding["row"] == "partial completion"
    assert "after #4 issue_refund" in finding["text"]
    assert "still open: s3" in finding["text"]
    assert found["next"][0] == "steplog resume r"


def test_a_write_that_timed_out_is_an_unknown_outcome(ask):
    with pytest.raises(TimeoutError):
        run(policy, {"issue_refund": slow_refund}, plan=True)
    found = ask("why", "r")

    assert found["findings"][0]["row"] == "unknown outcome"
    assert "#4 issue_refund failed (TimeoutError) and may have happened" in found["findings"][0]["text"]
    assert found["unknown"] == [4]


def test_a_tool_that_was_cut_off_is_an_unknown_outcome_with_the_command_that_settles_it(home, ask):
    refund_run(home)
    found = ask("why", "refund-1001")

    assert found["findings"][0]["row"] == "unknown outcome"
    assert "#4 send_mail began and no outcome is recorded" in found["findings"][0]["text"]
    assert found["next"][0].startswith("steplog resolve refund-1001 s_cccc")


def test_an_effect_on_what_was_read_before_a_long_pause_is_stale_facts(ask, monkeypatch):
    moment = [datetime(2026, 3, 1, 10, tzinfo=UTC)]
    monkeypatch.setattr(commit, "timestamp", lambda: str(moment[0]))
    waits = [True]

    def refund_later(order_id: str, cents: int) -> str:
        if waits:
            waits.clear()
            raise KeyboardInterrupt
        return issue_refund(order_id, cents)

    with pytest.raises(KeyboardInterrupt):
        run(policy, {"issue_refund": refund_later}, plan=True)
    assert rows(ask) == []
    moment[0] += timedelta(hours=9)
    run(policy, {"issue_refund": refund_later}, plan=True)
    (finding,) = ask("why", "r")["findings"]

    assert finding["row"] == "stale facts"
    assert "#4 issue_refund acted on what #2 get_order had read 9 hours earlier" in finding["text"]


def test_what_a_prompt_has_lost_is_told_with_its_size(ask):
    long = "The customer writes: the jacket arrived with a torn sleeve and a broken zip. " * 20
    with Model(in_turn("Noted.")) as model, steplog.run("r"):
        client = model.client()
        base = [{"role": "system", "content": "You are a clerk."}, {"role": "user", "content": long}]
        more = [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": "And now?"}]
        client.chat.completions.create(model=MODEL, messages=base)
        client.chat.completions.create(model=MODEL, messages=[base[0], {"role": "user", "content": long[:200]}, *more])
    found = ask("why", "r")

    assert found["lost_context"] == [
        {"number": 2, "label": "cut short", "role": "user", "before": len(long), "after": 200}
    ]


def test_retries_and_time_are_counted(ask):
    tries = iter([NotFound("busy"), NotFound("busy"), None])

    @steplog.step(mode="safe", retries=2, backoff=0.0)
    def flaky() -> str:
        error = next(tries)
        if error is not None:
            raise error
        return "ok"

    with steplog.run("r"):
        flaky()
    found = ask("why", "r")

    assert found["retries"] == [{"number": 1, "target": flaky.__qualname__.rsplit("<locals>.")[-1], "attempts": 3}]
    assert found["time"]["tool_ms"] >= 0


def test_a_run_of_thousands_of_steps_is_told_on_one_screen(home, invoke):
    log = LogFile(home, "r").begin()
    for number in range(3_000):
        log.tool(f"s_{number}", "work", mode="safe", n=number)
        log.add(
            "step.finished", f"s_{number}", outcome="failed", attempt=1, error={"type": "Boom", "message": "x" * 5_000}
        )
    text = invoke("why", "r").stdout

    assert len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) < 250
    assert "3000 calls of work with different arguments all gave Boom" in " ".join(text.split())


def test_the_first_lines_say_what_happened_and_what_to_do(home, invoke, ask):
    refund_run(home)
    first, meaning, do, command, *_ = invoke("why", "refund-1001").stdout.splitlines()
    assert first.startswith("refund-1001  interrupted")
    assert meaning == "  its process died"
    assert do == "do: find out whether #4 send_mail happened, then say so"
    assert command.startswith("      steplog resolve refund-1001 s_cccc")
    assert "|" not in command


def test_a_drift_is_shown_with_its_first_difference_and_no_plain_resume_alone(ask, invoke):
    @steplog.step
    def note(text: str) -> str:
        return text

    for text in ("a" * 300 + "one", "a" * 300 + "two"):
        try:
            with steplog.run("r"):
                note(text)
                raise OSError("outage")
        except (OSError, steplog.RunStopped):
            pass
    shown = invoke("why", "r").stdout
    assert "do: mend the program" in shown
    assert ask("why", "r")["next"][:3] == [
        "steplog replay r",
        "steplog resume r",
        "steplog resume r --on-drift run",
    ]
    assert "one\n" in shown
    assert "two\n" in shown
