"""The inbox of a run as a file: `<home>/runs/<run_id>/inbox.jsonl`, one sealed line per message.

Anybody may append, under the file's own lock and whether or not a process writes the run. A message is on disk when
`append` returns. What a sender that was killed has left of a line is cut off by the next one; readers pass it over.
"""

from __future__ import annotations

import os
import time
from typing import Final

from steplog._kernel.inbox import parse
from steplog.errors import Corrupt, StoreError
from steplog.stores.explain import failure
from steplog.stores.fs import FS, open_or_create, read_file

INBOX: Final = "inbox.jsonl"

# Another sender has the file for the time of one write and one sync.
_PATIENCE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.005


class FileInbox:
    """The inbox of one run.

    Attributes:
        path: the file, whether or not it exists.
    """

    def __init__(self, fs: FS, directory: str, run_id: str, *, sync: bool) -> None:
        self.path = os.path.join(directory, INBOX)
        self._fs = fs
        self._run_id = run_id
        self._sync = sync
        self._known = False

    def size(self) -> int:
        """How many bytes it has; 0 where there is none. Costs one call of the system, so it may be asked often."""
        if not self._known:
            self._known = self._fs.exists(self.path)
        found = self._fs.look(self.path) if self._known else None
        return 0 if found is None else found.st_size

    def read(self, start: int = 0) -> bytes:
        """What it holds from a byte on. Raises StoreError where it cannot be read."""
        try:
            return read_file(self._fs, self.path)[start:]
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise failure(error, self._run_id, "read the inbox", self.path) from error

    def append(self, line: bytes) -> None:
        """Add the line of a message; it is on disk when this returns.

        Raises:
            StoreError: it could not be written; nothing of it counts.
            Corrupt: the inbox is damaged in a way that no killed sender leaves.
        """
        try:
            self._append(line)
        except OSError as error:
            raise failure(error, self._run_id, "write to the inbox", self.path, "The message was not sent.") from error

    def _append(self, line: bytes) -> None:
        fs = self._fs
        fd, created = open_or_create(fs, self.path, os.O_RDWR | os.O_APPEND)
        try:
            self._lock(fd)
            try:
                self._mend(fd)
                # What was written of it stays for the next sender to cut off. Without its newline alone it counts.
                if fs.write(fd, line) < len(line) - 1:
                    message = f"run {self._run_id!r}: the message was cut short ({self.path}). It was not sent."
                    raise StoreError(message, run_id=self._run_id, path=self.path)
                self._sync_written(fd, new_name=created)
            finally:
                # Closing would do, but for a child that was forked meanwhile and shares the lock.
                fs.unlock(fd)
        finally:
            fs.close(fd)

    def _sync_written(self, fd: int, *, new_name: bool) -> None:
        if not self._sync:
            return
        try:
            self._fs.sync(fd)
            if new_name:
                self._fs.sync_dir(os.path.dirname(self.path))
        except OSError as error:
            meaning = "The message is in the inbox, but a loss of power may take it away."
            raise failure(error, self._run_id, "sync the inbox", self.path, meaning) from error

    def _lock(self, fd: int) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._fs.flock(fd):
            if time.monotonic() > deadline:
                message = (
                    f"run {self._run_id!r}: another sender has held the inbox for {_PATIENCE_SECONDS:.0f} seconds "
                    f"({self.path}). The message was not sent. Try again."
                )
                raise StoreError(message, run_id=self._run_id, path=self.path)
            time.sleep(_PAUSE_SECONDS)

    def _mend(self, fd: int) -> None:
        """Complete or cut off a last line without a newline."""
        fs = self._fs
        end = fs.end(fd)
        if not end or fs.read(fd, 1, end - 1) == b"\n":
            return
        data = read_file(fs, self.path)
        found = parse(data)
        if found.damaged is not None:
            raise damaged(self._run_id, self.path, found.damaged)
        if found.size == end:
            fs.write(fd, b"\n")
        else:
            fs.truncate(fd, found.size)


def damaged(run_id: str, path: str, line: int) -> Corrupt:
    """The error for a line that is whole and not what was written."""
    message = (
        f"run {run_id!r}: {path}, line {line}: this message is not what was sent: its seal does not fit.\n"
        f"No killed process leaves this: the file was changed by hand, or the disk is failing. Nothing was taken from "
        f"here on.\nLook at the line, take it out, and send the message again: steplog signal, approve or cancel"
    )
    return Corrupt(message, run_id=run_id, path=path, line=line)
