"""What `step.started` and `step.finished` say, as the data of their lines."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from steplog._runtime.pack import Sink
    from steplog._runtime.ticket import Ticket


log: Final = logging.getLogger("steplog")


def intent(ticket: Ticket, sink: Sink) -> bytes:
    """The data of an attempt's `step.started`."""
    call = ticket.call
    data: dict[str, Any] = {"kind": call.kind, "target": call.target, "mode": call.mode, **_place(ticket)}
    if call.mode != "safe":
        data["key"] = ticket.key
    if ticket.forked:
        data["branch"] = True
    if ticket.account:
        data["account"] = ticket.account
    if call.module is not None:
        data["module"] = call.module
    if ticket.earlier is not None:
        # Said again, because this attempt may die before it has heard anything.
        data["job"] = ticket.earlier.job
    if call.request is None:
        ticket.given = orjson.dumps(call.args)
        data["args"] = sink.serialised(ticket.given)
    else:
        data["request"] = sink.detail(call.request)
    return sink.line(data)


def _place(ticket: Ticket) -> dict[str, Any]:
    """Where in the run an attempt is. What is as it mostly is, is not said: see docs/log-format.md."""
    effect, (hashed, occurrence) = ticket.effect, ticket.hashed
    place: dict[str, Any] = {}
    if effect.scope:
        place["scope"] = effect.scope
    if effect.after is not None:
        place["after"] = effect.after
    if occurrence:
        place |= {"occurrence": occurrence, "args_hash": hashed}
    if ticket.attempt > 1:
        place["attempt"] = ticket.attempt
    return place


def outcome(ticket: Ticket, outcome: str, detail: dict[str, Any], waited: float, sink: Sink) -> bytes:
    """The data of an attempt's `step.finished`."""
    total = time.perf_counter() - ticket.began
    data: dict[str, Any] = {"outcome": outcome}
    if ticket.attempt > 1:
        data["attempt"] = ticket.attempt
    if ticket.notes.count:
        data["progressed"] = ticket.notes.count
        sink.redacted += ticket.notes.redacted
    if "result" in detail:
        data["result"] = sink.value(detail["result"])
    rest = {name: value for name, value in detail.items() if name != "result"}
    if "value" in rest.get("error", ()):
        rest["error"] = {**rest["error"], "value": sink.value(rest["error"]["value"])}
    data.update(sink.detail(rest))
    if outcome == "done":
        data.pop("final", None)
    data["ms"] = {"total": ms(total), "provider": ms(waited)} if waited else {"total": ms(total)}
    return sink.line(data)


def warn_of_loss(ticket: Ticket) -> None:
    """Say that the outcome of a step cannot be returned, because a secret was taken out of it."""
    what = "run %s: a secret was taken out of the recorded outcome of %s (%s); on resume %s"
    fate = "it runs again" if ticket.call.mode == "safe" else "the run stops there. Return a reference instead"
    log.warning(what, ticket.run_id, ticket.call.target, ticket.step, fate)


def settled(result: Any, sink: Sink) -> bytes:
    """The data of a `step.resolved` by the tool's own `verify`, with the encoded result."""
    return sink.line({"how": "done", "by": "verify", "result": sink.value(result)})


def ms(seconds: float) -> float:
    """Milliseconds with microsecond precision."""
    return round(seconds * 1000, 3)
