"""The processes of a crash test: how the program under test is started, and how it ends."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import select
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from steplog.errors import InvalidArgument, SteplogError
from steplog.testing._crash_hooks import PLAN, SERVER

WRAPPED_ID: Final = "crash-test"
_SITE: Final = "from steplog.testing._crash_hooks import arm\n\narm(__file__)\n"
_TAIL: Final = 4000


class Program(NamedTuple):
    """What is started again and again.

    Attributes:
        words: behind the interpreter: a script and its arguments, or `-m` and a module.
        wrapped: start it by `steplog run`, because it opens no run by itself.
        title: for people, and for commands that are printed.
    """

    words: tuple[str, ...]
    wrapped: bool
    title: str

    def command(self) -> list[str]:
        """The command line of one process."""
        if self.wrapped:
            return [sys.executable, "-m", "steplog", "run", "--id", WRAPPED_ID, *self.words]
        return [sys.executable, *self.words]


def program_of(program: str | os.PathLike[str] | Callable[[], Any], args: Sequence[str], *, module: bool) -> Program:
    """The program that a path, a module's name or a function stands for.

    Raises:
        InvalidArgument: there is no such script, or a new process could not find the function.
    """
    if callable(program) and not isinstance(program, os.PathLike):
        where = reference(program, "crash_matrix")
        words = ("-m", "steplog.testing._crash_call", where["module"], where["name"], where["file"] or "", *args)
        return Program(words, wrapped=False, title=where["name"])
    name = os.fspath(program)
    if module:
        return Program(("-m", name, *args), wrapped=False, title=f"-m {name}")
    if not os.path.exists(name):
        raise InvalidArgument(f"there is no script {name}.\nName a python file, or a module with -m.", path=name)
    return Program((os.path.abspath(name), *args), wrapped=False, title=name)


def reference(function: Callable[..., Any], what: str) -> dict[str, Any]:
    """How another process finds a function. Raises InvalidArgument where it could not."""
    name = getattr(function, "__qualname__", "")
    if not inspect.isfunction(function) or "<" in name:
        message = (
            f"{what}: a new process has to find {function!r} by its name, so it must be a function at the top of a "
            f"file.\nMove it there, or give the path of a script."
        )
        raise InvalidArgument(message)
    file, module = inspect.getsourcefile(function), function.__module__
    # In another process `__main__` is the program itself.
    named = Path(file).stem if module == "__main__" and file else module
    return {"module": named, "name": name, "file": file}


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        code: exit status, negative where a signal ended it.
        late: it took too long and was killed.
        said: the end of what it wrote to stderr.
    """

    code: int
    late: bool
    said: str


class Rig:
    """Starts the processes of one crash test.

    Args:
        base: folder for all that they leave.
        cwd: their working directory.
        env: their environment, but for what is the crash test's own.
        timeout: seconds for each.
    """

    def __init__(self, base: Path, cwd: str | None, env: Mapping[str, str], timeout: float) -> None:
        self.base = base
        self.modules = base / "modules.json"
        self._cwd = cwd
        self._env = dict(env)
        self._timeout = timeout
        self._site = base / "site"
        self._site.mkdir(parents=True)
        (self._site / "sitecustomize.py").write_text(_SITE)
        self._idle: dict[str, list[_Server]] = defaultdict(list)

    def folder(self, name: str) -> Path:
        """A fresh folder for a case."""
        found = self.base / name
        found.mkdir()
        return found

    def dispatch(self, program: Program, folder: Path, **plan: Any) -> Ended:
        """Start the program in a process of its own and wait for its end."""
        order = self._order(folder, plan)
        with open(order["out"], "wb") as out, open(order["err"], "wb") as err:
            process = self._start(program, order["env"], stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            late = False
            try:
                code = process.wait(self._timeout)
            except subprocess.TimeoutExpired:
                late, code = True, -signal.SIGKILL
            finally:
                _end_all(process.pid)
                process.wait()
        return Ended(code, late, _tail(order["err"]))

    def fork(self, program: Program, role: str, folder: Path, **plan: Any) -> Ended:
        """The same in a fork of an interpreter that has done nothing but import libraries.

        Processes of two roles have different seeds of their hashes, as any two processes have: a program whose requests
        depend on the order of a set must not look as if it could be resumed.
        """
        try:
            server = self._idle[role].pop()
        except IndexError:
            server = _Server(self._start(program, self._server(), stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        order = self._order(folder, plan)
        code, late = server.fork(order, self._timeout)
        self._idle[role].append(server)
        return Ended(code, late, _tail(order["err"]))

    def close(self) -> None:
        """End what waits for work."""
        for servers in self._idle.values():
            while servers:
                servers.pop().close()

    def _order(self, folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
        number = sum(1 for _ in folder.glob("plan-*.json")) + 1
        file, home = folder / f"plan-{number}.json", str(folder / "home")
        file.write_text(json.dumps({"home": home, "notes": str(folder / "notes"), **plan}))
        said = {name: str(folder / f"std{name}-{number}") for name in ("out", "err")}
        return {**said, "env": {"STEPLOG_HOME": home, PLAN: str(file)}}

    def _start(self, program: Program, own: Mapping[str, str], **pipes: Any) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(self._site), *filter(None, [self._env.get("PYTHONPATH")])])
        env = {**self._env, "PYTHONPATH": path, **own}
        return subprocess.Popen(program.command(), cwd=self._cwd, env=env, start_new_session=True, **pipes)  # noqa: S603

    def _server(self) -> dict[str, str]:
        return {SERVER: str(self.modules)}


class _Server:
    """An interpreter that is forked on demand."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def fork(self, order: dict[str, Any], timeout: float) -> tuple[int, bool]:
        """Exit status of the fork, and whether it took too long."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        orders.write(json.dumps(order).encode() + b"\n")
        orders.flush()
        child = self._number()
        late = not select.select([answers], [], [], timeout)[0]
        if late:
            _end_all(child)
        code = self._number()
        _end_all(child)
        return code, late

    def _number(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SteplogError(f"the interpreter that is forked has ended (exit status {self._process.wait()}).")
        return int(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _end_all(group: int) -> None:
    """End a process with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _tail(file: str) -> str:
    path = Path(file)
    return path.read_text(errors="replace")[-_TAIL:] if path.exists() else ""
