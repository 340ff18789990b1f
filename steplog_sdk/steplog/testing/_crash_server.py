"""One interpreter that has paid for the imports, and is forked for every process of a crash test.

It stands where `sitecustomize` is imported: the interpreter is up, the program's first line has not run. A fork goes on
from there as the program does by itself. What is imported before is the standard library and a few libraries that do
nothing then, and of those only what the baseline has imported as well.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import IO, Any, Final

_LIBRARIES: Final = frozenset(
    {"openai", "anthropic", "httpx", "httpx2", "httpcore", "httpcore2", "pydantic", "anyio", "wrapt"}
)
_OURS: Final = frozenset({"steplog", "steplog_interceptors"})


def modules() -> list[str]:
    """What this process has imported that another one may import before its program begins."""
    return [name for name, module in list(sys.modules.items()) if _is_harmless(name, module)]


def _is_harmless(name: str, module: Any) -> bool:
    package = name.partition(".")[0]
    # A file of the program that is named like a library is another thing.
    is_library = package in _LIBRARIES and "-packages" in (getattr(module, "__file__", None) or "")
    return is_library or package in _OURS or (package in sys.stdlib_module_names and "__main__" not in name)


def serve(names: str) -> None:
    """Fork one process for each order on stdin; returns in those. Answers with its id, then with how it ended."""
    for name in json.loads(Path(names).read_text()):
        with contextlib.suppress(Exception):  # then the program imports it, and says what is wrong with it
            importlib.import_module(name)
    orders: IO[bytes] = os.fdopen(os.dup(0), "rb", buffering=0)
    answers: IO[bytes] = os.fdopen(os.dup(1), "wb", buffering=0)
    while line := orders.readline():
        order = json.loads(line)
        child = os.fork()
        if not child:
            orders.close()
            answers.close()
            _become(order)
            return
        answers.write(b"%d\n" % child)
        _, status = os.waitpid(child, 0)
        answers.write(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(order: dict[str, Any]) -> None:
    """Take on what distinguishes this process from its siblings."""
    os.setsid()
    for fd, file, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, order["out"], os.O_WRONLY | os.O_CREAT),
        (2, order["err"], os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(file, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    os.environ.update(order["env"])
