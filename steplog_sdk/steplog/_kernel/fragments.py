"""Secrets that are cut in pieces: between the pieces of a body that is written down as it passes, and between events.

A model's answer arrives as events that hold a word or less each, so a secret in it stands nowhere in one piece: what
has to be looked at is the text that the events add up to. `safe_cut` says how much of a stream can be written down
without parting a secret; `split_spans` finds what the fragments of a text add up to.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from steplog._kernel.redact import Span

# A text without a space in it is not held back for longer than any secret that is looked for.
HELD_BACK: Final = 4096

# Characters that are looked at for the name of a secret.
_ANNOUNCED: Final = 80

_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_SEPARATORS: Final = (b" ", b"\n", b"\t", b'"', b",", b"'", b";", b"<", b">", b"\\")


# Fields of an event that add to a text, in the protocols of the model providers.
_ADDING: Final = (
    *("content", "text", "delta", "partial_json", "arguments"),
    *("thinking", "reasoning_content", "reasoning", "refusal", "transcript"),
)


@functools.cache
def _fragment() -> re.Pattern[bytes]:
    return re.compile(rb'"(%b)"\s?:\s?"((?:[^"\\]|\\.)*+)"' % "|".join(_ADDING).encode())


@functools.cache
def _beginning() -> re.Pattern[bytes]:
    """What a fragment begins with that cannot go on with the word before it."""
    return re.compile(rb"[\s,;!?\"'<>(){}\[\]\x80-\xff]|\\[nrtu\"]")


@functools.cache
def _word() -> re.Pattern[bytes]:
    """The last word of a text, where it is one and no beginning of a token: those have more than small letters."""
    return re.compile(rb"(?:^|[\s,;!?\"'<>(){}\[\]\x80-\xff]|\\[nrtu\"])([a-z]{0,40})\Z")


_NAMES: Final = (b"bearer", b"basic", b"authorization", b"token", b"key", b"secret", b"password", b"pwd")
# As many letters of a name, at the end of a longer word, may be the beginning of it.
_LETTERS: Final = 3


@functools.cache
def _announced() -> re.Pattern[bytes]:
    """The end of a text behind which a secret without a mark of its own may begin, or has begun with small letters."""
    return re.compile(rb"(?i:%b)[\"'\\\s:=,]{0,12}(?-i:[a-z]{0,40})\Z" % b"|".join(_NAMES))


def _may_name(word: bytes) -> bool:
    """Whether the name of a secret may have begun with the letters at the end of a text."""
    return any(
        name.startswith(word) or any(word.endswith(name[:length]) for length in range(_LETTERS, len(name)))
        for name in _NAMES
    )


def _is_over(word: bytes, known: Iterable[bytes]) -> bool:
    """Whether nothing that is looked for can have begun with the last word of a text."""
    return not word or not (_may_name(word) or any(value.startswith(word) for value in known))


def safe_cut(data: bytes, known: Iterable[bytes] = (), *, events: bool) -> int:
    """How many bytes of what has passed may be written down without parting a secret.

    Args:
        data: what has passed and is not written down.
        known: values that are secret.
        events: whether it is an event stream, whose fragments of text are looked at as one.
    """
    if not events:
        return _between_words(data, len(data) - HELD_BACK)
    end = max(_behind(data, mark) for mark in _ENDS)
    fragments = list(_fragment().finditer(data, 0, end))
    if not fragments:
        return end
    tail = b"".join(fragment[2] for fragment in fragments[-64:])[-HELD_BACK:]
    word = _word().search(tail)
    announced = _announced().search(tail[-_ANNOUNCED:])
    if word is not None and announced is None and _is_over(word[1], known):
        return end
    held = 0
    for number in range(len(fragments) - 1, -1, -1):
        fragment = fragments[number]
        before = b"".join(earlier[2] for earlier in fragments[max(0, number - _ANNOUNCED) : number])
        if _beginning().match(fragment[2]) and _announced().search(before[-_ANNOUNCED:]) is None:
            return max(_behind(data[: fragment.start()], mark) for mark in _ENDS)
        held += len(fragment[2])
        if held > HELD_BACK:
            return end
    return 0


def _behind(data: bytes, mark: bytes) -> int:
    found = data.rfind(mark)
    return 0 if found < 0 else found + len(mark)


def _between_words(data: bytes, most: int) -> int:
    if most <= 0:
        return 0
    least = max(0, most - HELD_BACK)
    return max((data.rfind(mark, least, most) for mark in _SEPARATORS), default=-1) + 1 or most


def split_spans(find: Callable[[bytes], list[Span]], data: bytes) -> list[tuple[Span, int]]:
    """The parts of secrets that stand in several fragments, and to the how manieth of them a part belongs.

    Args:
        find: finds secrets in a text.
        data: events.
    """
    fields: dict[bytes, list[re.Match[bytes]]] = {}
    for fragment in _fragment().finditer(data):
        fields.setdefault(fragment[1], []).append(fragment)
    found: list[tuple[Span, int]] = []
    for fragments in fields.values():
        if len(fragments) > 1:
            found += _in_one(find, fragments, len(found))
    return sorted(found)


def _in_one(
    find: Callable[[bytes], list[Span]], fragments: list[re.Match[bytes]], first: int
) -> list[tuple[Span, int]]:
    spans = find(b"".join(fragment[2] for fragment in fragments))
    parts: list[tuple[Span, int]] = []
    number = at = 0
    for secret, span in enumerate(spans, first):
        while at + len(fragments[number][2]) <= span.start:
            at += len(fragments[number][2])
            number += 1
        begun, where = number, at
        while where < span.stop:
            text = fragments[begun]
            start = text.start(2) + max(span.start - where, 0)
            stop = text.start(2) + min(span.stop - where, len(text[2]))
            if start < stop:
                parts.append((Span(start, stop, span.kind), secret))
            where += len(text[2])
            begun += 1
    return parts


def without_split(find: Callable[[bytes], list[Span]], items: list[Any]) -> int:
    """Take the secrets out of a list of items that stand in several of them; returns how many there were.

    Args:
        find: finds secrets in a text.
        items: JSON values, changed in place. Those that are texts add up to one, and so do the fields of one name that
            carry the fragments of a model's answer.
    """
    places: dict[str, list[tuple[Any, Any]]] = {}
    _note_texts(items, places)
    return sum(_take_out(find, found) for found in places.values() if len(found) > 1)


def _note_texts(node: Any, places: dict[str, list[tuple[Any, Any]]], *, is_item: bool = True) -> None:
    pairs: Iterable[tuple[Any, Any]] = enumerate(node) if isinstance(node, list) else node.items()
    for key, value in pairs:
        if isinstance(value, str) and (is_item or key in _ADDING):
            places.setdefault("" if is_item else key, []).append((node, key))
        elif isinstance(value, (list, dict)):
            _note_texts(value, places, is_item=False)


def _take_out(find: Callable[[bytes], list[Span]], places: list[tuple[Any, Any]]) -> int:
    texts = [node[key].encode("utf-8", "surrogatepass") for node, key in places]
    count = 0
    # From the last to the first, so that what was found before stays where it is.
    for span in reversed(find(b"".join(texts))):
        start, begun = 0, False
        for number, text in enumerate(texts):
            stop = start + len(text)
            if span.start < stop and start < span.stop and not (start <= span.start and span.stop <= stop):
                marker = b"" if begun else span.marker
                rest = b"" if span.stop >= stop else text[span.stop - start :]
                texts[number] = text[: max(span.start - start, 0)] + marker + rest
                begun = True
            start = stop
        count += begun
    for (node, key), text in zip(places, texts, strict=True) if count else ():
        node[key] = text.decode("utf-8", "replace")
    return count
