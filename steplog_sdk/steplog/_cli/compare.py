"""In what two steps that are each other's counterparts differ: what they ask for, and what came of it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from steplog._cli import chat, facts
from steplog._cli.contents import Contents
from steplog._cli.detail import input_of, output_of
from steplog._kernel.drift import Difference, differences, first_difference, windows
from steplog._kernel.fold import StepState
from steplog._kernel.prompts import Change, Said, changes, plain

# Of a model's request, what is compared message by message and not as fields.
_TOLD_APART = frozenset({"messages", "input", "system", "instructions"})


class Side(NamedTuple):
    """One run of a comparison.

    Attributes:
        contents: fetches what its lines refer to.
        live: whether a process holds it.
    """

    contents: Contents
    live: bool


def content_of(step: StepState) -> str:
    """What a step asks for, equal for equal requests of one home, without fetching a body."""
    started = step.started
    asked = started.get("request", started.get("args"))
    if isinstance(asked, dict) and "body" in asked and isinstance(asked["body"], dict):
        asked = {name: asked.get(name) for name in ("method", "path", "query", "body")}
    return json.dumps(asked, sort_keys=True, default=str)


def is_altered(a: StepState, b: StepState) -> bool:
    """Whether one of two steps with the same id was executed with something else: a fork has changed what it asks for.

    Its id is that of the request which the program makes, so that the program finds it again.
    """
    ours, theirs = a.started, b.started
    before, after = ours.get("request") or {}, theirs.get("request") or {}
    args = first_difference(ours.get("args"), theirs.get("args"))
    return args is not None or bool(before.get("changed") or after.get("changed"))


def asks(step: StepState, side: Side) -> Any:
    """What a step asks for: the arguments of a tool, the request of a model call."""
    return input_of(step.started, side.contents)


def conversation(step: StepState, side: Side) -> list[Said] | None:
    """The messages that a model call sends, or None where it is none."""
    request = asks(step, side)
    body = request.get("body") if isinstance(request, dict) else None
    if step.kind != "llm_call" or not isinstance(body, dict):
        return None
    return [Said(*message) for message in chat.asked(body)]


def answers(step: StepState, side: Side) -> list[Said] | None:
    """What the model said in a call that came to an end, or None where it is no model call or has not."""
    exchanges = output_of(step.finished or {}, step.progressed, side.contents)
    if step.kind != "llm_call" or not isinstance(exchanges, list) or not exchanges:
        return None
    last = exchanges[-1]
    if not isinstance(last, dict) or "body" not in last:
        return None
    return [Said(*message) for message in chat.answered(last["body"])]


def request_changes(a: StepState, b: StepState, one: Side, other: Side) -> dict[str, Any]:
    """How two requests differ: `fields` (path, a, b), `messages`, and the model where that is another one."""
    found: dict[str, Any] = {"messages": [], "fields": []}
    ours, theirs = asks(a, one), asks(b, other)
    said, also = conversation(a, one), conversation(b, other)
    if a.target != b.target:
        found["fields"].append(_field("target", a.target, b.target))
    if said is not None and also is not None:
        found["messages"] = [_message(change) for change in changes(said, also)]
        ours, theirs = _fields(ours), _fields(theirs)
    # Names that a provider makes up may differ before anything else does.
    difference = next(filter(_counts, differences(ours, theirs)), None)
    if difference is not None:
        old, new = windows(difference)
        found["fields"].append({"path": difference.path or "the value itself", "a": old, "b": new})
    return found


def _counts(difference: Difference) -> bool:
    old, new = difference.recorded, difference.found
    return type(old) is not type(new) or plain(str(old)) != plain(str(new))


def _fields(request: dict[str, Any]) -> dict[str, Any]:
    kept = {name: request.get(name) for name in ("method", "path", "query") if request.get(name)}
    body = {name: value for name, value in request["body"].items() if name not in _TOLD_APART and name != "model"}
    return {**kept, **body}


def _field(path: str, old: str, new: str) -> dict[str, str]:
    return {"path": path, "a": old, "b": new}


def _message(change: Change) -> dict[str, Any]:
    if change.old and change.new:
        difference = first_difference(change.old, change.new)
        old, new = windows(difference) if difference is not None else (change.old[:100], change.new[:100])
    else:
        old, new = _start(change.old), _start(change.new)
    return {"label": change.label, "a": change.a, "b": change.b, "role": change.role, "old": old, "new": new}


def _start(text: str) -> str:
    return " ".join(text[:200].split())[:100]


def is_same_request(changed: dict[str, Any]) -> bool:
    """Whether nothing but names that a provider makes up differs."""
    return not changed["messages"] and not changed["fields"]


def outcome_change(a: StepState, b: StepState, one: Side, other: Side) -> dict[str, Any] | None:
    """How the outcomes of two steps differ, as `{"path", "a", "b"}`; None where they say the same."""
    before, after = facts.step_status(a, live=one.live), facts.step_status(b, live=other.live)
    if before != after:
        return _field("status", before, after)
    ours, theirs = a.finished or {}, b.finished or {}
    if ours.get("error") or theirs.get("error"):
        errors = [facts.failures(each)[:1] for each in (ours, theirs)]
        return None if errors[0] == errors[1] else _shown("error", *errors)
    if "exchanges" not in ours or "exchanges" not in theirs:
        if first_difference(ours.get("result"), theirs.get("result")) is None:
            return None
        return _shown("result", one.contents.value(ours.get("result")), other.contents.value(theirs.get("result")))
    if _last_body(ours) == _last_body(theirs) is not None:
        return None
    said, also = answers(a, one), answers(b, other)
    if said is None or also is None:
        return _shown("answer", ours.get("status"), theirs.get("status"))
    if [(plain(each.role), plain(each.text)) for each in said] == [
        (plain(each.role), plain(each.text)) for each in also
    ]:
        before, after = (str(each.get("finish") or "-") for each in (ours, theirs))
        return None if before == after else _field("finish", before, after)
    return _shown("answer", _spoken(said), _spoken(also))


def _last_body(finished: dict[str, Any]) -> Any:
    exchanges = finished.get("exchanges") or [{}]
    body = exchanges[-1].get("body")
    # Pieces that were written while a stream passed are named by number, not by what is in them.
    return None if not isinstance(body, dict) or "progressed" in body else body


def _spoken(said: list[Said]) -> str:
    return "\n".join(each.text for each in said)


def _shown(name: str, old: Any, new: Any) -> dict[str, Any] | None:
    difference = first_difference(old, new)
    if difference is None:
        return None
    before, after = windows(difference)
    return {"path": f"{name}.{difference.path}".rstrip(".").replace(".[", "["), "a": before, "b": after}
