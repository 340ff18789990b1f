"""A pytest plugin for somebody else's test suite: puts steplog in, and writes down how each test ended.

It reads STEPLOG_SUITE_MODE (`without`, `installed`, `inside`), STEPLOG_SUITE_HOME and STEPLOG_SUITE_REPORT, a file that
gets one line per test: its outcome, a tab, its node id.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MODE = os.environ["STEPLOG_SUITE_MODE"]
HOME = Path(os.environ["STEPLOG_SUITE_HOME"])
REPORT = Path(os.environ["STEPLOG_SUITE_REPORT"])


def pytest_configure(config: pytest.Config) -> None:
    """Install steplog before the suite's own conftest imports the SDK."""
    if MODE != "without":
        import steplog

        steplog.install(home=HOME, durability="process")


def _run_id(item: pytest.Item) -> str:
    return "t-" + hashlib.sha256(item.nodeid.encode()).hexdigest()[:24]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Give each test a run of its own. An asynchronous test opens it in its own task."""
    if MODE != "inside":
        return (yield)
    import steplog

    test: Any = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        with steplog.run(_run_id(pyfuncitem)):
            return (yield)

    @functools.wraps(test)
    async def in_run(*args: Any, **kwargs: Any) -> Any:
        async with steplog.run(_run_id(pyfuncitem)):
            return await test(*args, **kwargs)

    pyfuncitem.obj = in_run
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the outcome of every phase that says something; with xdist only the controller writes."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.when == "call" or report.outcome != "passed":
        with REPORT.open("a") as file:
            file.write(f"{report.outcome}\t{report.nodeid}\n")
