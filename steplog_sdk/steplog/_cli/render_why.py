"""A post-mortem as text: one screen, whatever the run's length."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from steplog._cli import facts
from steplog._cli.ls import STATUS_STYLE, status_words, steps
from steplog._cli.output import console, one_line, printable
from steplog._kernel.waiting import WAITING
from steplog._kernel.words import counted

_WIDTH = 116


def print_why(described: dict[str, Any]) -> None:
    """Print a post-mortem as `why.describe` gives it."""
    target = console()
    seconds = described["seconds"]
    target.print(
        Text.assemble(
            (described["run"], "bold"),
            "  ",
            (status_words(described), STATUS_STYLE.get(described["status"], "")),
            f"  {steps(described)} steps",
            f"  {facts.span(None if seconds is None else seconds * 1000)}",
        )
    )
    if described["meaning"]:
        target.print(Text(f"  {described['meaning']}"))
    target.print(Text(f"do: {printable(described['do'])}", style="bold"))
    for line in described["next"]:
        target.print(Text(f"      {printable(line)}", style="bold"))
    if described["goal"]:
        target.print(Text(f"\n  goal: {one_line(described['goal'], 110)}", style="dim"))
    _print_error(described, target)
    _print_findings(described["findings"], target)
    for name, value in _rows(described):
        if value:
            target.print(Text.assemble((f"  {name:<14}", "dim"), printable(value)))


def _print_error(described: dict[str, Any], target: Any) -> None:
    if not described["error"]:
        return
    target.print()
    if described["reason"] != "drift":
        told = described["error"]
        if described["reason"] == WAITING:
            told = told.partition("\n")[0]  # the commands that follow stand above
        target.print(Text(f"  {one_line(told, 220)}", style="red"))
        return
    # Its first difference is what it is about, and it is 25 lines at most. What to do stands above.
    told = described["error"].partition("\nIt was not executed")[0]
    for line in told.splitlines():
        target.print(Text(f"  {printable(line)}", style="red"))


def _print_findings(findings: list[dict[str, Any]], target: Any) -> None:
    target.print()
    if not findings:
        target.print("no known kind of failure shows in this run")
    for finding in findings:
        for number, line in enumerate(textwrap.wrap(printable(finding["text"]), _WIDTH - 24) or [""]):
            head = f"{finding['row']:<22}" if number == 0 else " " * 22
            target.print(Text.assemble((head, "bold yellow"), line))
        target.print(Text(f"{'':<22}{finding['control']}", style="dim"))
    target.print()


def _rows(described: dict[str, Any]) -> Iterator[tuple[str, str]]:
    first = described["first_error"]
    if first is not None:
        yield "first error", f"#{first['number']} {first['target']}: {first['type']}: {one_line(first['message'], 140)}"
    for call in described["most_repeated"]:
        times = [f"made {call['made']} times"] if call["made"] else []
        times += [f"asked for {call['proposed']} times"] if call["proposed"] > call["made"] else []
        same = ", same result" if call["same_result"] and call["made"] > 1 else ""
        yield (
            "most repeated",
            f"{call['target']}({one_line(call['args'], 70)}) {', '.join(times)}{same}{_at(call['steps'])}",
        )
    yield "prompts", _prompts(described["prompts"])
    yield "lost context", _losses(described)
    yield "cut answers", ", ".join(f"#{number}" for number in described["cut_answers"])
    time = described["time"]
    spans = [facts.span(time[name]) for name in ("model_ms", "tool_ms", "own_ms")]
    yield "time", f"models {spans[0]}, tools {spans[1]}, around model calls {spans[2]}"
    used = facts.tokens(described["tokens"])
    cost = described["cost"]["usd"]
    yield "tokens", f"{used}{'' if cost is None else f', ${cost:.4f}'}" if used else ""
    yield "budget", facts.budget_words(described["budget"])
    yield (
        "most tokens",
        ", ".join(f"#{each['number']} {each['input']:,}/{each['output']:,}" for each in described["tokens_by_step"]),
    )
    yield (
        "retries",
        ", ".join(f"#{each['number']} {each['target']} {each['attempts']} attempts" for each in described["retries"]),
    )
    yield "effects", ", ".join(f"#{each['number']} {each['target']}" for each in described["effects"])


def _at(numbers: list[int]) -> str:
    return f" ({', '.join(f'#{number}' for number in numbers)})" if numbers else ""


def _prompts(prompts: dict[str, Any]) -> str:
    if not prompts["tokens"]:
        return ""
    series = " ".join("…" if size is None else f"{size:,}" for size in prompts["tokens"])
    unit = "tokens" if prompts["counted"] else "tokens, about"
    return f"{counted(prompts['calls'], 'call')}, {unit}: {series}"


def _losses(described: dict[str, Any]) -> str:
    shown = [
        f"#{loss['number']} {loss['role']} {loss['label']}: {loss['before']:,} -> {loss['after']:,} characters"
        for loss in described["lost_context"][:3]
    ]
    more = described["losses"] - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
