"""The steps of a run as a post-mortem looks at them: what the log says of each, and what its bodies hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from steplog._cli import chat, facts
from steplog._cli.compare import Side, conversation
from steplog._cli.contents import Contents
from steplog._cli.detail import input_of, output_of
from steplog._kernel import events as ev
from steplog._kernel.events import Event
from steplog._kernel.fold import RunState, StepState
from steplog._kernel.why import View, inner_time

# Bytes of prompts that are read. A conversation is sent again with every call, so those of a long run are a thousand
# times its size; of what comes behind, sizes and tokens are known all the same.
_READ: Final = 128 << 20


def views_of(state: RunState, events: Sequence[Event], contents: Contents, *, live: bool) -> Iterator[View]:
    """The steps of a run in recorded order.

    Args:
        state: the folded log.
        events: the log.
        contents: fetches bodies.
        live: a process holds the run.
    """
    epochs = _epochs(events)
    times = {step.id: _ms(step.finished) for step in state.steps.values()}
    inside = inner_time(times, {step.id: step.scope for step in state.steps.values()})
    side, budget = Side(contents, live), _READ
    for number, step in enumerate(state.steps.values(), 1):
        budget -= _size(step)
        yield _view(number, step, side, epochs, times[step.id] - inside.get(step.id, 0.0), reads=budget > 0)


def _epochs(events: Sequence[Event]) -> dict[str, tuple[int, int]]:
    """By step, in which epoch it began first, and in which it ended last."""
    found: dict[str, tuple[int, int]] = {}
    for event in events:
        if event.step is not None and event.type in (ev.STEP_STARTED, ev.STEP_FINISHED, ev.STEP_RESOLVED):
            began, _ = found.get(event.step, (event.epoch, 0))
            found[event.step] = (event.epoch if event.type == ev.STEP_STARTED else began, event.epoch)
    return found


def _ms(finished: dict[str, Any] | None) -> float:
    return float(((finished or {}).get("ms") or {}).get("total") or 0.0)


def _size(step: StepState) -> int:
    request = step.started.get("request")
    body = request.get("body") if isinstance(request, dict) else None
    return int(body.get("size") or 0) if isinstance(body, dict) else 0


def _view(
    number: int, step: StepState, side: Side, epochs: dict[str, tuple[int, int]], ms: float, *, reads: bool
) -> View:
    finished = step.finished or {}
    error = facts.failures(finished)[:1] if step.status in facts.REFUSED_OR_FAILED else []
    error = error or ([told] if (told := facts.why_failed(step)) else [])
    said, proposed = _answer(step, side) if step.kind == "llm_call" else ("", [])
    exchanges = len(finished.get("exchanges") or ())
    status = facts.step_status(step, live=side.live)
    waited = float((finished.get("ms") or {}).get("provider") or 0.0)
    return View(
        number=number,
        id=step.id,
        kind=step.kind,
        target=step.target,
        scope=step.scope,
        mode=step.mode,
        status=step.status,
        in_doubt=status == facts.IN_DOUBT,
        attempts=step.attempt + max(0, exchanges - 1),
        began=_seconds(step.started_ts),
        ended=_seconds(step.finished_ts),
        epochs=epochs.get(step.id, (0, 0)),
        ms=max(0.0, ms),
        waited=waited,
        usage={name: count for name, count in (finished.get("usage") or {}).items() if isinstance(count, int)},
        error=(error[0]["type"], error[0]["message"]) if error else None,
        final=bool(finished.get("final")),
        finish=finished.get("finish"),
        asked=(conversation(step, side) or []) if reads else [],
        said=said,
        proposed=proposed,
        args="" if step.kind == "llm_call" else _text(input_of(step.started, side.contents)),
        result="" if step.kind == "llm_call" else _result(finished, error, side),
    )


def _seconds(stamp: str | None) -> float | None:
    moment = facts.parse_time(stamp or "")
    return None if moment is None else moment.timestamp()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str, sort_keys=True)


def _result(finished: dict[str, Any], error: list[dict[str, str]], side: Side) -> str:
    return f"{error[0]['type']}: {error[0]['message']}" if error else _text(side.contents.value(finished.get("result")))


def _answer(step: StepState, side: Side) -> tuple[str, list[tuple[str, str]]]:
    """The model's words, and the tools that it asked for."""
    exchanges = output_of(step.finished or {}, step.progressed, side.contents)
    last = exchanges[-1] if isinstance(exchanges, list) and exchanges and isinstance(exchanges[-1], dict) else {}
    if "body" not in last or not isinstance(last.get("status"), int) or last["status"] >= facts.REFUSED:
        return "", []
    messages = chat.answered(last["body"])
    return "\n".join(message.text for message in messages), chat.proposed(messages)
