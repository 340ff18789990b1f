"""`steplog policy`: look at a policy before it is in force."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steplog._cli.lookup import find_run, open_run
from steplog._cli.options import common
from steplog._cli.output import columns, console, emit_json, one_line, printable
from steplog._kernel.control import Allow, Deny, Later
from steplog._kernel.rule import ALLOW, APPROVAL, DENY, RATE
from steplog._kernel.words import counted as number_of

if TYPE_CHECKING:
    from steplog._kernel.policy import Judgement
    from steplog._kernel.state import RunState
    from steplog._runtime.policies import Policy
    from steplog.stores.base import BodyStore

_COLOURS = {ALLOW: "green", DENY: "red", APPROVAL: "yellow", RATE: "yellow"}

_file = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))


@click.group("policy", short_help="Check a policy, and try it on a recorded run.")
def policy() -> None:
    """Rules that say which steps of a run may begin. docs/control.md has their form."""


@policy.command("check", short_help="Say whether a file is a policy.")
@_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")
def check(file: Path, *, as_json: bool) -> None:
    """Read FILE (TOML, or YAML by its name) with its conditions, and list its rules in their order.

    The exit code is 2 where it is no policy; the message names the line and the rule, and what is allowed there.
    """
    loaded = _load(file)
    if as_json:
        rules = [{"id": rule.id, "action": rule.action} for rule in loaded.rules]
        facts = {"file": str(file), "bundle": loaded.digest, "default_action": loaded.default_action, "rules": rules}
        emit_json(facts)
        return
    out = console()
    out.print(f"{file}: {number_of(len(loaded.rules), 'rule')}, default_action {loaded.default_action}")
    for line in columns([(_text(f"  {rule.id}"), _action(rule.action), _text(_about(rule))) for rule in loaded.rules]):
        out.print(line)


@policy.command("test", short_help="Say what a policy would have decided for a recorded run.")
@_file
@click.option("--run", "run", metavar="RUN", required=True, help="The recorded run.")
@common
def test(file: Path, run: str, home: Path, *, as_json: bool) -> None:
    """Ask the rules of FILE about every step of RUN, in recorded order. Nothing happens, and nothing is written.

    A step that would have been denied counts for no rule, as in a run; what the program would have done instead, nobody
    knows.
    """
    loaded = _load(file)
    found = find_run(run, home)
    rows = decisions(loaded, open_run(found).state, found.store.bodies)
    totals = Counter(row["decision"] for row in rows)
    if as_json:
        emit_json({"run_id": found.run_id, "bundle": loaded.digest, "totals": dict(totals), "steps": rows})
        return
    out = console()
    lines = [
        (_text(f"#{row['number']}"), _action(row["decision"]), _text(row["rule"]), _text(_step(row))) for row in rows
    ]
    for line in columns(lines, right=frozenset({0})) if lines else ():
        out.print(line)
    told = ", ".join(f"{count} {action}" for action, count in sorted(totals.items())) or "it has no steps"
    out.print(f"run {found.run_id}: {told}")


def decisions(policy: Policy, state: RunState, bodies: BodyStore) -> list[dict[str, Any]]:
    """What a policy would have decided for each step of a run, in recorded order."""
    from steplog._runtime.policy_gate import judgements

    rows = []
    known: dict[str, set[str]] = {}
    for number, (step, judgement) in enumerate(judgements(policy, state, bodies, known), 1):
        if isinstance(judgement.verdict, Allow):
            for rule in judgement.counts:
                known.setdefault(rule, set()).add(step.id)
        facts = {"number": number, "step": step.id, "kind": step.kind, "target": step.target, "status": step.status}
        rows.append({**facts, **_decision(judgement)})
    return rows


def _decision(judgement: Judgement) -> dict[str, Any]:
    verdict = judgement.verdict
    action = {Allow: ALLOW, Deny: DENY, Later: RATE}.get(type(verdict), APPROVAL)
    facts: dict[str, Any] = {"decision": action, "rule": judgement.rule}
    if isinstance(verdict, Later):
        facts["retry_after"] = round(verdict.seconds, 3)
    return facts if isinstance(verdict, Allow) else {**facts, "reason": verdict.reason}


def _load(file: Path) -> Policy:
    from steplog._runtime.policies import Policy

    return Policy.load(file)


def _step(row: dict[str, Any]) -> str:
    reason = f": {row['reason']}" if "reason" in row else ""
    return one_line(f"{row['kind']} {row['target']}, {row['status']}{reason}", 100)


def _about(rule: Any) -> str:
    """What a rule is about, short."""
    plain = [getattr(rule, name) for name in ("kind", "target", "when")]
    said = [part if isinstance(part, str) else " or ".join(part) for part in plain if part is not None]
    named = {name: getattr(rule, name) for name in ("count_over", "rate_over", "rate", "expires")}
    said += [f"{name} {value}" for name, value in named.items() if value is not None]
    return one_line(", ".join(said) or "every step", 80)


def _text(text: str) -> Any:
    from rich.text import Text

    return Text(printable(text))


def _action(action: str) -> Any:
    from rich.text import Text

    return Text(action, style=_COLOURS[action])
