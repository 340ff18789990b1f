"""What bytes say when they are not plain text: decompressed, or decoded from UTF-16."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

# A few kilobytes can be made to inflate to gigabytes. What a provider sends stays far below this.
MOST: Final = 64 << 20


def readings(data: bytes) -> Iterator[bytes]:
    """Other texts that bytes may stand for; at most `MOST` bytes of each."""
    if data[:2] == b"\x1f\x8b":
        yield _inflated(data, zlib.MAX_WBITS | 16)
    elif data[:1] == b"\x78" and data[1:2] in (b"\x01", b"\x5e", b"\x9c", b"\xda"):
        yield _inflated(data, zlib.MAX_WBITS)
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        yield _unzstd(data)
    if b"\0" in data[:4096]:
        for encoding in ("utf-16-le", "utf-16-be"):
            text = data[: len(data) & ~1].decode(encoding, "replace")
            if text.isascii() or text.count("\N{REPLACEMENT CHARACTER}") * 8 < len(text):
                yield text.encode("utf-8", "replace")


def _inflated(data: bytes, wbits: int) -> bytes:
    try:
        return zlib.decompressobj(wbits).decompress(data, MOST)
    except zlib.error:
        return b""  # it only begins like compressed data


def _unzstd(data: bytes) -> bytes:
    import zstandard

    found = bytearray()
    try:
        for piece in zstandard.ZstdDecompressor().read_to_iter(data):
            found += piece
            if len(found) > MOST:
                break
    except zstandard.ZstdError:
        pass  # what could be read of it counts
    return bytes(found)
