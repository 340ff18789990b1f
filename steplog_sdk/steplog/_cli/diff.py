"""`steplog diff`: where two runs go apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from steplog._cli import facts
from steplog._cli.compare import Side, content_of, is_altered, is_same_request, outcome_change, request_changes
from steplog._cli.contents import Contents
from steplog._cli.lookup import find_run, holder_of, numbers, open_run
from steplog._cli.options import chosen_home, common
from steplog._cli.output import command, emit_json, with_home
from steplog._cli.prices import cost_of
from steplog._kernel.align import Row, align
from steplog._kernel.fold import RunState, StepState

SAME: Final = "same"
REQUEST: Final = "request"
OUTCOME: Final = "outcome"
ONLY_A: Final = "only in A"
ONLY_B: Final = "only in B"

# Differences that are listed without --full; the first is told whole.
LISTED: Final = 30
# Bytes of requests that are looked into without --full. A conversation is sent again with every call, so the requests
# of a long run are a thousand times its size.
_LOOKED_INTO: Final = 64 << 20

EXAMPLES = """\b
Examples:
  steplog diff refund-1001 refund-1002
  steplog diff refund-1001 last --json
"""


class Compared(NamedTuple):
    """A run of a comparison: its state, and what reads its bodies."""

    state: RunState
    side: Side
    facts: dict[str, Any]


@click.command(short_help="See where two runs go apart.", epilog=EXAMPLES)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--full", is_flag=True, help="List every difference, and look into every request.")
@common
def diff(a: str, b: str, full: bool, home: Path, as_json: bool) -> int:  # noqa: FBT001 - click's own form
    """Compare run A with run B, step by step: what they asked for, what came back, what it took.

    Equal requests are the same step wherever they stand; of the others, those at the same place are compared. Times,
    tokens and cost are shown and do not count as differences, nor do names that a provider makes up (ids of calls and
    answers). Exit code 0 if the runs are the same, 1 if they differ.
    """
    one, other = _open(a, home), _open(b, home)
    described = describe(one, other, full=full)
    described["next"] = _next(described, chosen_home(home))
    if as_json:
        emit_json(described)
    else:
        from steplog._cli.render_diff import print_diff

        print_diff(described)
    return 0 if described["same"] else 1


def _open(name: str, home: Path) -> Compared:
    found = find_run(name, home)
    state, holder = open_run(found).state, holder_of(found)
    side = Side(Contents(found.store.bodies), live=holder is not None)
    known = facts.run_facts(state, holder)
    cost = cost_of(state.steps.values())
    kept = ("run", "status", "reason", "goal", "workflow", "version", "steps", "tokens", "seconds", "error")
    return Compared(state, side, {**{name: known[name] for name in kept}, "cost": cost.facts(), "price": cost.text()})


def _next(described: dict[str, Any], home: Path | None) -> list[str]:
    first = described["first"]
    if first is None:
        return []
    sides = ((described["a"]["run"], first["a"]), (described["b"]["run"], first["b"]))
    return [with_home(command("show", run, str(step["number"])), home) for run, step in sides if step is not None]


def describe(one: Compared, other: Compared, *, full: bool) -> dict[str, Any]:
    """What differs between two runs, as plain JSON values."""
    named = numbers(one.state), numbers(other.state)
    counts: Counter[str] = Counter()
    differences: list[dict[str, Any]] = []
    budget = _LOOKED_INTO
    for row in align(one.state, other.state, content_of):
        looks = full or budget > 0
        budget -= _size(row)
        told = _told(row, one.side, other.side, looks=looks)
        counts[told["how"]] += 1
        if told["how"] != SAME and (full or len(differences) < LISTED):
            differences.append({"a": _named(row.a, named[0]), "b": _named(row.b, named[1]), **told})
    end = _end(one.facts, other.facts)
    total = sum(count for how, count in counts.items() if how != SAME)
    return {
        "a": one.facts,
        "b": other.facts,
        "same": total == 0 and not end,
        "counts": {how: counts[how] for how in (SAME, REQUEST, OUTCOME, ONLY_A, ONLY_B)},
        "first": differences[0] if differences else None,
        "differences": differences,
        "more": total - len(differences),
        "end": end,
        "next": [],
    }


def _told(row: Row, one: Side, other: Side, *, looks: bool) -> dict[str, Any]:
    a, b = row.a, row.b
    if a is None or b is None:
        return {"how": ONLY_B if a is None else ONLY_A, "request": None, "outcome": None}
    same = row.same and not is_altered(a, b)
    request = None if same or not looks else request_changes(a, b, one, other)
    if request is not None and is_same_request(request):
        request = None
    outcome = outcome_change(a, b, one, other)
    asked_otherwise = request is not None or not (same or looks)
    how = REQUEST if asked_otherwise else OUTCOME if outcome is not None else SAME
    return {"how": how, "request": request, "outcome": outcome}


def _size(row: Row) -> int:
    """Bytes that comparing two requests reads."""
    return 0 if row.same else sum(_requested(step) for step in (row.a, row.b) if step is not None)


def _requested(step: StepState) -> int:
    request = step.started.get("request")
    body = request.get("body") if isinstance(request, dict) else None
    size = body.get("size") if isinstance(body, dict) else None
    return size if isinstance(size, int) else 1_000


def _named(step: StepState | None, known: dict[str, int]) -> dict[str, Any] | None:
    if step is None:
        return None
    return {"number": known[step.id], "step": step.id, "kind": step.kind, "target": step.target}


def _end(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    def told(run: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        error = run["error"] or {}
        yield "status", run["status"]
        yield "reason", run["reason"]
        yield "error", ": ".join(str(error[name]) for name in ("type", "message") if error.get(name))

    return [
        {"path": name, "a": old, "b": new} for (name, old), (_, new) in zip(told(a), told(b), strict=True) if old != new
    ]
