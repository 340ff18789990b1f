"""`steplog signal`: tell a run something that it waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import orjson

from steplog._cli.lookup import find_run, holder_of, open_run
from steplog._cli.options import chosen_home, common
from steplog._cli.output import command, console, emit_json, printable, user
from steplog.errors import InvalidArgument

EXAMPLES = """\b
Examples:
  steplog signal refund-1001 approved '{"amount": 40}' --note "seen the photo"
  steplog signal last go
"""


@click.command(short_help="Send a run a signal that it waits for.", epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="[JSON]", required=False, default="null")
@click.option("--by", metavar="NAME", help="Who sends it.  [default: the current user]")
@click.option("--note", metavar="TEXT", help="Why, for the record.")
@common
def signal(
    run: str,
    name: str,
    value: str,
    by: str | None,
    note: str | None,
    home: Path,
    as_json: bool,  # noqa: FBT001 - click's own form
) -> None:
    """Send RUN the signal NAME, which `run.wait(NAME)` in its program returns as this JSON value.

    It is kept until it is waited for, whether or not a process holds the run.
    """
    from steplog._runtime.post import signal as send

    found = find_run(run, home)
    named_home = chosen_home(home, found.home)
    message = send(found.run_id, name, _value(value), by=by or user(), note=note, store=found.store)
    state, held = open_run(found).state, holder_of(found) is not None
    resume = command("resume", found.run_id, home=named_home)
    if as_json:
        emit_json({"run": found.run_id, "signal": name, "message": message, "next": None if held else resume})
        return
    target = console()
    target.print(f"signal {printable(name)} was sent to run {found.run_id}")
    if state.completed_once:
        target.print(f"that run has ended ({state.status}), so nobody will wait for it")
    elif not held:
        target.print(f"no process holds the run; it gets the signal when it is resumed: {resume}")


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        message = f"a signal's value is JSON, and this is not: {error}. A string needs its quotes: '\"yes\"'"
        raise InvalidArgument(message) from error
