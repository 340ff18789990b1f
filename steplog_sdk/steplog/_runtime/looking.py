"""A raw body without its secrets: looked at as it stands, decoded, and joined with what passed before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from steplog._kernel.fragments import split_spans
from steplog._runtime.readings import readings

if TYPE_CHECKING:
    from steplog._kernel.redact import Redactor


class Body(NamedTuple):
    """Raw bytes inside a recorded detail, such as a request or response body.

    Attributes:
        data: the bytes, exactly as they were on the wire.
        plain: what they say, where they are encoded (compressed, say) and do not tell by their first bytes how; if that
            holds a secret it is stored in place of `data`, without the secret.
        before: of a piece of a longer body, the end of what came before it, decoded.
        events: whether it is an event stream, whose fragments of text add up.
    """

    data: bytes
    plain: bytes | None = None
    before: bytes = b""
    events: bool = False


def looked_at(redactor: Redactor, body: Body) -> tuple[bytes, int]:
    """The bytes to store for a body, and how many secrets were taken out; without any, the very bytes."""
    if body.plain is not None:
        cleaned, count = _text(redactor, body.plain, body)
        return (cleaned, count) if count else (body.data, 0)
    cleaned, count = _text(redactor, body.data, body)
    if count:
        return cleaned, count
    for reading in readings(body.data):
        cleaned, count = redactor.redact(reading)
        if count:
            return cleaned, count
    return body.data, 0


def _text(redactor: Redactor, data: bytes, body: Body) -> tuple[bytes, int]:
    text = body.before + data if body.before else data
    found = redactor.spans(text)
    if not found and not body.events:
        return data, 0  # most bodies
    first = len(body.before)
    # Each secret has a number of its own; those that stand in one piece count from below.
    places = [(span, ~number) for number, span in enumerate(found)]
    if body.events:
        places += split_spans(redactor.spans, text)
    parts: list[bytes] = []
    shown: set[int] = set()
    end = first
    for span, secret in sorted(places):
        if span.stop > end:
            # Of one in several pieces, the first shows the marker.
            parts += text[end : max(span.start, end)], b"" if secret in shown else span.marker
            shown.add(secret)
            end = span.stop
    return (b"".join((*parts, text[end:])), len(shown)) if parts else (data, 0)
