"""What a folded log says of how its run is steered: judgements, approvals, limits.

Every field is a JSON tree, or becomes one by `asdict`, so that a checkpoint can keep it, and holds only what folding
needs to answer a question about the next step; the data of the events stays in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from steplog._kernel.budget import BudgetState

Tree = dict[str, Any]


@dataclass(slots=True)
class Controls:
    """The control state of one run.

    Attributes:
        held: by the id of each step that has been blocked: `rule`, `seq` of the event, `expires` (milliseconds since
            1970, or None), and once somebody has decided, `approved` or `rejected` with `by`, `note` and `message`.
        buckets: by the id of a rule with a rate: tokens left when one was last taken, and when that was
            (milliseconds since 1970, as the judging process read its clock).
        taken: by the id of each message of the inbox that the log has taken over, the number of that event.
        signals: by the id of the message, signals that were taken, in order: `name`, `seq` of the event, `step` that
            has consumed it, and `data` of the event where the log does not give it back. Those that a finished step
            has consumed are forgotten.
        waits: by step, waits that have begun, in order: `seq`, `signal` that is waited for, `until` when (milliseconds
            since 1970). Those of finished steps are forgotten.
        cancel: the first cancellation: `message`, `by`, `note`, `seq`, and `delivered`, by the steps at which it was.
        budget: its budget and what is used of it; None where it has none.
    """

    held: dict[str, Tree] = field(default_factory=dict)
    buckets: dict[str, list[float]] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    signals: dict[str, Tree] = field(default_factory=dict)
    waits: dict[str, Tree] = field(default_factory=dict)
    cancel: Tree | None = None
    budget: BudgetState | None = None

    def __post_init__(self) -> None:
        packed: Any = self.budget
        if isinstance(packed, dict):
            self.budget = BudgetState.of(packed)

    def copy(self) -> Controls:
        """The same, sharing nothing mutable."""
        return Controls(**{attribute.name: _copied(getattr(self, attribute.name)) for attribute in fields(self)})


def _copied(tree: Any) -> Any:
    if isinstance(tree, BudgetState):
        return tree.copy()
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    return [_copied(value) for value in tree] if isinstance(tree, list) else tree
