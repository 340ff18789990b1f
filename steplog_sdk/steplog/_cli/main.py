"""The command `steplog`: the list of verbs, and the one place where an error becomes text and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from steplog._cli.approve import approve, reject
from steplog._cli.cancel import cancel
from steplog._cli.check import check
from steplog._cli.crash_test import crash_test
from steplog._cli.diff import diff
from steplog._cli.doctor import doctor
from steplog._cli.du import du
from steplog._cli.export import export, import_
from steplog._cli.fork import fork
from steplog._cli.import_vcr import import_vcr
from steplog._cli.key import key
from steplog._cli.ls import ls
from steplog._cli.options import OWN_PROCESS, wants_json
from steplog._cli.output import emit_json, error_facts, printable
from steplog._cli.policy import policy
from steplog._cli.prune import prune
from steplog._cli.repair import repair
from steplog._cli.replay import replay
from steplog._cli.resolve import resolve
from steplog._cli.resume import resume
from steplog._cli.run import run
from steplog._cli.show import show
from steplog._cli.signal import signal
from steplog._cli.undo import undo
from steplog._cli.verify import verify
from steplog._cli.why import why
from steplog.errors import Interrupt, InvalidArgument, SteplogError

USAGE = 2
INTERRUPTED = 130


# What verbs are for, as `--help` groups them. One that is in none of these stands under "More".
_GROUPS = {
    "Run": ("run", "resume"),
    "Look": ("ls", "show", "why", "diff"),
    "Settle": ("resolve", "undo", "approve", "reject", "signal", "cancel", "policy"),
    "Time machine": ("replay", "fork", "doctor"),
    "Tests": ("check", "crash-test", "import-vcr"),
    "Keep": ("verify", "repair", "du", "prune", "export", "import", "key"),
}


class Verbs(click.Group):
    """A group that reports every failure in the same form, and lists the verbs by what they are for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs as they were added; the alphabet would tear run and resume apart."""
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs under the headings of `_GROUPS`."""
        del ctx
        grouped = {name for names in _GROUPS.values() for name in names}
        more = tuple(name for name in self.commands if name not in grouped)
        # One column for all headings.
        widest = max(map(len, self.commands))
        for title, names in {**_GROUPS, "More": more}.items():
            verbs = [self.commands[name] for name in names if name in self.commands]
            if verbs:
                with formatter.section(title):
                    formatter.write_dl(
                        [(f"{verb.name:<{widest}}", verb.get_short_help_str(limit=90)) for verb in verbs]
                    )

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        """Run a verb and leave the process with its exit code."""
        words = list(sys.argv[1:] if args is None else args)
        options["standalone_mode"] = False
        try:
            code = super().main(words, *rest, **options)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(USAGE)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except (click.ClickException, SteplogError, Interrupt, OSError) as error:
            _report(error, words)
            sys.exit(USAGE if isinstance(error, click.UsageError | InvalidArgument) else 1)
        sys.exit(code if isinstance(code, int) else 0)


def _report(error: BaseException, words: list[str]) -> None:
    if wants_json(words):
        emit_json(_usage_facts(error) if isinstance(error, click.ClickException) else error_facts(error))
    if isinstance(error, click.UsageError):
        error.show()
    else:
        text = error.format_message() if isinstance(error, click.ClickException) else _text(error)
        print(f"error: {printable(text)}", file=sys.stderr)


def _usage_facts(error: click.ClickException) -> dict[str, Any]:
    return {"error": {"type": type(error).__name__, "message": error.format_message()}}


def _text(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"cannot use {error.filename or 'a file'}: {error.strerror or error}"
    return str(error)


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's own form
    if not wanted or ctx.resilient_parsing:
        return
    import steplog

    click.echo(f"steplog {steplog.__version__}")
    ctx.exit()


EPILOG = """\b
Examples:
  steplog run agent.py order-1001     record an unedited script
  steplog resume last                 carry on where it stopped
  steplog replay last                 run it again with nothing happening
  steplog ls                          list the runs
  steplog show last                   see what a run did

RUN is an id, a unique prefix of one, the path of a run's directory, or `last` for the one written last. Every verb
knows --help.
"""


@click.group(cls=Verbs, epilog=EPILOG)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """Durable runs for LLM agents: every model and tool call is recorded once and returned for ever."""


_VERBS = (
    run,
    resume,
    replay,
    ls,
    show,
    why,
    diff,
    fork,
    resolve,
    undo,
    approve,
    reject,
    policy,
    signal,
    cancel,
    verify,
    repair,
    du,
    prune,
    export,
    import_,
    import_vcr,
    check,
    crash_test,
    doctor,
    key,
)
for _verb in _VERBS:
    cli.add_command(_verb)


def main() -> NoReturn:
    """Entry point of the command `steplog`."""
    cli.main(prog_name="steplog", obj=OWN_PROCESS)
