"""Cuts a body into chunks such that a longer body repeats the cuts of a shorter one that it begins with.

A conversation is sent whole with every call, each request being the one before with some messages more. Cutting behind
the elements of JSON arrays, and naming each cut by the hash of everything before it, lets request k+1 find the longest
part of itself that is stored already, and store only the rest: the space of a conversation is linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Final, NamedTuple

LEAST: Final = 512
"""Bytes in a chunk at least: below that, what is kept about a chunk outweighs what sharing it saves."""

MOST: Final = 64 << 10
"""Bytes in a chunk at most, which bounds what one damaged or unshared byte costs."""

# Behind an element, before what follows it: the same place whether the element is the last of its list or not.
_ELEMENT: Final = re.compile(rb"\}(?=\s*[,\]])")


class Prefix(NamedTuple):
    """The part of a body up to one cut.

    Attributes:
        digest: SHA-256 of the prefix.
        start: where its last chunk begins.
        stop: where it ends.
    """

    digest: bytes
    start: int
    stop: int


def cuts(data: bytes) -> Iterator[int]:
    """Yield the ends of the chunks of `data`, the last being its length; a cut depends only on bytes close before it.

    Bytes that are no JSON are cut by size alone: an event stream or an image never grows by a little.
    """
    is_json = data[:1] in (b"{", b"[")
    start = 0
    while len(data) - start > LEAST:
        match = _ELEMENT.search(data, start + LEAST - 1, start + MOST) if is_json else None
        stop = match.end() if match else start + MOST
        if stop >= len(data):
            break
        yield stop
        start = stop
    yield len(data)


def prefixes(data: bytes) -> tuple[list[Prefix], str]:
    """Return every prefix that ends at a cut, shortest first, and the SHA-256 of the whole in hex."""
    digest = sha256()
    found: list[Prefix] = []
    start = 0
    for stop in cuts(data):
        digest.update(data[start:stop])
        found.append(Prefix(digest.digest(), start, stop))
        start = stop
    return found, digest.hexdigest()
