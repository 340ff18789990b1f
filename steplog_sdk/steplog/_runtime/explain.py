"""From a decision that stops a run to the interrupt that tells a person why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from steplog._kernel.identity import args_hash, step_id
from steplog._runtime import forked, messages
from steplog.errors import BudgetExceeded, Suspended

if TYPE_CHECKING:
    from steplog._kernel.decide import Effect, Halt
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Call, Ticket
    from steplog.errors import Interrupt

_STOPS: Final[dict[str, type[BudgetExceeded | Suspended]]] = {
    "budget": BudgetExceeded,
    "approval": Suspended,
    "waiting": Suspended,
}
"""What a program gets again in a replay where its run was stopped by one of these reasons."""


def explain(recorder: Recorder, halt: Halt, call: Call, effect: Effect, ticket: Ticket | None = None) -> Interrupt:
    """The interrupt for a submitted call that may not run and has no recorded outcome to return."""
    run, state, asked = recorder.named, recorder.journal.state, f"{call.kind} {call.target}"
    if halt.reason == "unrecorded":
        stopped = _stopped_here(recorder, effect)
        if stopped is not None:
            return stopped
        return messages.unrecorded(run, state, asked, halt.step, _again(recorder, call, effect))
    if halt.reason == "simulated":
        if ticket is not None and halt.step is None:
            forked.note_refused(ticket)
        return forked.simulated(run, state, asked, effect.id)
    if halt.reason == "missed":
        return forked.missed(run, state, asked)
    if halt.reason == "indeterminate" and halt.step is not None:
        return messages.indeterminate(run, halt.step, f"\n{call.lookup}" if call.lookup else "")
    doubt = recorder.dispatch.doubt
    if halt.reason == "account" and doubt is not None:
        return messages.whose(run, state, doubt.account, doubt.steps, taken=doubt.taken)
    if halt.reason == "unreplayable" and halt.step is not None:
        return messages.unreplayable(run, halt.step, messages.why_unreplayable(halt.step.finished or {}))
    # A program that does what it did needs none of this.
    from steplog._runtime.drift_message import drift
    from steplog._runtime.evidence import gather

    evidence = gather(recorder, halt, call, effect)._replace(again=_again(recorder, call, effect))
    return drift(run, state, asked, halt, evidence, replaying=not recorder.dispatch.live)


def _stopped_here(recorder: Recorder, effect: Effect) -> Interrupt | None:
    """The interrupt that stopped the recorded run at this step, where the recording ends so."""
    stop = recorder.journal.stop
    kind = None if stop is None or stop.get("step") != effect.id else _STOPS.get(str(stop.get("reason")))
    if stop is None or kind is None:
        return None
    facts = {name: stop[name] for name in kind.noted if name in stop}
    commands = tuple(str(each) for each in stop.get("commands") or ())
    message = str(stop.get("message", ""))
    return kind(
        message, run_id=recorder.named.run_id, step=effect.id, reason=stop["reason"], commands=commands, **facts
    )


def _again(recorder: Recorder, call: Call, effect: Effect) -> int:
    """How many equal calls of this scope are recorded, where the program has asked for all of them before; else 0."""
    first = step_id(effect.scope, call.kind, call.target, call.hashed or args_hash(call.args), 0)
    equal = [step.id for step in recorder.journal.state.steps.values() if step.request == first]
    seen = recorder.dispatch.seen
    return len(equal) if all(step in seen for step in equal) else 0
