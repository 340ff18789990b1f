"""Everything that a log holds of one step, in the order in which a person asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steplog._cli import facts
from steplog._cli.contents import Contents
from steplog._kernel import events as ev
from steplog._kernel.events import Event
from steplog._kernel.fold import RunState, StepState

# Where an outcome's own keys are shown; the rest of it is listed as it is, so that nothing recorded stays hidden.
_SHOWN = frozenset(
    {"outcome", "attempt", "result", "exchanges", "error", "parse", "usage", "model", "finish", "request_id", "status"}
    | {"ms", "redacted", "withheld", "exact", "unreplayable", "retry", "how", "by", "note"}
)


def step_detail(
    state: RunState, step: StepState, events: Sequence[Event], contents: Contents, *, live: bool
) -> dict[str, Any]:
    """The facts of a step with its input, output and every attempt."""
    started, finished = step.started, contents.event(step.finished or {})
    own = [event._replace(data=contents.event(event.data)) for event in events if event.step == step.id]
    progressed = [contents.event(note) for note in step.progressed]
    known = facts.step_facts(step, live=live)
    return {
        "run": state.run_id,
        **known,
        "error": known["error"] and (finished.get("error") or known["error"]),
        "scope": step.scope or None,
        "occurrence": step.occurrence,
        "idempotency_key": started.get("key", f"{state.run_id}:{step.id}"),
        "input": input_of(started, contents),
        "output": output_of(finished, progressed, contents),
        "parse": finished.get("parse"),
        "model": finished.get("model") or _requested_model(step),
        "parameters": _parameters(started),
        "finish": finished.get("finish"),
        "status_code": finished.get("status"),
        "request_id": finished.get("request_id"),
        "redacted": finished.get("redacted"),
        "withheld": finished.get("withheld"),
        "unreplayable": finished.get("unreplayable"),
        "by": finished.get("by"),
        "note": finished.get("note"),
        "more": contents.detail({key: value for key, value in finished.items() if key not in _SHOWN}) or None,
        "job": step.job,
        "attempts": attempts_of(own, contents),
        "inner": [inner.id for inner in state.steps.values() if inner.scope == step.id],
    }


def _requested_model(step: StepState) -> str | None:
    return step.target if step.kind == "llm_call" else None


def _parameters(started: dict[str, Any]) -> Any:
    request = started.get("request")
    return request.get("params") if isinstance(request, dict) else None


def input_of(started: dict[str, Any], contents: Contents) -> Any:
    """The request as it was sent, or the arguments as they were bound."""
    if "request" in started:
        return contents.detail(started["request"])
    return contents.value(started.get("args"))


def output_of(finished: dict[str, Any], notes: list[dict[str, Any]], contents: Contents) -> Any:
    """What came back, before any parsing: the exchanges of a model call, or the encoded result of a tool."""
    if "exchanges" in finished:
        return [_exchange(exchange, notes, contents) for exchange in finished["exchanges"]]
    return contents.value(finished.get("result"))


def _exchange(exchange: dict[str, Any], notes: list[dict[str, Any]], contents: Contents) -> Any:
    form = exchange.get("body")
    if not isinstance(form, dict) or "progressed" not in form:
        return contents.detail(exchange)
    lengths = [length for note in notes if note.get("exchange") == form["progressed"] for length in note["chunks"]]
    whole = {**exchange, "chunks": [*lengths, *exchange.get("chunks", ())]}
    return {**whole, "body": contents.pieces(notes, form["progressed"], form.get("rest"))}


def partial_of(notes: list[dict[str, Any]], contents: Contents) -> list[dict[str, Any]]:
    """What had arrived of the streams of an attempt that has not ended."""
    numbers = dict.fromkeys(note["exchange"] for note in notes if "exchange" in note)
    found = []
    for number in numbers:
        own = [note for note in notes if note.get("exchange") == number]
        lengths = [length for note in own for length in note["chunks"]]
        found.append({**own[0].get("head", {}), "chunks": lengths, "body": contents.pieces(own, number)})
    return found


def attempts_of(events: list[Event], contents: Contents) -> list[dict[str, Any]]:
    """One entry for each start, with what became of it; events of other kinds are listed under the attempt.

    An attempt without an outcome has under `partial` what had arrived of its streams.
    """
    attempts: list[dict[str, Any]] = []
    for event in events:
        if event.type == ev.STEP_STARTED or not attempts:
            attempts.append({"attempt": event.data.get("attempt", len(attempts) + 1), "events": []})
        current = attempts[-1]
        current["events"].append({"seq": event.seq, "type": event.type, "epoch": event.epoch, "ts": event.ts})
        if event.type == ev.STEP_STARTED:
            current.update(started=event.ts, epoch=event.epoch, outcome=None)
        elif event.type in _ENDINGS:
            current.update(_ending(event))
        elif event.type == ev.STEP_PROGRESSED:
            current.setdefault("notes", []).append(event.data)
    for attempt in attempts:
        notes = attempt.pop("notes", [])
        attempt["job"] = next((note["job"] for note in notes if "job" in note), None)
        if attempt.get("outcome") not in ("done", "failed"):
            attempt["partial"] = partial_of(notes, contents)
    return attempts


_ENDINGS = frozenset({ev.STEP_FINISHED, ev.STEP_SKIPPED, ev.STEP_RESOLVED, ev.STEP_DENIED, ev.STEP_REJECTED})


def _ending(event: Event) -> dict[str, Any]:
    data = event.data
    word = {ev.STEP_SKIPPED: "skipped", ev.STEP_RESOLVED: f"settled: {data.get('how')}"}.get(event.type)
    return {
        "finished": event.ts,
        "outcome": word or data.get("outcome"),
        "error": _without_value(data.get("error")),
        "ms": data.get("ms"),
        "status_code": data.get("status"),
        "request_id": data.get("request_id"),
        "by": data.get("by"),
        "note": data.get("note") or data.get("reason"),
    }


def _without_value(error: Any) -> Any:
    """An error without its encoded form, which only the program that raised it can read."""
    return {key: value for key, value in error.items() if key != "value"} if isinstance(error, dict) else error
