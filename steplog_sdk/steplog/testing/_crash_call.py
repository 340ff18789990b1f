"""Call one function of a module in this process: `python -m steplog.testing._crash_call MODULE NAME FILE [ARGS]`."""

from __future__ import annotations

import asyncio
import inspect
import sys

from steplog.testing._crash_body import load


def main(module: str, name: str, file: str, *args: str) -> None:
    """Call the function, and run what it returns where that is a coroutine."""
    sys.argv = [file, *args]
    result = load(module, name, file or None)()
    if inspect.iscoroutine(result):
        asyncio.run(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
