"""`steplog resume --due` and `--all`: start again what can go on by itself, one run after the other.

Two that are at work at once do not start the same run: whoever starts one holds a lock beside its log until the program
has ended, and looks again, under the lock, whether there is still something to do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from steplog._cli import facts
from steplog._cli import program as programs
from steplog._cli.lookup import Found, holder_of, open_run, store_at
from steplog._cli.output import emit_json, printable, say, with_home
from steplog._cli.run import FAILED, STOPPED
from steplog._kernel import events as ev
from steplog._kernel.fold import CLOSED_OUTCOMES, RUNNING, RunState
from steplog._kernel.inbox import Message
from steplog._kernel.waiting import WAITING, readiness
from steplog._runtime.post import messages
from steplog.errors import SteplogError
from steplog.stores.fs import FS, open_or_create

LOCK: Final = "resume.lock"
INTERRUPTED: Final = "interrupted"

# A suspended run that is started from here and stops for one of these needs nobody.
_GOES_ON: Final = frozenset({WAITING})
_TAIL: Final = 64 * 1024
_STDERR: Final = 2


class Report(NamedTuple):
    """What was done about a run.

    Attributes:
        run: its id.
        why: why it could go on.
        status: what became of it; `not started` where it could not be, `left out` where a person comes first.
        message: why it was not started, or what it needs now.
        code: exit code for this run: 0, 1 or 75.
    """

    run: str
    why: str
    status: str
    message: str
    code: int


def take_up(home: Path, named_home: Path | None, *, interrupted: bool, as_json: bool) -> int:
    """Start what can go on; returns the exit code.

    Args:
        home: where the runs are.
        named_home: the home, where commands about it must name it.
        interrupted: also runs that were interrupted, or whose process died.
        as_json: print the reports as JSON at the end; what the programs print goes to stderr.
    """
    store = store_at(home)
    reports = []
    for run_id in reversed(store.runs()):
        report = _take_up(Found(store, home, run_id), named_home, interrupted=interrupted, as_json=as_json)
        if report is None:
            continue
        reports.append(report)
        if not as_json:
            tail = f": {report.message}" if report.message else ""
            say(printable(f"run {report.run}: {report.why}; {report.status}{tail}"))
    if as_json:
        emit_json([report._asdict() for report in reports])
    codes = {report.code for report in reports}
    return FAILED if FAILED in codes else STOPPED if STOPPED in codes else 0


def _take_up(found: Found, named_home: Path | None, *, interrupted: bool, as_json: bool) -> Report | None:
    """Start one run, if it can go on; None where it cannot, or somebody else is at it."""
    try:
        why = _why(found, interrupted=interrupted)
        if why is None:
            return _left_out(found, named_home) if interrupted else None
        with _alone(found) as alone:
            # Another one may have started it, and be through, since it was looked at.
            why = _why(found, interrupted=interrupted) if alone else None
            return None if why is None else _start(found, named_home, why, as_json=as_json)
    except SteplogError as error:
        return Report(found.run_id, "it cannot be read", "not started", str(error).partition("\n")[0], FAILED)


def _left_out(found: Found, named_home: Path | None) -> Report | None:
    """What to settle first, where a run was interrupted and cannot go on because of a step in doubt."""
    if _has_ended(found, silent=True) or holder_of(found) is not None:
        return None
    state = open_run(found).state
    doubted = _doubted(state)
    if not doubted or state.status not in (RUNNING, "suspended") or state.reason == "drift":
        return None
    lines = [with_home(f"steplog resolve {found.run_id} {step}", named_home) for step in doubted]
    choice = "(with --done JSON, --retry, --failed MESSAGE or --unknown)"
    return Report(found.run_id, "a step is in doubt", "left out", f"{'; '.join(lines)} {choice}", 0)


def _doubted(state: RunState) -> list[str]:
    return [step.id for step in state.steps.values() if facts.step_status(step, live=False) == facts.IN_DOUBT]


def _why(found: Found, *, interrupted: bool) -> str | None:
    """Why a run can go on by itself, or None where it cannot."""
    inbox = found.store.inbox(found.run_id)
    if _has_ended(found, silent=inbox.size() == 0) or holder_of(found) is not None:
        return None
    state = open_run(found).state
    return _ready(state, messages(found.store, found.run_id), interrupted=interrupted)


def _ready(state: RunState, sent: list[Message], *, interrupted: bool) -> str | None:
    if state.completed_once or state.status not in (RUNNING, "suspended"):
        return None
    ready = readiness(state, sent, int(time.time() * 1000))
    if ready.now:
        return ready.why
    if not interrupted or not (state.status == RUNNING or state.reason == INTERRUPTED):
        return None
    return None if _doubted(state) else "it was interrupted"


def _has_ended(found: Found, *, silent: bool) -> bool:
    """Whether the last line of a log says that there is nothing to go on with; it is not read whole for that."""
    try:
        with open(found.store.path_of(found.run_id), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            line = file.read().rstrip(b"\n").rpartition(b"\n")[2]
        event = orjson.loads(line)
        ended = event["type"] == ev.RUN_ENDED
        return ended and (silent or event["data"].get("outcome") in CLOSED_OUTCOMES)
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return False  # whoever reads it whole says what is the matter


@contextmanager
def _alone(found: Found) -> Iterator[bool]:
    """Hold the lock of those who start this run; gives whether that is so."""
    fs = FS()
    path = os.path.join(os.path.dirname(found.store.path_of(found.run_id)), LOCK)
    fd, _ = open_or_create(fs, path, os.O_RDWR)
    try:
        yield fs.flock(fd)
    finally:
        fs.close(fd)


def _start(found: Found, named_home: Path | None, why: str, *, as_json: bool) -> Report:
    state = open_run(found).state
    try:
        programs.recorded(state.created.get("entry"), found.run_id, named_home)
    except SteplogError as error:
        text = f"cannot be started from here: {str(error).partition(chr(10))[0]}"
        return Report(found.run_id, why, "not started", text, FAILED)
    environment = {"STEPLOG_ON_WAIT": "suspend", **os.environ, "STEPLOG_HOME": str(found.home.absolute())}
    words = [sys.executable, "-m", "steplog", "resume", found.run_id]
    if named_home is not None:
        words += ["--home", str(named_home)]  # so that the commands that it prints name it
    done = subprocess.run(words, env=environment, stdout=_STDERR if as_json else None, check=False)  # noqa: S603
    after = open_run(found).state
    if after.status == "suspended":
        code = 0 if after.reason in _GOES_ON else STOPPED
        return Report(found.run_id, why, f"suspended ({after.reason})", "", code)
    if holder_of(found) is not None:
        return Report(found.run_id, why, "not started", "a process has taken it meanwhile", 0)
    failed = after.status in ("failed", RUNNING) or (done.returncode != 0 and after.status not in CLOSED_OUTCOMES)
    return Report(found.run_id, why, after.status, "", FAILED if failed else 0)
