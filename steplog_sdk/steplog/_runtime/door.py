"""Which run an effect is submitted to, and what happens to one that belongs to none."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from typing import Any, Final, Protocol

from steplog._runtime.context import FRAME, PASSING, Frame, frame
from steplog._runtime.settings import Settings
from steplog.errors import NotInRun

log: Final = logging.getLogger("steplog")


# Set while a run is open, to the process that has it. A worker process that is started meanwhile inherits it.
MARK: Final = "STEPLOG_RUN_OPEN_IN"


class Opener(Protocol):
    """Opens the runs of a process in the place of `steplog.run`: a replay, or the session of a test's cassette.

    Attributes:
        run_id: the run that it is about, for messages.
        paced: steps take the time that they took when they were recorded.
    """

    run_id: str
    paced: bool

    def run(self, run_id: str | None, said: dict[str, Any] | None = None) -> Any:
        """The run that the program opens, with what it has said of it."""

    def refuse(self, what: str) -> BaseException:
        """The exception for something that is not recorded and was not done."""

    def entered(self, recorder: Any, loop: Any) -> None:
        """A run was entered in this thread, in this event loop where there is one."""

    def left(self, run: Any) -> None:
        """A run that it has opened was left."""

    def lets_pass(self, target: str) -> bool:
        """Whether a local value is none of its business."""


class Process:
    """What there is once per process: the settings in force and the runs that are open.

    Attributes:
        settings: what `install()` decided, or None before it was called.
        runs: open recorders by run id.
        opened: ids of the last hundred runs that this process has opened, in order.
        has_plain_tools: whether a plain function was made a tool that changes something.
        replay: the `Replay`, or the session of a test's cassette, that is under way, or None; it opens the runs.
    """

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.runs: dict[str, Any] = {}
        self.opened: deque[str] = deque(maxlen=100)
        self.has_plain_tools = False
        self.replay: Opener | None = None
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def opened_run(self, run_id: str, recorder: Any) -> None:
        """Note that a run is open."""
        self.runs[run_id] = recorder
        self.opened.append(run_id)
        os.environ[MARK] = str(os.getpid())

    def closed_run(self, run_id: str) -> None:
        """Note that a run is over."""
        self.runs.pop(run_id, None)
        if not self.runs:
            os.environ.pop(MARK, None)

    def warn_once(self, topic: str, message: str) -> None:
        """Log a warning the first time a topic comes up in this process."""
        with self._lock:
            first = topic not in self._warned
            self._warned.add(topic)
        if first:
            log.warning(message)

    def forget_warnings(self) -> None:
        """Warn again about everything; for `uninstall`."""
        with self._lock:
            self._warned.clear()


PROCESS: Final = Process()


def place_of(kind: str, target: str, mode: str = "safe") -> Frame | None:
    """The place in the open run that an effect belongs to, or None when it is to pass through untouched.

    Raises:
        Unrecorded: for any tool or model call outside a run, while a run is being replayed.
        NotInRun: for an effect that would escape the log: any tool or model call in a worker that outlived a test with
            a cassette; a tool that is not safe to repeat, in a worker whose run is over or lost; any tool or model call
            in a worker that lost its run, while an open run has recorded results to return; under
            `install(strict=True)` every tool and model call outside a run.
        Interrupt: the run that the worker belongs to was halted.
    """
    found = FRAME.get()
    if found is None or found.recorder.closed:
        found = frame()
    if PASSING.get():
        return None
    if PROCESS.replay is not None and kind == "local" and PROCESS.replay.lets_pass(target):
        return None
    if found is None:
        _outside(kind, target, mode)
    return found


def paced() -> bool:
    """Whether a replay is under way in which pauses are made as they were."""
    return PROCESS.replay is not None and PROCESS.replay.paced


def active() -> bool:
    """Whether an effect submitted here would be recorded."""
    return not PASSING.get() and frame() is not None


def _outside(kind: str, target: str, mode: str) -> None:
    settings = PROCESS.settings
    over = FRAME.get()
    left_by = getattr(over.recorder.handle, "test", "") if over is not None else ""
    if left_by and kind != "local":
        raise NotInRun(_LEFT.format(f"{kind} {target}", left_by))
    if PROCESS.replay is not None and kind != "local":
        raise PROCESS.replay.refuse(f"{kind} {target}, outside the run")
    repeated = kind == "tool_call" and mode != "safe"
    if over is not None:
        # A branch that outlived its run. What it does now is in no log, so a resumed run would do it again.
        over.recorder.refuse_if_halted()
        run_id = over.recorder.journal.run_id
        topic, what = "over", f"{kind} {target} was called in a worker of run {run_id}, which is over. {_WAIT}"
    elif PROCESS.runs or _is_worker_of_a_run():
        topic = "lost"
        what = f"{kind} {target} was called in a thread, task or process that has lost its run{_open_runs()}. {_START}"
        if kind != "local" and any(recorder.dispatch.replaying for recorder in tuple(PROCESS.runs.values())):
            # The call may be one of those that the run still has to return.
            repeated, what = True, f"{what}\nThat run is returning recorded results, and this call may be one of them."
    else:
        topic, what = "outside", f"{kind} {target} was called outside any run; it is not recorded. {_PUT}"
        repeated = False
    if repeated or (settings is not None and settings.strict and kind != "local"):
        raise NotInRun(f"{what}\nIt was not executed.")
    if settings is not None or PROCESS.runs:
        PROCESS.warn_once(topic, f"{what} (Said once; further ones are logged at debug level.)")
    log.debug(what)


_LEFT: Final = (
    "{0} was called by a thread or task that test {1} has left behind. It was not executed, and no other test's "
    "cassette answers it.\nLet that test wait for what it starts."
)
_WAIT: Final = "Wait for every branch before the run's block ends, as asyncio.TaskGroup does."
_START: Final = "Start the worker inside the run, or open a run in the worker."
_PUT: Final = 'Put the agent inside: with steplog.run("my-run-id"): ...'


def _open_runs() -> str:
    return f" (open: {', '.join(PROCESS.runs)})" if PROCESS.runs else ""


def _is_worker_of_a_run() -> bool:
    """Whether this is a worker process that multiprocessing started while its parent had a run open."""
    multiprocessing = sys.modules.get("multiprocessing")
    return (
        MARK in os.environ
        and multiprocessing is not None
        and multiprocessing.parent_process() is not None
        and os.environ[MARK] != str(os.getpid())
    )
