"""The verdict on a replay: its run, the runs that were opened inside, child processes, and what was refused."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel.replaying import unplayed
from steplog._kernel.verdict import DIFFERENT, ENDED, Divergence, Halted, Judgement, judge
from steplog._runtime import messages, reports
from steplog._runtime.refusals import past_the_interpreter
from steplog.errors import SteplogError
from steplog.stores.base import created_of, folded

if TYPE_CHECKING:
    from steplog._kernel.fold import RunState
    from steplog._runtime.refusals import Refusals
    from steplog._runtime.replay_store import ReplayStore
    from steplog._runtime.run import Run
    from steplog.errors import Interrupt
    from steplog.stores.base import Store

# A difference that may come of what was refused outside the run, which is then the first one.
_FOLLOWS: Final = frozenset({"end", "unplayed", "not opened"})


def judge_run(recorded: RunState, run: Run, store: ReplayStore, outside: Interrupt | None = None) -> Judgement:
    """What came of one run.

    Args:
        recorded: its folded log.
        run: the run as it was replayed.
        store: where it was opened.
        outside: what was asked for outside every run and belongs to this one.
    """
    interrupt = run.recorder.halted or outside
    halted = None if interrupt is None else Halted(interrupt.reason, interrupt.step, str(interrupt))
    end = store.last[run.run_id].end
    left = unplayed(recorded, run.recorder.dispatch.seen)
    branched = run.recorder.dispatch.branched
    return judge(recorded, halted, left, None if end is None else end[1], branched=branched)


def judge_all(
    main: Run, recorded: RunState, runs: Collection[Run], store: ReplayStore, outside: Interrupt | None
) -> Judgement:
    """What came of a run and of those that the program has opened in this process."""
    others = {run.run_id: run for run in runs if run.run_id != main.run_id}
    for run in others.values():
        if not run.entered:
            return different("not opened", f"run {run.run_id}, which the program asks for, was not opened")
        judged = judge_run(folded(store.last[run.run_id].view), run, store)
        if judged.divergence is not None:
            told = judged.divergence._replace(message=f"run {run.run_id}: {judged.divergence.message}")
            return judged._replace(divergence=told)
    judged = judge_run(recorded, main, store, outside)
    if judged.divergence is None:
        entered = [main, *others.values()]
        missed = next(itertools.chain.from_iterable(_left_out(run, others, store) for run in entered), None)
        if missed is not None:
            return different("unplayed", f"the program ended without opening run {missed}, which was recorded inside")
    return judged


def tell_left(told: reports.Reports, run: Run, store: ReplayStore) -> None:
    """Tell the process that has begun the replay what came of a run in this one, its child."""
    judged = judge_run(folded(store.last[run.run_id].view), run, store)
    divergence = None if judged.divergence is None else [*judged.divergence]
    told.add(reports.LEFT, run=run.run_id, divergence=divergence)


def with_children(judged: Judgement, told: Collection[dict[str, Any]], store: Store) -> Judgement:
    """Count in what became of the runs of child processes."""
    if judged.divergence is not None:
        return judged
    open_ = {}
    for line in told:
        if line["what"] == reports.OPENED:
            open_[line["pid"], line["run"]] = line
        elif line["what"] == reports.LEFT:
            open_.pop((line["pid"], line["run"]), None)
            if line["divergence"] is not None:
                kind, message, step = line["divergence"]
                return different(kind, f"run {line['run']}, in a child process: {message}", step)
    for _, run_id in open_:
        if folded(store.read(run_id)).status in ENDED:
            return different("end", f"run {run_id}, in a child process, ended when it was recorded, and did not now")
    return judged


def with_refusals(judged: Judgement, refusals: Refusals, named: messages.Named) -> Judgement:
    """Count in what was refused outside the runs.

    Args:
        judged: what came of the runs.
        refusals: what was refused.
        named: the run.
    """
    free = judged.divergence is None or judged.divergence.kind in _FOLLOWS
    first = refusals.first()
    if free and first is not None:
        return different("unrecorded", str(messages.refused_outside(named, first)))
    unseen = refusals.unseen()
    if free and unseen:
        return different(
            "unrecorded",
            f"code in C has connected to {', '.join(unseen)}, past the guard of a replay inside a process; that was "
            f"not refused.\nWhere it can be refused as well: steplog replay",
        )
    loaded = [] if refusals.kernel is not None else past_the_interpreter()
    if loaded:
        note = f"connections of {', '.join(loaded)} are opened in C, and nothing has guarded them here"
        return judged._replace(note=". ".join(filter(None, (judged.note, note))))
    return judged


def never_opened(run_id: str) -> Judgement:
    """A judgement on a program that did nothing of the run."""
    return different("not opened", f"the program never opened run {run_id}, and did nothing that would be part of it")


def different(kind: str, message: str, step: str | None = None) -> Judgement:
    """A judgement on a difference."""
    return Judgement(DIFFERENT, Divergence(kind, message, step))


def _left_out(outer: Run, opened: Collection[str], store: Store) -> Iterator[str]:
    """Runs that were recorded at the top of another one, and that were not opened."""
    recorded = store.runs()
    known = frozenset(recorded)
    for number in itertools.count(1):
        name = outer.recorder.dispatch.nth_inner_run("", number)
        if name not in known:
            break
        if name not in opened:
            yield name
    # Those with a name of their own say so in their first line.
    for name in recorded:
        if name not in opened and name != outer.run_id and _inside(store, name) == outer.run_id:
            yield name


def _inside(store: Store, run_id: str) -> str | None:
    try:
        found: str | None = created_of(store, run_id).get("inside")
    except SteplogError:
        return None  # a log that cannot be read says of no run that it lies inside it
    return found
