"""SIGKILL at a chosen moment: no handler runs, no buffer is flushed, nothing is said."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence

from steplog.stores.writer import FileWriter


class Killer:
    """Counts moments by kind and kills this process at one of them.

    A plan is `KIND:NUMBER`, from 1, or empty for a process that may live. The kinds around an append are
    `append-before`, `append-after` and `append-torn` (all lines but the last one are written, and half of that); the
    program itself names others by calling `moment`.
    """

    def __init__(self, plan: str) -> None:
        kind, _, number = plan.partition(":")
        self._fatal = (kind, int(number or 0))
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def moment(self, kind: str) -> None:
        """Die here, if this is the moment."""
        if self._is_fatal(kind):
            _die()

    def _is_fatal(self, kind: str) -> bool:
        with self._lock:
            self._counts[kind] += 1
            return (kind, self._counts[kind]) == self._fatal

    def install(self) -> None:
        """Watch every append of this process, for as long as it lives. One without lines is a mere sync."""
        append = FileWriter.append

        def watched(writer: FileWriter, lines: Sequence[bytes], first_seq: int, *, sync: bool) -> None:
            self.moment("append-before")
            if lines and self._is_fatal("append-torn"):
                os.write(writer._log.fd, b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])
                _die()
            append(writer, lines, first_seq, sync=sync)
            self.moment("append-after")

        FileWriter.append = watched  # type: ignore[method-assign]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
