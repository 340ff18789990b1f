"""`steplog approve` and `steplog reject`: decide on a step that waits for a person."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from steplog._cli.lookup import find_run, open_run
from steplog._cli.options import chosen_home, common
from steplog._cli.output import console, emit_json, printable, user, with_home
from steplog._kernel.fold import BLOCKED
from steplog.errors import InvalidArgument

if TYPE_CHECKING:
    from steplog._runtime.approvals import Decision

F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES = """\b
Examples:
  steplog approve last s_6tq --note "checked with the customer"
  steplog reject refund-1001 s_6tq --by ann --note "not our order"
  steplog approve last                  the one step that waits
"""


def _deciding(function: F) -> F:
    run = click.argument("run", metavar="RUN")
    step = click.argument("step", metavar="[STEP]", required=False)
    by = click.option("--by", metavar="NAME", help="Who decides.  [default: the current user]")
    note = click.option("--note", metavar="TEXT", help="Why, for the record; of a rejection the agent reads it.")
    return run(step(by(note(common(function)))))


@click.command(short_help="Let a step run that waits for approval.", epilog=EXAMPLES)
@_deciding
def approve(run: str, step: str | None, home: Path, **options: Any) -> int:
    """Let STEP of RUN run, with exactly the arguments that it has; it does when RUN is resumed.

    Look at them first: steplog show RUN STEP. The first decision about a step counts. The exit code is 0 where the step
    is approved, by whomever, and 1 where it is not.
    """
    from steplog._runtime.approvals import approve as decide

    return _decide(decide, "approved", run, step, home, **options)


@click.command(short_help="Keep a step from running that waits for approval.", epilog=EXAMPLES)
@_deciding
def reject(run: str, step: str | None, home: Path, **options: Any) -> int:
    """Keep STEP of RUN from running, for ever. When RUN is resumed, the agent reads who has rejected it, and why.

    The first decision about a step counts. The exit code is 0 where the step is rejected, by whomever, and 1 where it
    is not.
    """
    from steplog._runtime.approvals import reject as decide

    return _decide(decide, "rejected", run, step, home, **options)


def _decide(
    decide: Callable[..., Decision],
    wanted: str,
    run: str,
    step: str | None,
    home: Path,
    *,
    by: str | None,
    note: str | None,
    as_json: bool,
) -> int:
    found = find_run(run, home)
    made = decide(found.run_id, step or _waiting(found), by=by or user(), note=note, store=found.store)
    if as_json:
        emit_json(made._asdict())
    else:
        named = chosen_home(home, found.home)
        told, _, resume = made.message.partition("steplog resume ")
        console().print(printable(told + (with_home(f"steplog resume {resume}", named) if resume else "")))
    return 0 if made.standing == wanted else 1


def _waiting(found: Any) -> str:
    """The one step of a run that waits. Raises InvalidArgument where there are none or several."""
    waiting = [step for step in open_run(found).state.steps.values() if step.status == BLOCKED]
    if len(waiting) == 1:
        return waiting[0].id
    listed = "".join(f"\n  {step.id}  {step.kind} {step.target}" for step in waiting) or " none."
    message = f"run {found.run_id}: say which step. Steps that wait for approval:{listed}"
    raise InvalidArgument(message, run_id=found.run_id)
