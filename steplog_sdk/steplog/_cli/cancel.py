"""`steplog cancel`: stop a run for good, with room to clean up."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from steplog._cli.lookup import find_run, open_run
from steplog._cli.options import chosen_home, common
from steplog._cli.output import command, console, emit_json, user

EXAMPLES = """\b
Examples:
  steplog cancel refund-1001 --note "the customer has withdrawn"
  steplog cancel last --now
"""

_SAID: Final = {
    "sent": "run {0} is being cancelled: its program gets it at its next step, and may clean up",
    "pending": (
        "run {0} was cancelled; it has had effects that its program may want to clean up, so it gets it when it is "
        "resumed"
    ),
    "ended": "run {0} has ended as cancelled",
    "over": "run {0} had ended before ({1}); nothing was changed",
}


@click.command(short_help="Stop a run for good.", epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@click.option("--now", is_flag=True, help="End a run that nobody holds at once, without its cleanup.")
@click.option("--by", metavar="NAME", help="Who cancels it.  [default: the current user]")
@click.option("--note", metavar="TEXT", help="Why, for the record.")
@common
def cancel(
    run: str,
    now: bool,  # noqa: FBT001 - click's own form
    by: str | None,
    note: str | None,
    home: Path,
    as_json: bool,  # noqa: FBT001 - click's own form
) -> None:
    """Cancel RUN. Its program gets `steplog.Cancelled` at the next step that it asks for, and may clean up.

    A run that no process holds ends at once if it has had no effect; else it is cancelled when it is resumed, which
    `steplog resume --due` does.
    """
    from steplog._runtime.cancel import cancel as send

    found = find_run(run, home)
    named_home = chosen_home(home, found.home)
    outcome = send(found.run_id, by=by or user(), note=note, now=now, store=found.store)
    status = open_run(found).state.status
    lines = {
        "pending": [
            command("resume", found.run_id, home=named_home),
            command("cancel", found.run_id, "--now", home=named_home),
        ]
    }.get(outcome, [])
    if as_json:
        emit_json({"run": found.run_id, "outcome": outcome, "status": status, "next": lines})
        return
    target = console()
    target.print(_SAID[outcome].format(found.run_id, status))
    for line, what in zip(lines, ("clean up now:", "or end it without its cleanup:"), strict=False):
        target.print(f"{what} {line}")
