"""`steplog resolve`: settle a step whose outcome is not known, or whose result cannot be returned."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from steplog._cli import facts
from steplog._cli.lookup import Found, find_run, find_step, holder_of, open_run
from steplog._cli.options import chosen_home, common
from steplog._cli.output import command, console, emit_json, printable, user
from steplog._kernel.fold import FAILED, RUNNING, StepState
from steplog.errors import InvalidArgument


class Verdict(NamedTuple):
    """What the operator found out.

    Attributes:
        how: done, retry, failed or unknown.
        result: for `done`: the JSON value that the step returns.
        message: for `failed`: what the program is told.
    """

    how: str
    result: Any = None
    message: str = ""


EXAMPLES = """\b
Examples:
  steplog resolve last s_6tq --done '{"receipt": "r_17"}'
  steplog resolve last s_6tq --retry --note "not in the ledger"
  steplog resolve last s_6tq --failed "the customer has withdrawn"
  steplog resolve last s_6tq --unknown --note "the bank does not answer"
"""


@click.command(short_help="Settle a step whose outcome is not known.", epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@click.argument("step", metavar="STEP")
@click.option("--done", metavar="JSON", help="It happened; this is its result.")
@click.option("--retry", is_flag=True, help="It did not happen; do it when the run is resumed.")
@click.option("--failed", metavar="MESSAGE", help="It did not happen and is not to; the program gets this as an error.")
@click.option("--unknown", is_flag=True, help="Nobody can tell; the program is told so, as an error.")
@click.option("--force", is_flag=True, help="With --retry: although somebody has said that it happened.")
@click.option("--by", metavar="NAME", help="Who decided.  [default: the current user]")
@click.option("--note", metavar="TEXT", help="Why, for the record.")
@common
def resolve(run: str, step: str, **options: Any) -> None:
    """Settle STEP of RUN: it happened (--done), it did not (--retry), it must not (--failed), or who knows (--unknown).

    With --unknown the step raises OutcomeUnknown, whose text says that the effect may or may not have happened: an
    agent reads it like any error of a tool, and can look before it acts.
    """
    from steplog._runtime.resolve import resolve as settle
    from steplog._runtime.resolve import shown

    verdict = _verdict(options["done"], options["failed"], retry=options["retry"], unknown=options["unknown"])
    found = find_run(run, options["home"])
    named_home = chosen_home(options["home"], found.home)
    named = find_step(open_run(found).state, step, named_home)
    _refuse_settled(found, named, verdict.how)
    if options["force"] and verdict.how != "retry":
        raise click.UsageError("--force goes with --retry only; any other word takes the place of an earlier one.")
    by = options["by"] or user()
    more = {"note": options["note"], "force": options["force"]}
    settle(found.store, found.run_id, named.id, by=by, **more, **verdict._asdict())
    by = shown(by)
    resume = command("resume", found.run_id, home=named_home)
    if options["as_json"]:
        emit_json({"run": found.run_id, "step": named.id, "how": verdict.how, "by": by, "next": resume})
        return
    target = console()
    target.print(f"step {named.id} of run {found.run_id} is settled: {verdict.how}, by {printable(by)}")
    target.print(f"go on: {resume}")


def _verdict(done: str | None, failed: str | None, *, retry: bool, unknown: bool) -> Verdict:
    if (done is not None) + (failed is not None) + retry + unknown != 1:
        raise click.UsageError("Say exactly one of --done JSON, --retry, --failed MESSAGE and --unknown.")
    from steplog._runtime.resolve import json_value

    if failed is not None:
        return Verdict("failed", message=failed)
    if done is not None:
        return Verdict("done", result=json_value(done))
    return Verdict("retry" if retry else "unknown")


def _refuse_settled(found: Found, step: StepState, how: str) -> None:
    """Refuse a step that needs no decision before the run is taken: taking it would reopen a run that has ended."""
    from steplog._runtime.resolve import in_doubt

    if step.status == "skipped" and how != "retry":
        return  # a fork may have refused it; that is decided where it is written
    if how in ("retry", "done") and step.status == FAILED:
        return  # a failure may be otherwise, on the operator's word; what is open to it is decided where it is written
    status = facts.step_status(step, live=holder_of(found) is not None)
    if status in {facts.IN_DOUBT, facts.TO_REPEAT, facts.TO_TAKE_UP, RUNNING} or in_doubt(step, found.store.bodies):
        return
    message = (
        f"step {step.id} of run {found.run_id} ({step.kind} {step.target}) is {status}; there is nothing to settle.\n"
        f"See what it did: steplog show {found.run_id} {step.id}"
    )
    raise InvalidArgument(message, run_id=found.run_id, step=step.id)
