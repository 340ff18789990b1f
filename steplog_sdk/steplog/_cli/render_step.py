"""One step as text: its facts, its input and output verbatim, its attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from steplog._cli import chat, facts
from steplog._cli.chat import Message, pretty
from steplog._cli.ls import when
from steplog._cli.output import console, printable
from steplog._cli.render import glyph


def print_step(detail: dict[str, Any]) -> None:
    """Print a step as `detail.step_detail` gives it."""
    target = console()
    head = glyph(detail["status"], target).append(f" {detail['kind']} {printable(detail['target'])}", style="bold")
    target.print(head.append(f"  {detail['status']}", style="not bold"))
    for name, value in _facts(detail):
        if value:
            target.print(Text.assemble((f"  {name:<13}", "dim"), printable(value)))
    _print_input(detail, target)
    _print_output(detail, target)
    _section("attempts", target)
    for attempt in detail["attempts"]:
        target.print(f"  {attempt['attempt']}  {printable(_attempt(attempt))}")
        for exchange in attempt.get("partial") or ():
            target.print(Text("     what had arrived by then:", style="dim"))
            _print_exchange(exchange, target)


def _facts(detail: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "step", detail["step"]
    yield "run", detail["run"]
    yield "parent", detail["parent"] or "none"
    yield "after", detail["after"] or ""
    yield "mode", detail["mode"]
    yield "rule", detail["rule"] or ""
    yield "key", detail["idempotency_key"] or ""
    yield "job", " ".join(str(word) for word in (detail["job"] or {}).values())
    yield "model", detail["model"] or ""
    yield "finish", str(detail["finish"] or "")
    yield "status code", str(detail["status_code"] or "")
    yield "request id", detail["request_id"] or ""
    yield "tokens", _tokens(detail["usage"])
    yield "time", _time(detail["ms"])
    yield "parsed", _parse(detail["parse"])
    yield "error", _error(detail["error"])
    yield "unreplayable", pretty(detail["unreplayable"]) if detail["unreplayable"] else ""
    yield "redacted", pretty(detail["redacted"]) if detail["redacted"] else ""
    yield "withheld", _withheld(detail["withheld"])
    yield "settled", f"{detail['settled']} by {detail['by'] or 'unknown'}" if detail["settled"] else ""
    yield "note", detail["note"] or ""
    yield "inner steps", ", ".join(detail["inner"])


def _withheld(count: int | None) -> str:
    places = "1 place" if count == 1 else f"{count} places"
    return f"{places}, kept encrypted; --reveal shows what is there" if count else ""


def _tokens(usage: dict[str, Any] | None) -> str:
    more = [
        f"{facts.number(count)} {name}"
        for name, count in (usage or {}).items()
        if name not in {"input", "output"} and isinstance(count, int)
    ]
    return ", ".join(filter(None, [facts.tokens(usage), *more]))


def _time(ms: dict[str, Any] | None) -> str:
    if not ms:
        return ""
    total, provider = ms.get("total"), ms.get("provider")
    if not provider or total is None:
        return facts.span(total)
    own = f"{facts.span(max(0.0, total - provider))} in the SDK and steplog"
    return f"{facts.span(total)} ({facts.span(provider)} waiting on the provider, {own})"


def _parse(parse: Any) -> str:
    return f"failed: {_error(parse)}" if isinstance(parse, dict) else str(parse or "")


def _error(error: Any) -> str:
    if not isinstance(error, dict):
        return ""
    return ": ".join(filter(None, (str(error.get("type")), str(error.get("message") or ""))))


def _section(title: str, target: Console) -> None:
    target.print(Text(f"\n{title}", style="bold"))


def _print_input(detail: dict[str, Any], target: Console) -> None:
    _section("input", target)
    request = detail["input"]
    if detail["kind"] != "llm_call" or not isinstance(request, dict) or "body" not in request:
        _print_block(pretty(request), target)
        return
    target.print(Text(f"  {request.get('method', 'POST')} {printable(str(request.get('path', '')))}", style="dim"))
    for name, value in chat.parameters(request["body"]).items():
        # A list of tools reads best one to a line; as one line it hides what comes before and after it.
        lines = value if isinstance(value, list) and len(value) > 1 else [value]
        for line in lines:
            target.print(Text.assemble((f"  {printable(name)} ", "dim"), printable(_inline(line))))
    for message in chat.asked(request["body"]):
        _print_message(message, target)


def _inline(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print_output(detail: dict[str, Any], target: Console) -> None:
    _section("output", target)
    exchanges = detail["output"]
    if detail["finished"] is None:
        target.print("  none recorded")
    elif (
        isinstance(exchanges, list) and all(isinstance(one, dict) for one in exchanges) and detail["kind"] == "llm_call"
    ):
        for exchange in exchanges:
            _print_exchange(exchange, target)
    else:
        _print_block(pretty(exchanges), target)
    if detail["more"]:
        _section("also recorded", target)
        _print_block(pretty(detail["more"]), target)


def _print_exchange(exchange: dict[str, Any], target: Console) -> None:
    rest = {key: value for key, value in exchange.items() if key not in {"body", "headers", "chunks"}}
    target.print(Text(f"  {printable(_inline(rest))}", style="dim"))
    if "body" in exchange:
        for message in chat.answered(exchange["body"]):
            _print_message(message, target)


def _print_message(message: Message, target: Console) -> None:
    target.print(Text(f"  --- {printable(message.role)}", style="cyan"))
    _print_block(message.text, target)


def _print_block(text: str, target: Console) -> None:
    for line in printable(text).split("\n"):
        target.print(Text(f"  {line}" if line else ""))


def _attempt(attempt: dict[str, Any]) -> str:
    parts = [
        when(attempt.get("started")),
        attempt.get("outcome") or "no outcome recorded",
        facts.span((attempt.get("ms") or {}).get("total")),
        f"status {attempt['status_code']}" if attempt.get("status_code") else "",
        attempt.get("request_id") or "",
        _error(attempt.get("error")),
        f"job {attempt['job'].get('id')}" if attempt.get("job") else "",
        f"by {attempt['by']}" if attempt.get("by") else "",
        attempt.get("note") or "",
    ]
    return "  ".join(part for part in parts if part)
