"""A run as text: its header, then its steps as an indented list."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from steplog._cli import facts, undone, waits
from steplog._cli.ls import STATUS_STYLE, status_words, steps, when
from steplog._cli.output import columns, console, fits, one_line, printable

# Glyph, its stand-in for terminals that cannot show it, and style. The status is also written out wherever it is not
# the ordinary one, because neither colour nor glyph reaches everybody.
GLYPHS: Final = {
    "done": ("✓", "+", "green"),
    "failed": ("✗", "x", "red"),
    "running": ("▸", ">", "cyan"),
    "skipped": ("-", "-", "dim"),
    "denied": ("⊘", "x", "red"),
    "blocked": ("‖", "=", "bold yellow"),
    facts.WAITING: ("…", ".", "cyan"),
    facts.CANCELLED: ("⊘", "-", "dim"),
    facts.TO_REPEAT: ("↻", "~", "yellow"),
    facts.IN_DOUBT: ("?", "?", "bold yellow"),
    facts.GIVEN_UP: ("⊘", "-", "dim"),
    facts.LOST: ("!", "!", "bold yellow"),
}
KINDS: Final = {"llm_call": "model", "tool_call": "tool"}
_OTHER: Final = ("·", ".", "")
# Of a longer list the text shows its beginning, its end, and what is not done, up to so many.
_FIRST: Final = 20
_LAST: Final = 40
_NOT_DONE: Final = 40
_WORTH_TELLING_SECONDS: Final = 1


def print_run(run: dict[str, Any], *, everything: bool = False) -> None:
    """Print a run as `show.describe` gives it; a long list of steps is cut, unless `everything` is asked for."""
    target = console()
    for line in _header(run):
        target.print(line)
    nodes = list(_flat(run["tree"], 0))
    shown = list(range(len(nodes))) if everything else _shown([node for node, _ in nodes])
    rows = [_row(*nodes[place], target) for place in shown]
    if rows:
        target.print()
        _print_rows(rows, target)
    if len(shown) < len(nodes):
        more = f"{len(nodes) - len(shown)} steps of the middle are left out; --all shows them"
        target.print(Text(f"  {more}", style="dim"))
    if run["unknown_events"]:
        kinds = sorted({event["type"] for event in run["unknown_events"]})
        target.print(
            Text(
                f"\n{len(run['unknown_events'])} events of kinds that this release does not know: "
                f"{printable(', '.join(kinds))}",
                style="dim",
            )
        )
    for line in run["next"]:
        target.print(
            Text("\nnext: ").append(printable(line), style="bold")
            if line == run["next"][0]
            else Text("      ").append(printable(line), style="bold")
        )


def _header(run: dict[str, Any]) -> Iterator[Text]:
    yield Text.assemble((run["run"], "bold"), "  ", (status_words(run), STATUS_STYLE.get(run["status"], "")))
    for name, value in _facts(run):
        if value:
            yield Text.assemble((f"  {name:<11}", "dim"), printable(value))


def _facts(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "as it was", f"when step #{run['at']['number']} began, {when(run['at']['ts'])}" if run.get("at") else ""
    yield "fork", _fork(run["fork"])
    yield "goal", run["goal"] or ""
    yield "workflow", run["workflow"] or ""
    yield "version", " -> ".join(filter(None, (run["version"], run["version_now"])))
    yield "call", _call(run["call"])
    yield "trigger", _trigger(run["trigger"])
    yield "program", _program(run["entry"])
    span = facts.span(None if run["seconds"] is None else run["seconds"] * 1000)
    stopped = run["stopped_seconds"] or 0
    paused = f", stood still for {facts.span(stopped * 1000)}" if stopped >= _WORTH_TELLING_SECONDS else ""
    yield "started", f"{when(run['started'])}, took {span}{paused}"
    yield (
        "steps",
        f"{steps(run)} done"
        + "".join(f", {count} {word}" for word, count in run["steps"].items() if word not in {"total", "done"}),
    )
    yield "tokens", facts.tokens(run["tokens"])
    yield "budget", facts.budget_words(run["budget"])
    yield "log", f"{run['events']} events, {run['durability'] or 'unknown'}, {_times(run['epochs'])}"
    for weakness in run["weakened"]:
        lowered = (
            f"{weakness.get('asked')} to {weakness.get('level')}: "
            if weakness.get("asked") != weakness.get("level")
            else ""
        )
        yield "weakened", f"{lowered}{weakness.get('why')}"
    yield "held by", _holder(run["holder"])
    yield from waits.lines(run)
    yield "error", _error(run["error"])
    yield "undone", undone.words(run.get("undo"))


def _fork(fork: dict[str, Any] | None) -> str:
    if not fork:
        return ""
    what = "with live tools" if fork.get("live_tools") else "a simulation: side effects are refused"
    shared = f", {fork['steps']} steps shared" if "steps" in fork else ""
    changed = "".join(f", {path} set" for path, _ in fork.get("set") or ())
    return f"{facts.fork_words(fork)}{shared}{changed}; {what}"


def _call(call: dict[str, Any] | None) -> str:
    if not call:
        return ""
    args = ", ".join(f"{name}={json.dumps(value)}" for name, value in (call["args"] or {}).items())
    return f"{call['module']}.{call['name']}({one_line(args, 200)})"


def _trigger(trigger: Any) -> str:
    if not isinstance(trigger, dict):
        return str(trigger or "")
    kind, by = trigger.get("kind"), trigger.get("by")
    return f"{kind} by {by}" if kind and by else str(kind or by or "")


def _program(entry: Any) -> str:
    if not isinstance(entry, dict):
        return ""
    name = ["-m", entry["module"]] if entry.get("module") else [entry.get("script") or ""]
    return shlex.join([*name, *map(str, entry.get("argv") or ())]) if name[-1] else ""


def _times(epochs: int) -> str:
    return "opened once" if epochs == 1 else f"opened {epochs} times"


def _holder(holder: dict[str, Any] | None) -> str:
    if holder is None:
        return ""
    return f"process {holder['pid']} on {holder['host']} since {holder['since']}" if holder["pid"] else "a process"


def _error(error: Any) -> str:
    if not isinstance(error, dict):
        return ""
    return ": ".join(filter(None, (str(error.get("type")), one_line(str(error.get("message") or ""), 200))))


def glyph(status: str, target: Console) -> Text:
    """The mark of a status, in what the terminal can show."""
    fancy, plain, style = GLYPHS.get(status, _OTHER)
    return Text(fancy if target.encoding.startswith("utf") else plain, style=style)


def _flat(nodes: list[dict[str, Any]], depth: int) -> Iterator[tuple[dict[str, Any], int]]:
    for node in nodes:
        yield node, depth
        yield from _flat(node["steps"], depth + 1)


def _shown(nodes: list[dict[str, Any]]) -> list[int]:
    """Places of the steps that a text shows of a long list."""
    count = len(nodes)
    if count <= _FIRST + _LAST:
        return list(range(count))
    between = range(_FIRST, count - _LAST)
    open_ = [place for place in between if nodes[place]["status"] != "done"][-_NOT_DONE:]
    return [*range(_FIRST), *open_, *range(count - _LAST, count)]


def _row(node: dict[str, Any], depth: int, target: Console) -> list[Text]:
    name = Text("  " * depth).append_text(glyph(node["status"], target))
    kind = KINDS.get(node["kind"], node["kind"])
    name.append(f" {printable(kind):<5} ", style="dim").append(printable(node["target"]))
    return [
        name,
        Text(facts.span((node["ms"] or {}).get("total"))),
        Text(facts.tokens(node["usage"])),
        Text(f"#{node['number']}", style="dim"),
        Text(node["step"], style="dim"),
        Text(_remark(node), style=GLYPHS.get(node["status"], _OTHER)[2]),
    ]


def _remark(node: dict[str, Any]) -> str:
    remarks = [] if node["status"] == "done" else [node["status"]]
    if node["attempt"] > 1:
        remarks.append(f"attempt {node['attempt']}")
    if node["status"] == "blocked":
        remarks.append(f"rule {node['rule']} asks for approval")
    if node["settled"]:
        remarks.append("settled by hand")
    if node["error"]:
        remarks.append(_error(node["error"]))
    return printable(", ".join(remarks))


def _print_rows(rows: list[list[Text]], target: Console) -> None:
    lines = columns(rows, right=frozenset({1, 3}))
    if fits(lines, target):
        for line in lines:
            target.print(line)
        return
    for name, *rest in rows:
        indent = " " * (len(name.plain) - len(name.plain.lstrip()) + 2)
        target.print(name)
        for cell in rest:
            if cell.plain:
                target.print(Text(indent).append_text(cell))
