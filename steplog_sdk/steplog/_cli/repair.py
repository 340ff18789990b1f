"""`steplog repair`: what is wrong with a damaged log, and how to go on without what cannot be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steplog._cli.lookup import Found, find_run
from steplog._cli.options import chosen_home, common
from steplog._cli.output import command, console, emit_json, printable, user
from steplog._kernel.events import STEP_FINISHED, Event
from steplog._kernel.salvage import intents
from steplog.stores.repair import Examined, Repaired

EXAMPLES = """\b
Examples:
  steplog repair refund-1001                  say what is wrong, and what would be given up
  steplog repair refund-1001 --to-seq 41      give up what follows event 41
"""

# How many steps are listed; a reader sees which kind they are, and the JSON has them all.
_SHOWN = 20


@click.command(short_help="Go on with a damaged log.", epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@click.option("--to-seq", type=click.IntRange(min=0), metavar="N", help="Keep the events up to this one.")
@click.option("--by", metavar="NAME", help="Who decided.  [default: the current user]")
@common
def repair(run: str, to_seq: int | None, by: str | None, home: Path, as_json: bool) -> int:  # noqa: FBT001
    """Say what is wrong with the log of RUN, or with --to-seq give up what stands behind event N.

    A new log takes the place of the old one, which is kept beside it. The intents of side effects that can still be
    read behind N are kept too, with their outcome open: a resumed run asks about them instead of doing them again.
    Restoring the file from a copy loses nothing and is better.

    Exit code: without --to-seq 0 when nothing is wrong, 1 otherwise; with it 0 when the log was replaced.
    """
    found = find_run(run, home)
    if to_seq is None:
        return _explain(found, found.store.examine(found.run_id), chosen_home(home, found.home), as_json=as_json)
    done = found.store.repair(found.run_id, to_seq, by=by or user())
    resume = command("resume", found.run_id, home=chosen_home(home, found.home))
    if as_json:
        emit_json({"run": found.run_id, **_repaired(done), "next": resume})
    else:
        _print_repaired(found.run_id, done, resume)
    return 0


def _explain(found: Found, log: Examined, home: Path | None, *, as_json: bool) -> int:
    fix = None
    if log.damage is not None and log.last_good_seq is not None:
        fix = command("repair", found.run_id, "--to-seq", str(log.last_good_seq), home=home)
    if as_json:
        emit_json({**_examined(log), "next": fix})
    elif log.damage is None:
        _print_whole(log)
    else:
        _print_damaged(log, fix)
    return 0 if log.damage is None else 1


def _examined(log: Examined) -> dict[str, Any]:
    return {
        "run": log.run_id,
        "ok": log.damage is None,
        "verdict": log.verdict,
        "path": log.path,
        "error": log.error,
        "last_good_seq": log.last_good_seq,
        "readable_behind": [{"seq": event.seq, "type": event.type, "step": event.step} for event in log.behind],
        "open": [_step(event) for event in intents(log.behind)],
    }


def _repaired(done: Repaired) -> dict[str, Any]:
    return {
        "path": done.path,
        "kept_as": done.kept_as,
        "to_seq": done.to_seq,
        "cut": done.cut,
        "open": [_step(event) for event in done.intents],
    }


def _step(event: Event) -> dict[str, Any]:
    return {"step": event.step, "target": event.data.get("target"), "mode": event.data.get("mode")}


def _print_whole(log: Examined) -> None:
    last = "no event yet" if log.last_good_seq is None else f"every event up to seq {log.last_good_seq} verifies"
    torn = "" if log.verdict == "clean" else "; what a crash left behind it is cut by whoever resumes the run"
    console().print(f"nothing to repair: {last}{torn}")


def _print_damaged(log: Examined, fix: str | None) -> None:
    target = console()
    target.print(f"damaged: {printable(log.error or '')}")
    finished = sum(event.type == STEP_FINISHED for event in log.behind)
    target.print(f"behind it {len(log.behind)} events can still be read one by one, {finished} of them outcomes")
    open_steps = intents(log.behind)
    if open_steps:
        target.print("side effects among them, whose intents would be kept and whose outcome would be open:")
        _print_steps(open_steps)
    if fix:
        target.print(f"give them up: {fix}")


def _print_repaired(run_id: str, done: Repaired, resume: str) -> None:
    target = console()
    target.print(f"run {run_id} holds its events up to seq {done.to_seq}; {done.cut:,} bytes were given up")
    target.print(f"the log as it was: {printable(done.kept_as)}")
    if done.intents:
        target.print("their outcome is open; a resumed run stops there until it is told (steplog resolve):")
        _print_steps(done.intents)
    target.print(f"go on: {resume}")


def _print_steps(events: list[Event]) -> None:
    for event in events[:_SHOWN]:
        facts = _step(event)
        console().print(printable(f"  {facts['step']}  {facts['target']} ({facts['mode']})"))
    if len(events) > _SHOWN:
        console().print(f"  and {len(events) - _SHOWN} more")
