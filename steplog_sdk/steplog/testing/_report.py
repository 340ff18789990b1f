"""What came of the cassettes of a test run, gathered over its workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from steplog._kernel.words import counted


@dataclass
class Report:
    """What came of each cassette.

    Attributes:
        tests: by node id, what a test did with its cassette.
        used: the cassettes of all collected tests.
        collected: the files of tests that were collected.
        failed: by node id, the first line of what made a test with a cassette fail.
        whole: files and folders of tests that were collected as a whole; empty where the run was narrowed down.
    """

    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    collected: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, told: dict[str, Any]) -> None:
        """Add what a worker tells. All workers collect the same tests."""
        self.tests.update(told["tests"])
        self.failed.update(told["failed"])
        self.used, self.collected, self.whole = told["used"], told["collected"], told["whole"]

    def told(self) -> dict[str, Any]:
        """All of it as plain data."""
        return dict(vars(self))

    def lines(self, orphans: list[str], again: str) -> list[str]:
        """What is worth saying at the end of a run."""
        found = list(self.tests.values())
        played = [one for one in found if one["doing"] != "record"]
        parts = []
        if played:
            steps = counted(sum(one["replayed"] for one in played), "step")
            parts.append(f"{steps} played from {counted(len(played), 'cassette')}")
        written = [one for one in found if one["written"]]
        if written:
            changed = sum(one["written"] == "changed" for one in written)
            parts.append(f"{counted(len(written), 'cassette')} recorded ({changed} changed)")
        verified = sum(one["verified"] for one in found)
        if verified:
            parts.append(f"{counted(verified, 'answer')} verified")
        unverified = sum(one["unverified"] for one in found)
        if unverified:
            parts.append(f"{unverified} could not be (no call over HTTP that steplog can make again)")
        lines = [f"steplog: {', '.join(parts)}"] if parts else []
        for test, one in self.tests.items():
            if one["redacted"] and one["written"]:
                lines.append(
                    f"  {test}: a secret was taken out of {counted(one['redacted'], 'step')}; a replay gives the marker"
                )
            if one["unplayed"]:
                left = counted(len(one["unplayed"]), "recorded step was", "recorded steps were")
                lines.append(f"  {test}: {left} not asked for: {one['unplayed'][0]}")
        if orphans:
            belong = counted(len(orphans), "cassette belongs", "cassettes belong")
            lines.append(f"steplog: {belong} to no test; {again}")
            lines += [f"  {path}" for path in orphans[:_SHOWN]]
            lines += [f"  and {len(orphans) - _SHOWN} more"] if len(orphans) > _SHOWN else []
        return lines


_SHOWN = 20
