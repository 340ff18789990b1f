"""Messages to a run: what anybody may say to it, one sealed line each.

A run has one writer, and the log is that writer's alone. Whoever else has something to say (a signal, an approval, a
cancellation) puts a message into the run's inbox, and the writer takes the messages over into the log, in order. A line
proves itself by its seal; the order is that of the lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final, NamedTuple

import orjson

SIGNAL: Final = "signal"
APPROVE: Final = "approve"
REJECT: Final = "reject"
CANCEL: Final = "cancel"

KINDS: Final = (SIGNAL, APPROVE, REJECT, CANCEL)

# Longer ones belong elsewhere, with a reference to them in the message.
MAX_MESSAGE: Final = 64 * 1024

_SEAL: Final = len(b',"h":""}') + 32


class Message(NamedTuple):
    """One message.

    Attributes:
        id: its own id, a ULID; the log names it, so that it is taken once.
        kind: signal, approve, reject or cancel; a later release may add some, which earlier ones leave where they are.
        data: what it says, by kind: `name` and `value` of a signal, `step` of an approval.
        by: who says it, or None.
        note: why, or None.
        ts: when, ISO 8601 in UTC, for people.
    """

    id: str
    kind: str
    data: dict[str, Any]
    by: str | None
    note: str | None
    ts: str


class Read(NamedTuple):
    """What was found in a piece of an inbox.

    Attributes:
        messages: in order.
        size: how many of its bytes are whole messages; behind them is nothing, or a line that is not whole.
        damaged: the number of the first line, from 1, that is whole and not what was written; or None.
    """

    messages: list[Message]
    size: int
    damaged: int | None


def seal(message: Message) -> bytes:
    """The line of a message, with its newline."""
    body = orjson.dumps(message._asdict())[:-1]
    return b'%b,"h":"%b"}\n' % (body, _seal_of(body))


def parse(data: bytes) -> Read:
    """The messages in a piece of an inbox that begins at the beginning of a line.

    A last line without a newline counts where it proves itself: only the newline is missing then. Where it does not,
    its sender died while it wrote, or is writing now.
    """
    messages: list[Message] = []
    size = 0
    for number, (line, whole) in enumerate(_lines(data), 1):
        message = _message(line) if line else None
        if message is not None:
            messages.append(message)
        elif line:
            # A message that is whole but for the byte behind it was sent: its newline was damaged since.
            return Read(messages, size, number if whole or _message(line[:-1]) else None)
        size += len(line) + whole
    return Read(messages, size, None)


def _lines(data: bytes) -> Iterator[tuple[bytes, bool]]:
    *whole, last = data.split(b"\n")
    yield from ((line, True) for line in whole)
    if last:
        yield last, False


def _seal_of(body: bytes) -> bytes:
    return sha256(body).hexdigest()[:32].encode()


def _message(line: bytes) -> Message | None:
    body = line[:-_SEAL]
    if line[-_SEAL:] != b',"h":"%b"}' % _seal_of(body):
        return None
    try:
        tree = orjson.loads(line)
        return Message(*(tree[name] for name in Message._fields))
    except (orjson.JSONDecodeError, KeyError):
        return None
