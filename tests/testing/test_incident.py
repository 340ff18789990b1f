"""A run of a program becomes a test in one command, and the test passes at once with nobody there."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

import steplog
from steplog._cli.main import cli
from steplog.errors import InvalidArgument
from steplog.stores.files import FileStore
from steplog.testing import Hit, LocalProvider, Reply
from steplog.testing.incident import Written, as_test

pytest_plugins = ["pytester"]

AGENT = """
import os, signal, sys
import httpx, steplog

steplog.install()

@steplog.step
def tool(text):
    with open("tool.txt", "a") as file: file.write(text)
    if text == "cut":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"text": text}

def main():
    body = {"model": "m", "messages": [{"role": "user", "content": sys.argv[1]}]}
    answer = httpx.post(os.environ["URL"] + "/v1/chat/completions", json=body, trust_env=False).json()
    tool(answer["said"])
    if sys.argv[1] == "bad":
        raise ValueError("went wrong")

if len(sys.argv) > 2:
    with steplog.run("own"): main()
else:
    main()
"""


def say(hit: Hit) -> Reply:
    return Reply.json({"said": hit.json["messages"][0]["content"], "id": "1", "model": "m"})


def export(run: str, target: str, *more: str) -> str:
    done = CliRunner().invoke(cli, ["export", run, "--as-test", target, *more])
    return f"{done.exit_code} {done.output}"


def test_a_run_becomes_a_test_that_passes_offline(pytester, monkeypatch):
    pytester.makefile(".py", agent=AGENT)
    with LocalProvider(handler=say) as provider:
        monkeypatch.setenv("URL", provider.url)
        for run, word in (("good", "hello"), ("bad", "bad"), ("half", "cut")):
            pytester.run(sys.executable, "-m", "steplog", "run", "--id", run, "agent.py", word)
        pytester.run(sys.executable, "agent.py", "cut", "own")
    said = {run: export(run, f"tests/test_{run}.py") for run in ("good", "bad", "half", "own")}

    assert {run: one[0] for run, one in said.items()} == dict.fromkeys(said, "0"), said
    assert "the test plays it as far as it is" in said["own"]
    assert "as far as" not in said["bad"]
    assert (pytester.path / "tool.txt").read_text() == "hellobadcutcut"

    monkeypatch.setenv("CI", "true")
    played = pytester.runpytest_subprocess("-p", "no:cacheprovider", "tests")
    played.assert_outcomes(passed=4)
    played.stdout.fnmatch_lines(["*6 steps played from 4 cassettes*"])
    assert (pytester.path / "tool.txt").read_text() == "hellobadcutcut"

    # A program that ends otherwise, or does something else before that, fails it.
    agent = Path(pytester.path / "agent.py")
    agent.write_text(AGENT.replace('"went wrong"', '"went well"').replace("sys.argv[1]}]", '"!" + sys.argv[1]}]'))
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "tests").assert_outcomes(failed=4)
    agent.write_text("")
    found = pytester.runpytest_subprocess("-p", "no:cacheprovider", "tests")
    found.assert_outcomes(failed=4)
    found.stdout.fnmatch_lines(["*did not get as far as its cassette*", "*llm_call m (s_*"])


@steplog.step
def token() -> str:
    return "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"


@steplog.step
def lost() -> object:
    return object()


@steplog.step
def pay() -> int:
    return 1


def made(run: str, target: Path, *effects, **more) -> Written:
    """What becomes of a run of these steps, whose program is the file beside the test."""
    with suppress(steplog.RunStopped), steplog.run(run):
        for effect in effects:
            effect()
    entry = {"name": str(target.parent / "agent.py"), "argv": [], "cwd": str(target.parent), "module": False}
    return as_test(FileStore(Path(os.environ["STEPLOG_HOME"])), run, entry, str(target), wrapped=False, **more)


def test_a_run_that_has_lost_a_secret_is_a_test_only_where_that_is_wanted(tmp_path):
    with pytest.raises(InvalidArgument, match="secrets were taken out of what 1 step returned") as refused:
        made("r", tmp_path / "test_it.py", pay, token)

    assert f"steplog export r --as-test {tmp_path / 'test_it.py'} --redacted" in str(refused.value)
    assert [*tmp_path.glob("test_it*"), *tmp_path.glob("cassettes")] == []
    assert made("other", tmp_path / "test_it.py", pay, token, redacted=True).redacted == 1


def test_a_run_that_could_not_be_played_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"what tool_call lost .* is not recorded whole.*\n*.*steplog show r s_"):
        made("r", tmp_path / "test_it.py", lost, redacted=True)
    with pytest.raises(InvalidArgument, match="has no step"):
        made("empty", tmp_path / "test_it.py")


@pytest.mark.parametrize(
    "name, better", [("foo.txt", "test_foo.py"), ("test_foo", "test_foo.py"), ("my-test.py", "test_my_test.py")]
)
def test_a_file_that_is_no_module_of_tests_is_refused_with_a_better_name(name, better, tmp_path):
    with pytest.raises(InvalidArgument, match=f"Name it {tmp_path / better}$"):
        made("r", tmp_path / name, pay)


def test_a_file_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "test_it.py").write_text("mine")
    with pytest.raises(InvalidArgument, match="is there already"):
        made("r", tmp_path / "test_it.py", pay)

    assert (tmp_path / "test_it.py").read_text() == "mine"
    assert not (tmp_path / "cassettes").exists()
