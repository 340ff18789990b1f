"""What is made of the runs of a cassette: ids, and logs that go on."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from steplog._kernel import events as ev
from steplog._kernel.fold import StepState
from steplog.testing.cassettes import Cassette, Tape


def run_id_of(test: str) -> str:
    """The id of a test's own run."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", test.replace(".py::", ".").replace("::", ".")).strip("-._")[:100] or "test"


def without_ends(cassette: Cassette, *, but_last: bool = False) -> Cassette:
    """A cassette whose runs go on: without what says that they ended and were opened again."""
    tapes = []
    for tape in cassette.tapes:
        ends = [line for line in tape.lines if line.type in (ev.RUN_ENDED, ev.RUN_SUSPENDED, ev.RUN_CLAIMED)]
        kept = ends[-1] if but_last and ends and ends[-1].type == ev.RUN_ENDED else None
        left_out = {id(line) for line in ends if line is not kept}
        tapes.append(Tape(tape.run, [line for line in tape.lines if id(line) not in left_out]))
    return replace(cassette, tapes=tapes)


def named(steps: Collection[StepState], limit: int = 5) -> str:
    """Steps by name, for a message."""
    told = [f"{step.kind} {step.target} ({step.id})" for step in steps]
    more = f"\n  and {len(told) - limit} more" if len(told) > limit else ""
    return "".join(f"\n  {one}" for one in told[:limit]) + more
