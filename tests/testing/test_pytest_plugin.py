"""Tests with cassettes, run by pytest in a process of its own: recorded once, then played with the provider gone."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator

import pytest

from steplog.testing import Hit, LocalProvider, Reply

pytest_plugins = ["pytester"]

# Most of these programs speak through plain httpx, which loads in a tenth of the time of an SDK.
HEAD = """
import asyncio, concurrent.futures, os, threading, time
import httpx, pytest, steplog

URL = os.environ["URL"] + "/v1/chat/completions"

def body(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}

def ask(text):
    with httpx.Client(timeout=20, trust_env=False) as client:
        answer = client.post(URL, json=body(text))
    return answer.json()["choices"][0]["message"]["content"]
"""

SDKS = """
import openai

def client():
    return openai.OpenAI(base_url=os.environ["URL"] + "/v1", api_key="none", max_retries=0, timeout=20)

def aclient():
    return openai.AsyncOpenAI(base_url=os.environ["URL"] + "/v1", api_key="none", max_retries=0, timeout=20)

def ask(text):
    return client().chat.completions.create(**body(text)).choices[0].message.content

async def aask(text, c):
    return (await c.chat.completions.create(**body(text))).choices[0].message.content
"""


def echo(hit: Hit) -> Reply:
    """A model that says what it was asked, and how many requests it has had."""
    said = f"{hit.json['messages'][-1]['content']}!"
    if hit.json.get("stream"):
        parts = [{"role": "assistant", "content": ""}, *({"content": letter} for letter in said), {}]
        chunks = [
            {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [
                {"index": 0, "delta": part, "finish_reason": None if part else "stop"}]}
            for part in parts
        ]  # fmt: skip
        return Reply.sse([*chunks, "[DONE]"])
    message = {"role": "assistant", "content": said}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return Reply.json({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices})


PLUGINS = ("-p", "steplog.testing.plugin", "-p", "pytest_asyncio.plugin", "-p", "xdist.plugin")


class Suite:
    """A folder of tests, and a provider for them."""

    def __init__(self, pytester: pytest.Pytester, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.provider = provider
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("URL", provider.url)
        monkeypatch.delenv("CI", raising=False)
        pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")

    def file(self, code: str, name: str = "test_it.py") -> None:
        path = self.pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + code)

    def run(self, *args: str, ci: bool = False, gone: bool = False, installed: bool = False) -> pytest.RunResult:
        """Run the suite; `installed` with whatever plugins pytest finds by itself, which takes three times as long."""
        if gone:
            self.provider.close()
        (self._monkeypatch.setenv("CI", "true") if ci else self._monkeypatch.delenv("CI", raising=False))
        if installed:
            return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", *args)
        with self._monkeypatch.context() as patch:
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", *PLUGINS, *args)

    @property
    def hits(self) -> int:
        return len(self.provider.hits)

    def cassettes(self) -> list[str]:
        found = self.pytester.path.rglob("*.steplog.json")
        return sorted(str(path.relative_to(self.pytester.path)) for path in found)

    def text(self, name: str) -> str:
        return (self.pytester.path / f"cassettes/test_it/{name}.steplog.json").read_text()


@pytest.fixture
def suite(pytester, monkeypatch) -> Iterator[Suite]:
    with LocalProvider(handler=echo) as provider:
        yield Suite(pytester, provider, monkeypatch)


EVERYTHING = (
    SDKS
    + """
@steplog.step
def tool(text):
    with open("tool.txt", "a") as file: file.write(text)
    return {"text": text, "raw": b"\\xff"}

@pytest.mark.steplog
def test_sync(steplog_cassette):
    assert ask("a") == "a!"
    assert tool("x") == {"text": "x", "raw": b"\\xff"}
    assert steplog_cassette.doing in ("record", "replay")

@pytest.mark.steplog
async def test_async():
    async with aclient() as c:
        assert await asyncio.gather(*(aask(t, c) for t in "abab")) == ["a!", "b!", "a!", "b!"]
        tasks = [asyncio.create_task(aask(t, c)) for t in "cd"]
        assert sorted([await one for one in asyncio.as_completed(tasks)]) == ["c!", "d!"]

@pytest.mark.steplog
def test_threads():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert [*pool.map(ask, "abcda")] == ["a!", "b!", "c!", "d!", "a!"]
    found = []
    thread = threading.Thread(target=lambda: found.append(ask("e")))
    thread.start(); thread.join()
    assert found == ["e!"]

@pytest.mark.steplog
@pytest.mark.parametrize("text", ["a", "a b/ü", "x" * 300])
def test_cases(text):
    assert ask(text) == text + "!"

class TestClass:
    @pytest.mark.steplog
    def test_method(self):
        chunks = client().chat.completions.create(**body("abc", stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "abc!"

    class TestInner:
        def test_deep(self, steplog_cassette):
            assert ask("deep") == "deep!"

import unittest
class Old(unittest.TestCase):
    @pytest.mark.steplog
    def test_old(self):
        self.assertEqual(ask("old"), "old!")

@pytest.mark.steplog
class TestAsyncOld(unittest.IsolatedAsyncioTestCase):
    async def test_old(self):
        async with aclient() as c:
            self.assertEqual(await aask("old", c), "old!")

@pytest.mark.steplog
def test_own_runs():
    for _ in range(2):
        with steplog.run("mine") as run:
            assert ask("r") == "r!"
    assert run.resumed
    with steplog.run() as other:
        assert ask("s") == "s!"
    assert ask("t") == "t!"
"""
)
TESTS = 11


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_everything_is_recorded_and_played_without_a_provider(suite, workers):
    suite.file(EVERYTHING)
    recorded = suite.run(*workers, installed=not workers)
    recorded.assert_outcomes(passed=TESTS)
    recorded.stdout.fnmatch_lines([f"*{TESTS} cassettes recorded*"])
    assert len(suite.cassettes()) == TESTS
    texts = {name: (suite.pytester.path / name).read_text() for name in suite.cassettes()}
    tools = (suite.pytester.path / "tool.txt").read_text()

    played = suite.run(*workers, ci=True, gone=True)
    played.assert_outcomes(passed=TESTS)
    played.stdout.fnmatch_lines([f"*steps played from {TESTS} cassettes*"])
    assert {name: (suite.pytester.path / name).read_text() for name in suite.cassettes()} == texts
    assert (suite.pytester.path / "tool.txt").read_text() == tools


def test_recording_again_changes_nothing(suite):
    suite.file(EVERYTHING)
    suite.run("-k", "not threads and not async")
    texts = {name: (suite.pytester.path / name).read_text() for name in suite.cassettes()}
    again = suite.run("--steplog=all", "-k", "not threads and not async")
    again.stdout.fnmatch_lines(["*(0 changed)*"])

    assert {name: (suite.pytester.path / name).read_text() for name in suite.cassettes()} == texts


ONE = """
@pytest.mark.steplog
def test_one():
    assert ask("{}")
"""


def test_the_mode_is_one_and_stands_in_the_header(suite):
    suite.file(ONE.format("a"))

    suite.run(ci=True).stdout.fnmatch_lines(["steplog: none (CI is set)"])
    suite.run(installed=True).stdout.fnmatch_lines(["steplog: once (CI is not set)"])
    suite.run("--steplog=new", ci=True).stdout.fnmatch_lines(["steplog: new"])


def test_nothing_is_recorded_in_ci(suite):
    suite.file(ONE.format("a"))
    found = suite.run(ci=True)

    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*has no cassette*", "*pytest --steplog=all test_it.py::test_one"])
    assert "StashKey" not in found.stdout.str()
    assert (suite.hits, suite.cassettes()) == (0, [])


def test_a_test_that_is_skipped_needs_no_cassette(suite):
    suite.file("@pytest.mark.skip\n" + ONE.format("a").lstrip())

    suite.run(ci=True).assert_outcomes(skipped=1)


@pytest.mark.parametrize("mode", ["none", "once"])
def test_a_changed_prompt_never_gets_an_old_answer(suite, mode):
    suite.file(ONE.format("The capital of Portugal. " * 300 + "now"))
    suite.run()
    suite.file(ONE.format("The capital of Portugal. " * 300 + "then"))
    found = suite.run(f"--steplog={mode}")
    found.assert_outcomes(failed=1)
    message = found.stdout.str()[found.stdout.str().index("test_it.py::test_one does something else") :]
    message = message[: message.index("pytest --steplog=all test_it.py::test_one") + 60]

    assert suite.hits == 1
    assert len(message.splitlines()) <= 25
    assert max(map(len, message.splitlines())) < 420
    assert "now" in message
    assert "then" in message
    assert "messages[0].content" in message


def test_new_records_what_is_new_and_plays_the_rest(suite):
    suite.file(ONE.format("a"))
    suite.run()
    suite.file(ONE.format("a") + '    assert ask("b") == "b!"\n')
    suite.run("--steplog=new").assert_outcomes(passed=1)
    assert [hit.json["messages"][0]["content"] for hit in suite.provider.hits] == ["a", "b"]

    found = suite.run(ci=True, gone=True)
    found.assert_outcomes(passed=1)
    text = suite.text("test_one")
    assert text.count("step.finished") == 2
    assert text.count("run.ended") == 1


def test_the_command_that_a_failure_names_records_that_test_and_no_other(suite):
    names = ["a", "a b", "x/y", "c::d", "[e"]
    marked = f"@pytest.mark.parametrize('by', {[name + end for name in names for end in ('', '2')]!r})\n"
    code = marked + ONE.format("a").lstrip().replace("one()", "one(by)") + ONE.format("a").replace("one", "one_more")
    suite.file(code)
    suite.run().assert_outcomes(passed=11)
    suite.file(code.replace('"a"', '"b"'))
    found = suite.run(ci=True)
    found.assert_outcomes(failed=11)
    again = dict.fromkeys(line.strip() for line in found.outlines if "pytest --steplog=all" in line)
    assert len(again) == 11

    for command in [*again][:-1:2]:
        suite.run(*shlex.split(command)[1:]).assert_outcomes(passed=1)


def test_all_records_anew_only_what_is_named(suite):
    suite.file(ONE.format("a") + ONE.format("b").replace("test_one", "test_two"))
    suite.run()
    suite.run("--steplog=all", "-k", "test_two").assert_outcomes(passed=1, deselected=1)

    assert [hit.json["messages"][0]["content"] for hit in suite.provider.hits] == ["a", "b", "b"]


@pytest.mark.parametrize(
    "ends",
    [("assert False", "pytest.skip()"), ("raise KeyboardInterrupt",), ("os._exit(3)",)],
)
def test_a_test_that_does_not_pass_leaves_its_good_cassette(suite, ends):
    names = [f"test_{number}" for number in range(len(ends))]
    suite.file("".join(ONE.format("a").replace("test_one", name) for name in names))
    suite.run()
    before = [suite.text(name) for name in names]
    again = [ONE.format("b").replace("test_one", name) + f"    {end}\n" for name, end in zip(names, ends, strict=True)]
    suite.file("".join(again))
    suite.run("--steplog=all")

    assert suite.hits == 2 * len(ends)
    assert [suite.text(name) for name in names] == before
    files = sorted(path.name for path in (suite.pytester.path / "cassettes/test_it").iterdir())
    assert files == [f"{name}.steplog.json" for name in names]


def test_a_fixture_that_fails_at_the_end_leaves_it_too(suite):
    suite.file(ONE.format("a"))
    suite.run()
    before = suite.text("test_one")
    suite.file(
        "@pytest.fixture\ndef bad():\n    yield\n    assert False\n" + ONE.format("b").replace("one()", "one(bad)")
    )
    suite.run("--steplog=all").assert_outcomes(passed=1, errors=1)

    assert suite.text("test_one") == before


def test_steps_that_are_not_asked_for_fail_in_ci_and_are_told_elsewhere(suite):
    suite.file(ONE.format("a") + '    ask("b")\n')
    suite.run()
    suite.file(ONE.format("a"))

    found = suite.run(ci=True)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*did not ask for 1 of the steps*", "*llm_call m (s_*", "*--steplog=all*"])
    found = suite.run()
    found.assert_outcomes(passed=1)
    found.stdout.fnmatch_lines(["*test_one: 1 recorded step was not asked for*"])
    suite.file(ONE.format("a").replace("steplog\n", "steplog(unplayed=True)\n"))
    suite.run(ci=True).assert_outcomes(passed=1)


def test_the_same_request_once_more_is_not_answered_twice(suite):
    suite.file(ONE.format("a"))
    suite.run()
    suite.file(ONE.format("a") + '    ask("a")\n')
    found = suite.run()

    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["An equal call is recorded once, and was already played*"])
    assert suite.hits == 1


def test_a_program_that_swallows_the_refusal_fails_all_the_same(suite):
    suite.file(ONE.format("a"))
    suite.run()
    suite.file(ONE.format("a") + "    try:\n        ask('b')\n    except BaseException:\n        pass\n")

    suite.run().assert_outcomes(failed=1)
    assert suite.hits == 1


LEAK = """
goes = threading.Event()
found = []

def late():
    goes.wait(30)
    try:
        found.append(ask("a"))
    except BaseException as error:
        found.append(error)

@pytest.mark.steplog
def test_leaks():
    thread = threading.Thread(target=late)
    thread.start()
    globals()["thread"] = thread

@pytest.mark.steplog
def test_next():
    goes.set()
    thread.join()
    assert ask("a") == "a!"

def test_what_it_got():
    assert "test_it.py::test_leaks has left behind" in str(found[0])
"""


def test_a_thread_that_a_test_leaves_behind_uses_nobody_elses_cassette(suite):
    suite.file(LEAK)
    suite.run().assert_outcomes(passed=3)
    assert suite.hits == 1
    suite.run(ci=True, gone=True).assert_outcomes(passed=3)


BETWEEN = LEAK.replace("@pytest.mark.steplog\ndef test_next", "def test_next").replace(
    '    assert ask("a") == "a!"\n', ""
)


def test_it_does_not_go_live_between_tests_either(suite):
    suite.file(BETWEEN)
    suite.run().assert_outcomes(passed=3)
    assert suite.hits == 0


OUTSIDE = """
import socket, subprocess, urllib.request

@pytest.mark.steplog
def test_outside(steplog_cassette):
    ask("a")
    if steplog_cassette.doing == "replay":
        {}
"""


EFFECTS = (
    "urllib.request.urlopen(os.environ['URL'])",
    "socket.create_connection(('192.0.2.1', 80), 1)",
    "subprocess.run(['true'])",
    "t = threading.Thread(target=ask, args=['new']); t.start(); t.join()",
    "httpx.get(os.environ['URL'])",
)


def test_nothing_leaves_the_process_while_a_cassette_is_played(suite):
    tests = [OUTSIDE.format(effect).replace("outside(", f"outside_{n}(") for n, effect in enumerate(EFFECTS)]
    suite.file("".join(tests))
    suite.run().assert_outcomes(passed=len(EFFECTS))
    suite.run(ci=True).assert_outcomes(failed=len(EFFECTS))

    assert suite.hits == len(EFFECTS)


def test_what_is_allowed_may_be_reached(suite):
    allowed = OUTSIDE.format("urllib.request.urlopen(os.environ['URL'])").replace(
        "steplog\n", "steplog(allow='127.0.0.1')\n"
    )
    suite.file(allowed)
    suite.run().assert_outcomes(passed=1)
    suite.run(ci=True).assert_outcomes(failed=1)  # it is reached, and answers that it has nothing there
    assert suite.hits == 2


ORPHANS = ONE.format("a") + ONE.format("b").replace("test_one", "test_two")


def test_orphans_are_listed_when_the_whole_suite_ran_and_only_then(suite):
    suite.file(ORPHANS)
    suite.file(ONE.format("c"), "sub/test_gone.py")
    suite.run()
    suite.file(ONE.format("a"))
    (suite.pytester.path / "sub/test_gone.py").unlink()
    orphans = [
        "*2 cassettes belong to no test*",
        "*test_it/test_two.steplog.json*",
        "*test_gone/test_one.steplog.json*",
    ]

    for args in ((), (".",), ("-n", "2")):
        suite.run(*args).stdout.fnmatch_lines(orphans)
    suite.run("test_it.py").stdout.fnmatch_lines(["*1 cassette belongs to no test*", orphans[1]])
    for args in (("-k", "one"), ("-m", "steplog"), ("test_it.py::test_one",), ("--deselect", "x"), ("--ignore", "y")):
        suite.run(*args).stdout.no_fnmatch_line("*belong* to no test*")


def test_tests_that_are_skipped_or_left_out_keep_their_cassettes(suite):
    suite.file(ORPHANS)
    suite.run()
    suite.file(
        ORPHANS.replace("@pytest.mark.steplog\ndef test_two", "@pytest.mark.skip\n@pytest.mark.steplog\ndef test_two")
    )
    suite.run().stdout.no_fnmatch_line("*belong* to no test*")
    suite.file("pytest.skip('all of it', allow_module_level=True)\n" + ORPHANS)
    suite.file(ONE.format("x"), "test_other.py")
    suite.run().stdout.no_fnmatch_line("*belong* to no test*")


LIVE = """
@steplog.step
def roll():
    with open("rolled.txt", "a") as file: file.write("x")
    return 4

@pytest.mark.steplog(tools="live")
def test_live():
    assert ask(f"a{roll()}") == "a4!"
    assert roll() == 4
"""


def test_tools_run_each_time_where_the_mark_says_so(suite):
    suite.file(LIVE)
    suite.run().assert_outcomes(passed=1)
    suite.run(ci=True, gone=True).assert_outcomes(passed=1)

    assert (suite.pytester.path / "rolled.txt").read_text() == "xxxx"
    assert "tool_call" not in suite.text("test_live")


CLOCK = """
import datetime

@pytest.mark.steplog(clock=True)
def test_clock():
    assert ask(f"It is {time.time()} and {datetime.datetime.now()}")

def test_plain():
    assert abs(time.time() - float(os.environ["NOW"])) < 600
"""


def test_the_recorded_time_is_given_again(suite, monkeypatch):
    import time

    monkeypatch.setenv("NOW", str(time.time()))
    suite.file(CLOCK)
    suite.run().assert_outcomes(passed=2)
    suite.run(ci=True, gone=True).assert_outcomes(passed=2)


def test_an_old_cassette_fails(suite):
    suite.file(ONE.format("a").replace("steplog\n", "steplog(max_age=90)\n"))
    suite.run().assert_outcomes(passed=1)
    suite.run(ci=True).assert_outcomes(passed=1)
    path = suite.pytester.path / "cassettes/test_it/test_one.steplog.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({**tree, "recorded": "2020-01-01"}))
    found = suite.run(ci=True)

    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(["*days old, and may be 90*"])


WRONG = {"steplog(tool='live')": "takes no 'tool'", "steplog('x')": "by name", "steplog(tools='dry')": "or 'live'"}


def test_a_wrong_mark_is_refused(suite):
    for number, mark in enumerate(WRONG):
        suite.file(ONE.format("a").replace("mark.steplog", f"mark.{mark}"), f"test_{number}.py")
    found = suite.run()

    assert [why for why in WRONG.values() if why not in found.stdout.str()] == []
    assert suite.hits == 0


SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"


def test_secrets_are_taken_out_and_it_is_told(suite):
    suite.file(f'@pytest.mark.steplog\ndef test_one():\n    ask("the key is {SECRET}")\n')
    found = suite.run()
    found.assert_outcomes(passed=1)
    found.stdout.fnmatch_lines(["*a secret was taken out of 1 step;*"])
    assert SECRET not in suite.text("test_one")


def test_a_secret_where_nobody_expects_one_keeps_the_file_from_being_written(suite):
    suite.file(
        f'@pytest.mark.steplog\n@pytest.mark.parametrize("key", ["{SECRET}"])\ndef test_one(key):\n    ask("a")\n'
    )
    found = suite.run()

    found.assert_outcomes(passed=1, errors=1)
    found.stdout.fnmatch_lines(["*would hold 1 secrets, so it was not written*"])
    assert suite.cassettes() == []


def test_a_suite_without_cassettes_pays_nothing(suite):
    (suite.pytester.path / "test_plain.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    ours = {name for name in sys.modules if name.startswith('steplog')}\n"
        "    few = {'steplog', 'steplog._start', 'steplog.errors', 'steplog.testing', 'steplog.testing.plugin'}\n"
        "    assert ours == few\n"
        "    assert not {'openai', 'anthropic', 'httpx', 'httpx2', 'orjson', 'sqlite3'} & set(sys.modules)\n"
    )
    suite.run("-p", "no:asyncio", "-p", "no:hypothesispytest").assert_outcomes(passed=1)


def test_what_is_left_behind_is_nothing(suite):
    suite.file(
        ONE.format("a")
        + """
def test_after():
    from steplog._runtime.door import PROCESS
    from steplog._runtime import egress
    assert PROCESS.replay is None and PROCESS.runs == {} and not egress.active()
    assert "STEPLOG_RUN_OPEN_IN" not in os.environ
"""
    )
    suite.run().assert_outcomes(passed=2)
    suite.run(ci=True).assert_outcomes(passed=2)


def test_verify_makes_each_call_and_fails_where_the_form_of_an_answer_has_changed(suite):
    suite.file(ONE.format("a") + '    ask("b")\n')
    suite.run()
    suite.run("--steplog=verify").assert_outcomes(passed=1)
    assert suite.hits == 4

    before = suite.text("test_one")
    suite.provider._handler = lambda hit: Reply.json({**json.loads(echo(hit).body), "object": 7, "extra": 1})
    found = suite.run("--steplog=verify")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*object was a text and is a number*", "*extra is new*"])
    assert suite.text("test_one") == before


def test_check_lists_what_is_wrong(suite):
    suite.file(ORPHANS.replace('ask("b")', 'ask("b") + ask("c")'))
    suite.run()
    suite.pytester.run(sys.executable, "-m", "steplog", "check", ".").stdout.fnmatch_lines(
        ["2 cassettes: 0 orphans, 0 unplayed, 0 failed*"]
    )

    suite.file(ONE.format("b").replace("test_one", "test_two") + ONE.format("x").replace("test_one", "test_new"))
    path = suite.pytester.path / "cassettes/test_it/test_two.steplog.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({**tree, "recorded": "2020-01-01", "note": SECRET}))
    found = suite.pytester.run(sys.executable, "-m", "steplog", "check", ".", "--json")
    facts = json.loads(found.stdout.str())
    shown = "cassettes/test_it/test_two.steplog.json"

    assert found.ret == 1
    assert facts["orphans"] == ["cassettes/test_it/test_one.steplog.json"]
    assert [(test, len(steps)) for test, steps in facts["unplayed"].items()] == [("test_it.py::test_two", 1)]
    assert [*facts["failed"]] == ["test_it.py::test_new"]
    assert (facts["secrets"], [*facts["old"]]) == ([shown], [shown])
    assert suite.hits == 3


def test_what_stopped_a_run_is_told_once(pytester, monkeypatch):
    # Where it is set pytest says the whole of every failure once more, in its summary.
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyfile(
        "import steplog\n"
        "def test_it():\n"
        "    told = 'run r: it asks for something else.\\nFirst difference'\n"
        "    error = steplog.RunStopped(f'run r stopped (drift).\\n{told}', run_id='r', step=None, reason='drift')\n"
        "    raise error from steplog.DriftDetected(told, run_id='r', step=None)\n"
    )

    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio")

    # Its own source is shown as well, up to the line that raises.
    assert [line for line in done.outlines if line.endswith("First difference")] == ["E       First difference"]
