"""`steplog why`: a post-mortem of a run in one screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from steplog._cli import advice, facts
from steplog._cli.contents import Contents
from steplog._cli.lookup import find_run, holder_of, open_run
from steplog._cli.options import chosen_home, common
from steplog._cli.output import command, emit_json, with_home
from steplog._cli.prices import cost_of
from steplog._cli.views import views_of
from steplog._kernel import reasons
from steplog._kernel.events import Event
from steplog._kernel.fold import CLOSED_OUTCOMES, RunState
from steplog._kernel.why import Analysis
from steplog._kernel.why_rows import Ended, Finding, findings

# Numbers of a series that are shown; the middle of a longer one is left out.
_SERIES: Final = 12
_MOST: Final = 5

# Of a run without a reason code.
_UNNAMED: Final = {facts.INTERRUPTED: "its process died", "running": "it is at work"}

EXAMPLES = """\b
Examples:
  steplog why last
  steplog why refund-1001 --json
"""


@click.command(short_help="See why a run ended as it did.", epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@common
def why(run: str, home: Path, as_json: bool) -> None:  # noqa: FBT001 - click's own form
    """Say why RUN ended as it did: how it ended, the first error, repeated calls, prompts, time, and what to do next.

    What is found is told by the kinds of failure that agents are known for: repeated call, no progress, context growth,
    premature and partial completion, unknown outcome, stale facts. Nothing is asked of a model.
    """
    found = find_run(run, home)
    view, state = open_run(found)
    holder = holder_of(found)
    described = describe(state, view.events, Contents(found.store.bodies), holder)
    described["next"] = [with_home(line, chosen_home(home, found.home)) for line in described["next"]]
    if as_json:
        emit_json(described)
        return
    from steplog._cli.render_why import print_why

    print_why(described)


def describe(
    state: RunState, events: Sequence[Event], contents: Contents, holder: dict[str, Any] | None
) -> dict[str, Any]:
    """What there is to say of a run, as plain JSON values."""
    run = facts.run_facts(state, holder)
    analysis = Analysis()
    for view in views_of(state, events, contents, live=holder is not None):
        analysis.add(view)
    error = run["error"] or {}
    told = ": ".join(str(error[name]) for name in ("type", "message") if error.get(name)) or str(run["message"] or "")
    rows = findings(Ended(run["status"], run["reason"], told), analysis)
    return {
        "run": run["run"],
        "status": run["status"],
        "reason": run["reason"],
        "goal": run["goal"],
        "meaning": reasons.meaning(run["status"], run["reason"]) or _UNNAMED.get(run["status"], ""),
        "do": rows[0].control
        if rows and run["status"] in CLOSED_OUTCOMES
        else advice.to_do(state, live=holder is not None),
        "error": told or None,
        "findings": [row._asdict() for row in rows],
        **_measured(analysis),
        "steps": run["steps"],
        "tokens": run["tokens"],
        "budget": run["budget"],
        "cost": cost_of(state.steps.values()).facts(),
        "seconds": run["seconds"],
        "stopped_seconds": run["stopped_seconds"],
        "next": _next(state, rows, analysis, live=holder is not None),
    }


def _measured(analysis: Analysis) -> dict[str, Any]:
    measures = analysis.measures
    first = measures.first_error
    repeated = analysis.repeated()[:1]
    sizes = measures.prompts
    return {
        "first_error": None
        if first is None or first.error is None
        else {"number": first.number, "target": first.target, "type": first.error[0], "message": first.error[1][:400]},
        "most_repeated": [
            {"target": call.target, "args": call.args[:400], "made": call.made, "proposed": call.proposed,
             "steps": call.numbers[:_MOST], "same_result": call.same}
            for call in repeated
        ],
        "prompts": {
            "calls": len(sizes),
            "tokens": _series([size.tokens for size in sizes]),
            "counted": all(size.counted for size in sizes),
        },
        "lost_context": [loss._asdict() for loss in measures.losses[:_MOST]],
        "losses": len(measures.losses),
        "cut_answers": measures.cut_answers[:_MOST],
        "time": {
            "model_ms": round(measures.model_ms, 1),
            "tool_ms": round(measures.tool_ms, 1),
            "own_ms": round(measures.own_ms, 1),
        },
        "tokens_by_step": [
            {"number": number, "input": asked, "output": answered}
            for number, asked, answered in sorted(measures.tokens, key=lambda each: -sum(each[1:]))[:_MOST]
        ],
        "retries": [
            {"number": step.number, "target": step.target, "attempts": step.attempts}
            for step in measures.retried[:_MOST]
        ],
        "unknown": [step.number for step in (*measures.doubtful, *measures.maybe)][:_MOST],
        "effects": [{"number": step.number, "target": step.target} for step in measures.effects[-_MOST:]],
    }  # fmt: skip


def _series(numbers: list[int]) -> list[int | None]:
    """A series short enough to read; None stands for the middle of a long one."""
    half = _SERIES // 2
    return list(numbers) if len(numbers) <= _SERIES else [*numbers[:half], None, *numbers[-half:]]


def _next(state: RunState, rows: list[Finding], analysis: Analysis, *, live: bool) -> list[str]:
    """What to do: settle or resume where that is due, then the step to look at."""
    lines = [] if live else advice.suspended_lines(state)
    first = analysis.measures.first_error
    shown = rows[0].steps[-1:] if rows else [] if first is None else [first.number]
    looking = (command("show", state.run_id, str(number)) for number in shown)
    return [*lines, *(look for look in looking if not any(line.partition("    ")[0] == look for line in lines))]
