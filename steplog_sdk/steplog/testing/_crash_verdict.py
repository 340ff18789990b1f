"""What became of the effects of a program that was killed and resumed: what was lost, doubled, left undecided.

Effects are counted where they happen: each execution of a step's function is noted before and after it. So a repeated
execution is seen whatever the log says. What a repetition did to the outside world, only a ledger can tell: a tool that
is declared `safe` or `keyed` may be executed again, and that is no fault until the ledger shows it twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from steplog._kernel.state import FAILED, FINISHED, RunState
from steplog.testing._crash_points import Key, Point, Records

OUTSIDE: Final = "(outside every step)"
# Ends that a run may come to; any other one is a run that did not get there.
_ENDS: Final = frozenset({"completed", "escalated", "failed", "cancelled"})


class Finding(NamedTuple):
    """Something that is wrong, or waits for a person, after a kill.

    Attributes:
        what: `lost`, `doubled`, `undecided` or `stuck` (the program does not get to its end any more).
        tool: the tool concerned, by name.
        detail: what was seen.
    """

    what: str
    tool: str
    detail: str


class Case(NamedTuple):
    """One kill, and what came after it.

    Attributes:
        point: where the process was killed.
        findings: what is wrong.
        repeated: how often an effect was executed again, by tool.
        processes: how many it took until the program had come to its end.
        reached: whether it got to that point; what is not reached proves nothing.
    """

    point: Point
    findings: tuple[Finding, ...]
    repeated: dict[str, int]
    processes: int
    reached: bool = True

    @property
    def verdict(self) -> str:
        """`ok`, `not reached`, or the worst finding."""
        if not self.reached:
            return "not reached"
        order = ("doubled", "lost", "stuck", "undecided")
        return next((what for what in order if any(one.what == what for one in self.findings)), "ok")


class World(NamedTuple):
    """What the ledger has gained in the baseline and in a case."""

    baseline: Counter[str]
    case: Counter[str]


def judge(
    point: Point,
    baseline: Records,
    case: Records,
    *,
    undecided: Iterable[Key] = (),
    stuck: str = "",
    world: World | None = None,
    processes: int = 2,
) -> Case:
    """Compare what a killed and resumed program has done with what the baseline did.

    Args:
        point: where it was killed.
        baseline: what the program did when nobody killed it.
        case: what it did this time.
        undecided: steps for which the run stopped, because nobody could know whether they had happened.
        stuck: why the program did not come to its end, or "".
        world: what the ledger says, where there is one.
        processes: how many it took.
    """
    steps, doubtful = case.steps, {case.steps[step].target for step in undecided if step in case.steps}
    findings = [Finding("undecided", tool, "the run stopped until a person says what happened") for tool in doubtful]
    repeated = _repeated(case)
    findings += [
        Finding("doubled", steps[step].target, f"executed {count} times, and its mode is {steps[step].mode}")
        for step, count in case.successes().items()
        if count > 1 and step in steps and not _may_repeat(steps[step].mode) and steps[step].target not in doubtful
    ]
    if stuck:
        findings.append(Finding("stuck", _target_of(point), stuck))
    else:
        findings += _missing(baseline, case, doubtful) + _more(baseline, case)
    if world is not None:
        findings += _in_the_world(point, world, case, repeated, doubtful)
    return Case(point, tuple(dict.fromkeys(findings)), repeated, processes)


def _may_repeat(mode: str) -> bool:
    return mode in ("safe", "keyed")


def _target_of(point: Point) -> str:
    return point.target if point.kind == "tool_call" else OUTSIDE


def _repeated(case: Records) -> dict[str, int]:
    """By tool, how many executions there were beyond the attempts that the program itself makes."""
    found: Counter[str] = Counter()
    for step, count in case.counts("begun").items():
        state = case.steps.get(step)
        if state is not None and count > 1:
            found[state.target] += count - 1
    return dict(found)


def _done(records: Records) -> Counter[str]:
    return Counter(step.target for step in records.steps.values() if step.status in FINISHED)


def _missing(baseline: Records, case: Records, doubtful: set[str]) -> list[Finding]:
    """Steps that the baseline has finished and the resumed program has not, or without an effect behind them."""
    want, have, findings = _done(baseline), _done(case), []
    kinds = {step.target: step.kind for step in baseline.steps.values()}
    for target, count in want.items():
        if kinds[target] == "tool_call" and have[target] < count:
            what = f"{have[target]} of {count} steps were finished by a program that says it has ended"
            findings.append(Finding("lost", target, what))
    ended, unseen = case.counts("ended"), baseline.counts("ended")
    for key, step in case.steps.items():
        # What somebody has said of a step (a person, its `verify` function) stands for its effect.
        watched = step.kind == "tool_call" and unseen[key] and "how" not in (step.finished or {})
        if watched and step.status in FINISHED and not ended[key] and step.target not in doubtful:
            findings.append(Finding("lost", step.target, "recorded as finished, and its effect never ran to its end"))
    for run_id, run in baseline.runs.items():
        found = case.runs.get(run_id)
        if found is not None and found.status in _ENDS and found.status != run.status:
            findings.append(Finding("lost", OUTSIDE, f"run {run_id} ended as {found.status}, not as {run.status}"))
    return findings


def _more(baseline: Records, case: Records) -> list[Finding]:
    """Steps that the resumed program has and the baseline has not: done anew because they asked for something else."""
    want, have, findings = _done(baseline), _done(case), []
    for target, count in have.items():
        kind = next(step.kind for step in case.steps.values() if step.target == target)
        if kind == "tool_call" and count > want[target]:
            what = f"{count} steps instead of {want[target]}: the resumed program asked for something else"
            findings.append(Finding("doubled", target, what))
    return findings


def _in_the_world(
    point: Point, world: World, case: Records, repeated: dict[str, int], doubtful: set[str]
) -> list[Finding]:
    """What the ledger has too much or too little; of that, what a step in doubt may account for is not held against it.

    It belongs to the tool that was executed again, and where none was, to code outside every step.
    """
    tools = {step.target for step in case.steps.values() if step.kind == "tool_call"}
    blamed = next((tool for tool in repeated if tool in tools), None) or _blamed(point, doubtful, world)
    findings = []
    for what, entries in (("doubled", world.case - world.baseline), ("lost", world.baseline - world.case)):
        if entries and not doubtful:
            shown = ", ".join(f"{entry} (+{count})" for entry, count in entries.most_common(3))
            findings.append(
                Finding(what, blamed, f"ledger: {shown.replace('(+', '(' + ('+' if what == 'doubled' else '-'))}")
            )
    return findings


def _blamed(point: Point, doubtful: set[str], world: World) -> str:
    if world.baseline - world.case and point.kind == "tool_call":
        return point.target
    return next(iter(doubtful), OUTSIDE)


def settlement(run: str, step: Any, baseline: Records, case: Records) -> dict[str, Any]:
    """What an operator would say of a step in doubt who has seen whether it was executed."""
    same = baseline.steps.get((run, step.id))
    if not case.counts("begun")[run, step.id] or same is None:
        return {"how": "retry"}
    finished = same.finished or {}
    if same.status == FAILED:
        return {"how": "failed", "message": str((finished.get("error") or {}).get("message", "it failed"))}
    return {"how": "done", "result": finished.get("result")}


def waiting(runs: dict[str, RunState]) -> list[tuple[str, str]]:
    """Runs that stopped for a step in doubt, each with that step."""
    return [
        (run_id, str((run.ended or {}).get("step")))
        for run_id, run in runs.items()
        if run.status == "suspended"
        and run.reason in ("indeterminate", "unreplayable")
        and (run.ended or {}).get("step")
    ]


def unfinished(baseline: Records, case: Records) -> str:
    """Why the program has not come to its end, or ""."""
    for run_id, run in baseline.runs.items():
        found = case.runs.get(run_id)
        if found is None and len(case.runs) < len(baseline.runs):
            return f"run {run_id} of the baseline was not opened"
        if found is not None and found.status not in _ENDS:
            message = str((found.ended or {}).get("message", "")).partition("\n")[0]
            return f"run {run_id} is {found.status}" + (f" ({found.reason}): {message}" if found.reason else "")
        if found is not None and found.status == "failed" != run.status:
            error = (found.ended or {}).get("error") or {}
            return f"run {run_id} failed: {error.get('message', '')}".partition("\n")[0]
    return ""
