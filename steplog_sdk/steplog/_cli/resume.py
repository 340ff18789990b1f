"""`steplog resume`: start a run's own program again, under the same run id."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from steplog._cli import program as programs
from steplog._cli import workflow
from steplog._cli.advice import suspended_lines
from steplog._cli.lookup import Found, find_run, open_run
from steplog._cli.options import budget, chosen_home, common, on_drift, policy, recorded_beside
from steplog._cli.output import emit_json, say, with_home
from steplog._cli.program import Program
from steplog._cli.run import FAILED, STOPPED, outcome, record
from steplog._kernel.codec import decode
from steplog._kernel.fold import RunState
from steplog._kernel.fork import lineage
from steplog._runtime.budgeting import VARIABLE as BUDGET
from steplog._runtime.forked import STANDS_FOR
from steplog._runtime.origin import WRAPPED
from steplog._runtime.steering import VARIABLE
from steplog.stores.explain import TYPED_HOME

EXAMPLES = """\b
Examples:
  steplog resume last
  steplog resume refund-1001
  steplog resume refund-1001 --budget max_tokens=80000
  steplog resume --due
"""


@click.command(short_help="Start a run's program again, where it stopped.", epilog=EXAMPLES)
@click.argument("run", metavar="RUN", required=False)
@click.option("--due", is_flag=True, help="Every run whose signal, time or decision has come, or that was cancelled.")
@click.option("--all", "everything", is_flag=True, help="Also every run that was interrupted.")
@on_drift
@recorded_beside
@policy
@budget
@common
def resume(
    run: str | None,
    due: bool,  # noqa: FBT001 - click's own form
    everything: bool,  # noqa: FBT001 - click's own form
    on_drift: str | None,
    budget: str,
    home: Path,
    also: tuple[str, ...],
    http: tuple[str, ...],
    policy: Path | None,
    as_json: bool,  # noqa: FBT001 - click's own form
) -> int:
    """Start RUN's program again: finished steps are returned from the log, the rest is done.

    With --due or --all, the programs of all runs that can go on by themselves, one after the other; neither starts what
    has failed or needs a person. It is made for cron: two at once do not start the same run. Exit code: 0, also where
    there was nothing to do, 1 where a program failed or could not be started, 75 where one needs a person now.

    The program runs with the arguments and in the directory that were recorded, and what was recorded beside model
    calls (--also, --http) is recorded again, with what is named here. A limit that is set with --budget counts from now
    on in place of the program's own, and is recorded. Exit codes are those of `steplog run`.
    """
    if due or everything:
        if run is not None or on_drift or also or http or policy or budget:
            raise click.UsageError("--due and --all take no RUN, and no option that is about one run.")
        from steplog._cli.due import take_up

        return take_up(home, chosen_home(home), interrupted=everything, as_json=as_json)
    if run is None:
        raise click.UsageError("Name a RUN, or say --due or --all.")
    if budget:
        os.environ[BUDGET] = budget
    found = find_run(run, home)
    named_home = chosen_home(home, found.home)
    if policy is not None:
        # The program may change its directory, and may open runs of its own.
        os.environ[VARIABLE] = str(policy.absolute())
    return start_again(found, named_home, on_drift=on_drift, also=also, http=http, as_json=as_json)


def start_again(
    found: Found,
    named_home: Path | None,
    *,
    on_drift: str | None,
    also: tuple[str, ...],
    http: tuple[str, ...],
    as_json: bool,
) -> int:
    """Start the program of a run, for this run. Returns the exit code; raises SteplogError where it has none.

    Args:
        found: the run.
        named_home: its home, where commands about it must name it.
        on_drift: what to do when the program asks for something else than the log holds.
        also: interceptors to add to those that it was recorded with.
        http: hosts to add.
        as_json: print what came of it as JSON.
    """
    state = open_run(found).state
    call = state.created.get("call")
    program = None
    if not workflow.can_be_called(call):
        program = programs.recorded(state.created.get("entry"), found.run_id, named_home)
    _say_what_changed(state, program)
    began = state.created.get("policy") or {}
    if began.get("file") and not os.environ.get(VARIABLE):
        # Under the rules of its beginning; without any the run would not be opened.
        os.environ[VARIABLE] = began["file"]
    beside = {"also": [*state.created.get("also", ()), *also], "http": [*state.created.get("http", ()), *http]}
    if program is not None and (state.created.get("trigger") or {}).get("kind") == WRAPPED:
        os.chdir(program.cwd)
        return record(
            program,
            home=found.home,
            named_home=named_home,
            run_id=found.run_id,
            on_drift=on_drift,
            also=beside["also"],
            http=beside["http"],
            as_json=as_json,
        )
    return _start(program, found, named_home, beside, on_drift=on_drift, as_json=as_json)


def _say_what_changed(state: RunState, program: Program | None) -> None:
    if state.completed_once:
        again = [step.target for step in state.steps.values() if step.allowed]
        but = f", but somebody has let run again: {', '.join(again)}" if again else ""
        say(f"run {state.run_id} has ended ({state.status}); its steps are returned from the log{but}")
    before, now = state.created.get("version"), None if program is None else programs.revision(program)
    if before and now and before != now:
        say(f"the code has changed since the run began: {before} -> {now}")


def _start(
    program: Program | None,
    found: Found,
    named_home: Path | None,
    beside: dict[str, list[str]],
    *,
    on_drift: str | None,
    as_json: bool,
) -> int:
    """Run a program that opens its run by itself, as python would; it learns from the environment which run to open.

    Without a program, the function of a workflow is called in a process of its own.
    """
    created = open_run(found).state.created
    nth = (created.get("entry") or {}).get("nth", 0)
    names = {"STEPLOG_RUN_ID": found.run_id, "STEPLOG_RUN_NTH": str(nth), "STEPLOG_RESUME": found.run_id}
    environment = {**os.environ, **names, "STEPLOG_HOME": str(found.home.absolute())}
    # A program that names its run by itself names the one that this one was forked from.
    environment[STANDS_FOR] = ",".join(lineage(created, found.run_id)[1:])
    environment[TYPED_HOME] = "" if named_home is None else os.path.abspath(found.home)
    if on_drift:
        environment["STEPLOG_ON_DRIFT"] = on_drift
    for name, listed in beside.items():
        if listed:
            variable = f"STEPLOG_{name.upper()}"
            environment[variable] = ",".join([environment.get(variable, ""), *listed])
    epoch = open_run(found).state.epoch
    words, cwd = _words(program, created)
    if program is None:
        environment["PYTHONPATH"] = workflow.path(created["call"])
    done = subprocess.run(words, cwd=cwd, env=environment, check=False)  # noqa: S603
    if open_run(found).state.epoch == epoch:
        say(f"the program ended (exit code {done.returncode}) without opening run {found.run_id}; nothing was resumed")
        return done.returncode if done.returncode > 0 else FAILED
    facts = outcome(found, done.returncode, "")
    code = STOPPED if facts["status"] == "suspended" else done.returncode
    line = next(iter(suspended_lines(open_run(found).state)), "")
    if as_json:
        emit_json({**facts, "exit_code": code, "next": line or None}, compact=True)
    if line:
        print(with_home(line, named_home), file=sys.stderr, flush=True)
    # A child that a signal ended has a negative code, which no exit status can carry.
    return code if code >= 0 else FAILED


def _words(program: Program | None, created: dict[str, Any]) -> tuple[list[str], str]:
    """The words that start a program, or the call of a workflow, and the directory in which that runs."""
    if program is not None:
        words = ["-m", program.name] if program.is_module else [program.name]
        return [sys.executable, *words, *program.argv], program.cwd
    cwd = str(decode(created.get("entry") or {}).get("cwd") or "")
    return workflow.command(created["call"]), cwd if os.path.isdir(cwd) else os.getcwd()
