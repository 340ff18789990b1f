"""What a process is that a replay has started: its runs are replayed as well, and nothing else happens in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from steplog._runtime import children, egress, messages, reports
from steplog._runtime.context import frame
from steplog._runtime.door import PROCESS
from steplog._runtime.refusals import Refusals
from steplog._runtime.reports import Reports
from steplog.errors import Interrupt

if TYPE_CHECKING:
    from steplog._runtime.replay_store import ReplayStore


class ChildReplay:
    """Stands for the replay in a child of the process that has begun it, and tells that one what becomes of it."""

    run_id = "of the process that has started this one"
    paced = False

    def __init__(self) -> None:
        told = children.told_here()
        self._reports = Reports(told.report) if told.report else None
        self._refusals = Refusals(told.ignored, None)
        self._stores: dict[int, ReplayStore] = {}

    def engage(self) -> None:
        """Switch the guard on. It works for the run that is replayed, so a service on this machine is a service."""
        told = children.told_here()
        egress.engage(self.refuse, told.allowed, ignored=told.ignored, report=told.report, local=False)

    def run(self, run_id: str | None, said: dict[str, Any] | None = None) -> Any:  # noqa: ARG002  # it is recorded
        """The recorded run that the program opens.

        Raises:
            Unrecorded: it is not recorded.
        """
        from steplog._runtime import settings
        from steplog._runtime.replay import options
        from steplog._runtime.replay_store import ReplayStore
        from steplog._runtime.run import Run

        store = settings.open_store(PROCESS.settings or settings.resolve())
        if run_id is None or run_id not in store.runs():
            raise self.refuse(f"run {run_id or 'without an id'}")
        run = Run(run_id, replayed := ReplayStore(store), options())
        self._stores[id(run)] = replayed
        return run

    def lets_pass(self, target: str) -> bool:  # noqa: ARG002  # nothing is watched here
        """Whether a local value is not part of the replay."""
        return False

    def entered(self, recorder: Any, loop: Any) -> None:  # noqa: ARG002  # time is real here
        """A run was entered in this thread, in this event loop where there is one."""
        if self._reports is not None:
            self._reports.add(reports.OPENED, run=recorder.journal.run_id)

    def left(self, run: Any) -> None:
        """A run that it has opened was left."""
        if self._reports is not None:
            from steplog._runtime.replay_verdict import tell_left

            tell_left(self._reports, run, self._stores.pop(id(run)))

    def refuse(self, what: str) -> Interrupt | OSError:
        """The exception for something that is not recorded and was not done. Inside a run, that run halts."""
        if self._refusals.ignores(what):
            return self._refusals.as_if_down(what)
        place = frame()
        refusal = messages.refused(
            messages.Named(self.run_id if place is None else place.recorder.journal.run_id), what
        )
        if place is not None:
            halted: Interrupt = place.recorder.halt(refusal)
            return halted
        if self._reports is not None:
            self._reports.add(reports.REFUSED, refused=what)
        return refusal


def guard() -> None:
    """Put this process under the guard, for as long as it lives."""
    os.environ.setdefault(children.MARK, "1")
    if children.WATCHER in os.environ:
        from steplog._runtime import kernel_guard

        kernel_guard.let_look()
    PROCESS.replay = ours = ChildReplay()
    ours.engage()
