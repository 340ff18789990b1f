"""Values and exceptions as recorded outcomes, and recorded outcomes as what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel.codec import Classes, decode, decode_exception, encode, encode_exception
from steplog._kernel.codec_classes import recorded_name
from steplog._kernel.refusal import Misfit
from steplog._kernel.secret import KIND, MARK, SHOWN
from steplog._runtime import messages
from steplog._runtime.blame import told
from steplog._runtime.context import frame
from steplog._runtime.drive import Steps
from steplog.errors import DecodeError, EncodeError, Interrupt, SteplogError

if TYPE_CHECKING:
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Ticket

ANYWHERE: Final = Classes()
"""Classes that are found by a registered codec or in a module that the program has imported."""


class _Arguments(Classes):
    def name(self, cls: type) -> str:
        return recorded_name(cls)

    def secret(self, tree: Any) -> Any:
        """A fingerprint in place of the value: it tells calls apart, and is all that leaves the process."""
        place = frame()
        made = "" if place is None else place.recorder.journal.fingerprints.of(tree)
        return {MARK: KIND, "v": SHOWN, "id": made}


ARGUMENTS: Final = _Arguments()
"""For arguments: they identify a call and are shown to people, but never become objects again."""


def failure(error: BaseException, classes: Classes = ANYWHERE) -> dict[str, Any]:
    """An exception as the `error` of a `step.finished`."""
    return {**told(error), "value": encode_exception(error, classes)}


def done(recorder: Recorder, ticket: Ticket, result: Any, classes: Classes = ANYWHERE) -> Steps[None]:
    """Write the result of an effect.

    Raises:
        Interrupt: it cannot be recorded. The effect has happened, so that is recorded, and the run halts.
    """
    try:
        tree = encode(result, where="result", classes=classes)
    except EncodeError as refused:
        raise (yield from unrecordable(recorder, ticket, refused)) from refused
    yield from recorder.finish(ticket, "done", {"result": tree})


def unrecordable(recorder: Recorder, ticket: Ticket, refused: EncodeError) -> Steps[Interrupt]:
    """Write that an effect has happened whose result cannot be recorded. Halts the run; returns what to raise."""
    fault = {"path": refused.path, "type": refused.type_name, "why": str(refused)}
    yield from recorder.finish(ticket, "done", {"unreplayable": fault})
    state = recorder.journal.state.steps[ticket.step]
    return recorder.halt(messages.unrecordable(recorder.named, state, str(refused)))


def returned(ticket: Ticket, classes: Classes = ANYWHERE, by_hand: Callable[[Any], Any] = lambda value: value) -> Any:
    """The recorded result of a step, or its recorded exception raised again.

    Args:
        ticket: of the step.
        classes: where the classes of its result are found.
        by_hand: makes of what an operator gave what the step returns; raises Misfit where it cannot.

    Raises:
        Interrupt: this program cannot restore it.
    """
    recorded = ticket.recorded
    assert recorded is not None
    if recorded.outcome == "failed":
        error = raised(ticket, classes)
        ticket.replayed(error)
        raise error
    try:
        value = decode(recorded.value("result"), classes)
        if recorded.data.get("how") == "done" and recorded.data.get("by") != "verify":
            value = by_hand(value)
    except Misfit as misfit:
        raise recorded.unreturnable(f"what was given for it does not fit: {misfit}") from misfit
    except DecodeError as undecodable:
        raise recorded.undecodable(undecodable) from undecodable
    ticket.replayed()
    return value


def raised(ticket: Ticket, classes: Classes = ANYWHERE) -> BaseException:
    """The recorded exception of a step."""
    assert ticket.recorded is not None
    error = decode_exception(ticket.recorded.error(), classes)
    if isinstance(error, SteplogError) and error.run_id is None:
        error.run_id, error.step = ticket.run_id, ticket.step
    return error
