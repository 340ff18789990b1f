"""An entry program: what it is, which revision of it, and how python would run it.

`steplog run` records a program and `steplog resume` finds it again, so both forms live here: the recorded one is
`{"script": path, "argv": [...], "cwd": path}`, with `module` in place of `script` for `python -m`.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from steplog.errors import InvalidArgument, SteplogError

# Marks a run that `steplog run` opened around the program; any other program opens its run by itself.
WRAPPED: Final = "opened_by"


class Program(NamedTuple):
    """A script or module with its arguments.

    Attributes:
        name: absolute path of the script, or dotted name of the module.
        argv: its arguments, without its name.
        cwd: the directory in which it runs.
        is_module: whether `name` is a module.
        given: the script's path as it was typed, which the program sees as `sys.argv[0]`.
    """

    name: str
    argv: tuple[str, ...]
    cwd: str
    is_module: bool = False
    given: str = ""

    def entry(self) -> dict[str, Any]:
        """The form that `run.created` keeps."""
        kind = "module" if self.is_module else "script"
        return {kind: self.name, "argv": list(self.argv), "cwd": self.cwd, WRAPPED: "steplog run"}


def typed(name: str, argv: Sequence[str], *, is_module: bool) -> Program:
    """The program that a command line names, in the current directory.

    Raises:
        InvalidArgument: there is no such script or module.
    """
    program = Program(name if is_module else str(Path(name).absolute()), tuple(argv), str(Path.cwd()), is_module, name)
    if not is_module and not Path(name).exists():
        raise InvalidArgument(f"there is no script {name}.\nName a python file, or a module with -m.", path=name)
    return program


def recorded(entry: dict[str, Any] | None, run_id: str) -> Program:
    """The program that a run names as its entry.

    Raises:
        SteplogError: the run names none, or it is not there any more.
    """
    name = (entry or {}).get("script") or (entry or {}).get("module")
    if not entry or not name:
        message = (
            f"run {run_id} does not say which program started it, so it cannot be started from here.\n"
            f'Run the program yourself; steplog.run("{run_id}") in it goes on where the log ends.'
        )
        raise SteplogError(message, run_id=run_id)
    is_module = "script" not in entry
    program = Program(name, tuple(entry.get("argv", ())), entry.get("cwd") or str(Path.cwd()), is_module, name)
    _check_present(program, run_id)
    return program


def _check_present(program: Program, run_id: str) -> None:
    missing = program.cwd if not Path(program.cwd).is_dir() else None
    if missing is None and not program.is_module and not Path(program.cwd, program.name).exists():
        missing = program.name
    if missing is None:
        return
    message = (
        f"run {run_id} was started by {program.name} in {program.cwd}, but {missing} is not there any more.\n"
        f"Put it back, or run the program from where it is now: steplog run --id {run_id} SCRIPT ARGS"
    )
    raise SteplogError(message, run_id=run_id, path=missing)


def revision(program: Program) -> str | None:
    """The code revision of a program, or None where its file cannot be told."""
    from steplog._runtime import origin

    file = _module_file(program.name) if program.is_module else Path(program.cwd, program.name)
    return None if file is None else origin.revision(file)


def _module_file(name: str) -> Path | None:
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None  # python says so itself when it is asked to run the module
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def execute(program: Program) -> None:
    """Run the program as `__main__`, with `sys.argv` and `sys.path[0]` as python itself would set them."""
    sys.argv = [program.given or program.name, *program.argv]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if program.is_module else os.path.dirname(os.path.realpath(program.name))  # noqa: PTH109, PTH120
    if program.is_module:
        runpy.run_module(program.name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program.given or program.name, run_name="__main__")


def without_our_frames(error: BaseException) -> BaseException:
    """`error` with a traceback that begins in the program, as if python had run it."""
    ours = (str(Path(__file__).parent), "<frozen runpy>", "<frozen importlib")
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
        trace = trace.tb_next
    # A program that failed before its first line (a syntax error) has only our frames; python shows none then.
    return error.with_traceback(trace)
