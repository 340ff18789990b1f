"""An entry program: what it is, which revision of it, and how python would run it.

A log names its program as `{"script": path, "module": name or null, "argv": [...], "cwd": path}`.
"""

from __future__ import annotations

import io
import pkgutil
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, NamedTuple

from steplog._cli.output import command
from steplog.errors import InvalidArgument, SteplogError

# Packages whose frames a traceback of the program leaves out: ours, and the one that starts a script.
_OURS: Final = frozenset({"steplog", "steplog_interceptors", "runpy"})


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


def typed(name: str, argv: Sequence[str], *, is_module: bool) -> Program:
    """The program that a command line names, in the current directory.

    Raises:
        InvalidArgument: there is no such script or module.
    """
    program = Program(name if is_module else str(Path(name).absolute()), tuple(argv), str(Path.cwd()), is_module, name)
    if not is_module and not Path(name).exists():
        raise InvalidArgument(f"there is no script {name}.\nName a python file, or a module with -m.", path=name)
    return program


def arguments(entry: dict[str, Any] | None) -> tuple[str, ...]:
    """The arguments with which the program of a run was started."""
    from steplog._kernel.codec import decode

    return tuple(decode(entry or {}).get("argv", ()))


def recorded(entry: dict[str, Any] | None, run_id: str, home: Path | None = None, again: Sequence[str] = ()) -> Program:
    """The program that a run names as its entry.

    Args:
        entry: what the log says of it.
        run_id: the run.
        home: its home, where a command about it must name it.
        again: the words of a command that takes another program in its place; by default, those that record it.

    Raises:
        SteplogError: the run names none, or it is not there any more.
    """
    from steplog._kernel.codec import decode

    entry = decode(entry or {})
    name = entry.get("module") or entry.get("script")
    if not name:
        message = (
            f"run {run_id} does not say which program started it, so it cannot be started from here.\n"
            f'Run the program yourself; steplog.run("{run_id}") in it goes on where the log ends.'
        )
        raise SteplogError(message, run_id=run_id)
    argv, cwd = tuple(entry.get("argv", ())), entry.get("cwd") or str(Path.cwd())
    program = Program(name, argv, cwd, is_module=bool(entry.get("module")), given=name)
    line = command(*(again or ("run", "--id", run_id)), home=home)
    _check_present(program, run_id, line)
    _check_whole(program, run_id, line)
    return program


def _check_whole(program: Program, run_id: str, again: str) -> None:
    """Refuse to start a program with a marker in the place of an argument."""
    lost = [number for number, text in enumerate(program.argv, 1) if "[redacted:" in str(text)]
    if lost:
        message = (
            f"argument {lost[0]} of the program of run {run_id} held a secret, which is not in the log: "
            f"{program.argv[lost[0] - 1]}\nStart it with its arguments again: {again} {program.name} ARGS\n"
            f"Let a program read secrets from its environment, and steplog resume can start it."
        )
        raise SteplogError(message, run_id=run_id)


def _check_present(program: Program, run_id: str, again: str) -> None:
    missing = program.cwd if not Path(program.cwd).is_dir() else None
    if missing is None and not program.is_module and not Path(program.cwd, program.name).exists():
        missing = program.name
    if missing is None:
        return
    message = (
        f"run {run_id} was started by {program.name} in {program.cwd}, but {missing} is not there any more.\n"
        f"Put it back, or run the program from where it is now: {again} SCRIPT ARGS"
    )
    raise SteplogError(message, run_id=run_id, path=missing)


def revision(program: Program) -> str | None:
    """The code revision of a program, or None where its file cannot be told."""
    from steplog._runtime import origin

    file = _file(program)
    return None if file is None else origin.revision(Path(file))


def _file(program: Program) -> str | None:
    if not program.is_module:
        return str(Path(program.cwd, program.name))
    spec = _spec(program)
    return spec.origin if spec is not None and spec.has_location else None


def _spec(program: Program) -> ModuleSpec | None:
    """What python would run for `-m`; None where it would refuse to, which it says itself when it is asked."""
    try:
        spec = find_spec(program.name)
        package = spec is not None and spec.submodule_search_locations is not None
        return find_spec(f"{program.name}.__main__") if package else spec
    except (ImportError, ValueError):
        return None


@contextmanager
def as_python_would(program: Program) -> Iterator[None]:
    """Let this process look like `python SCRIPT ARGS` before the program runs.

    The run is opened inside, so what it records of its origin is what it would record without the command line.
    """
    before = sys.modules["__main__"], sys.argv, list(sys.path)
    if not sys.flags.safe_path:
        sys.path[0] = program.cwd if program.is_module else str(Path(program.name).resolve().parent)
    main = ModuleType("__main__")
    main.__file__ = _file(program)
    main.__spec__ = _spec(program) if program.is_module else None
    sys.modules["__main__"] = main
    sys.argv = [program.given or program.name, *program.argv]
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = before


def execute_quietly(program: Program) -> None:
    """Run the program as `__main__`; that it leaves by `sys.exit()` or `sys.exit(0)` is its ordinary end."""
    try:
        execute(program)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise


def execute(program: Program) -> None:
    """Run the program as `__main__`."""
    if program.is_module:
        runpy.run_module(program.name, run_name="__main__", alter_sys=True)
    elif pkgutil.get_importer(program.name) is not None:
        runpy.run_path(program.name, run_name="__main__")  # a directory or an archive
    else:
        # Not by runpy: it would put the full path into sys.argv[0], where python leaves what was typed.
        with io.open_code(program.name) as file:
            code = compile(file.read(), program.name, "exec", dont_inherit=True)
        exec(code, sys.modules["__main__"].__dict__)  # noqa: S102 - running it is what was asked for


def without_our_frames(error: BaseException) -> BaseException:
    """`error` with the tracebacks that it would have if python had run the program and nothing had been recorded."""
    queue: list[BaseException | None] = [error]
    visited = set()
    while queue:
        current = queue.pop()
        if current is None or id(current) in visited:
            continue
        visited.add(id(current))
        current.__traceback__ = _theirs(current.__traceback__)
        queue += [current.__cause__, current.__context__]
    return error


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _OURS:
            kept.append(trace)
        trace = trace.tb_next
    chain = None
    for one in reversed(kept):
        chain = TracebackType(chain, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return chain
