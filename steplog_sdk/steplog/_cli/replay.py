"""`steplog replay`: a run's program once more, from what was recorded."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from steplog._cli import program as programs
from steplog._cli.lookup import Found, find_run, open_run
from steplog._cli.options import chosen_home, common, has_own_process, recorded_beside
from steplog._cli.output import command, emit_json, printable, say, with_home
from steplog._cli.program import Program
from steplog._kernel.replaying import unplayed
from steplog._kernel.words import counted
from steplog.errors import RunStopped, SteplogError
from steplog.stores.explain import TYPED_HOME

if TYPE_CHECKING:
    from steplog._kernel.fold import RunState
    from steplog._runtime.replay import Replay

IDENTICAL: Final = 0
DIFFERENT: Final = 1

# What `--examine` watches beside what was recorded.
WATCHED: Final = ("clock", "uuid", "random")

# Steps that were not asked for, and refused attempts, that the text lists; `--json` has all of them.
_SHOWN: Final = 5

EXAMPLES = """\b
Examples:
  steplog replay last
  steplog replay refund-1001 --json
  steplog replay refund-1001 fixed_agent.py     with another program
"""


@click.command(
    short_help="Run a run's program again with nothing happening.",
    epilog=EXAMPLES,
    context_settings={"allow_interspersed_args": True},
)
@click.argument("run", metavar="RUN")
@click.argument("words", metavar="[SCRIPT [ARGS]...]", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.option(
    "--pace",
    type=click.Choice(["virtual", "recorded"]),
    default="virtual",
    help="`recorded`: steps take the time that they took, and pauses are made.  [default: no waiting at all]",
)
@click.option(
    "--allow",
    metavar="WHAT",
    multiple=True,
    help="Let this be reached although it is not recorded: a host, HOST:PORT or a program. Repeatable.",
)
@click.option(
    "--ignore",
    metavar="HOST",
    multiple=True,
    help="As if this host, or HOST:PORT, were down, and no difference: telemetry, say. Repeatable.",
)
@click.option("--examine", is_flag=True, hidden=True, help="Go on after a difference; for `steplog doctor`.")
@recorded_beside
@common
def replay(
    run: str,
    words: tuple[str, ...],
    home: Path,
    also: tuple[str, ...],
    http: tuple[str, ...],
    allow: tuple[str, ...],
    ignore: tuple[str, ...],
    pace: str,
    *,
    is_module: bool,
    examine: bool,
    as_json: bool,
) -> int:
    """Start RUN's program again: every step gets what was recorded, and nothing happens again.

    No model, no tool, no connection: what is not recorded is refused, also in threads and child processes. Nothing is
    written. The program is the recorded one, with its arguments and in its directory, or SCRIPT.

    Exit code: 0 when the program did what was recorded, 1 when it did anything else.
    """
    found = find_run(run, home)
    state = open_run(found).state
    named_home = chosen_home(home, found.home)
    program = _program(state, found, words, is_module=is_module, named_home=named_home)
    _say_what_changed(state, program)
    _prepare(found, named_home)
    _install(state, [*also, *(WATCHED if examine else ())], http)
    from steplog._runtime.replay import Replay

    began = time.perf_counter()
    # To the end of the process: what a program leaves to be done at its exit is not recorded either.
    replayed = Replay(
        found.run_id, found.store, allow, pace=pace, ignore=ignore, for_good=has_own_process(), examine=examine
    )
    leaving = _replay(program, replayed, as_json=as_json)
    facts = {**facts_of(replayed), "seconds": round(time.perf_counter() - began, 3)}
    if as_json:
        emit_json(facts)
    else:
        _tell(replayed, facts, leaving, named_home)
    return IDENTICAL if replayed.identical else DIFFERENT


def _program(
    state: RunState, found: Found, words: Sequence[str], *, is_module: bool, named_home: Path | None
) -> Program:
    entry = state.created.get("entry")
    if not words:
        return programs.recorded(entry, found.run_id, named_home, again=("replay", found.run_id))
    return programs.typed(words[0], words[1:] or programs.arguments(entry), is_module=is_module)


def _say_what_changed(state: RunState, program: Program) -> None:
    before, now = state.created.get("version"), programs.revision(program)
    if before and now and before != now:
        say(f"the code has changed since the run began: {before} -> {now}")


def _prepare(found: Found, named_home: Path | None) -> None:
    os.environ["STEPLOG_HOME"] = str(found.home.absolute())
    os.environ[TYPED_HOME] = "" if named_home is None else os.path.abspath(found.home)


def _install(state: RunState, also: Sequence[str], http: Sequence[str]) -> None:
    """Record what was recorded: the program asks for it only where it is intercepted."""
    import steplog

    created = state.created
    steplog.install(also=[*created.get("also", ()), *also], http=[*created.get("http", ()), *http])


def _replay(program: Program, replayed: Replay, *, as_json: bool) -> BaseException | None:
    """Replay it; returns what the program was left by, or None."""
    os.chdir(program.cwd)
    with (
        programs.as_python_would(program),
        redirect_stdout(sys.stderr if as_json else sys.stdout),
        _no_end_without_verdict(replayed.run_id),
    ):
        try:
            with replayed:
                programs.execute_quietly(program)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if not replayed.judged:
                raise  # the log cannot be opened
            return error
    return None


@contextmanager
def _no_end_without_verdict(run_id: str) -> Iterator[None]:
    """A program that leaves by `os._exit` takes this command along: its exit code must not read as `identical`."""
    leave, process = os._exit, os.getpid()

    def left(status: int) -> NoReturn:
        if os.getpid() == process:
            say(f"the program ended its process by os._exit({status}), so there is no verdict on run {run_id}")
            sys.stderr.flush()
            status = DIFFERENT
        leave(status)

    os._exit = left
    try:
        yield
    finally:
        os._exit = leave


def facts_of(replayed: Replay) -> dict[str, Any]:
    """The facts of a replay that is over, as JSON values."""
    divergence = replayed.divergence
    return {
        "run": replayed.run_id,
        "verdict": replayed.verdict,
        "steps": len(unplayed(replayed.recorded, ())),
        "replayed": replayed.replayed,
        "live_calls": replayed.live_calls,
        "unplayed": [step.id for step in replayed.unplayed],
        "refused": replayed.refused,
        "guard": replayed.guard,
        "divergence": None if divergence is None else divergence._asdict(),
        "note": replayed.note or None,
        **({} if replayed.examination is None else replayed.examination.facts()),
    }


def _named(replayed: Replay, steps: Sequence[str]) -> list[str]:
    """Steps as `steplog show` lists them, by number and target."""
    numbers = {step: number for number, step in enumerate(replayed.recorded.steps, 1)}
    return [f"#{numbers[step]} {replayed.recorded.steps[step].target}" for step in steps]


def _tell(replayed: Replay, facts: dict[str, Any], leaving: BaseException | None, home: Path | None) -> None:
    sys.stdout.flush()
    divergence = facts["divergence"]
    if leaving is not None and not isinstance(leaving, (RunStopped, SystemExit)) and divergence is not None:
        # What the program was left by is part of what went otherwise; in an identical replay it is what was recorded.
        shown = programs.without_our_frames(leaving)
        if not (isinstance(leaving, SteplogError) and shown.__traceback__ is None):
            sys.excepthook(type(shown), shown, shown.__traceback__)
    steps = f"{facts['replayed']} of {counted(facts['steps'], 'step')}"
    say(f"replayed {steps} of run {facts['run']}, {facts['live_calls']} live calls, {facts['seconds']:.2f} s")
    for refused in facts["refused"][:_SHOWN]:
        say(f"refused: {printable(refused)}")
    if facts["note"]:
        say(facts["note"])
    say(facts["verdict"])
    if divergence is None:
        return
    print(printable(divergence["message"]), file=sys.stderr)
    left = [step for step in facts["unplayed"] if step != divergence["step"]]
    if left:
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        say(f"not asked for: {', '.join(_named(replayed, left[:_SHOWN]))}{more}")
    if divergence["kind"] in ("end", "unplayed", "not opened"):
        print(with_home(command("show", facts["run"]), home), file=sys.stderr)
    sys.stderr.flush()
