"""A run of a program becomes a test in one command, and the test passes at once with nobody there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from steplog.testing import Hit, LocalProvider, Reply

pytest_plugins = ["pytester"]

AGENT = """
import os, sys
import httpx, steplog

steplog.install()

@steplog.step
def tool(text):
    with open("tool.txt", "a") as file: file.write(text)
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


def test_a_run_becomes_a_test_that_passes_offline(pytester, monkeypatch):
    pytester.makefile(".py", agent=AGENT)
    (pytester.path / "tests").mkdir()
    with LocalProvider(handler=say) as provider:
        monkeypatch.setenv("URL", provider.url)
        pytester.run(sys.executable, "-m", "steplog", "run", "--id", "good", "agent.py", "hello")
        pytester.run(sys.executable, "-m", "steplog", "run", "--id", "bad", "agent.py", "bad")
        pytester.run(sys.executable, "agent.py", "hi", "own")
    assert (pytester.path / "tool.txt").read_text() == "hellobadhi"
    for run in ("good", "bad", "own"):
        done = pytester.run(sys.executable, "-m", "steplog", "export", run, "--as-test", f"tests/test_{run}.py")
        assert done.ret == 0, done.stderr.str()

    monkeypatch.setenv("CI", "true")
    played = pytester.runpytest_subprocess("-p", "no:cacheprovider", "tests")
    played.assert_outcomes(passed=3)
    played.stdout.fnmatch_lines(["*6 steps played from 3 cassettes*"])
    assert (pytester.path / "tool.txt").read_text() == "hellobadhi"

    # A program that does something else now, or ends otherwise, fails it.
    agent = Path(pytester.path / "agent.py")
    agent.write_text(AGENT.replace('"went wrong"', '"went well"').replace("tool(answer", "tool('!' + answer"))
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "tests").assert_outcomes(failed=3)


@pytest.mark.parametrize("again", [True, False])
def test_what_cannot_be_a_test_is_refused(again, pytester, monkeypatch):
    pytester.makefile(".py", agent="import os, steplog\nsteplog.step('one', lambda: 1)\nos._exit(3)\n", there="x = 1\n")
    pytester.run(sys.executable, "-m", "steplog", "run", "--id", "cut", "agent.py")
    if again:
        pytester.makefile(".py", agent="import steplog\nsteplog.step('one', lambda: 1)\n")
        assert pytester.run(sys.executable, "-m", "steplog", "resume", "cut").ret == 0
    done = pytester.run(
        sys.executable, "-m", "steplog", "export", "cut", "--as-test", "there.py" if again else "test_cut.py", "--json"
    )

    assert done.ret != 0
    assert ("is there already" if again else "no outcome") in json.loads(done.stdout.str())["error"]["message"]
    assert not (pytester.path / "cassettes").exists() or again
