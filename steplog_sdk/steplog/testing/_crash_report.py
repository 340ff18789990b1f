"""What a crash test has found: by tool, with the mode that each should declare, and the command for each kill."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from steplog.testing._crash_points import Point, Records
from steplog.testing._crash_verdict import OUTSIDE, Case, Finding

_WORST: Final = ("doubled", "lost", "stuck", "undecided")
_SHOWN: Final = 40


class ToolReport(NamedTuple):
    """One tool, over all kills.

    Attributes:
        name: the tool.
        mode: what it declares; "" for code outside every step.
        place: `file:line` of its function, or "".
        killed: in how many cases its own step was where the process died.
        repeated: how often it was executed again.
        undecided: in how many cases its run waited for a person.
        doubled: in how many cases its effect happened twice.
        lost: in how many cases its effect is missing.
        acts: whether the ledger changed while it ran; None where there was no ledger, or nobody could tell.
        declare: the mode that it should declare; the same as `mode` where that is right.
        change: what to write, and why; "" where nothing is to be changed.
    """

    name: str
    mode: str
    place: str
    killed: int
    repeated: int
    undecided: int
    doubled: int
    lost: int
    acts: bool | None
    declare: str
    change: str


class CrashReport(NamedTuple):
    """The outcome of a crash test; as text, a table and what to do.

    Attributes:
        title: the program.
        points: every kill point of the baseline.
        cases: the kills that were made.
        tools: every tool of the baseline, and what is outside of them where something is wrong there.
        seconds: how long it took.
        again: the command line before and behind `--only`, or None where there was none.
        skipped: points that were left out because the time was up.
        answered: model calls were answered from the baseline.
        ledger: a ledger was read.
    """

    title: str
    points: tuple[Point, ...]
    cases: tuple[Case, ...]
    tools: tuple[ToolReport, ...]
    seconds: float
    again: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    skipped: int = 0
    answered: bool = True
    ledger: bool = False

    def found(self, what: str) -> list[tuple[Case, Finding]]:
        """All findings of one kind: `lost`, `doubled`, `stuck` or `undecided`."""
        return [(case, one) for case in self.cases for one in case.findings if one.what == what]

    @property
    def ok(self) -> bool:
        """Nothing was lost or doubled, the program always came to its end, and at least one kill was made."""
        return any(case.reached for case in self.cases) and not any(
            self.found(what) for what in ("lost", "doubled", "stuck")
        )

    @property
    def decided(self) -> bool:
        """Nothing waits for a person either."""
        return self.ok and not self.found("undecided")

    def command(self, point: Point) -> str:
        """What repeats a kill: the command line, where there was one."""
        if self.again is None:
            return f"crash_matrix(..., only=[{point.name!r}])"
        return shlex.join([*self.again[0], "--only", point.name, *self.again[1]])

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "program": self.title,
            "ok": self.ok,
            "points": len(self.points),
            "killed": len(self.cases),
            "not_reached": sum(not case.reached for case in self.cases),
            "skipped": self.skipped,
            "seconds": round(self.seconds, 1),
            **{what: len(self.found(what)) for what in _WORST},
            "tools": [tool._asdict() for tool in self.tools],
            "cases": [
                {
                    "number": case.point.number,
                    "point": case.point.name,
                    "at": str(case.point),
                    "verdict": case.verdict,
                    "repeated": case.repeated,
                    "findings": [one._asdict() for one in case.findings],
                    "again": None if case.verdict in ("ok", "not reached") else self.command(case.point),
                }
                for case in self.cases
            ],
        }

    def __str__(self) -> str:
        return "\n".join([self._head(), "", *self._table(), *self._faults(), *self._changes()])

    def _head(self) -> str:
        done = f"{self.title}: killed at {len(self.cases)} of {len(self.points)} points in {self.seconds:.0f} s"
        parts = [f"{len(self.found(what))} {what}" for what in _WORST if self.found(what)]
        missed = sum(not case.reached for case in self.cases)
        parts += [f"{missed} not reached"] if missed else []
        parts += [f"{self.skipped} left out, time was up"] if self.skipped else []
        calls = "model calls answered from the baseline" if self.answered else "model calls made anew"
        return f"{done}; {', '.join(parts) or 'nothing lost, doubled or undecided'}; {calls}"

    def _table(self) -> list[str]:
        head = ("tool", "mode", "killed", "again", "undecided", "doubled", "lost", "should declare")
        rows = [head] + [
            (
                *(tool.name, tool.mode or "-", str(tool.killed), str(tool.repeated), str(tool.undecided)),
                *(str(tool.doubled), str(tool.lost), tool.declare or "-"),
            )
            for tool in self.tools
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    def _faults(self) -> list[str]:
        lines = []
        for what in _WORST:
            for case, one in self.found(what):
                lines += [
                    f"{what}: {one.tool}, killed at {case.point}: {one.detail}",
                    f"    {self.command(case.point)}",
                ]
        more = len(lines) // 2 - _SHOWN
        kept = lines[: 2 * _SHOWN] + ([f"... and {more} more; --json has them all"] if more > 0 else [])
        return ["", *kept] if kept else []

    def _changes(self) -> list[str]:
        lines = [f"{tool.place or tool.name}: {tool.change}" for tool in self.tools if tool.change]
        return ["", *lines] if lines else []


def tools_of(baseline: Records, cases: Sequence[Case], *, ledger: bool) -> tuple[ToolReport, ...]:
    """One row for each tool that the baseline used, in that order."""
    declared, acts = baseline.tools(), _acts(baseline)
    names = list(dict.fromkeys(step.target for step in baseline.steps.values() if step.kind == "tool_call"))
    modes = {step.target: step.mode for step in baseline.steps.values()}
    if any(one.tool == OUTSIDE for case in cases for one in case.findings):
        names.append(OUTSIDE)
    rows = []
    for name in names:
        about, mode = declared.get(name, {}), modes.get(name, "")
        count = {what: sum(any(f == (what, name) for f in _kinds(case)) for case in cases) for what in _WORST}
        place = f"{_short(about['file'])}:{about['line']}" if about.get("file") else ""
        killed = sum(case.reached and case.point.target == name for case in cases)
        again = sum(case.repeated.get(name, 0) for case in cases)
        does = acts.get(name) if ledger else None
        declare, change = advise(name, mode, count, again, acts=does, key=bool(about.get("key")))
        counted = (killed, again, count["undecided"], count["doubled"], count["lost"] + count["stuck"])
        rows.append(ToolReport(name, mode, place, *counted, does, declare, change))
    return tuple(rows)


def _kinds(case: Case) -> list[tuple[str, str]]:
    return [(one.what, one.tool) for one in case.findings]


def _acts(baseline: Records) -> dict[str, bool]:
    """By tool, whether the ledger changed while it ran; only of executions that had the world to themselves."""
    under_way: set[str] = set()
    crowded: set[str] = set()
    targets = {step.id: step.target for step in baseline.steps.values()}
    found: dict[str, bool] = {}
    for note in baseline.notes:
        if note["what"] == "begun":
            under_way.add(note["step"])
            if len(under_way) > 1:
                crowded |= under_way
        elif note["what"] == "ended":
            under_way.discard(note["step"])
            if "acts" in note and note["step"] not in crowded and note["step"] in targets:
                name = targets[note["step"]]
                found[name] = found.get(name, False) or note["acts"]
    return found


def _short(file: str) -> str:
    return os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file


def advise(name: str, mode: str, count: dict[str, int], again: int, *, acts: bool | None, key: bool) -> tuple[str, str]:
    """The mode that a tool should declare, and what to write.

    Args:
        name: the tool.
        mode: what it declares.
        count: in how many cases each kind of finding named it.
        again: how often it was executed again.
        acts: whether the ledger changed while it ran.
        key: its function takes an `idempotency_key`.
    """
    if name == OUTSIDE:
        return "", _outside(count)
    strict = "keyed" if key else "verify"
    if count["doubled"] and mode == "safe":
        better = "keyed" if key else "unsafe"
        return better, f'{name} has an effect and runs again after a crash: @steplog.step(mode="{better}")' + _OR_ASK
    if count["doubled"] and mode == "keyed":
        return "verify", (
            f"{name} was repeated under its key, and the receiver did it twice: it does not honour the key as it is "
            f'passed on. Look it up: @steplog.step(mode="verify", verify=...)'
        )
    if count["doubled"]:
        return mode, f"{name} happened twice: what it asks for must be the same in every process (docs/guide.md)"
    if acts is False and mode in ("unsafe", "verify") and not count["lost"]:
        return "safe", f'{name} only reads, says the ledger: @steplog.step(mode="safe")'
    if mode == "unsafe" and count["undecided"]:
        change = f"{name} stopped the run {_times(count['undecided'])}. If its receiver knows idempotency keys: "
        change += '@steplog.step(mode="keyed"); if it can be looked up: mode="verify"; if it only reads: mode="safe"'
        return strict if key or acts else "keyed, verify", change
    if mode == "safe" and again and acts is None:
        return mode, f"{name} was executed {_times(again)} more. That is right if it only reads; a ledger would tell"
    return mode, ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


_OR_ASK: Final = ', or "keyed" or "verify", which need no person'


def _outside(count: dict[str, int]) -> str:
    if count["doubled"]:
        return "an effect that is in no step happens again on every resume: put it into a function with @steplog.step"
    if count["lost"] or count["stuck"]:
        return "the program does not come to the same end when it is resumed; see the cases above"
    return ""
