"""What a run waits for and what others have said to it, as plain JSON values and in words."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from steplog._cli.lookup import Found
from steplog._cli.output import error_facts
from steplog._kernel.fold import RunState
from steplog._kernel.inbox import Message
from steplog._kernel.waiting import open_waits, pending, readiness, unconsumed
from steplog._runtime.post import readable
from steplog._runtime.told import moment
from steplog.errors import StoreError


class Heard(NamedTuple):
    """What others have said to a run.

    Attributes:
        messages: its inbox, as far as it can be read.
        fault: what is wrong with the rest, or None.
    """

    messages: Sequence[Message] = ()
    fault: StoreError | None = None


def heard(found: Found) -> Heard:
    """The inbox of a run. One that is damaged hides neither its log nor the messages before the damage."""
    return Heard(*readable(found.store, found.run_id))


def waiting_facts(state: RunState, inbox: Heard) -> dict[str, Any]:
    """The waits of a run, its messages that no one has taken or got yet, and its cancellation.

    Args:
        state: the folded log.
        inbox: its inbox.
    """
    cancel = None if state.controls is None else state.controls.cancel
    return {
        "waits": [
            {"step": wait.step, "signal": wait.signal, "until": None if wait.until is None else moment(wait.until)}
            for wait in open_waits(state)
        ],
        "pending": [
            {"message": each.id, "kind": each.kind, "name": each.data.get("name") or each.data.get("step")}
            | {"by": each.by, "note": each.note, "sent": each.ts}
            for each in pending(state, inbox.messages)
        ],
        "signals": unconsumed(state),
        "inbox_error": None if inbox.fault is None else error_facts(inbox.fault)["error"],
        "cancel": cancel and {"by": cancel["by"], "note": cancel["note"], "delivered": list(cancel["delivered"])},
    }


def is_ready(state: RunState, messages: Sequence[Message]) -> bool:
    """Whether what a suspended run waits for has come."""
    return state.status == "suspended" and readiness(state, messages, int(time.time() * 1000)).now


def lines(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The same in words, each line with its heading."""
    for wait in run.get("waits") or ():
        until = f"until {wait['until']}" if wait["until"] else ""
        yield (
            "waits",
            " ".join(filter(None, (wait["signal"] and f"for signal {wait['signal']}", until))) or "for nothing",
        )
    if cancel := run.get("cancel"):
        by, note = cancel["by"], cancel["note"]
        how = "delivered" if cancel["delivered"] else "not delivered yet"
        yield "cancelled", (f"by {by}" if by else "by somebody") + (f": {note}" if note else "") + f" ({how})"
    new = Counter(
        " ".join(str(word) for word in (each["kind"], each["name"]) if word) for each in run.get("pending") or ()
    )
    if new:
        yield "inbox", "not taken yet: " + _counted(new)
    if run.get("inbox_error"):
        yield "damaged", run["inbox_error"]["message"]
    if run.get("signals"):
        yield "signals", "nobody has waited for yet: " + _counted(run["signals"])


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}" if count == 1 else f"{name} ({count} times)" for name, count in counts.items())
