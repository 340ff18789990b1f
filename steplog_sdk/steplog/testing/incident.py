"""A recorded run as a test: its cassette, and a file that starts its program again."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from steplog._kernel import events as ev
from steplog._kernel.words import counted
from steplog._runtime import settings
from steplog._runtime.messages import Named, describe
from steplog.errors import InvalidArgument
from steplog.stores.base import folded
from steplog.testing import _files, layout
from steplog.testing._taking import taken
from steplog.testing._tapes import run_id_of, without_ends
from steplog.testing.cassettes import Cassette, Line, Tape

if TYPE_CHECKING:
    from steplog._kernel.state import RunState
    from steplog.stores.base import Store


class Written(NamedTuple):
    """A test that was written.

    Attributes:
        cassette: path of its cassette.
        interrupted: the status of a run that has not ended; "" where it has.
        redacted: how many steps return a marker in the place of a secret.
    """

    cassette: str
    interrupted: str
    redacted: int


_ENDED: Final = ("completed", "escalated", "failed")

_FILE: Final = '''"""What run {run} did, as a test: its program is started again, offline."""

from pathlib import Path

import pytest

from steplog.testing import run_program

HERE = Path(__file__).parent


@pytest.mark.steplog
def {name}({fixture}):
{body}
'''
_UNTIL: Final = """\
    # It was interrupted: the program has to get as far again, and ends where it asks for more.
    with steplog_cassette.until_interrupted():
        """
_STARTS: Final = "run_program({program}, {argv}cwd=HERE / {cwd!r}{module})"


def run_program(program: str | os.PathLike[str], *argv: str, cwd: str | os.PathLike[str], module: bool = False) -> None:
    """Run a script, or a module, as python would with these arguments.

    Args:
        program: path of the script, or name of the module.
        *argv: its arguments.
        cwd: the directory in which it runs.
        module: whether `program` is a module.

    Raises:
        BaseException: what the program raises; `SystemExit` only where it says that something failed.
    """
    before = os.getcwd(), sys.argv, list(sys.path)
    name = os.path.abspath(program) if not module else str(program)
    os.chdir(cwd)
    sys.argv = [name, *argv]
    sys.path.insert(0, os.getcwd() if module else os.path.dirname(name))
    try:
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as left:
        if left.code not in (None, 0):
            raise
    finally:
        os.chdir(before[0])
        sys.argv, sys.path[:] = before[1:]


def as_test(
    store: Store, run: str, entry: dict[str, Any], target: str, *, wrapped: bool, redacted: bool = False
) -> Written:
    """Write a run as a test file with its cassette.

    Args:
        store: where the run is.
        run: its id.
        entry: its program: `name`, `argv`, `cwd`, `module`.
        target: the test file.
        wrapped: the run was opened around the program, which opens none of its own.
        redacted: write it also where secrets were taken out of what its steps returned.

    Raises:
        InvalidArgument: the test could not do what the run did, or there can be no such file.
    """
    _check_target(target)
    state = folded(store.read(run))
    lost = _check_steps(state, Named(run, settings.home_option(store)), target, redacted=redacted)
    name = "test_" + (re.sub(r"\W+", "_", run).strip("_").lower() or "run")
    test = f"{os.path.basename(target)}::{name}"
    day = state.first_ts[:10]
    cassette = without_ends(taken(store, [run], test, day), but_last=True)
    if not wrapped:
        around = [Line(ev.RUN_CREATED, None, {}), Line(ev.RUN_ENDED, None, {"outcome": "completed", "reason": "done"})]
        cassette = Cassette(test, day, [Tape(run_id_of(test), around), *cassette.tapes], cassette.bodies)
    path = layout.path_of(os.path.abspath(target), [name])
    _files.write(path, cassette)
    with open(target, "x", encoding="utf-8") as file:
        fixture = "" if state.status in _ENDED else "steplog_cassette"
        file.write(_FILE.format(run=run, name=name, fixture=fixture, body=_body(state, entry, os.path.abspath(target))))
    return Written(path, state.status if fixture else "", lost)


def _check_target(target: str) -> None:
    name = os.path.basename(target)
    if not name.endswith(".py") or not name.removesuffix(".py").isidentifier():
        stem = re.sub(r"\W+", "_", name.removesuffix(".py").partition(".")[0]).strip("_").removeprefix("test_")
        better = os.path.join(os.path.dirname(target), f"test_{stem or 'incident'}.py")
        raise InvalidArgument(f"--as-test {target}: pytest reads tests from modules of Python. Name it {better}")
    if os.path.exists(target):
        raise InvalidArgument(f"{target} is there already. Name another file, or delete that one.", path=target)


def _check_steps(state: RunState, run: Named, target: str, *, redacted: bool) -> int:
    """Refuse a run whose steps cannot be given back; return how many have lost a secret."""
    lost = [step for step in state.steps.values() if step.lost]
    secrets = [step for step in lost if "redacted" in (step.finished or {})]
    gone = [step for step in lost if "redacted" not in (step.finished or {})]
    if not state.steps:
        raise InvalidArgument(f"run {run.run_id} has no step, so a test of it would say nothing.", run_id=run.run_id)
    if gone:
        raise InvalidArgument(
            f"run {run.run_id} cannot be a test: what {describe(gone[0])} returned is not recorded whole, so nothing "
            f"could give it back. Why: {run.command('show', gone[0].id)}",
            run_id=run.run_id,
        )
    if secrets and not redacted:
        which = counted(len(secrets), "step")
        raise InvalidArgument(
            f"run {run.run_id}: secrets were taken out of what {which} returned, first {describe(secrets[0])}. A test "
            "would get a marker in their place, and where the program uses them it would ask for something else than "
            "the run did, and fail. Where it does not use them, write it all the same:\n"
            f"  {run.command('export', '--as-test', shlex.quote(target), '--redacted')}\n"
            "Else let that step return a reference to the secret (docs/secrets.md), and export a run of then.",
            run_id=run.run_id,
        )
    return len(secrets)


def _body(state: RunState, entry: dict[str, Any], target: str) -> str:
    here = os.path.dirname(target)
    module = bool(entry["module"])
    program = repr(entry["name"]) if module else f"HERE / {os.path.relpath(entry['name'], here)!r}"
    starts = _STARTS.format(
        program=program,
        argv="".join(f"{word!r}, " for word in entry["argv"]),
        cwd=os.path.relpath(entry["cwd"], here),
        module=", module=True" if module else "",
    )
    if state.status not in _ENDED:
        return f"{_UNTIL}{starts}"
    if state.status != "failed":
        return f"    {starts}"
    ended = state.ended or {}
    error = ended.get("error") or {}
    raises = "SystemExit" if ended.get("reason") == "exit" else "Exception"
    return (
        f"    with pytest.raises({raises}) as failed:\n        {starts}\n"
        f"    assert type(failed.value).__name__ == {error.get('type', raises)!r}\n"
        f"    assert str(failed.value) == {error.get('message', '')!r}"
    )
