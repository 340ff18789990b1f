"""What the plugin does around each test that has a cassette."""

from __future__ import annotations

import contextvars
import datetime as dt
import functools
import inspect
import json
import os
import shlex
from collections.abc import Callable, Generator
from typing import Any, Final

import pytest

from steplog._kernel import events as ev
from steplog._runtime.door import PROCESS
from steplog._runtime.redaction import redactor
from steplog.testing import _files, layout
from steplog.testing._cut import Mismatch
from steplog.testing._fixtures import Fixtures, Unusable
from steplog.testing._report import Report
from steplog.testing._tapes import named
from steplog.testing.cassettes import Cassette, CassetteError, Line, Tape
from steplog.testing.plugin import DESELECTED, MARK, SESSION, in_ci, mode_of, uses_cassette
from steplog.testing.session import NEW, RECORD, REPLAY, VERIFY, Options, Session

_PASSED: Final = pytest.StashKey[set[str]]()


class Tests(Fixtures):
    """The hooks, registered where a test has a cassette."""

    def __init__(self, config: pytest.Config) -> None:
        self.report = Report()
        self._config = config
        self._mode = mode_of(config)

    # collection --------------------------------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note which cassettes there should be."""
        # Those that an option of the project's leaves out, as `-m "not slow"` in its settings does, are there as well.
        items = [*session.items, *session.config.stash.get(DESELECTED, [])]
        self.report.used = [_path(item) for item in items if uses_cassette(item)]
        self.report.collected = sorted({str(item.path) for item in items})
        self.report.whole = _whole(session.config)

    # around a test -----------------------------------------------------------------------------------------------

    # No wrapper: pytest's own must have begun, since their ends count on it, and a test that is skipped needs none.
    @pytest.hookimpl
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Open the cassette."""
        if not uses_cassette(item):
            return
        item.stash[_PASSED] = set()
        session = item.stash[SESSION] = self._session(item)
        session.engage()
        session.begin_fixtures()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Record or replay what the test does."""
        session: Session | None = item.stash.get(SESSION, None)
        if session is None:
            return (yield)
        mismatch: Mismatch | None = None
        try:
            session.end_fixtures()
            if inspect.iscoroutinefunction(getattr(item, "obj", None)) and not _is_unittest(item):
                test = item.obj  # type: ignore[attr-defined]
                item.obj = _inside(session, test)  # type: ignore[attr-defined]
                try:
                    yield
                finally:
                    item.obj = test  # type: ignore[attr-defined]  # it may be run again, in another session
            else:
                session.__enter__()
                _take_along(item)
                try:
                    yield
                except BaseException as error:
                    session.__exit__(type(error), error, error.__traceback__)
                    raise
                session.__exit__(None, None, None)
        except Mismatch as found:
            mismatch = found
        if mismatch is not None:
            # Not in the handler, whose exception a report would show as well.
            raise Unusable(str(mismatch), pytrace=False)
        if session.missing:
            raise Unusable(session.missing, pytrace=False)
        self._judge_unplayed(item, session)
        return None

    def _judge_unplayed(self, item: pytest.Item, session: Session) -> None:
        left = session.left_out()
        told = self.report.tests.setdefault(item.nodeid, _facts(session))
        told.update(_facts(session), unplayed=[f"{step.kind} {step.target} ({step.id})" for step in left])
        if left and session.doing == REPLAY and in_ci() and not session.options.unplayed:
            raise Unusable(
                f"{session.test} did not ask for {len(left)} of the steps that its cassette {session.path} holds:"
                f"{named(left)}\nIf that is right, record it again:\n  {session.again}\n"
                "or say so: @pytest.mark.steplog(unplayed=True)",
                pytrace=False,
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note what has come to the end that its author means: a test that has passed, or failed as `xfail` says."""
        report = yield
        if hasattr(report, "wasxfail") and call.excinfo is not None and isinstance(call.excinfo.value, Unusable):
            del report.wasxfail
            report.outcome = "failed"
        meant = report.passed or (report.skipped and hasattr(report, "wasxfail"))
        if meant and _PASSED in item.stash:
            item.stash[_PASSED].add(report.when)
            if report.when == "call" and SESSION in item.stash:
                self.report.tests.setdefault(item.nodeid, _facts(item.stash[SESSION]))
        if report.failed and uses_cassette(item):
            self.report.failed.setdefault(item.nodeid, next(iter(report.longreprtext.strip().splitlines()), "")[:300])
        return report

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Close the cassette; write it where the test has passed."""
        session: Session | None = item.stash.get(SESSION, None)
        try:
            result = yield
        finally:
            if session is not None:
                session.end_fixtures(failed=True)
                if session.runs and not session.runs[0].recorder.closed:
                    session.runs[0].abandon()
                session.release()
        if session is not None and {"setup", "call"} <= item.stash[_PASSED]:
            self._write(item, session)
        return result

    def _write(self, item: pytest.Item, session: Session) -> None:
        if session.replaying or (session.doing == NEW and not session.executed):
            return
        cassette = session.recorded(dt.datetime.now(dt.UTC).date())
        _refuse_secrets(cassette, session)
        changed = _files.write(_path(item), cassette)
        told = self.report.tests[item.nodeid]
        told.update(written="changed" if changed else "same", redacted=cassette.redacted)

    def _session(self, item: pytest.Item) -> Session:
        path, options = _path(item), _options(item)
        shown = os.path.relpath(path)
        session = Session(_name(item), RECORD, options, _again(item), shown)
        if self._mode == "all" or (self._mode in ("once", "new") and not os.path.exists(path)):
            return session
        doing = {"new": NEW, "verify": VERIFY}.get(self._mode, REPLAY)
        if not os.path.exists(path):
            # A test that is skipped in its course, or by a fixture, needs none.
            why = (
                f"{session.test} has no cassette {shown}, and --steplog={self._mode} records none. Record it:\n"
                f"  {session.again}"
            )
            ends = [Line(ev.RUN_CREATED, None, {}), Line(ev.RUN_ENDED, None, {"outcome": "completed"})]
            empty = Cassette(session.test, "", [Tape(session.run_id, ends)])
            return Session(session.test, REPLAY, options, session.again, shown, empty, why)
        session.cassette = self._read(path, session)
        _refuse_old(session, session.cassette)
        return Session(session.test, doing, options, session.again, shown, session.cassette)

    def _read(self, path: str, session: Session) -> Cassette:
        try:
            return _files.read(path)
        except CassetteError as error:
            why = str(error).replace("pytest --steplog=all TEST", session.again)
        # Not in the handler, whose exception a report would show as well.
        raise Unusable(why, pytrace=False)

    # the end -----------------------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand what there is to say to whoever gathers it."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["steplog"] = self.report.told()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what came of the cassettes."""
        orphans = [os.path.relpath(path) for path in self.orphans()]
        for line in self.report.lines(orphans, "delete them, or see: steplog check"):
            terminalreporter.write_line(line)
        target = self._config.getoption("steplog_report")
        if target and not hasattr(self._config, "workeroutput"):
            with open(target, "w", encoding="utf-8") as file:
                json.dump({**self.report.told(), "orphans": orphans}, file)

    def orphans(self) -> list[str]:
        """Cassettes of tests that are gone, where that can be told."""
        return layout.orphans(self.report.whole, self.report.used, self.report.collected)


def _facts(session: Session) -> dict[str, Any]:
    return {
        "path": session.path,
        "doing": session.doing,
        "replayed": session.replayed,
        "executed": session.executed,
        "verified": session.compared.made,
        "unverified": session.compared.left_out(session.opened) if session.doing == VERIFY else 0,
        "written": "",
        "redacted": 0,
        "unplayed": [],
    }


def _inside(session: Session, test: Callable[..., Any]) -> Callable[..., Any]:
    """An async test inside its session, in the task in which it runs."""

    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> Any:
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with session:  # another event loop than asyncio's
                return await test(*args, **kwargs)
        async with session:
            return await test(*args, **kwargs)

    return run


def _is_unittest(item: pytest.Item) -> bool:
    return type(item).__name__ == "TestCaseFunction"


def _take_along(item: pytest.Item) -> None:
    """Let an async test of `unittest` run in this context: it has taken one along when it was made."""
    test: Any = getattr(item, "instance", None)
    if hasattr(test, "_asyncioTestContext"):
        test._asyncioTestContext = contextvars.copy_context()  # noqa: SLF001  # there is no public way to say so


def _name(item: pytest.Item) -> str:
    return f"{item.path.name}::{'::'.join(_names(item))}"


def _names(item: pytest.Item) -> list[str]:
    return [*(node.name for node in item.listchain() if isinstance(node, pytest.Class)), item.name]


def _path(item: pytest.Item) -> str:
    return layout.path_of(str(item.path), _names(item))


def _again(item: pytest.Item) -> str:
    """The command that records one test anew, and no other whose name begins alike."""
    return f"pytest --steplog=all {shlex.quote('::'.join([os.path.relpath(item.path), *_names(item)]))}"


_OPTIONS: Final = ("tools", "clock", "max_age", "allow", "unplayed")


def _options(item: pytest.Item) -> Options:
    """What the marks of a test say; the nearest counts."""
    said: dict[str, Any] = {}
    for mark in item.iter_markers(MARK):
        wrong = [name for name in mark.kwargs if name not in _OPTIONS]
        if wrong or mark.args:
            what = f"takes no {wrong[0]!r}" if wrong else "takes its options by name"
            raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.steplog {what}. There are {', '.join(_OPTIONS)}.")
        said = {**mark.kwargs, **said}
    if said.get("tools", "recorded") not in ("recorded", "live"):
        raise pytest.UsageError(f"{item.nodeid}: tools is 'recorded' or 'live', not {said['tools']!r}.")
    age = said.get("max_age")
    if age is not None:
        said["max_age"] = age.days if isinstance(age, dt.timedelta) else int(str(age).removesuffix("d"))
    allow = said.get("allow", ())
    said["allow"] = (allow,) if isinstance(allow, str) else tuple(allow)
    return Options(**said)


def _refuse_old(session: Session, cassette: Cassette) -> None:
    limit = session.options.max_age
    if limit is None:
        return
    age = (dt.datetime.now(dt.UTC).date() - dt.date.fromisoformat(cassette.recorded)).days
    if age > limit:
        raise Unusable(
            f"the cassette {session.path} of {session.test} is {age} days old, and may be {limit} (max_age). "
            f"Record it again:\n  {session.again}",
            pytrace=False,
        )


def _refuse_secrets(cassette: Cassette, session: Session) -> None:
    """Look at the file as it will be: a secret may have come in where nobody expects one, such as a test's name."""
    from steplog.testing.cassettes import dumps

    installed = PROCESS.settings
    found = redactor(installed.redact if installed is not None else ()).redact(dumps(cassette).encode())[1]
    if found:
        raise Unusable(
            f"the cassette {session.path} of {session.test} would hold {found} secrets, so it was not written. "
            "Which expressions say so: docs/secrets.md; install(redact=...) changes them.",
            pytrace=False,
        )


_NARROWING: Final = "keyword lf failedfirst deselect stepwise ignore ignore_glob".split()


def _whole(config: pytest.Config) -> list[str]:
    """Files and folders that were collected as a whole; none where anything narrows the run down."""
    if any(getattr(config.option, name, None) for name in _NARROWING):
        return []
    if any(arg.startswith("-m") for arg in config.invocation_params.args) or any("::" in arg for arg in config.args):
        return []
    return [str((config.invocation_params.dir / arg).resolve()) for arg in config.args]
