"""Tests that skip, fail as expected, or let fixtures ask: what becomes of their cassettes. All in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx  # noqa: F401  # loaded once, and not by each suite: pytester forgets what a suite has imported
import openai  # noqa: F401
import pytest
import pytest_asyncio  # noqa: F401

import steplog
import steplog.testing._tests
from steplog.testing import LocalProvider
from tests.testing.test_pytest_plugin import HEAD, echo

pytest_plugins = ["pytester"]

Play = Callable[..., pytest.RunResult]


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    with LocalProvider(handler=echo) as provider:
        yield provider


@pytest.fixture
def play(pytester: pytest.Pytester, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Run a suite here: recording what has no cassette, or with `ci` only playing."""
    steplog.install()  # loads the interceptors, here and not in the suite
    monkeypatch.setenv("URL", provider.url)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    plugins = ["-p", "steplog.testing.plugin", "-p", "pytest_asyncio.plugin"]

    def run(code: str, *args: str, ci: bool = False) -> pytest.RunResult:
        pytester.path.joinpath("test_it.py").write_text(HEAD + code)
        mode = () if any(word.startswith("--steplog") for word in args) else (f"--steplog={'none' if ci else 'once'}",)
        monkeypatch.setenv("CI", "true" if ci else "")
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *plugins, *mode, *args)

    yield run
    steplog.uninstall()


def cassettes(pytester: pytest.Pytester) -> dict[str, Any]:
    found = pytester.path.rglob("*.steplog.json")
    return {path.name.removesuffix(".steplog.json"): json.loads(path.read_text()) for path in found}


SKIPS = """
@pytest.mark.steplog
def test_skips():
    pytest.skip("no graphics card here")

@pytest.fixture
def absent(): pytest.skip("nothing to do it with")

@pytest.mark.steplog
def test_fixture_skips(absent): ask("never")

@pytest.mark.steplog
def test_asks_and_skips():
    ask("a"); pytest.skip("after all")

@pytest.mark.steplog
def test_asks_nothing(): pass
"""


def test_a_test_that_skips_needs_no_cassette_unless_it_asks_for_something_before(play, pytester, provider):
    play(SKIPS).assert_outcomes(skipped=3, passed=1)
    assert list(cassettes(pytester)) == ["test_asks_nothing"]
    assert len(provider.hits) == 1

    found = play(SKIPS, ci=True)
    found.assert_outcomes(skipped=2, passed=1, failed=1)
    found.stdout.fnmatch_lines(["test_it.py::test_asks_and_skips has no cassette*", "It asks for something: *"])
    assert len(provider.hits) == 1


def test_a_test_that_asks_for_nothing_needs_a_cassette_all_the_same(play):
    found = play("@pytest.mark.steplog\ndef test_one(): pass\n", ci=True)

    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["test_it.py::test_one has no cassette*", "  pytest --steplog=all test_it.py::test_one"])


EXPECTED = """
@pytest.mark.xfail(reason="wrong sum", raises=AssertionError)
@pytest.mark.steplog
def test_marked(): assert ask("{0}") == "another"

@pytest.mark.steplog
def test_in_its_course():
    ask("{0}")
    pytest.xfail("not there yet")

@pytest.mark.xfail
@pytest.mark.steplog
async def test_async(): assert (await asyncio.to_thread(ask, "{0}")) == "another"

@pytest.mark.xfail(strict=True)
@pytest.mark.steplog
def test_passes_against_expectation(): ask("{0}")
"""


def test_a_test_that_fails_as_expected_has_a_cassette(play, pytester, provider):
    play(EXPECTED.format("a")).assert_outcomes(xfailed=3, failed=1)
    assert sorted(cassettes(pytester)) == ["test_async", "test_in_its_course", "test_marked"]
    hits = len(provider.hits)

    play(EXPECTED.format("a"), "-k", "not against", ci=True).assert_outcomes(xfailed=3, deselected=1)
    assert len(provider.hits) == hits


def test_a_cassette_that_does_not_fit_is_no_failure_that_was_expected(play, provider):
    play(EXPECTED.format("a"))
    hits = len(provider.hits)

    found = play(EXPECTED.format("b"), ci=True)
    found.assert_outcomes(failed=4)
    found.stdout.fnmatch_lines(["test_it.py::test_async does something else than its cassette*"])
    assert len(provider.hits) == hits


FIXTURES = """
@pytest.fixture
def plan(): return ask("{0}")

@pytest.fixture
async def later():
    yield await asyncio.to_thread(ask, "later")

@pytest.mark.steplog
def test_plain(plan):
    assert plan == "{0}!"
    assert ask("x") == "x!"

@pytest.mark.steplog
async def test_async(later, plan):
    assert [later, plan, await asyncio.to_thread(ask, "x")] == ["later!", "{0}!", "x!"]

@pytest.mark.steplog
class TestMethods:
    def setup_method(self): self.said = ask("setup")
    def test_one(self): assert self.said == "setup!"

@pytest.mark.steplog
def test_without(): assert ask("x") == "x!"
"""


def test_what_the_fixtures_of_a_test_ask_for_is_in_its_cassette(play, pytester, provider):
    play(FIXTURES.format("a")).assert_outcomes(passed=4)
    assert len(provider.hits) == 7
    runs = {name: [run["run"] for run in tree["runs"]] for name, tree in cassettes(pytester).items()}
    assert runs.pop("test_without") == ["test_it.test_without"]
    assert {tuple(own[1:]) for own in runs.values()} == {("steplog-fixtures",)}

    found = play(FIXTURES.format("a"), ci=True)
    found.assert_outcomes(passed=4)
    found.stdout.fnmatch_lines(["*7 steps played from 4 cassettes*"])
    renamed = FIXTURES.format("a").replace("test_plain", "test_renamed")
    path = pytester.path / "cassettes/test_it/test_plain.steplog.json"
    path.rename(path.with_name("test_renamed.steplog.json"))
    play(renamed, ci=True).assert_outcomes(passed=4)
    assert len(provider.hits) == 7


def test_a_fixture_that_asks_for_something_else_fails_its_test(play, provider):
    play(FIXTURES.format("a"))

    found = play(FIXTURES.format("b"), ci=True)
    found.assert_outcomes(errors=2, passed=2)
    found.stdout.fnmatch_lines(["in fixture 'plan': test_it.py::test_plain does something else than its cassette*"])
    swallowing = FIXTURES.format("b").replace(
        'return ask("b")', "\n    try: ask('b')\n    except BaseException: return 'b!'"
    )
    found = play(swallowing, ci=True)
    found.assert_outcomes(failed=2, passed=2)
    assert len(provider.hits) == 7


def test_a_fixture_that_is_gone_leaves_steps_that_nobody_asks_for(play):
    play(FIXTURES.format("a"))
    found = play(FIXTURES.format("a").replace('return ask("a")', 'return "a!"'), "-k", "plain", ci=True)

    found.assert_outcomes(failed=1, deselected=3)
    found.stdout.fnmatch_lines(["*did not ask for 1 of the steps*"])


OWN = """
@pytest.mark.steplog
def test_own(steplog_cassette):
    with steplog.run("{0}"):
        assert ask("r") == "r!"
    own = [run.run_id for run in steplog_cassette.runs if run.run_id != "steplog-fixtures"]
    assert own == ["test_it.test_own", "mine"]
"""


def test_a_run_of_the_tests_own_is_not_taken_for_what_its_fixtures_ask_for(play, provider):
    play(OWN.format("mine")).assert_outcomes(passed=1)
    play(OWN.format("mine"), ci=True).assert_outcomes(passed=1)
    # An id may be made up anew each time.
    play(OWN.format("another"), ci=True).assert_outcomes(passed=1)
    assert len(provider.hits) == 1


def test_a_test_that_catches_the_refusal_fails_all_the_same(play, provider):
    play('@pytest.mark.steplog\ndef test_one(): ask("a")\n')
    caught = '@pytest.mark.steplog\ndef test_one():\n    ask("a")\n    try: ask("b")\n    except BaseException: pass\n'

    play(caught, ci=True).assert_outcomes(failed=1)
    inner = "@pytest.mark.steplog\ndef test_two():\n    try:\n        with steplog.run('inner'): ask('{0}')\n"
    inner += "    except BaseException: pass\n"
    play(inner.format("a")).assert_outcomes(passed=1)
    play(inner.format("b"), ci=True).assert_outcomes(failed=1)
    assert len(provider.hits) == 2


SHARED = """
@pytest.fixture(scope="module")
def shared(): return ask("shared")

@pytest.fixture
def own(request): return ask("own") + request.getfixturevalue("shared")

@pytest.mark.steplog
def test_one(shared): ask("a")

@pytest.mark.steplog
def test_two(own): ask("a")
"""


def test_a_fixture_of_several_tests_is_refused_by_name(play, pytester, provider):
    found = play(SHARED)

    found.assert_outcomes(errors=2)
    found.stdout.fnmatch_lines(["*in fixture 'shared', whose scope is 'module'*scope=\"function\"*"])
    assert cassettes(pytester) == {}
    assert [hit.json["messages"][-1]["content"] for hit in provider.hits] == ["own"]


def test_a_fixture_records_what_it_asks_for_behind_one_that_is_shared(play, provider):
    turned = 'return request.getfixturevalue("shared") + ask("own")'
    code = SHARED.replace('return ask("shared")', 'return "!"')
    code = code.replace('return ask("own") + request.getfixturevalue("shared")', turned)
    play(code, "-k", "two").assert_outcomes(passed=1, deselected=1)
    play(code).assert_outcomes(passed=2)
    play(code, ci=True).assert_outcomes(passed=2)

    assert [hit.json["messages"][-1]["content"] for hit in provider.hits] == ["own", "a", "a"]
