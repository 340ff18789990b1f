"""What can still be read behind the place where a log is damaged.

A line proves itself by its seal, wherever it stands. So the order of what follows the damage is not proven any more,
but it is known line by line what was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final

import orjson

from steplog._kernel.events import STEP_STARTED, Event
from steplog._kernel.line import MAX_LINE

_BEGINNING: Final = re.compile(rb'\{"seq":')
_SEALED: Final = re.compile(rb',"h":"([0-9a-f]{32})"\}')


def intact(data: bytes) -> Iterator[Event]:
    """Every event in `data` whose line proves itself, also one that is fused with another or ends in CR LF."""
    for line in data.split(b"\n"):
        seals = [(match.start(), match.end(), match[1]) for match in _SEALED.finditer(line)]
        position = 0
        for match in _BEGINNING.finditer(line) if seals else ():
            if match.start() < position:
                continue
            found = _proved(line, match.start(), seals)
            if found is not None:
                event, position = found
                yield event


def _proved(line: bytes, start: int, seals: list[tuple[int, int, bytes]]) -> tuple[Event, int] | None:
    """The event that begins at `start`, and where it ends."""
    digest, hashed = sha256(), start
    for at, end, seal in seals:
        if not start < at < start + MAX_LINE:
            continue
        digest.update(line[hashed:at])
        hashed = at
        if digest.hexdigest()[:32].encode() == seal:
            event = _event(line[start:end])
            return None if event is None else (event, end)
    return None


def _event(line: bytes) -> Event | None:
    try:
        tree = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return Event._make(tree.values()) if tuple(tree) == Event._fields else None


def intents(events: Iterable[Event]) -> list[Event]:
    """The newest intent of each step among `events` that may not be repeated at will, in their order.

    Whoever cuts these events off must keep the intents: without them a resumed run would do the effects again.
    """
    newest = {
        event.step: event
        for event in events
        if event.type == STEP_STARTED and event.data.get("mode", "unsafe") != "safe"
    }
    return sorted(newest.values(), key=lambda event: event.seq)
