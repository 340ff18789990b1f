"""What a process is that a replay has started: its runs are replayed as well, and nothing else happens in it."""

from __future__ import annotations

import os
from typing import Any

from steplog._runtime import children, egress, messages
from steplog._runtime.context import frame
from steplog._runtime.door import PROCESS
from steplog.errors import Interrupt


class ChildReplay:
    """Stands for the replay in a child of the process that has begun it."""

    run_id = "of the process that has started this one"
    paced = False

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
        return Run(run_id, ReplayStore(store), options())

    def lets_pass(self, target: str) -> bool:  # noqa: ARG002  # nothing is watched here
        """Whether a local value is not part of the replay."""
        return False

    def entered(self, recorder: Any, loop: Any) -> None:
        """A run was entered in this thread, in this event loop where there is one. Time is real here."""

    def refuse(self, what: str) -> Interrupt:
        """The interrupt for something that is not recorded and was not done. Inside a run, that run halts."""
        place = frame()
        refusal = messages.refused(
            messages.Named(self.run_id if place is None else place.recorder.journal.run_id), what
        )
        if place is None:
            return refusal
        halted: Interrupt = place.recorder.halt(refusal)
        return halted


def guard() -> None:
    """Put this process under the guard, for as long as it lives."""
    os.environ.setdefault(children.MARK, "1")
    PROCESS.replay = ChildReplay()
    # It works for the run that is replayed, so a service on this machine is a service in all of it.
    egress.engage(PROCESS.replay.refuse, children.allowed_here(), local=False)
