"""A comparison of two runs as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.text import Text

from steplog._cli import facts
from steplog._cli.ls import status_words, steps
from steplog._cli.output import columns, console, one_line, printable
from steplog._cli.render import KINDS
from steplog._kernel.words import counted

# Messages of one prompt that are listed.
_MESSAGES: Final = 12
_MARKS: Final = {"added": "+", "left out": "-", "changed": "~", "cut short": "<"}


def print_diff(described: dict[str, Any]) -> None:
    """Print a comparison as `diff.describe` gives it."""
    target = console()
    for line in columns([_side("A", described["a"]), _side("B", described["b"])]):
        target.print(line)
    counts = {how: count for how, count in described["counts"].items() if count}
    target.print(
        Text("steps  ", style="dim").append(", ".join(f"{count:,} {_word(how)}" for how, count in counts.items()))
    )
    for line in described["end"]:
        target.print(Text(f"ended  {line['path']}: {_short(line['a'])} -> {_short(line['b'])}", style="yellow"))
    if described["same"]:
        target.print(Text("the runs are the same", style="green"))
        return
    first, *rest = described["differences"] or [None]
    if first is not None:
        target.print(Text("\nfirst difference  ", style="bold").append(_title(first)))
        for text in _details(first):
            target.print(text)
    if rest:
        target.print(Text("\nthen", style="bold"))
        for row in rest:
            target.print(Text(f"  {_title(row)}  ").append(_brief(row), style="dim"))
    if described["more"] > 0:
        target.print(Text(f"  and {counted(described['more'], 'more difference')}; --full lists them", style="dim"))
    for number, line in enumerate(described["next"]):
        target.print(Text("\nnext: " if number == 0 else "      ").append(printable(line), style="bold"))


def _word(how: str) -> str:
    return {"request": "asked otherwise", "outcome": "with another outcome"}.get(how, how)


def _side(name: str, run: dict[str, Any]) -> list[Text]:
    seconds = run["seconds"]
    return [
        Text(name, style="bold"),
        Text(run["run"], style="bold"),
        Text(status_words(run)),
        Text(f"{steps(run)} steps"),
        Text(facts.tokens(run["tokens"]) or "-"),
        Text(run["price"]),
        Text(facts.span(None if seconds is None else seconds * 1000)),
    ]


def _title(row: dict[str, Any]) -> str:
    a, b = row["a"], row["b"]
    number = "/".join(f"#{each['number']}" if each is not None else "-" for each in (a, b))
    step = a if a is not None else b
    names = " -> ".join(dict.fromkeys(each["target"] for each in (a, b) if each is not None))
    return printable(f"{number}  {KINDS.get(step['kind'], step['kind'])} {one_line(names)}")


def _details(row: dict[str, Any]) -> Iterator[Text]:
    if row["how"] in ("only in A", "only in B"):
        yield Text(f"  {row['how']}", style="yellow")
        return
    request = row["request"] or {"messages": [], "fields": []}
    for field in request["fields"]:
        yield from _both(f"request {field['path']}", field)
    for message in request["messages"][:_MESSAGES]:
        number = "/".join(str(each) if each is not None else "-" for each in (message["a"], message["b"]))
        head = f"  {_MARKS[message['label']]} message {number} {message['role']}: {message['label']}"
        yield Text(printable(head), style="yellow")
        for sign, text in (("-", message["old"]), ("+", message["new"])):
            if text:
                yield Text(printable(f"      {sign} {text}"), style="red" if sign == "-" else "green")
    if len(request["messages"]) > _MESSAGES:
        yield Text(f"  and {counted(len(request['messages']) - _MESSAGES, 'more message')}", style="dim")
    if row["outcome"] is not None:
        yield from _both(row["outcome"]["path"], row["outcome"])


def _both(path: str, field: dict[str, Any]) -> Iterator[Text]:
    yield Text(printable(f"  ~ {path}"), style="yellow")
    yield Text(printable(f"      - {field['a']}"), style="red")
    yield Text(printable(f"      + {field['b']}"), style="green")


def _brief(row: dict[str, Any]) -> str:
    if row["how"] in ("only in A", "only in B"):
        return str(row["how"])
    parts = []
    request = row["request"]
    if request is not None:
        parts += [f"{field['path']} differs" for field in request["fields"]]
        labels: dict[str, int] = {}
        for message in request["messages"]:
            labels[message["label"]] = labels.get(message["label"], 0) + 1
        parts += [f"{counted(count, 'message')} {label}" for label, count in labels.items()]
    elif row["how"] == "request":
        parts.append("asked otherwise (not looked into)")
    if row["outcome"] is not None:
        parts.append(f"{row['outcome']['path']} differs")
    return printable(", ".join(parts))


def _short(value: Any) -> str:
    return printable(one_line(str(value or "-"), 120))
