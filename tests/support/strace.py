"""System calls of a real process: killed in one, failed in one, or written down, by strace."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.processes import environment
from tests.support.recorded import ROOT

# What changes the disk, and what decides who may.
CALLS = (
    *("write", "pwrite64", "fdatasync", "fsync", "ftruncate", "openat", "close", "mkdir", "unlink", "rename", "link"),
    *("flock", "fchmod", "chmod"),
)


@cache
def why_not() -> str | None:
    """Why strace cannot be used here, or None where it can."""
    if shutil.which("strace") is None:
        return "there is no strace here (on Debian: apt-get install strace)"
    command = ["strace", "-f", "-e", "inject=getppid:error=EPERM:when=1", "-o", "/dev/null", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()[:200]}"


def needed() -> None:
    """Skip a test that cannot do without."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


def traced(module: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m module folder` under strace."""
    command = ["strace", "-f", "-qq", *options, sys.executable, "-m", module, str(folder)]
    more = {"PYTHONDONTWRITEBYTECODE": "1"}  # or the first run would make more calls than the next
    return subprocess.run(command, cwd=ROOT, env=environment(**more), capture_output=True, text=True, check=False)


def points(trace: str, path: str, *, first_thread: bool = False) -> dict[str, list[int]]:
    """Where in each kind of call a run that was traced with `-y` deals with a path or what is below it.

    The numbers are those that `-e inject=CALL:...:when=NUMBER` takes: every call of the thread counts, from 1. They are
    those of all threads, or of the one that calls first.
    """
    counts: Counter[tuple[str, str]] = Counter()
    found: dict[str, list[int]] = defaultdict(list)
    calls = re.findall(r"^(\d+) +(\w+)\((.*)$", trace, re.MULTILINE)
    for thread, name, arguments in calls:
        counts[thread, name] += 1
        if path in arguments and (thread == calls[0][0] or not first_thread):
            found[name].append(counts[thread, name])
    return {name: sorted(set(numbers)) for name, numbers in found.items()}


class Call(NamedTuple):
    """A system call that succeeded.

    Attributes:
        name: of the call.
        arguments: as strace writes them.
        data: the bytes that were written, or the path that was named (of two paths, the first).
        result: what it returned.
    """

    name: str
    arguments: str
    data: bytes
    result: int


_LINE = re.compile(r"(?:(\d+) +)?(\w+)\((.*)\) += (-?\d+)")
_BEGUN = re.compile(r"(?:(\d+) +)?(\w+)\((.*) <unfinished \.\.\.>")
_DONE = re.compile(r"(?:(\d+) +)?<\.\.\. (\w+) resumed>(.*)\) += (-?\d+)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def parse(trace: str) -> list[Call]:
    """Read what `strace -f -xx` wrote; a call that another thread interrupted counts when it returned."""
    calls, begun = [], {}
    for line in trace.splitlines():
        if match := _BEGUN.match(line):
            begun[match[1]] = match[3]
        elif match := _DONE.match(line):
            calls.append(_call(match[2], begun.pop(match[1]) + match[3], int(match[4])))
        elif match := _LINE.match(line):
            calls.append(_call(match[2], match[3], int(match[4])))
    return [call for call in calls if call.result >= 0]


def _call(name: str, arguments: str, result: int) -> Call:
    text = _STRING.search(arguments)
    return Call(name, arguments, bytes.fromhex(text[1].replace("\\x", "")) if text else b"", result)
