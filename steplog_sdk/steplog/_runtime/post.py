"""Saying something to a run, from any process: a message in its inbox, which its writer takes over into the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steplog._kernel.inbox import MAX_MESSAGE, SIGNAL, Message, parse, seal
from steplog._runtime import redaction, settings, ulid
from steplog._runtime.commit import timestamp
from steplog._runtime.door import PROCESS
from steplog.errors import Corrupt, InvalidArgument, StoreError, UnknownRun

if TYPE_CHECKING:
    from steplog.stores.base import Inbox, Store


def chosen(store: Store | None) -> Store:
    """The store that a caller means: the one that is given, or the one that is installed."""
    return store or settings.open_store(PROCESS.settings or settings.resolve())


def inbox_of(store: Store, run_id: str) -> Inbox:
    """The inbox of a run.

    Raises:
        StoreError: this kind of store has none.
        InvalidArgument: a bad run id.
    """
    found = getattr(store, "inbox", None)
    if found is None:
        message = (
            f"run {run_id}: {type(store).__name__} has no inbox, so nobody but its own program can say anything to the "
            f"run. A store offers one by a method inbox(run_id); see steplog.stores.base.Inbox."
        )
        raise StoreError(message, run_id=run_id)
    inbox: Inbox = found(run_id)
    return inbox


def is_held(store: Store, run_id: str) -> bool:
    """Whether a process is at work on a run, as far as the store can tell."""
    if run_id in PROCESS.runs:
        return True
    holder = getattr(store, "holder", None)
    return holder is not None and holder(run_id) is not None


def messages(store: Store, run_id: str) -> list[Message]:
    """All messages to a run, in order, whether or not the run has taken them. Empty where its store has no inbox.

    Raises:
        Corrupt: a message is not what was sent.
        StoreError: the inbox cannot be read.
    """
    if not hasattr(store, "inbox"):
        return []
    inbox = inbox_of(store, run_id)
    return whole(inbox, run_id, inbox.read())[0]


def readable(store: Store, run_id: str) -> tuple[list[Message], StoreError | None]:
    """The messages to a run as far as they can be read, and what is wrong with the rest: for those who only look."""
    if not hasattr(store, "inbox"):
        return [], None
    inbox = inbox_of(store, run_id)
    try:
        data = inbox.read()
    except StoreError as error:
        return [], error
    try:
        return whole(inbox, run_id, data)[0], None
    except Corrupt as error:
        return parse(data).messages, error


def whole(inbox: Inbox, run_id: str, data: bytes) -> tuple[list[Message], int]:
    """The messages in a piece of an inbox, and how many of its bytes they are. Raises Corrupt."""
    found = parse(data)
    if found.damaged is not None:
        from steplog.stores.inbox import damaged

        raise damaged(run_id, inbox.path, found.damaged)
    return found.messages, found.size


def send(
    store: Store, run_id: str, kind: str, data: dict[str, Any], *, by: str | None = None, note: str | None = None
) -> Message:
    """Put a message into the inbox of a run; it is on disk when this returns. The run need not be open anywhere.

    Args:
        store: where the run lives.
        run_id: the run, which must exist.
        kind: signal, approve, reject or cancel.
        data: a JSON tree; what it says.
        by: who says it.
        note: why, for the record.

    Raises:
        UnknownRun: there is no such run.
        InvalidArgument: the message holds what looks like a secret, or is longer than 64 KiB.
        StoreError: it could not be written.
    """
    inbox = inbox_of(store, run_id)
    if run_id not in PROCESS.runs and run_id not in store.runs():
        raise UnknownRun(
            f"there is no run {run_id!r} to say anything to. List what there is: steplog ls", run_id=run_id
        )
    message = Message(ulid.new(), kind, data, _shown(by), _shown(note), timestamp())
    line = seal(message)
    if len(line) > MAX_MESSAGE:
        text = (
            f"a message to run {run_id} of {len(line):,} bytes is too long; {MAX_MESSAGE:,} are allowed. It was not "
            f"sent.\nKeep the value elsewhere and send a reference to it."
        )
        raise InvalidArgument(text, run_id=run_id)
    if _redactor().redact(seal(message._replace(by=None, note=None)))[1]:
        text = (
            f"the {kind} for run {run_id} holds what looks like a secret, which is not written down, so the run could "
            f"not get it. It was not sent.\nSend a reference in its place: the name under which the program finds it."
        )
        raise InvalidArgument(text, run_id=run_id)
    inbox.append(line)
    return message


def _redactor() -> Any:
    return redaction.redactor((PROCESS.settings or settings.resolve()).redact)


def _shown(text: str | None) -> str | None:
    return None if text is None else _redactor().redact(text.encode("utf-8", "backslashreplace"))[0].decode()


def signal(
    run_id: str,
    name: str,
    value: Any = None,
    *,
    by: str | None = None,
    note: str | None = None,
    store: Store | None = None,
) -> str:
    """Send a signal to a run, which `run.wait(name)` in its program returns. Any process may, at any time.

    It is on disk when this returns. Signals of one name are returned in the order in which they were sent, each once;
    one that nobody waits for yet is kept. Whether the run is open anywhere does not matter.

    Args:
        run_id: the run, which must exist.
        name: what the run waits for.
        value: what it is told: any value that a step may return, up to 64 KiB.
        by: who sends it, for the record.
        note: why, for the record.
        store: where the run lives; as installed by default.

    Returns:
        The id of the message; the log of the run names it.

    Raises:
        UnknownRun: there is no such run.
        InvalidArgument: the name or the value is not accepted.
        EncodeError: the value cannot be recorded.
        StoreError: it could not be written.
    """
    from steplog._kernel.codec import encode
    from steplog._runtime.wait import check_signal

    data = {"name": check_signal(name), "value": encode(value, "value")}
    return send(chosen(store), run_id, SIGNAL, data, by=by, note=note).id
