"""`steplog show`: what a run did, and everything that is known of one step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from steplog._cli import advice, facts, undone, waits
from steplog._cli.contents import Contents
from steplog._cli.detail import step_detail
from steplog._cli.lookup import find_run, find_step, holder_of, open_run
from steplog._cli.options import chosen_home, common
from steplog._cli.output import emit_json, with_home
from steplog._kernel import events as ev
from steplog._kernel.events import Event
from steplog._kernel.fold import RunState, StepState, fold
from steplog.errors import UnknownStep

_KNOWN = frozenset(value for name, value in vars(ev).items() if name.isupper() and isinstance(value, str))


EXAMPLES = """\b
Examples:
  steplog show last
  steplog show refund-1001 s_6tq
  steplog show refund-1001 s_6tq --reveal
  steplog show refund-1001 --at 12
"""


@click.command(short_help="See what a run or a step did.", epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@click.argument("step", metavar="[STEP]", required=False)
@click.option("--reveal", is_flag=True, help="Also print what STEPLOG_KEY has kept of STEP's secrets.")
@click.option(
    "--at", metavar="STEP", help="As the run stood when this step began: what it had done, what was under way."
)
@click.option("--all", "everything", is_flag=True, help="List every step; else the middle of a long list is left out.")
@common
def show(
    run: str,
    step: str | None,
    reveal: bool,  # noqa: FBT001 - click's own form
    at: str | None,
    everything: bool,  # noqa: FBT001 - click's own form
    home: Path,
    as_json: bool,  # noqa: FBT001 - click's own form
) -> None:
    """Show RUN and its steps, or everything recorded of STEP: input and output verbatim, timing, every attempt.

    A step is named by its number (as it stands in the list), its id or a prefix of that. With --at the log is read as
    far as the beginning of that step and no further.

    Secrets are shown as [redacted:KIND]. Where a run was recorded with STEPLOG_KEY, those of results, answers and
    errors lie encrypted beside the log; --reveal prints them, and needs the key.
    """
    if reveal and step is None:
        raise click.UsageError("--reveal shows the secrets of one step: name a STEP as well.")
    found = find_run(run, home)
    view, state = open_run(found)
    events: Sequence[Event] = view.events
    holder = holder_of(found)
    named_home = chosen_home(home, found.home)
    until = None if at is None else find_step(state, at, named_home)
    shown = None if step is None else find_step(state, step, named_home).id
    if until is not None:
        events = list(islice(events, until.started_seq + 1))
        state = fold(events)
    # At that time a process held the run, whatever has become of it.
    live = holder is not None or until is not None
    if shown is not None:
        if shown not in state.steps:
            text = (
                f"step {shown} of run {state.run_id} had not begun when step {at} began.\nName a later one: --at STEP"
            )
            raise UnknownStep(text, run_id=state.run_id, step=shown)
        contents = Contents(found.store.bodies, reveal=reveal)
        _show_step(shown, state, events, contents, live=live, as_json=as_json)
        return
    inbox = waits.heard(found)
    described = describe(state, events, holder, inbox) if until is None else as_it_stood(state, events, until)
    if until is None:
        described["undo"] = undone.undone_facts(found, state)
        described["next"] += undone.next_line(described["undo"], state.run_id)
    described["next"] = [with_home(line, named_home) for line in described["next"]]
    if as_json:
        emit_json(described)
        return
    from steplog._cli.render import print_run

    print_run(described, everything=everything)


def _show_step(
    step_id: str, state: RunState, events: Sequence[Event], contents: Contents, *, live: bool, as_json: bool
) -> None:
    detail = step_detail(state, state.steps[step_id], events, contents, live=live)
    if as_json:
        emit_json(detail)
        return
    from steplog._cli.render_step import print_step

    print_step(detail)


def describe(
    state: RunState, events: Sequence[Event], holder: dict[str, Any] | None, inbox: waits.Heard | None = None
) -> dict[str, Any]:
    """A run with its steps, each with those inside it; `inbox` is what others have said to it."""
    live = holder is not None
    run = facts.run_facts(state, holder, inbox)
    sent = () if inbox is None else inbox.messages
    goes_on = [f"steplog resume {state.run_id}"] if waits.is_ready(state, sent) else advice.suspended_lines(state)
    strangers = [{"seq": event.seq, "type": event.type} for event in events if event.type not in _KNOWN]
    return {
        **run,
        "weakened": [event.data for event in events if event.type == ev.LOG_WEAKENED],
        "tree": _tree(state, live=live),
        "unknown_events": strangers,
        "next": [] if live else goes_on,
    }


def as_it_stood(state: RunState, events: Sequence[Event], at: StepState) -> dict[str, Any]:
    """A run as it was when a step began, with its steps; `state` and `events` reach as far as that."""
    described = describe(state, events, None)
    return {
        **described,
        "status": state.status,
        "at": {"step": at.id, "number": len(state.steps), "ts": state.last_ts},
        "steps": facts.step_counts(state, live=True),
        "tree": _tree(state, live=True),
        "next": [],
    }


def _tree(state: RunState, *, live: bool) -> list[dict[str, Any]]:
    nodes = {
        step.id: {
            "number": number,
            **facts.step_facts(step, live=live),
            "status": facts.status_in(state, step, live=live),
            "steps": [],
        }
        for number, step in enumerate(state.steps.values(), 1)
    }
    roots: list[dict[str, Any]] = []
    for step in state.steps.values():
        # A step whose enclosing step is not in the log stays visible, at the top.
        parent = nodes.get(step.scope)
        (roots if parent is None else parent["steps"]).append(nodes[step.id])
    return roots
