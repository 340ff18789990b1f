"""A replay that goes on where the program asks for something else, and notes it: every nondeterminism in one go.

What differs gets the recorded answer of the step that is nearest, so that the program comes to the next difference.
That is for finding out and nothing else: such a replay is never `identical`.

The clock, uuids and random numbers are watched as well, where the recording did not record them: a date in a prompt is
the same today, and another one tomorrow.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from steplog._kernel.decide import Decision, Effect, Halt, Replay
from steplog._kernel.drift import windows
from steplog._runtime.evidence import gather
from steplog._runtime.site import program_line

if TYPE_CHECKING:
    from steplog._kernel.fold import RunState
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Call

# By opt-in interceptor, how the names of what it records begin.
WATCHED: Final = {"clock": ("time.", "datetime.", "date."), "uuid": ("uuid.",), "random": ("random.",)}


class Finding(NamedTuple):
    """One request that is not the recorded one.

    Attributes:
        site: the line of the program that asks, or "".
        asked: what it asks for.
        step: id of the recorded step that is nearest.
        field: path of the first difference.
        recorded: the recorded value there, through a window.
        found: the present one.
        source: what it looks like, or None.
        fix: what to write instead, or None.
        cause: the first step before it that went otherwise, or None.
    """

    site: str
    asked: str
    step: str
    field: str
    recorded: str
    found: str
    source: str | None
    fix: str | None
    cause: str | None


class Examination:
    """What a replay that goes on has found.

    Attributes:
        findings: requests that are not the recorded ones, in order.
        draws: how often the program drew a value that is not recorded, by what it was and the line.
    """

    def __init__(self, recorded: RunState) -> None:
        self.findings: list[Finding] = []
        self.draws: Counter[tuple[str, str]] = Counter()
        known = recorded.created.get("also", ())
        self._prefixes = tuple(start for name, starts in WATCHED.items() if name not in known for start in starts)
        self._lock = threading.Lock()

    def lets_pass(self, target: str) -> bool:
        """Whether a local value is only watched; it is noted then."""
        if not target.startswith(self._prefixes):
            return False
        with self._lock:
            self.draws[target, program_line()] += 1
        return True

    def goes_on(self, recorder: Recorder, halt: Halt, call: Call, effect: Effect) -> tuple[Effect, Decision]:
        """Note a difference, and answer with the recorded step that is nearest; the halt stands where there is none."""
        if halt.reason != "drift" or halt.step is None:
            return effect, halt
        evidence = gather(recorder, halt, call, effect)
        difference, nearest = evidence.difference, evidence.nearest
        if difference is None or nearest is None or difference.path in ("kind", "target") or nearest.lost:
            return effect, halt
        recorded, found = windows(difference)
        source = evidence.source
        finding = Finding(
            evidence.site,
            f"{call.kind} {call.target}",
            nearest.id,
            difference.path,
            recorded,
            found,
            None if source is None else source.kind,
            None if source is None else source.fix,
            evidence.upstream or None,
        )
        with self._lock:
            self.findings.append(finding)
        return effect._replace(id=nearest.id), Replay(nearest)

    def facts(self) -> dict[str, Any]:
        """All of it as JSON values."""
        drawn = sorted(self.draws.items(), key=_by_line)
        draws = [{"what": what, "site": site, "times": times} for (what, site), times in drawn]
        return {"findings": [finding._asdict() for finding in self.findings], "draws": draws}


def _by_line(drawn: tuple[tuple[str, str], int]) -> tuple[str, int, str]:
    """In the order of a file's lines; a site is `agent.py:12 in main`."""
    (what, site), _ = drawn
    file, _, line = site.partition(" in ")[0].rpartition(":")
    return file, int(line) if line.isdecimal() else 0, what
