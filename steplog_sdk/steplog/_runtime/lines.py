"""What `step.started` and `step.finished` say, as the data of their lines."""

from __future__ import annotations

import functools
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog._kernel.identity import step_id
from steplog._kernel.state import StepState, begun
from steplog._runtime.pack import is_ordinary

if TYPE_CHECKING:
    from steplog._kernel.redact import Redactor
    from steplog._runtime.pack import Sink
    from steplog._runtime.ticket import Ticket


log: Final = logging.getLogger("steplog")

# How many different calls a run remembers to have no secret in their names. Few programs make as many.
_INNOCENT: Final = 512


def plain_intent(ticket: Ticket, redactor: Redactor) -> tuple[bytes, StepState] | None:
    """What `intent` comes to for an ordinary first attempt, and what a fold makes of it; None for any other."""
    call, recorder = ticket.call, ticket.recorder
    said = (call.kind, call.target, call.mode, call.module, ticket.account)
    constants = recorder.dispatch.innocent.get(said)
    if (
        (constants is None or call.request is not None or ticket.attempt > 1 or ticket.judged)
        or recorder.journal.state.modules.get(call.target) != call.module  # it is said in the first line only
    ):
        return None
    given = ticket.given = orjson.dumps(call.args)
    if not is_ordinary(given, redactor):
        return None
    opening, rest = constants
    key = "" if call.mode == "safe" else f',"key":"{ticket.key}"'
    text = f'{opening}{_place(ticket)}{key}{rest},"args":'
    return b"%b%b}" % (text.encode(), given), _begun(ticket, said)


def plain_outcome(ticket: Ticket, detail: dict[str, Any], redactor: Redactor) -> bytes | None:
    """What `outcome` comes to for an ordinary result, `done`; None for any other."""
    if ticket.noted is not None or ticket.attempt > 1 or len(detail) > 1 or "result" not in detail:
        return None
    total = time.perf_counter() - ticket.began
    result = orjson.dumps(detail["result"])
    if not is_ordinary(result, redactor):
        return None
    return b'{"outcome":"done","result":%b,"ms":{"total":%a}}' % (result, ms(total))


def intent(ticket: Ticket, sink: Sink) -> bytes:
    """The data of an attempt's `step.started`."""
    call = ticket.call
    said = (call.kind, call.target, call.mode, call.module, ticket.account)
    # Said once: the log holds it already, behind which this line comes.
    module = "" if ticket.recorder.journal.state.modules.get(call.target) == call.module else call.module
    opening, rest = _constants(call.kind, call.target, call.mode, module, ticket.account)
    key = "" if call.mode == "safe" else f',"key":"{ticket.key}"'
    text = f"{opening}{_place(ticket)}{key}{rest}"
    if ticket.judged:
        text += f',"judged":{orjson.dumps(ticket.judged).decode()}'
    if ticket.earlier is not None:
        # Said again, because this attempt may die before it has heard anything.
        text += f',"job":{orjson.dumps(ticket.earlier.job).decode()}'
    if call.request is None:
        ticket.given = orjson.dumps(call.args)
        args = sink.stored(ticket.given)
        data = b'%b,"args":%b}' % (text.encode(), args)
        if ticket.earlier is not None:
            return sink.text(data)
        innocent = ticket.recorder.dispatch.innocent
        known = said in innocent
        line = sink.text(data, args if known else None)
        if line is data:
            if ticket.attempt == 1 and not ticket.judged:
                sink.facts = _begun(ticket, said)
            if not known and len(innocent) < _INNOCENT:
                innocent[said] = _constants(call.kind, call.target, call.mode, "", ticket.account)
        return line
    data = b'%b,"request":%b}' % (text.encode(), sink.dumps(call.request))
    line = sink.text(data)
    if line is data and ticket.earlier is None and ticket.attempt == 1 and not ticket.judged:
        sink.facts = _begun(ticket, said)
        sink.facts.streamed = bool(call.request.get("stream"))
    return line


def refused(ticket: Ticket, detail: dict[str, Any], sink: Sink) -> bytes:
    """The data of an event that says what was asked for, and why it did not begin: `intent`, and a detail beside it."""
    asked = intent(ticket, sink)
    sink.facts = None
    return b"%b,%b" % (asked[:-1], sink.apart(detail)[1:])


def _begun(ticket: Ticket, said: tuple[str, str, str, str | None, str]) -> StepState:
    effect, (hashed, occurrence) = ticket.effect, ticket.hashed
    scope = effect.scope
    request = step_id(scope, said[0], said[1], hashed, 0) if occurrence else effect.id
    return begun(effect.id, (scope, effect.after, ticket.branch), said, request, occurrence)


@functools.lru_cache(maxsize=512)
def _constants(kind: str, target: str, mode: str, module: str | None, account: str) -> tuple[str, str]:
    rest: dict[str, Any] = {}
    if account:
        rest["account"] = account
    if module != "":
        rest["module"] = module
    opening = orjson.dumps({"kind": kind, "target": target, "mode": mode}).decode()[:-1]
    return opening, "," + orjson.dumps(rest).decode()[1:-1] if rest else ""


def _place(ticket: Ticket) -> str:
    """Where in the run an attempt is. What is as it mostly is, is not said: see docs/log-format.md."""
    effect, (hashed, occurrence) = ticket.effect, ticket.hashed
    # Ids, hashes, numbers and names of branches need no escaping.
    place = f',"scope":"{effect.scope}"' if effect.scope else ""
    if effect.after is not None:
        place += f',"after":"{effect.after}"'
    if occurrence:
        place += f',"occurrence":{occurrence},"args_hash":"{hashed}"'
    if ticket.branch:
        place += f',"branch":"{ticket.branch}"'
    return f'{place},"attempt":{ticket.attempt}' if ticket.attempt > 1 else place


def outcome(ticket: Ticket, outcome: str, detail: dict[str, Any], waited: float, sink: Sink) -> bytes:
    """The data of an attempt's `step.finished`."""
    total = time.perf_counter() - ticket.began
    notes = ticket.noted
    data: dict[str, Any] = {"outcome": outcome}
    if ticket.attempt > 1:
        data["attempt"] = ticket.attempt
    if notes is not None and notes.count:
        data["progressed"] = notes.count
        sink.redacted += notes.redacted
    if "result" in detail:
        data["result"] = sink.items(detail["result"]) if "end" in detail else sink.value(detail["result"])
    rest = {name: value for name, value in detail.items() if name != "result"}
    if "value" in rest.get("error", ()):
        rest["error"] = {**rest["error"], "value": sink.value(rest["error"]["value"])}
    data.update(rest)
    if outcome == "done":
        data.pop("final", None)
    data["ms"] = {"total": ms(total), "provider": ms(waited)} if waited else {"total": ms(total)}
    line = sink.line(data)
    if not sink.redacted:
        sink.facts = {name: data[name] for name in _FOLDED if name in data}
    return line


# All that a fold reads of an outcome.
_FOLDED: Final = (
    "outcome",
    "attempt",
    "retry",
    "progressed",
    "unreplayable",
    "redacted",
    "how",
    "final",
    "job_open",
    "spent",
    "active",
)


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
    return int(seconds * 1_000_000 + 0.5) / 1000
