"""`steplog run`: record an unedited script."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steplog._cli import program as programs
from steplog._cli.advice import go_on
from steplog._cli.facts import run_facts
from steplog._cli.lookup import Found, open_run, store_at
from steplog._cli.options import budget, chosen_home, common, on_drift, policy, recorded_beside
from steplog._cli.output import emit_json, printable, say, user, with_home
from steplog._cli.program import Program
from steplog._kernel.words import counted
from steplog._runtime.budgeting import VARIABLE as BUDGET
from steplog._runtime.origin import WRAPPED
from steplog._runtime.steering import VARIABLE
from steplog.errors import RunStopped, SteplogError
from steplog.stores.explain import TYPED_HOME

if TYPE_CHECKING:
    from steplog._runtime.run import Run

FAILED = 1
STOPPED = 75  # EX_TEMPFAIL: try again, once somebody has decided
INTERRUPTED = 130


EXAMPLES = """\b
Examples:
  steplog run agent.py order-1001
  steplog run --id refund-1001 --goal "refund the damaged item" agent.py order-1001
  steplog run -m shop.agent order-1001
"""


@click.command(
    short_help="Run a script and record it.", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False}
)
@click.option("--id", "run_id", metavar="ID", help="The run's id; an id that exists is resumed.  [default: a new ULID]")
@click.option("--goal", metavar="TEXT", help="What the run is for.")
@click.option(
    "--durability",
    metavar="LEVEL",
    help="`memory`, `process`, `interval`, `durable` or `durable-full`.  [default: durable]",
)
@recorded_beside
@policy
@on_drift
@budget
@click.option(
    "--on-wait",
    type=click.Choice(["block", "suspend"]),
    help="While the run waits for a signal or a time: keep the process, or stop the run.  [default: block]",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@common
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(script: str, args: tuple[str, ...], is_module: bool, **options: Any) -> int:  # noqa: FBT001
    """Run SCRIPT and record its model and tool calls, without changing it.

    Exit code: 0 done, 1 failed or cancelled, 75 when the run waits or needs a decision, 130 after Ctrl-C; a script's
    own sys.exit(n) is kept. When a run does not end well, the last line on stderr is the command that goes on.
    """
    limits = options.pop("budget")
    if limits:
        os.environ[BUDGET] = limits
    program = programs.typed(script, args, is_module=is_module)
    return record(program, named_home=chosen_home(options["home"]), **options)


def record(
    program: Program,
    *,
    home: Path,
    named_home: Path | None,
    run_id: str | None,
    goal: str | None = None,
    durability: str | None = None,
    on_drift: str | None = None,
    on_wait: str | None = None,
    also: Sequence[str] = (),
    http: Sequence[str] = (),
    policy: Path | None = None,
    as_json: bool = False,
) -> int:
    """Run a program inside a run; returns the exit code."""
    import steplog

    # Absolute, and in the environment: the program may change its directory, and may open runs of its own.
    home = home.absolute()
    os.environ["STEPLOG_HOME"] = str(home)
    os.environ[TYPED_HOME] = "" if named_home is None else os.path.normpath(home)
    if policy is not None:
        os.environ[VARIABLE] = str(policy.absolute())
    steplog.install(durability=durability, also=also, http=http)
    with programs.as_python_would(program):
        opened = steplog.run(
            run_id, goal=goal, on_drift=on_drift, on_wait=on_wait, trigger={"kind": WRAPPED, "by": user()}
        )
        if run_id is None:
            say(f"run {opened.run_id}")
        code, stopped = _run(program, opened)
    _summarise(opened)
    found = Found(store_at(home), home, opened.run_id)
    line = "" if stopped is None else go_on(open_run(found).state, stopped)
    if as_json:
        emit_json(outcome(found, code, line), compact=True)
    if line:
        sys.stdout.flush()
        print(with_home(line, named_home), file=sys.stderr, flush=True)
    return code


def _run(program: Program, opened: Run) -> tuple[int, Sequence[str] | None]:
    """The exit code; and the commands that what stopped the run names, or None where it ended well."""
    entered = False
    try:
        with opened:
            entered = True
            return _finish(program), None
    except RunStopped as stopped:
        print(f"steplog: {printable(str(stopped))}", file=sys.stderr)
        return STOPPED if stopped.reason != "cancelled" else FAILED, stopped.commands
    except SystemExit as leaving:
        return _exit_code(leaving), ()
    except (Exception, KeyboardInterrupt) as error:
        shown = programs.without_our_frames(error)
        if not entered or (isinstance(error, SteplogError) and shown.__traceback__ is None):
            raise  # the log's own failure, not the program's: it is reported like that of any verb
        sys.excepthook(type(shown), shown, shown.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED, ()


def _summarise(opened: Run) -> None:
    from steplog._runtime.door import PROCESS

    replayed, executed = opened.replayed, opened.executed
    say(f"run {opened.run_id}: {counted(replayed, 'step')} returned from the log, {counted(executed, 'step')} executed")
    others = [run_id for run_id in PROCESS.opened if run_id != opened.run_id]
    if others:
        say(
            f"the script opened runs of its own: {', '.join(others)}; its steps are there. Start it without steplog run"
        )


def _finish(program: Program) -> int:
    try:
        programs.execute(program)
    except SystemExit as leaving:
        if _exit_code(leaving) != 0:
            raise
    return 0


def _exit_code(leaving: SystemExit) -> int:
    """What python makes of `sys.exit(x)`: a number is the code, nothing is 0, anything else is printed and 1."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return FAILED


def outcome(found: Found, code: int, line: str) -> dict[str, Any]:
    """What `--json` says at the end: the run's facts, the exit code and the command that goes on."""
    return {**run_facts(open_run(found).state, None), "exit_code": code, "next": line or None}
