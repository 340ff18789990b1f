"""The id of this process, without a system call each time that somebody asks for it."""

from __future__ import annotations

import os

pid = os.getpid()


def _forked() -> None:
    global pid  # noqa: PLW0603  # there is one per process, like what it names
    pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
