"""What the fixtures of a test ask for: in its cassette as well, in a run of their own.

Only of fixtures that are made for one test. One of a wider scope is made by whichever test comes first, so its answers
would lie in another cassette with each selection of tests; it is refused, and told what to do.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

import pytest

from steplog._runtime.context import FRAME
from steplog._runtime.door import PROCESS
from steplog.errors import Interrupt, NotInRun, RunStopped

if TYPE_CHECKING:
    from steplog.testing.session import Session


_Failed: Any = pytest.fail.Exception


class Unusable(_Failed):  # type: ignore[misc]  # its public name is an attribute, which is no type
    """A test could not use its cassette. No failure that an `xfail` expects."""

    # As pytest says it of its own: the name alone stands in the summary.
    __module__ = "builtins"


RUN: Final = "steplog-fixtures"
"""The run's id, the same for every test, so that it is found when the test has got another name."""

_SHARED: Final = (
    "{0}, in fixture {1!r}, whose scope is {2!r}: it is made for the first of several tests, and which that is changes "
    "with each selection of tests, so it would be in the cassette of one and missing from that of another. It was "
    'refused. Make it scope="function", so that each test has it in its own cassette, or ask in the test itself.'
)


class Fixtures:
    """The hooks around fixtures."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Record what a test's own fixture asks for; refuse what a shared one does."""
        session: Any = PROCESS.replay
        if not hasattr(session, "aside"):
            return (yield)
        before, said = FRAME.get(), session.aside
        if fixturedef.scope != "function":
            session.aside = _SHARED.format("{}", fixturedef.argname, fixturedef.scope)
            FRAME.set(None)
        stop: BaseException | None = None
        try:
            return (yield)
        except (Interrupt, RunStopped, NotInRun) as raised:
            stop = raised
        finally:
            session.aside = said
            if fixturedef.scope != "function":
                FRAME.set(before)
        shared = fixturedef.scope != "function"
        # Not in the handler, whose exception a report would show as well.
        raise Unusable(_told(session, fixturedef.argname, stop, shared=shared), pytrace=False)


def _told(session: Session, fixture: str, stop: BaseException, *, shared: bool) -> str:
    cause = stop.__cause__ if isinstance(stop, RunStopped) and stop.__cause__ is not None else stop
    return f"{session.test}: {cause}" if shared else f"in fixture {fixture!r}: {session.told(str(cause))}"
