"""Where a difference between two requests probably comes from, judged by what the two values look like."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from steplog._kernel.drift import Difference, common_prefix


class Source(NamedTuple):
    """The probable source of a difference.

    Attributes:
        kind: `clock`, `uuid`, `random`, `order`, `address` or `path`.
        what: what the two values are, in a few words.
        fix: what to write instead, in a line.
    """

    kind: str
    what: str
    fix: str


# By kind: what it is, and the line that mends it.
_SOURCES: Final = {
    kind: Source(kind, what, fix)
    for kind, what, fix in (
        ("clock", "the time", 'now = steplog.step("now", lambda: str(datetime.now())), or install(also=["clock"])'),
        ("uuid", "a fresh uuid", 'name = steplog.step("name", lambda: str(uuid4())), or install(also=["uuid"])'),
        ("random", "a random value", 'drawn = steplog.step("drawn", random.random), or install(also=["random"])'),
        ("order", "the order of a set or of dict keys", "sorted(...), before it goes into the request"),
        ("address", "the address of an object", "give its class a __repr__ that says what matters"),
        (
            "path",
            "a temporary path",
            'folder = steplog.step("folder", tempfile.mkdtemp), or leave it out of the request',
        ),
    )
}

_UUID: Final = re.compile(r"\b[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\b", re.IGNORECASE)
_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_TIME: Final = re.compile(
    rf"\b\d{{4}}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?|\b\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?\b"
    rf"|\b{_MONTH}\.? \d\d?(?:, \d{{4}})?|\b\d\d?\.? {_MONTH}|\b\d\d?[./]\d\d?[./]\d{{4}}\b"
    rf"|\b(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b|\b1[4-9]\d{{8}}(?:\d{{3}}|\.\d+)?\b"
)
_ADDRESS: Final = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_PATH: Final = re.compile(r"(?:/tmp|/var/folders|[A-Z]:\\\S*\\Temp)[/\\][\w./\\-]+|\btmp[a-z0-9_]{8}\b")
_FRACTION: Final = re.compile(r"\b[01]\.\d{6,}\b")
_TOKEN: Final = re.compile(r"\b(?=\w*\d)[0-9A-Za-z_-]{8,}\b")
_LOOKS: Final = (
    ("uuid", _UUID),
    ("address", _ADDRESS),
    ("path", _PATH),
    ("clock", _TIME),
    ("random", _FRACTION),
    ("random", _TOKEN),
)

# Of a text that differs, so many characters around the difference are looked at.
_AROUND: Final = 60
_LONGEST: Final = 4_000
# Seconds and milliseconds since 1970 of about 2014 to 2065.
_EPOCHS: Final = ((1.4e9, 3e9), (1.4e12, 3e12), (1.4e18, 3e18))


def probable_source(difference: Difference, recorded: Any = None, found: Any = None) -> Source | None:
    """The probable source of a difference, or None where the values do not tell.

    Args:
        difference: the first difference.
        recorded: the whole recorded tree, to tell a list in another order.
        found: the whole present one.
    """
    kind = _kind(difference.recorded, difference.found) or _order_around(difference.path, recorded, found)
    return _SOURCES[kind] if kind else None


def _kind(old: Any, new: Any) -> str:
    if isinstance(old, str) and isinstance(new, str):
        return _kind_of_texts(old, new)
    if any(not isinstance(value, (int, float)) or isinstance(value, bool) for value in (old, new)):
        return ""
    if any(low < old < high and low < new < high for low, high in _EPOCHS):
        return "clock"
    return "random" if isinstance(old, float) and 0 <= old < 1 and 0 <= new < 1 else ""


def _kind_of_texts(old: str, new: str) -> str:
    head = common_prefix(old, new)
    tail = common_prefix(old[head:][::-1], new[head:][::-1])
    spans = [(head, len(text) - tail) for text in (old, new)]
    if _same_words(old, new):
        return "order"
    for kind, look in _LOOKS:
        if all(_meets(look, text, *span) for text, span in zip((old, new), spans, strict=True)):
            return kind
    return ""


def _meets(look: re.Pattern[str], text: str, start: int, end: int) -> bool:
    """Whether what is looked for stands where a text differs."""
    first = max(0, start - _AROUND)
    around = text[first : min(end, start + _LONGEST) + _AROUND]
    at, until = start - first, max(end, start + 1) - first
    return any(match.start() < until and match.end() > at for match in look.finditer(around))


def _same_words(old: str, new: str) -> bool:
    if len(old) != len(new) or len(old) > 1_000_000:
        return False
    one, other = (sorted(re.findall(r"\w+", text)) for text in (old, new))
    return len(one) > 1 and one == other


def _order_around(path: str, recorded: Any, found: Any) -> str:
    """`order` where a list on the way to a difference holds the same items in another order."""
    steps = [int(index) if index else name for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)]
    for step in steps:
        if isinstance(step, int) and isinstance(recorded, list) and isinstance(found, list):
            one, other = (
                sorted(json.dumps(item, sort_keys=True, default=str) for item in tree) for tree in (recorded, found)
            )
            if len(one) > 1 and one == other:
                return "order"
        try:
            recorded, found = recorded[step], found[step]
        except (LookupError, TypeError):
            return ""
    return ""


def differing_words(old: Any, new: Any) -> tuple[str, str]:
    """The words of two texts where they differ, for looking where one of them comes from; "" where there are none."""
    if not isinstance(old, str) or not isinstance(new, str):
        return ("" if old is None else str(old)), ("" if new is None else str(new))
    head = common_prefix(old, new)
    tail = common_prefix(old[head:][::-1], new[head:][::-1])
    return _word(old, head, len(old) - tail), _word(new, head, len(new) - tail)


def _word(text: str, start: int, end: int) -> str:
    joins = re.compile(r"[\w.:+-]")
    while start > 0 and joins.match(text[start - 1]):
        start -= 1
    while end < len(text) and joins.match(text[end]):
        end += 1
    return text[start:end].strip(".:+-") if end - start <= _LONGEST else ""
