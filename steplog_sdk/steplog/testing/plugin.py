"""The pytest plugin: `@pytest.mark.steplog`, the fixture `steplog_cassette` and the option `--steplog`.

This module is imported by every pytest run on a machine that has steplog, so it imports nothing but pytest. What it
takes to play cassettes comes with the first test that uses one (`_tests.py`).
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from steplog.testing.session import Session

MARK: Final = "steplog"
FIXTURE: Final = "steplog_cassette"
MODES: Final = ("none", "once", "new", "all", "verify")

DESELECTED: Final = pytest.StashKey[list[pytest.Item]]()
SESSION: Final = pytest.StashKey[Any]()
_RUNNER: Final = "steplog-cassettes"

_HELP: Final = (
    "what tests with cassettes may do: none (play only; the default where CI is set), once (play, and record tests "
    "that have no cassette; the default elsewhere), new (play, and record calls that are not in the cassette), all "
    "(record anew), verify (play, make each recorded model call as well, and fail where the form of an answer has "
    "changed)"
)
_MARKER: Final = (
    "steplog(tools='recorded', clock=False, max_age=None, allow=(), unplayed=False): play this test from its cassette, "
    "or record it. tools='live' runs tools each time; clock=True gives the recorded time again; max_age=90 (days) "
    "fails when the cassette is older; allow=['localhost:5432'] may be reached; unplayed=True allows for recorded "
    "steps that are not asked for."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--steplog`."""
    group = parser.getgroup("steplog")
    group.addoption("--steplog", choices=MODES, default=None, metavar="none|once|new|all|verify", help=_HELP)
    group.addoption(
        "--steplog-report",
        default=None,
        metavar="FILE",
        help="run tests with cassettes only, and write what came of each, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", _MARKER)


def in_ci() -> bool:
    """Whether `CI` is set."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def mode_of(config: pytest.Config) -> str:
    """The mode in force: one for the whole run, wherever it comes from."""
    chosen: str | None = config.getoption("steplog")
    return chosen or ("none" if in_ci() else "once")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which mode is in force, and why."""
    why = "" if config.getoption("steplog") else " (CI is set)" if in_ci() else " (CI is not set)"
    return f"steplog: {mode_of(config)}{why}"


def uses_cassette(item: pytest.Item) -> bool:
    """Whether a test has a cassette."""
    return item.get_closest_marker(MARK) is not None or FIXTURE in getattr(item, "fixturenames", ())


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Note which tests there are that do not run."""
    for item in items:
        item.config.stash.setdefault(DESELECTED, []).append(item)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Load what plays cassettes, if any test has one."""
    if config.getoption("steplog_report"):
        left_out = [item for item in items if not uses_cassette(item)]
        items[:] = [item for item in items if uses_cassette(item)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
    wanted = any(uses_cassette(item) for item in items) or config.getoption("steplog_report")
    if wanted and not config.pluginmanager.has_plugin(_RUNNER):
        from steplog.testing._tests import Tests

        config.pluginmanager.register(Tests(config), _RUNNER)


def _told_by(shown: tuple[Any, Any, Any]) -> str:
    """What one of several exceptions says, of which pytest has made a traceback and, where there is one, a place."""
    traceback, place, _ = shown
    return str(traceback if place is None else place.message).partition(": ")[2].strip()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell once what stopped a run: `RunStopped` says all that its cause says."""
    report = yield
    chain = getattr(report.longrepr, "chain", None)
    if chain and call.excinfo is not None and call.excinfo.typename == "RunStopped":
        said = str(call.excinfo.value)
        while len(chain) > 1 and _told_by(chain[0]) in said:
            del chain[0]
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker of pytest-xdist has to say."""
    told = getattr(node, "workeroutput", {}).get("steplog")
    if told is not None:
        from steplog.testing._tests import Tests

        config = node.config
        if not config.pluginmanager.has_plugin(_RUNNER):
            config.pluginmanager.register(Tests(config), _RUNNER)
        config.pluginmanager.get_plugin(_RUNNER).report.add(told)


@pytest.fixture
def steplog_cassette(request: pytest.FixtureRequest) -> Session:
    """The test's cassette: `doing` (record, replay, new), `path`, `replayed`, `executed`, and `runs`."""
    found: Session = request.node.stash[SESSION]
    return found
