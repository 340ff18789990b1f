"""`steplog crash-test`: kill a program everywhere, resume it, and say what became of its effects."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steplog._cli.output import emit_json, printable, say
from steplog.errors import InvalidArgument

if TYPE_CHECKING:
    from steplog.testing.crash import Case

EXAMPLES = """\b
Examples:
  steplog crash-test agent.py order-1001
  steplog crash-test --ledger sandbox:entries --reset "rm -f ledger" agent.py order-1001
  steplog crash-test --only s_4k2x:inside agent.py order-1001
"""


@click.command(
    "crash-test",
    short_help="Kill a program everywhere and see what becomes of its effects.",
    epilog=EXAMPLES,
    context_settings={"allow_interspersed_args": False},
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.option("-n", "--jobs", default=1, show_default=True, help="So many cases at the same time.")
@click.option("--only", metavar="K", multiple=True, help="Kill only here: a number, or STEP:MOMENT. Repeatable.")
@click.option("--limit", metavar="N", type=int, help="At most N kills, where an effect is most at risk first.")
@click.option("--timeout", metavar="S", default=60.0, show_default=True, help="Seconds for each process.")
@click.option("--time-limit", metavar="S", type=float, help="Seconds after which no new kill is made.")
@click.option("--ledger", metavar="MODULE:FUNCTION", help="Reads the outside world: an entry for each effect.")
@click.option("--reset", metavar="COMMAND", help="Shell command that puts the outside world back.")
@click.option("--live", is_flag=True, help="Ask the model in every case, not only in the first.")
@click.option("--fresh", is_flag=True, help="Start an interpreter for each process, instead of forking one.")
@click.option("--wrap/--no-wrap", default=None, help="Start it by `steplog run`.  [default: if it opens no run]")
@click.option("--strict", is_flag=True, help="Exit 1 too when a run waits for a person.")
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path), help="Keep logs and output of all cases here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def crash_test(
    script: str,
    args: tuple[str, ...],
    is_module: bool,  # noqa: FBT001 - click's own form
    ledger: str | None,
    reset: str | None,
    strict: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **options: Any,
) -> int:
    """Kill SCRIPT (SIGKILL) at every boundary of its steps and inside every effect, and resume it each time.

    Its effects are really executed, again in every case: aim it at a sandbox. The model is asked once; in the cases it
    is answered from what it said then. Exit code: 0 nothing was lost or doubled, 1 something was, 2 usage.
    """
    from steplog.testing.crash import crash_matrix

    report = crash_matrix(
        script,
        args,
        module=is_module,
        ledger=None if ledger is None else _function(ledger, script, is_module=is_module),
        reset=None if reset is None else _shell(reset),
        on_case=_say,
        **options,
    )._replace(again=_again(script, args))
    if as_json:
        emit_json(report.as_json())
    else:
        print(printable(str(report)))
    return 0 if (report.decided if strict else report.ok) else 1


def _say(case: Case) -> None:
    if case.verdict not in ("ok", "not reached"):
        say(f"{case.point.number} {case.point}: {case.verdict}")


def _function(named: str, script: str, *, is_module: bool) -> Callable[[], Any]:
    module, _, name = named.partition(":")
    folders = ["" if is_module else str(Path(script).resolve().parent), os.getcwd()]
    sys.path[:0] = [folder for folder in folders if folder]
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"--ledger {named}: {error}.\nName a function that returns the entries: --ledger sandbox:entries"
        raise InvalidArgument(message) from error
    return found  # type: ignore[no-any-return]  # called without arguments, whatever it is


def _shell(command: str) -> Callable[[], None]:
    def reset() -> None:
        done = subprocess.run(command, shell=True, check=False)  # noqa: S602  # what the caller has typed
        if done.returncode:
            raise InvalidArgument(f"--reset {command!r} failed with exit status {done.returncode}.")

    return reset


def _again(script: str, args: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of this command line without `--only` and `--limit`, so that one kill can be repeated."""
    context = click.get_current_context()
    words = ["steplog", "crash-test"]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        given = context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        if not given or not isinstance(option, click.Option) or option.name in ("only", "limit", "jobs", "as_json"):
            continue
        if option.is_flag:
            words.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            words += [option.opts[-1], str(value)]
    return tuple(words), (script, *args)
