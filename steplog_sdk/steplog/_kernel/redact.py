"""What looks like a secret is taken out before anything is written.

Works on bytes: one JSON document, one body, one chunk. `rules` has the shapes that are looked for; `spellings` finds
values that are known. What is found is replaced by a marker, `[redacted:<kind>]`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

from steplog._kernel.expressions import check
from steplog._kernel.rules import PASSED_OVER, PATTERNS, Pattern, compiled, glance, held_by, hint_search
from steplog._kernel.spellings import searches_for, spellings

__all__ = ["MIN_SECRET", "PATTERNS", "Pattern", "Redactor", "Span"]

MIN_SECRET: Final = 8
"""Characters below which a given secret is ignored: `true` or `dev` would take ordinary words out of every log."""

# Where the word does not stand, long runs of letters are ids, hashes and tokens, and are not decoded.
_WRAPPED: Final = b"base64"
_WRAPPED_LEFT: Final = glance(_WRAPPED)
_BASE64: Final = rb"[A-Za-z0-9+/_-]{20,}+={0,2}"

KNOWN: Final = "secret"
"""The kind of a value that is known to be secret."""

_Find = Callable[[bytes], Iterator["Span"]]
_Group = tuple[Callable[[bytes], object], list[tuple[int, _Find]]]


class Span(NamedTuple):
    """Where a secret stands.

    Attributes:
        start: its first byte.
        stop: the byte behind its last.
        kind: what it is.
    """

    start: int
    stop: int
    kind: str

    @property
    def marker(self) -> bytes:
        """What is put in its place."""
        return b"[redacted:" + self.kind.encode() + b"]"


class Redactor:
    """Replaces secrets in bytes.

    Args:
        patterns: kinds of secrets to look for.
        secrets: values known to be secret, such as those of environment variables called KEY, TOKEN, SECRET or
            PASSWORD. Values shorter than 8 characters are ignored.
        readings: what else bytes may say that were wrapped in base64, such as their decompressed form.
    """

    __slots__ = ("_asks", "_groups", "_known", "_own", "_readings")

    def __init__(
        self,
        patterns: Iterable[Pattern] = PATTERNS,
        secrets: Iterable[str] = (),
        readings: Callable[[bytes], Iterable[bytes]] = lambda _data: (),
    ) -> None:
        self._readings = readings
        known = {spelling for secret in secrets if len(secret) >= MIN_SECRET for spelling in spellings(secret)}
        searches = searches_for(known)
        self._groups: list[_Group] = [(search, [(-1, _known_finder(found))]) for _, search, found in searches]
        # By what a text must hold for a group to find something in it, the number of the group.
        self._known = [(lead[0], number) for number, (lead, _, _) in enumerate(searches)]
        self._own: list[int] = []
        led: dict[bytes, list[tuple[int, _Find]]] = {}
        for rank, pattern in enumerate(patterns):
            finder = (rank, _finder(pattern))
            if pattern.lead:
                led.setdefault(pattern.lead, []).append(finder)
            else:
                self._own.append(len(self._groups))
                self._groups.append((compiled(pattern.find).search, [finder]))
        self._asks: list[tuple[str, int]] = []
        for lead, finders in led.items():
            self._asks += [(text, len(self._groups)) for text in held_by(lead)]
            self._groups.append((hint_search(lead), finders))

    def redact(self, data: bytes, kept: Collection[bytes] = ()) -> tuple[bytes, int]:
        """Return the data with every secret replaced by `[redacted:<kind>]`, and how many were replaced.

        Data without secrets comes back as the same object. Redacting twice changes nothing more.

        Args:
            data: what is looked through.
            kept: parts of it that are no secret, whatever they look like.
        """
        if self.is_clear(data):
            return data, 0  # most text
        spans = _without(self.spans(data), data, kept)
        return replaced(data, spans) if spans else (data, 0)

    def is_clear(self, data: bytes) -> bool:
        """Whether no secret is in the data, told by a glance; False where that takes a closer look."""
        left, groups = data.translate(None, PASSED_OVER).decode("ascii"), self._groups
        if left and not left.isdigit():
            for text, number in self._asks:
                if text in left and groups[number][0](data):
                    return False
        for lead, number in self._known:
            if lead in data and groups[number][0](data):
                return False
        for number in self._own:
            if groups[number][0](data):
                return False
        return _WRAPPED_LEFT not in left or _WRAPPED not in data

    def spans(self, data: bytes) -> list[Span]:
        """Where secrets stand, in order; what overlaps is one secret, of the kind whose rule comes first."""
        found: list[tuple[Span, int]] = []
        asked, wrapped = self._asked(data)
        for search, finders in (self._groups[number] for number in dict.fromkeys(asked)):
            if search(data):
                found += [(span, rank) for rank, find in finders for span in find(data)]
        if wrapped:
            found += [(span, len(found)) for span in self._wrapped(data)]
        return _merged(found) if found else []

    def _asked(self, data: bytes) -> tuple[list[int], bool]:
        """The groups that may find something, some of them twice, and whether something may be wrapped in base64."""
        left = glance(data)
        # Of the bytes that are left, digits are asked for below only.
        asked = [] if not left or left.isdigit() else [number for text, number in self._asks if text in left]
        if self._known:
            asked += [number for lead, number in self._known if lead in data]
        if self._own:
            asked += self._own
        return asked, _WRAPPED_LEFT in left and _WRAPPED in data

    def _wrapped(self, data: bytes) -> Iterator[Span]:
        """Base64 texts in which a secret is; they go whole."""
        for run in compiled(_BASE64).finditer(data):
            raw = _unwrapped(run[0])
            for reading in (raw, *self._readings(raw)):
                spans = self.spans(reading)
                if spans:
                    yield Span(run.start(), run.end(), spans[0].kind)
                    break


def _without(spans: list[Span], data: bytes, kept: Collection[bytes]) -> list[Span]:
    """What is left of the spans when the parts that are kept are cut out of them."""
    for part in kept:
        for match in re.finditer(re.escape(part), data):
            start, stop = match.span()
            spans = [
                left
                for span in spans
                for left in (span._replace(stop=min(span.stop, start)), span._replace(start=max(span.start, stop)))
                if left.start < left.stop
            ]
    return spans


def replaced(data: bytes, spans: list[Span]) -> tuple[bytes, int]:
    """The data with its spans replaced by their markers, and how many there were."""
    parts: list[bytes] = []
    end = 0
    for span in spans:
        parts += data[end : span.start], span.marker
        end = span.stop
    return b"".join((*parts, data[end:])), len(spans)


def _merged(found: list[tuple[Span, int]]) -> list[Span]:
    merged: list[tuple[Span, int]] = []
    for span, rank in sorted(found):
        if merged and span.start < merged[-1][0].stop:
            last, first = merged[-1]
            kind = last.kind if first <= rank else span.kind
            merged[-1] = (Span(last.start, max(last.stop, span.stop), kind), min(first, rank))
        else:
            merged.append((span, rank))
    return [span for span, _ in merged]


def _finder(pattern: Pattern) -> _Find:
    def find(data: bytes) -> Iterator[Span]:
        expression = compiled(pattern.find)
        group = "secret" if "secret" in expression.groupindex else 0
        for match in expression.finditer(data):
            start, stop = match.span(group)
            # A marker in the place of a secret is none.
            if start < stop and (pattern.accept is None or pattern.accept(match[group])):
                yield Span(start, stop, pattern.kind)

    return find


def _known_finder(known: list[bytes]) -> _Find:
    def find(data: bytes) -> Iterator[Span]:
        for spelling in known:
            at = data.find(spelling)
            while at >= 0:
                yield Span(at, at + len(spelling), KNOWN)
                at = data.find(spelling, at + len(spelling))

    return find


def _unwrapped(text: bytes) -> bytes:
    """The bytes that a text in base64, of either alphabet, stands for."""
    text = text.rstrip(b"=").translate(_STANDARD)
    # One digit too many holds no byte.
    text = text[: len(text) - (len(text) % 4 == 1)]
    return binascii.a2b_base64(text + b"=" * (-len(text) % 4))


_STANDARD: Final = bytes.maketrans(b"-_", b"+/")


def pattern_of(kind: str, expression: str | bytes | re.Pattern[str] | re.Pattern[bytes]) -> Pattern:
    """A rule of the program's own.

    Raises:
        ValueError: the expression is not one, or cannot be looked for in everything (`expressions.check`).
    """
    text = expression.pattern if isinstance(expression, re.Pattern) else expression
    flags = expression.flags & ~re.UNICODE if isinstance(expression, re.Pattern) else 0
    find = text.encode() if isinstance(text, str) else text
    try:
        made = re.compile(find, flags)
    except re.error as error:
        raise ValueError(str(error)) from error
    check(made)
    return Pattern(kind, b"", made)
