"""`crash_matrix`: real processes are killed and resumed, and what became of their effects is told."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from steplog.errors import InvalidArgument, SteplogError
from steplog.testing import LocalProvider, Reply, crash_matrix
from tests.interceptors.support import chat, chat_events, message_events
from tests.support.processes import environment
from tests.testing.programs import crashing

PROGRAMS = Path(__file__).parent / "programs"
MOMENTS = {"before-intent", "after-intent", "before-outcome", "after-outcome"}


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """The outside world of the programs, and its environment."""
    monkeypatch.setenv("WORLD", str(tmp_path / "world"))
    return environment(WORLD=str(tmp_path / "world"))


def kill(name, env, **options):
    if "ledger" in options:
        options.setdefault("reset", lambda: Path(env["WORLD"]).unlink(missing_ok=True))
    return crash_matrix(PROGRAMS / "crashing.py", [name], env=env, **options)


def verdicts(report):
    return {str(case.point): case.verdict for case in report.cases}


def tool(report, name):
    return next(one for one in report.tools if one.name == name)


def test_it_kills_at_every_boundary_and_inside_every_effect_and_finds_only_what_is_undecided(shop):
    report = kill("everything", shop, ledger=crashing.world)

    phases = {(point.target, point.phase) for point in report.points if point.kind != "run"}
    assert phases >= {(name, moment) for name in ("now", "read", "check", "send") for moment in MOMENTS}
    assert ("send", "inside") in phases
    assert {str(point) for point in report.points if point.kind == "run"} == {
        "run.created after-created",
        "run.ended before-end",
        "run.ended after-end",
    }
    assert [case.point for case in report.cases] == list(report.points)
    assert {name: verdict for name, verdict in verdicts(report).items() if verdict != "ok"} == {
        "send after-intent": "undecided",
        "send inside": "undecided",
        "send before-outcome": "undecided",
    }
    assert report.ok
    assert not report.decided
    assert tool(report, "send").declare == "verify"
    assert tool(report, "read").declare == "safe"
    assert tool(report, "read").acts is False
    assert tool(report, "check").acts is True
    assert tool(report, "send").place.endswith(f"crashing.py:{crashing.send.__wrapped__.__code__.co_firstlineno}")


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["forked", "fresh"])
def test_tasks_and_threads_are_killed_in_the_middle_of_their_effects(fresh, shop):
    report = kill("branches", shop, only=["s_"], limit=9, fresh=fresh)

    assert {"before-outcome", "inside"} <= {case.point.phase for case in report.cases}
    assert {case.point.target for case in report.cases} == {"book", "send"}
    assert {case.verdict for case in report.cases} == {"undecided"}
    assert {case.point.mode for case in report.cases} == {"unsafe"}


def test_a_ledger_shows_an_effect_that_is_in_no_step(shop):
    report = kill("between", shop, ledger=crashing.world)

    doubled = {str(case.point) for case, _ in report.found("doubled")}
    assert "run.created after-created" not in doubled
    assert {"read before-intent", "read after-outcome", "run.ended before-end"} <= doubled
    assert not report.ok
    assert "put it into a function with @steplog.step" in str(report)
    # Without a ledger nobody can see it.
    assert kill("between", shop, limit=2).ok


def test_a_program_that_asks_for_something_else_each_time_gets_stuck(shop):
    report = kill("drifting", shop)

    stuck = {str(case.point): one.detail for case, one in report.found("stuck")}
    assert "read after-outcome" in stuck
    assert "send before-intent" in stuck
    assert "suspended (drift)" in stuck["send before-intent"]
    assert not report.ok


def test_processes_have_different_hashes_as_any_two_have(shop):
    report = kill("hashes", shop, only=["s_"])

    assert {"send after-intent", "read after-outcome"} & {str(case.point) for case, _ in report.found("stuck")}


def test_an_effect_that_the_resumed_program_passes_over_is_lost(shop, tmp_path):
    note = tmp_path / "world.note"
    report = kill("skipping", shop, reset=lambda: note.unlink(missing_ok=True))

    lost = {str(case.point): one.tool for case, one in report.found("lost")}
    assert lost["send before-intent"] == "send"
    assert "read before-intent" not in lost
    assert not report.ok


def test_a_verify_function_that_is_wrong_doubles_the_effect(shop):
    report = kill("forgetting", shop)

    doubled = {str(case.point) for case, _ in report.found("doubled")}
    assert doubled == {"forgetful before-outcome"}


def test_a_step_in_doubt_is_settled_with_the_value_that_it_gave_in_the_baseline(shop):
    report = kill("packing", shop, only=["pack:before-outcome"], ledger=crashing.world)

    assert verdicts(report) == {"pack before-outcome": "undecided"}
    assert crashing.world() == ["pack a", "send a of 9000 bytes"]


@pytest.mark.parametrize(
    "moment, killed", [("after-outcome", 3), pytest.param("", 15, marks=pytest.mark.nightly)], ids=["one", "all"]
)
def test_workers_are_killed_at_their_own_steps_though_these_are_equal(moment, killed, shop):
    report = kill("workers", shop, only=[f"send:{moment}".rstrip(":")], ledger=crashing.world)

    assert {case.point.run for case in report.cases} == {"main", "forked", "spawned"}
    assert len({case.point.step for case in report.cases}) == 1
    assert tool(report, "send").killed == killed
    assert (report.found("doubled"), report.found("lost")) == ([], [])


def test_what_a_killed_process_has_started_is_killed_with_it(shop, tmp_path):
    kill("parent", shop, only=["s_"], limit=2)

    time.sleep(1.5)
    assert "orphan" not in (tmp_path / "world").read_text()


def test_a_script_without_a_run_is_started_by_steplog_run_before_it_has_an_effect(shop):
    report = kill("unwrapped", shop, ledger=crashing.world)

    assert {case.verdict for case in report.cases} == {"ok", "undecided"}
    assert tool(report, "send").undecided == 3


def test_a_function_is_a_program_too(shop):
    report = crash_matrix(crashing.between, env=shop, limit=3)

    assert report.ok
    assert report.title == "between"
    assert len(report.cases) == 3


def answer(hit):
    text = hit.json["messages"][-1]["content"]
    if "/messages" in hit.path:
        return Reply.sse(message_events("well", "then"))
    return Reply.sse(chat_events("to ", "the ", text)) if hit.json.get("stream") else Reply.json(chat(f"re {text}"))


@pytest.mark.nightly
def test_model_calls_and_streams_are_answered_from_the_baseline(shop):
    keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
    with LocalProvider(handler=answer) as provider:
        urls = {"OPENAI_BASE_URL": f"{provider.url}/v1", "ANTHROPIC_BASE_URL": provider.url}
        report = crash_matrix(PROGRAMS / "talking.py", env={**shop, **keys, **urls}, limit=13, jobs=2)
        asked = len(provider.hits)

    assert asked == 4, "the baseline asks the model; nobody else does"
    assert report.ok
    assert report.decided
    phases = [point.phase for point in report.points]
    assert phases.count("piece") == 3
    assert phases.count("inside") == 4
    assert all(case.reached for case in report.cases)
    assert {case.point.phase for case in report.cases} >= {"piece", "inside", "before-outcome"}


@pytest.mark.nightly
def test_live_calls_are_made_in_every_case(shop):
    keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
    with LocalProvider(handler=answer) as provider:
        urls = {"OPENAI_BASE_URL": f"{provider.url}/v1", "ANTHROPIC_BASE_URL": provider.url}
        crash_matrix(PROGRAMS / "talking.py", env={**shop, **keys, **urls}, live=True, only=["run.created:"])

        assert len(provider.hits) == 8


def test_one_kill_is_repeated_by_its_number_or_its_name(shop):
    (point, *_) = kill("everything", shop, only=["7"]).points[6:]
    report = kill("everything", shop, only=[point.name])

    assert [case.point for case in report.cases] == [point]
    with pytest.raises(InvalidArgument, match="no kill point is named 's_nowhere:inside'"):
        kill("everything", shop, only=["s_nowhere:inside"])


def test_the_logs_of_all_cases_can_be_kept(shop, tmp_path):
    kill("everything", shop, limit=1, keep=tmp_path / "kept")

    assert (tmp_path / "kept/baseline/home/runs/everything/events.jsonl").is_file()
    assert len(list((tmp_path / "kept").glob("case-*/home/runs/everything/events.jsonl"))) == 1


def test_what_cannot_be_compared_is_refused(shop, tmp_path, monkeypatch):
    with pytest.raises(SteplogError, match="left run suspended suspended"):
        kill("suspended", shop)
    with pytest.raises(SteplogError, match="recorded no step"):
        (tmp_path / "idle.py").write_text("print('nothing')\n")
        crash_matrix(tmp_path / "idle.py", env=shop)
    monkeypatch.setenv("LEDGER_OF", str(os.getpid()))
    with pytest.raises(SteplogError, match=r"ledger cannot be read .*KeyError"):
        kill("everything", {**shop, "LEDGER_OF": str(os.getpid())}, ledger=crashing.mine)
    with pytest.raises(InvalidArgument, match="one world for all cases"):
        kill("everything", shop, ledger=crashing.world, jobs=2)
    with pytest.raises(InvalidArgument, match="must be a function at the top of a file"):
        crash_matrix(lambda: None)
    with pytest.raises(InvalidArgument, match="there is no script"):
        crash_matrix(tmp_path / "nowhere.py")
