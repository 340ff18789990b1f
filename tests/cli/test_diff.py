"""`steplog diff` says where two runs go apart: runs of a real agent, with a real SDK."""

from __future__ import annotations

from typing import Any

import pytest

import steplog
from tests.cli.logs import LogFile
from tests.support.chats import Model, agent, in_turn

ORDER = "ord_1001"


@steplog.step(mode="safe")
def look(order: str) -> dict[str, Any]:
    return {"order": order, "cents": 4200}


@steplog.step
def refund(order: str, cents: int) -> str:
    return f"re_{order}_{cents}"


TOOLS = {"look": look, "refund": refund}
LOOK, REFUND = ("look", {"order": ORDER}), ("refund", {"order": ORDER, "cents": 4200})


@pytest.fixture(autouse=True)
def _installed():
    steplog.install(interceptors=["openai"])
    yield
    steplog.uninstall()


def record(run: str, *said: Any, **options: Any) -> None:
    with Model(in_turn(*said)) as model, steplog.run(run):
        agent(model.client(), TOOLS, "Refund the jacket.", **options)


def test_two_runs_that_did_the_same_are_the_same(ask, invoke):
    record("a", LOOK, REFUND, "Done.")
    record("b", LOOK, REFUND, "Done.")
    found = ask("diff", "a", "b")

    # Ids of calls, of answers, and times are different in the two logs.
    assert found["same"] is True
    assert found["counts"] == {"same": 5, "request": 0, "outcome": 0, "only in A": 0, "only in B": 0}
    assert found["first"] is None
    result = invoke("diff", "a", "b")
    assert result.exit_code == 0
    assert "the runs are the same" in result.stdout


def test_another_system_prompt_is_the_first_difference_by_message(ask, invoke):
    record("a", LOOK, REFUND, "Done.")
    record("b", LOOK, REFUND, "Done.", system="You are a terse clerk.")
    found = ask("diff", "a", "b")

    assert found["first"]["a"]["number"] == found["first"]["b"]["number"] == 1
    (message,) = found["first"]["request"]["messages"]
    assert (message["label"], message["role"], message["a"], message["b"]) == ("changed", "system", 1, 1)
    assert "terse" in message["new"]
    # The tools were asked the same, so they are the same steps.
    assert found["counts"] == {"same": 2, "request": 3, "outcome": 0, "only in A": 0, "only in B": 0}
    result = invoke("diff", "a", "b")
    assert result.exit_code == 1
    assert "first difference  #1/#1  model gpt-5.2" in result.stdout
    assert "~ message 1/1 system: changed" in result.stdout
    assert "steplog show a 1" in result.stdout


def test_another_answer_is_a_difference_of_the_outcome_and_what_follows_stands_in_one_run_only(ask):
    record("a", LOOK, REFUND, "Done.")
    record("b", LOOK, "I would rather not.")
    found = ask("diff", "a", "b")

    assert found["first"]["how"] == "outcome"
    assert found["first"]["a"]["number"] == 3
    assert "I would rather not." in found["first"]["outcome"]["b"]
    assert [row["how"] for row in found["differences"]] == ["outcome", "only in A", "only in A"]


def test_another_model_or_parameter_is_told_as_a_field(ask):
    record("a", LOOK, "Done.")
    record("b", LOOK, "Done.", model="gpt-5.2-mini", temperature=0.5)
    fields = ask("diff", "a", "b")["first"]["request"]["fields"]

    assert fields[0] == {"path": "target", "a": "gpt-5.2", "b": "gpt-5.2-mini"}
    assert fields[1] == {"path": "temperature", "a": "(absent)", "b": "0.5"}


def test_another_result_of_a_tool_and_another_end_count(home, ask):
    for run, result, outcome in (("a", "r_1", "completed"), ("b", "r_2", "failed")):
        log = LogFile(home, run).begin()
        log.tool("s_1", "refund", order=ORDER).add("step.finished", "s_1", outcome="done", attempt=1, result=result)
        log.add("run.ended", outcome=outcome, reason="done")
    found = ask("diff", "a", "b")

    assert found["first"]["outcome"] == {"path": "result", "a": "r_1", "b": "r_2"}
    assert found["end"] == [{"path": "status", "a": "completed", "b": "failed"}]


@pytest.mark.parametrize(
    "one, other",
    [(1, True), (1, 1.0), (0.0, -0.0), ({"a": [0]}, {"a": [False]}), ("1", 1), ({"paid": 1}, {"paid": True})],
)
def test_results_that_only_python_takes_for_equal_are_different(home, invoke, one, other):
    for run, result in (("a", one), ("b", other)):
        log = LogFile(home, run).begin()
        log.tool("s_1", "refund", order=ORDER).add("step.finished", "s_1", outcome="done", attempt=1, result=result)
        log.add("run.ended", outcome="completed", reason="done")

    assert invoke("diff", "a", "b").exit_code == 1
    assert invoke("diff", "a", "a").exit_code == 0


def test_a_name_that_a_provider_made_up_hides_no_difference_behind_it(home, ask):
    for number, (run, cents) in enumerate((("a", 100), ("b", 900))):
        log = LogFile(home, run).begin()
        log.tool(f"s_{number}", "refund", call=f"call_{number}abcdefghijklmnop", cents=cents)
        log.add("step.finished", f"s_{number}", outcome="done", attempt=1, result="ok")
        log.add("run.ended", outcome="completed", reason="done")
    found = ask("diff", "a", "b")

    assert found["same"] is False
    assert found["first"]["request"]["fields"] == [{"path": "cents", "a": "100", "b": "900"}]


def test_a_cost_that_is_not_known_is_a_dash_and_never_zero(ask, invoke, monkeypatch):
    record("a", "Done.", model="no-such-model")
    record("b", "Done.", model="no-such-model")

    assert ask("diff", "a", "b")["a"]["cost"] == {"usd": None, "calls_without_price": 1}
    assert "$" not in invoke("diff", "a", "b").stdout


def test_a_known_model_has_a_price_of_its_day(ask):
    pytest.importorskip("genai_prices")
    with Model(in_turn("Done."), tokens=lambda _messages: 1_000_000) as model:
        for run in ("a", "b"):
            with steplog.run(run):
                agent(model.client(), {}, "Hello", model="gpt-4o")
    cost = ask("diff", "a", "b")["a"]["cost"]

    assert 2.0 < cost["usd"] < 3.0
    assert cost["calls_without_price"] == 0


def test_without_the_price_list_nothing_has_a_price(ask, monkeypatch):
    from steplog._runtime import price_list

    record("a", "Done.", model="gpt-4o")
    monkeypatch.setattr(price_list, "_library", lambda: None)

    assert ask("diff", "a", "a")["a"]["cost"]["usd"] is None


def test_the_text_of_a_long_difference_is_short_and_full_lists_all(home, invoke, ask):
    for run in ("a", "b"):
        log = LogFile(home, run).begin()
        for number in range(300):
            log.tool(f"s_{run}{number}", "work", number=number, run=run * 5_000)
            log.add("step.finished", f"s_{run}{number}", outcome="done", attempt=1, result=run * 5_000)
    text, full = invoke("diff", "a", "b").stdout, invoke("diff", "a", "b", "--full").stdout

    assert len(text.splitlines()) < 200
    assert max(map(len, text.splitlines())) < 300
    assert "270 more differences" in text
    assert len(full.splitlines()) > 300
    assert ask("diff", "a", "b")["more"] == 270
    assert ask("diff", "a", "b", "--full")["more"] == 0


def test_a_step_that_a_fork_has_changed_is_a_difference_although_its_id_is_the_same(ask):
    record("a", LOOK, "Done.")
    with Model(in_turn(LOOK, "Done.")) as model:
        forked = steplog.fork("a", at=1, set={"messages[0].content": "Be terse."})
        with steplog.run(forked):
            agent(model.client(), TOOLS, "Refund the jacket.")
        found = ask("diff", "a", forked)
        assert found["first"]["a"]["step"] == found["first"]["b"]["step"]
        assert [message["new"] for message in found["first"]["request"]["messages"]] == ["Be terse."]
        changed = steplog.fork("a", at=2, set={"order": "ord_2"})
        with steplog.run(changed):
            agent(model.client(), TOOLS, "Refund the jacket.")
        assert ask("diff", "a", changed)["first"]["request"]["fields"][0]["path"] == "order"
