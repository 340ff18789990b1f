"""What became of the answers of models that a verification has asked for once more."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from steplog._kernel import shape
from steplog._kernel.fold import DONE

if TYPE_CHECKING:
    from steplog._runtime.run import Run
    from steplog.plugins import Answer


@dataclass
class Compared:
    """Recorded answers beside new ones.

    Attributes:
        made: how many calls were made once more.
        changes: in what their answers have another form.
    """

    made: int = 0
    changes: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def compare(self, target: str, recorded: Answer, found: Answer) -> None:
        """Compare the answer to a call with the recorded one."""
        with self._lock:
            self.made += 1
            said = found.body[:200].decode("utf-8", "replace")
            if not found.status:
                self.changes.append(f"{target}: the call was made and not answered: {said}")
            elif recorded.status != found.status:
                self.changes.append(f"{target}: the status was {recorded.status} and is {found.status}: {said}")
            else:
                trees = shape.tree_of(recorded.body, recorded.kind), shape.tree_of(found.body, found.kind)
                self.changes += [f"{target}: {change}" for change in shape.changes(*trees, whole=recorded.whole)]

    def left_out(self, runs: Iterable[Run]) -> int:
        """How many answers of models were given back in these runs that could not be compared with new ones."""
        count = 0
        for run in runs:
            steps, seen = run.state.steps, run.recorder.dispatch.seen
            asked = [steps[step] for step in seen if step in steps]
            count += sum(step.kind == "llm_call" and step.mode == "safe" and step.status == DONE for step in asked)
        return max(0, count - self.made)
