"""Kill an agent everywhere, resume it, and see what became of its effects.

    report = crash_matrix("agent.py", ["ord_1001"])
    assert report.ok, report

The program is started as it always is, by its own interpreter and in its own environment, once without a fault and then
once for each moment at which it is killed (SIGKILL, with everything that it has started). Each time it gets a home of
its own, so nothing is copied and nothing is left. It needs no change.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from steplog._kernel.codec import decode
from steplog._runtime.pack import value_tree
from steplog._runtime.resolve import resolve
from steplog.errors import BodyMissing, DecodeError, InvalidArgument, SteplogError
from steplog.testing._crash_body import entered
from steplog.testing._crash_hooks import UNWRAPPED
from steplog.testing._crash_points import Key, Point, Records, chosen, points_of, read, store_of
from steplog.testing._crash_process import Ended, Program, Rig, program_of, reference
from steplog.testing._crash_report import CrashReport, ToolReport, tools_of
from steplog.testing._crash_verdict import Case, Finding, World, judge, settlement, unfinished, waiting

__all__ = ["Case", "CrashReport", "Finding", "Point", "ToolReport", "crash_matrix"]

Ledger = Callable[[], Iterable[Any]]

# They name a run of the calling process, which the program must not take for its own.
_NOT_PASSED_ON: Final = ("STEPLOG_RUN_OPEN_IN", "STEPLOG_RUN_ID", "STEPLOG_RUN_NTH", "STEPLOG_RESUME")


def crash_matrix(
    program: str | os.PathLike[str] | Callable[[], Any],
    args: Sequence[str] = (),
    *,
    module: bool = False,
    wrap: bool | None = None,
    ledger: Ledger | None = None,
    reset: Callable[[], Any] | None = None,
    jobs: int = 1,
    only: Iterable[str] = (),
    limit: int | None = None,
    timeout: float = 60.0,
    time_limit: float | None = None,
    live: bool = False,
    fresh: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    keep: str | os.PathLike[str] | None = None,
    on_case: Callable[[Case], None] | None = None,
) -> CrashReport:
    """Kill a program at every boundary of its steps and inside every effect, resume it each time, and report.

    Effects are really executed, again in every case: aim the program at a sandbox. Model calls are made once, in the
    baseline, and answered from there afterwards (those through httpx or httpx2, as the SDKs make them).

    Args:
        program: path of a script, name of a module (with `module`), or a function without arguments at the top of a
            file. It must give its run an id, or open none at all.
        args: its arguments.
        module: `program` is a module, as in `python -m`.
        wrap: start it by `steplog run`. None: where it opens no run by itself.
        ledger: reads the outside world: returns one entry, equal in every process, for each effect that has happened.
            Without it, nobody can see what the repetition of a `safe` or `keyed` tool has done.
        reset: puts the outside world back; called before the baseline and before each case.
        jobs: how many cases run at the same time; more than 1 only without `ledger` and `reset`.
        only: kill only here: numbers or names of points, as a report gives them.
        limit: at most so many points; those where an effect is most at risk first.
        timeout: seconds for each process.
        time_limit: seconds after which no new case begins.
        live: make model calls in every case.
        fresh: start an interpreter for every process. By default each is a fork of one that has done nothing but import
            those libraries of the SDKs that the baseline has imported, which spares most of the time.
        env: environment of the program; that of this process by default.
        cwd: its working directory.
        keep: folder for the logs and the output of every case; by default they are deleted.
        on_case: called with each case when it has ended.

    Raises:
        InvalidArgument: an argument is not accepted, or the program cannot be started.
        SteplogError: the baseline did not come to an end that could be compared.
    """
    if jobs < 1 or (jobs > 1 and (ledger is not None or reset is not None)):
        message = f"jobs={jobs}: give 1 or more; with a ledger or a reset 1, because there is one world for all cases."
        raise InvalidArgument(message)
    began = time.monotonic()
    base = Path(keep) if keep is not None else Path(tempfile.mkdtemp(prefix="steplog-crash-"))
    names = {name: value for name, value in (os.environ if env is None else env).items() if name not in _NOT_PASSED_ON}
    rig = Rig(base.absolute(), None if cwd is None else os.fspath(cwd), names, timeout)
    try:
        matrix = _Matrix(rig, program_of(program, args, module=module), ledger, reset, live=live, fresh=fresh)
        matrix.make_baseline(wrap=wrap)
        points = points_of(matrix.folder, matrix.baseline)
        picked = chosen(points, only, limit)
        until = None if time_limit is None else began + time_limit
        cases = _all(matrix, picked, jobs, until, on_case)
    finally:
        rig.close()
        if keep is None:
            shutil.rmtree(base, ignore_errors=True)
    return CrashReport(
        title=matrix.program.title,
        points=tuple(points),
        cases=tuple(cases),
        tools=tools_of(matrix.baseline, cases, ledger=ledger is not None),
        seconds=time.monotonic() - began,
        skipped=len(picked) - len(cases),
        answered=not live,
        ledger=ledger is not None,
    )


def _all(
    matrix: _Matrix, points: list[Point], jobs: int, until: float | None, on_case: Callable[[Case], None] | None
) -> list[Case]:
    def one(point: Point) -> Case | None:
        if until is not None and time.monotonic() > until:
            return None
        case = matrix.kill(point)
        if on_case is not None:
            on_case(case)
        return case

    with ThreadPoolExecutor(jobs) as pool:
        return [case for case in pool.map(one, points) if case is not None]


class _Matrix:
    """One program, its baseline, and the cases that are compared with it."""

    def __init__(
        self,
        rig: Rig,
        program: Program,
        ledger: Ledger | None,
        reset: Callable[[], Any] | None,
        *,
        live: bool,
        fresh: bool,
    ) -> None:
        self.rig = rig
        self.program = program
        self.baseline = Records({}, [])
        self.folder = rig.base
        self._ledger = ledger
        self._reset = reset
        self._live = live
        self._fresh = fresh
        self._gained: Counter[str] = Counter()

    # the baseline ----------------------------------------------------------------------------------------------------

    def make_baseline(self, *, wrap: bool | None) -> None:
        """Run the program once without a fault."""
        self.program = self.program._replace(wrapped=bool(wrap))
        ended = self._first("baseline", probe=wrap is None)
        if wrap is None and (ended.code == UNWRAPPED or (not ended.code and not self.baseline.runs)):
            self.program = self.program._replace(wrapped=True)
            ended = self._first("baseline-wrapped", probe=False)
        self._check(ended)
        names = [note["names"] for note in self.baseline.notes if note["what"] == "imported"]
        self.rig.modules.write_text(json.dumps(names[0] if names else []))

    def _first(self, name: str, *, probe: bool) -> Ended:
        self.folder = self.rig.folder(name)
        record = str(self.folder / "answers")
        ledger = None if self._ledger is None else reference(self._ledger, "ledger")
        before = self._world()
        ended = self.rig.dispatch(
            self.program, self.folder, baseline=True, probe=probe, record=record, ledger=ledger, key=":baseline"
        )
        if self._ledger is not None:
            self._gained = self._look() - before
        self.baseline = read(self.folder)
        return ended

    def _check(self, ended: Ended) -> None:
        runs, what = self.baseline.runs, f"the baseline of {self.program.title}"
        said = f"\nIt wrote:\n{ended.said.strip()}" if ended.said.strip() else ""
        why = next((note["why"] for note in self.baseline.notes if note["what"] == "no ledger"), None)
        if why is not None:
            message = f"the ledger cannot be read in the process of the program, where it tells which tools act: {why}"
            raise SteplogError(message)
        if ended.late:
            raise SteplogError(f"{what} took longer than the time limit of one process; raise `timeout`.{said}")
        if not any(note["what"] == "armed" for note in self.baseline.notes):
            message = f"{what} did not load steplog's `sitecustomize`: python -I, -E and -S keep it out.{said}"
            raise SteplogError(message)
        if not self.baseline.steps:
            raise SteplogError(f"{what} recorded no step (exit status {ended.code}): nothing can be killed.{said}")
        for run_id, run in runs.items():
            if run.status not in ("completed", "escalated", "failed"):
                message = (
                    f"{what} left run {run_id} {run.status} ({run.reason or 'no end was recorded'}), so there is no "
                    f"end to compare with.\nLet the program end by itself first, without a kill.{said}"
                )
                raise SteplogError(message, run_id=run_id)

    # a case ----------------------------------------------------------------------------------------------------------

    def kill(self, point: Point) -> Case:
        """Kill the program here, resume it until it has come to its end, and judge."""
        before = self._world()
        folder = self.rig.folder(f"case-{point.number}")
        plan = self._plan(point)
        self._start("killed", folder, point=point._asdict(), **plan)
        if not any(note["what"] == "killed" for note in read(folder).notes):
            return Case(point, (), {}, 1, reached=False)
        undecided: list[Key] = []
        stuck, processes = "", 1
        for _ in range(len(self.baseline.steps) + 3):
            ended = self._start("resumed", folder, **plan)
            processes += 1
            records = read(folder)
            doubts = waiting(records.runs)
            if not doubts:
                stuck = "it took too long and was ended" if ended.late else unfinished(self.baseline, records)
                break
            undecided += doubts
            for run_id, step in doubts:
                self._settle(folder, records, run_id, step)
        world = None if self._ledger is None else World(self._gained, self._look() - before)
        records = read(folder)
        return judge(point, self.baseline, records, undecided=undecided, stuck=stuck, world=world, processes=processes)

    def _start(self, role: str, folder: Path, **plan: Any) -> Ended:
        if self._fresh:
            return self.rig.dispatch(self.program, folder, **plan)
        return self.rig.fork(self.program, role, folder, **plan)

    def _plan(self, point: Point) -> dict[str, Any]:
        answers = None if self._live else str(self.folder / "answers")
        known = list(self.baseline.steps)
        return {"answers": answers, "known": known, "values": self._values(), "key": f":{point.number}"}

    def _values(self) -> dict[str, Any]:
        """Local values of the baseline, so that what is asked of a model is the same again."""
        found = {}
        for (run, _), step in self.baseline.steps.items():
            outcome = step.finished or {}
            if step.kind == "local" and step.status == "done" and "result" in outcome:
                found[f"{run} {step.id}"] = outcome["result"]
        return {step: value for step, value in found.items() if not _elsewhere(value)}

    def _settle(self, folder: Path, records: Records, run_id: str, step: str) -> None:
        word = settlement(run_id, records.runs[run_id].steps[step], self.baseline, records)
        if word["how"] == "done":
            word = self._told(word["result"])
        resolve(store_of(folder), run_id, step, by="crash-test", **word)

    def _told(self, recorded: Any) -> dict[str, Any]:
        """What an operator would give as the result, who sees it in the baseline; only a repeat where nobody can."""
        try:
            return {"how": "done", "result": decode(value_tree(recorded, store_of(self.folder).bodies))}
        except (DecodeError, BodyMissing):
            return {"how": "retry"}

    def _world(self) -> Counter[str]:
        if self._reset is not None:
            self._reset()
        return Counter() if self._ledger is None else self._look()

    def _look(self) -> Counter[str]:
        assert self._ledger is not None
        return Counter(entered(entry) for entry in self._ledger())


def _elsewhere(value: Any) -> bool:
    """Whether a value is kept in a body store, which the case does not share."""
    return isinstance(value, dict) and value.get("$steplog") == "body"
