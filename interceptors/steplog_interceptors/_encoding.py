"""Undo content encodings as the bytes pass, to look into a body that is stored as it came.

Nobody else sees the result. Where an encoding cannot be undone here, or the bytes are not what they claim to be, there
is nothing to look at; what the reader's own HTTP library makes of them is its business.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any, Final

Feed = Callable[[bytes], bytes]


def inflater(encoding: str) -> Feed | None:
    """A function that takes the encoded pieces in order and returns what they add to the decoded body.

    None where this process has no decoder for the encoding. The function raises whatever its decoder raises.
    """
    names = [name for name in (part.strip().lower() for part in encoding.split(",")) if name not in ("", "identity")]
    if any(name not in _MAKERS for name in names):
        return None
    # Encodings are listed in the order in which they were applied.
    feeds = [_MAKERS[name]() for name in reversed(names)]
    if None in feeds:
        return None
    return _chain([feed for feed in feeds if feed is not None])


def _chain(feeds: list[Feed]) -> Feed:
    def feed(data: bytes) -> bytes:
        for each in feeds:
            data = each(data)
        return data

    return feed


def _gzip() -> Feed:
    return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress


def _deflate() -> Feed:
    """The name means a zlib stream, and some servers send a bare one; the first two bytes tell."""
    decoder: Any = None
    start = b""

    def feed(data: bytes) -> bytes:
        nonlocal decoder, start
        if decoder is None:
            start += data
            if len(start) < 2:
                return b""
            data, decoder = start, zlib.decompressobj()
            try:
                return bytes(decoder.decompress(data))
            except zlib.error:
                decoder = zlib.decompressobj(-zlib.MAX_WBITS)
        return bytes(decoder.decompress(data))

    return feed


def _brotli() -> Feed | None:
    for name in ("brotli", "brotlicffi"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue  # then the HTTP library has none either, and no server was told that it had
        decoder = module.Decompressor()
        feed: Feed = decoder.process if hasattr(decoder, "process") else decoder.decompress
        return feed
    return None


def _zstd() -> Feed:
    import zstandard

    feed: Feed = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True).decompress
    return feed


_MAKERS: Final[dict[str, Callable[[], Feed | None]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
