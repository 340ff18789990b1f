"""Where the bytes of a streamed body are in the log, and how they become the chunks that arrived.

A short body stands in the exchange of `step.finished`, like any other. Of a longer one, pieces were written while it
passed (`step.progressed`); the exchange then holds the rest, and says of which exchange the pieces are:

    "body": {"progressed": 0, "rest": {…}}

Beside each piece, and beside the rest, stand the lengths of the chunks that end in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from steplog import plugins
from steplog_interceptors._exchange import Exchange

Piece = tuple[bytes, list[int] | None]


def body_form(number: int, rest: plugins.Body, *, pieces: bool) -> Any:
    """The body of exchange `number`, whose last bytes are `rest`."""
    return {"progressed": number, "rest": rest} if pieces else rest


def chunks_of(recorded: plugins.Recorded, exchange: Exchange) -> Iterator[bytes]:
    """A recorded body in the chunks in which it arrived, fetched as they are asked for.

    A body that was read whole is one chunk.
    """
    return joined(_pieces(recorded, exchange))


def body_of(recorded: plugins.Recorded, exchange: Exchange) -> bytes:
    """A recorded body as a whole."""
    return b"".join(data for data, _ in _pieces(recorded, exchange))


def length_of(recorded: plugins.Recorded, exchange: Exchange) -> int:
    """How many bytes of a streamed body were read."""
    number = (exchange.get("body") or {}).get("progressed")
    notes = recorded.progressed if number is not None else []
    return sum(exchange.get("chunks", ())) + sum(
        sum(note.get("chunks", ())) for note in notes if note.get("exchange") == number
    )


def _pieces(recorded: plugins.Recorded, exchange: Exchange) -> Iterator[Piece]:
    form = exchange.get("body")
    if form and "progressed" in form:
        yield from noted(recorded, form["progressed"])
        form = form["rest"]
    if form:
        yield recorded.body(form), exchange.get("chunks")


def noted(recorded: plugins.Recorded, number: int) -> Iterator[Piece]:
    """The pieces of exchange `number` that were written while it passed."""
    for note in recorded.progressed:
        if note.get("exchange") == number:
            yield recorded.body(note["body"]), note["chunks"]


def joined(pieces: Iterable[Piece]) -> Iterator[bytes]:
    """The chunks of consecutive pieces; bytes behind the last whole chunk are one of their own."""
    loose = b""
    for piece, lengths in pieces:
        data = loose + piece if loose else piece
        start = 0
        for length in lengths or ():
            yield data[start : start + length]
            start += length
        loose = data[start:]
    if loose:
        yield loose
