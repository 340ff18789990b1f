"""A recorded run as a test: its cassette, and a file that starts its program again."""

from __future__ import annotations

import os
import re
import runpy
import sys
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel import events as ev
from steplog.errors import InvalidArgument
from steplog.stores.base import folded
from steplog.testing import _files, layout
from steplog.testing._taking import taken
from steplog.testing.cassettes import Cassette, Line, Tape
from steplog.testing.session import run_id_of, without_ends

if TYPE_CHECKING:
    from steplog._kernel.state import RunState
    from steplog.stores.base import Store

_ENDED: Final = ("completed", "escalated", "failed")

_FILE: Final = '''"""What run {run} did, as a test: its program is started again, offline."""

from pathlib import Path

import pytest

from steplog.testing import run_program

HERE = Path(__file__).parent


@pytest.mark.steplog
def {name}():
{body}
'''
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


def as_test(store: Store, run: str, entry: dict[str, Any], target: str, *, wrapped: bool) -> str:
    """Write a run as a test file with its cassette.

    Args:
        store: where the run is.
        run: its id.
        entry: its program: `name`, `argv`, `cwd`, `module`.
        target: the test file.
        wrapped: the run was opened around the program, which opens none of its own.

    Returns:
        The cassette's path.

    Raises:
        InvalidArgument: the run has not ended, or there is such a file.
    """
    state = folded(store.read(run))
    if state.status not in _ENDED:
        raise InvalidArgument(
            f"run {run} is {state.status}, so a test could expect no outcome. Resume it to its end first: "
            f"steplog resume {run}",
            run_id=run,
        )
    if os.path.exists(target):
        raise InvalidArgument(f"{target} is there already. Name another file.", path=target)
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
        file.write(_FILE.format(run=run, name=name, body=_body(state, entry, os.path.abspath(target))))
    return path


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
