"""`steplog fork`: a new run that begins with what another one had done, and goes its own way from there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from steplog._cli import facts
from steplog._cli.lookup import find_run, find_step, numbers, open_run
from steplog._cli.options import chosen_home, common
from steplog._cli.output import command, emit_json, one_line, printable, say
from steplog._cli.prices import cost_of
from steplog._cli.resume import start_again
from steplog._kernel.fold import StepState
from steplog._runtime.fork import NOT_GIVEN, Draft, check_new_id, draft, make
from steplog.errors import InvalidArgument

_SHOWN = 8

EXAMPLES = """\b
Examples:
  steplog fork refund-1001 --at 11 --set 'messages[0].content=Be brief.'
  steplog fork refund-1001 --at 4 --result '{"cents": 0}' --dry-run
  steplog fork last --at 3 --model gpt-5-mini --id cheaper
"""


@click.command(short_help="Go on from the middle of a run, in a new one.", epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@click.option("--at", metavar="STEP", help="The step from which the new run goes its own way.  [default: the end]")
@click.option("--set", "sets", metavar="PATH=VALUE", multiple=True, help="Change the request of STEP. Repeatable.")
@click.option("--result", metavar="JSON", help="Give STEP this result instead of executing it.")
@click.option("--model", metavar="M", help="Ask another model in STEP.")
@click.option("--id", "new_id", metavar="NEW", help="Id of the new run.  [default: RUN-fork-1, or the next number]")
@click.option("--dry-run", is_flag=True, help="Say what would be returned and what would happen; write nothing.")
@click.option("--live-tools", is_flag=True, help="Let side effects happen in the new run.")
@click.option("--no-start", is_flag=True, help="Make the new run, and do not start its program.")
@common
def fork(run: str, **options: Any) -> int:
    """Make a new run of what RUN had done when STEP began, and start its program: live from there on.

    VALUE is JSON; what is none is a text. PATH is written as messages about drift write it: messages[0].content. Side
    effects of the shared part happened once, in RUN; what follows is a simulation: a tool that is not declared safe
    stops it, unless --live-tools. STEP is a number, an id, or a prefix of one. Exit codes are those of `steplog run`.
    """
    found = find_run(run, options["home"])
    named_home = chosen_home(options["home"], found.home)
    at = None if options["at"] is None else find_step(open_run(found).state, options["at"], named_home).id
    drafted = draft(
        found.store,
        found.run_id,
        at=at,
        changes=_changes(options["sets"], options["model"]),
        result=_result(options["result"]),
        live_tools=options["live_tools"],
    )
    check_new_id(found.store, options["new_id"])
    if options["dry_run"]:
        _tell(drafted, options["new_id"], as_json=options["as_json"], next_line=None)
        return 0
    new_id = make(found.store, drafted, options["new_id"])
    resume = command("resume", new_id, home=named_home)
    if options["no_start"]:
        _tell(drafted, new_id, as_json=options["as_json"], next_line=resume)
        return 0
    for line in _lines(drafted, new_id):
        say(line)
    return start_again(
        found._replace(run_id=new_id),
        named_home,
        on_drift=None,
        also=(),
        http=(),
        as_json=options["as_json"],
    )


def _changes(sets: Sequence[str], model: str | None) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for text in sets:
        path, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes PATH=VALUE, and {text!r} has no `=`.")
        try:
            changes[path] = json.loads(value)
        except ValueError:
            changes[path] = value  # a text needs no quotes
    return {**changes, **({} if model is None else {"model": model})}


def _result(text: str | None) -> Any:
    if text is None:
        return NOT_GIVEN
    try:
        return json.loads(text)
    except ValueError as error:
        message = f"--result takes JSON, and this is none: {error}. A text needs its quotes: --result '\"ok\"'"
        raise InvalidArgument(message) from error


def describe(drafted: Draft) -> dict[str, Any]:
    """What a planned fork would share, change and do, as plain JSON values."""
    known = numbers(drafted.state)
    shared = {step.id for step in drafted.prefix.shared}
    behind = [step for step in drafted.state.steps.values() if step.id not in shared]

    def named(steps: Sequence[StepState]) -> list[dict[str, Any]]:
        return [{"number": known[each.id], "step": each.id, "kind": each.kind, "target": each.target} for each in steps]

    cut = drafted.prefix
    return {
        "run": drafted.run_id,
        "at": None if cut.at is None else named([cut.at])[0],
        "shared": len(cut.shared),
        "real": named(cut.real),
        "asked_anew": named(cut.dropped),
        "in_doubt": named(cut.doubtful),
        "changes": [{"path": path, "old": old, "new": new} for path, old, new in drafted.changes],
        "result": None if drafted.result is NOT_GIVEN else {"value": drafted.result},
        "live_tools": drafted.live_tools,
        "missing_bodies": len(drafted.missing),
        "cost_of_the_rest": cost_of(behind).facts(),
    }


def _tell(drafted: Draft, new_id: str | None, *, as_json: bool, next_line: str | None) -> None:
    if as_json:
        emit_json({**describe(drafted), "new": new_id, "next": next_line})
        return
    for line in _lines(drafted, new_id):
        click.echo(printable(line))
    if next_line:
        click.echo(f"go on: {next_line}")


def _lines(drafted: Draft, new_id: str | None) -> list[str]:
    """The same for people: what is returned, what was real, what is changed, and what will happen."""
    told = describe(drafted)
    at = told["at"]
    place = "its end" if at is None else f"#{at['number']} ({at['kind']} {at['target']})"
    lines = [f"{new_id or 'a new run'}: fork of {told['run']} at {place}"]
    lines.append(f"returned from the log: {told['shared']} steps")
    if told["real"]:
        lines.append(f"happened in {told['run']}, and do not happen again: {_list(told['real'])}")
    if told["asked_anew"]:
        lines.append(f"were under way, and are asked for anew: {_list(told['asked_anew'])}")
    if told["in_doubt"]:
        lines.append(f"may have happened in {told['run']} all the same: {_list(told['in_doubt'])}")
    for change in told["changes"]:
        old, new = (one_line(json.dumps(change[key], ensure_ascii=False), 60) for key in ("old", "new"))
        lines.append(f"changed: {change['path']}: {old} -> {new}")
    if told["result"] is not None:
        lines.append(f"returned by {place} without executing it: {one_line(json.dumps(drafted.result), 60)}")
    lines.append(f"live from {'behind ' if at is None or told['result'] is not None else ''}{place} on")
    if told["live_tools"]:
        lines.append("side effects happen from there on: --live-tools was given")
    else:
        simulated = "so this branch is a simulation: " if told["real"] else "a simulation: "
        lines.append(f"{simulated}what is not declared safe stops it (--live-tools lets it happen)")
    if told["missing_bodies"]:
        lines.append(f"bodies that are gone: {told['missing_bodies']}; the steps that need them cannot be returned")
    return lines


def _list(steps: list[dict[str, Any]]) -> str:
    shown = ", ".join(f"#{step['number']} {step['target']}" for step in steps[:_SHOWN])
    more = len(steps) - _SHOWN
    return shown + (f" and {facts.number(more)} more" if more > 0 else "")
