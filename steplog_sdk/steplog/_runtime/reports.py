"""What child processes of a replay have to tell it: what was refused in them, and what came of their runs.

They write lines into a file whose name they find in their environment, or have from before a fork. It is made by the
first that has anything to tell.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from typing import Any, Final

import orjson

REFUSED: Final = "refused"
OPENED: Final = "opened"
LEFT: Final = "left"


class Reports:
    """The file, in the process that reads it and in those that write.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self.path: Final = path

    @classmethod
    def new(cls) -> Reports:
        """One for a replay that begins.

        Raises:
            FileNotFoundError: no folder for temporary files can be written to.
        """
        return cls(os.path.join(tempfile.gettempdir(), f"steplog-replay-{os.getpid()}-{secrets.token_hex(8)}"))

    def add(self, what: str, **facts: Any) -> None:
        """Tell something; called in a child process.

        Raises:
            OSError: it cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(self.path, flags, 0o600)
        try:
            os.write(file, orjson.dumps({"what": what, "pid": os.getpid(), **facts}) + b"\n")
        finally:
            os.close(file)

    def take(self) -> list[dict[str, Any]]:
        """What was told, in order; the file is gone then."""
        try:
            with open(self.path, "rb") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return []
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        return [orjson.loads(line) for line in lines]
