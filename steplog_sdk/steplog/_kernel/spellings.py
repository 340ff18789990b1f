"""How a value that is known to be secret may be spelled, and a quick search for any of the spellings.

A program rarely writes a secret as it stands in the environment: it is escaped for JSON, and again inside JSON, quoted
for a URL, and wrapped in base64 together with a user name. Base64 of a longer text holds one of three spellings of what
is in it, by where it begins.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Iterable
from typing import Final

# From the rarest to the most frequent byte of JSON and prose. A search that begins with a rare one is over soon.
_RARE_FIRST: Final = (
    b"~^`|%#$!&*+?<>;Q@ZXJVKYGUWHqzBFNOjMLRDPxCEkSTIA/='()[]{}vbw9876534\\gpfy20mcu.-_1ldhirnos:,at\"e "
)
_RANK: Final = {byte: rank for rank, byte in enumerate(_RARE_FIRST)}

_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_LOWER_HEX: Final = re.compile(rb"%[0-9A-F]{2}")

Search = Callable[[bytes], object]


def spellings(secret: str) -> set[bytes]:
    """Every spelling of a secret that is looked for."""
    plain = secret.encode("utf-8", "surrogatepass")
    found = _in_json(secret)
    for safe in (b"", b"/"):
        quoted = b"".join(bytes((byte,)) if byte in _UNRESERVED or byte in safe else b"%%%02X" % byte for byte in plain)
        found |= {quoted, quoted.replace(b"%20", b"+"), _LOWER_HEX.sub(lambda match: match[0].lower(), quoted)}
    for standard in _in_base64(plain):
        # A slash may be escaped where base64 stands in JSON.
        found |= {standard, standard.replace(b"+", b"-").replace(b"/", b"_"), standard.replace(b"/", b"\\/")}
    return found


def _in_json(secret: str) -> set[bytes]:
    """A secret as text, as JSON encoders write it, and as JSON inside JSON, where tool arguments travel."""
    found = {secret}
    for _ in range(2):
        found |= {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in found for ascii_only in (True, False)}
    found |= {spelling.replace("/", "\\/") for spelling in found}
    return {spelling.encode("utf-8", "surrogatepass") for spelling in found}


def _in_base64(plain: bytes) -> Iterable[bytes]:
    """The digits that depend on nothing but the secret, wherever in a longer text it begins."""
    for before in range(3):
        digits = binascii.b2a_base64(b"\0" * before + plain, newline=False).rstrip(b"=")
        # The first digits hold bits of what comes before, the last one perhaps bits of what follows.
        whole = (before + len(plain)) * 8 // 6
        yield digits[(0, 2, 3)[before] : whole]


def searches_for(found: Iterable[bytes]) -> list[tuple[bytes, Search, list[bytes]]]:
    """The byte that leads a search, the search, and the spellings of which it finds one, for all of them.

    Spellings that share a rare byte share a search.
    """
    left = set(found)
    searches: list[tuple[bytes, Search, list[bytes]]] = []
    for byte in sorted({byte for spelling in left for byte in spelling}, key=_rank):
        led = sorted(spelling for spelling in left if min(spelling, key=_rank) == byte)
        if led:
            left.difference_update(led)
            # Others may have it as well, if not as their rarest.
            more = sorted(spelling for spelling in left if byte in spelling)
            left.difference_update(more)
            searches.append((bytes((byte,)), _led_by(byte, [*led, *more]), [*led, *more]))
    return searches


def _rank(byte: int) -> int:
    return _RANK.get(byte, 0)


def _led_by(byte: int, found: Iterable[bytes]) -> Search:
    lead = bytes((byte,))
    parts = []
    for spelling in found:
        at = spelling.index(byte)
        before = b"(?<=" + re.escape(spelling[: at + 1]) + b")" if at else b""
        parts.append(before + re.escape(spelling[at + 1 :]))
    return re.compile(re.escape(lead) + b"(?:" + b"|".join(parts) + b")").search
