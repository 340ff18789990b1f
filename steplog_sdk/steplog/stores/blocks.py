"""Chunks in their stored form: compressed with the chunks before them as dictionary, and sealed where there is a key.

Thirty-two consecutive chunks form a block. Neighbours come from the same conversation, and short JSON alone compresses
badly; the end of a block bounds what has to be read for one chunk. This is the one place where the bytes of a body
become bytes on the disk, and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from steplog.errors import Corrupt
from steplog.stores.chunks import MOST
from steplog.stores.cipher import missing

if TYPE_CHECKING:
    import sqlite3

    from steplog.stores.base import Cipher

BLOCK: Final = 32
ID_SIZE: Final = 5
_WINDOW: Final = 64 << 10
_LEVEL: Final = 9


def pack(raw: bytes, before: bytes, cipher: Cipher | None, context: bytes) -> bytes:
    """The stored form of a chunk, given what comes before it in its block; random bytes grow by a few bytes."""
    import zstandard as zstd

    window = before[-_WINDOW:]
    dictionary = zstd.ZstdCompressionDict(window, dict_type=zstd.DICT_TYPE_RAWCONTENT) if window else None
    parameters = zstd.ZstdCompressionParameters.from_level(
        _LEVEL, source_size=len(raw), dict_size=len(window), format=zstd.FORMAT_ZSTD1_MAGICLESS
    )
    packed = zstd.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress(raw)
    return packed if cipher is None else cipher.seal(packed, context)


def unpack(stored: bytes, before: bytes, cipher: Cipher | None, context: bytes) -> bytes:
    """The chunk; empty where what is stored is damaged, so that the body that needs it fails its hash."""
    import zstandard as zstd

    window = before[-_WINDOW:]
    dictionary = zstd.ZstdCompressionDict(window, dict_type=zstd.DICT_TYPE_RAWCONTENT) if window else None
    unpacker = zstd.ZstdDecompressor(dict_data=dictionary, format=zstd.FORMAT_ZSTD1_MAGICLESS)
    try:
        packed = stored if cipher is None else cipher.open(stored, context)
        return unpacker.decompress(packed, max_output_size=MOST)
    except (zstd.ZstdError, Corrupt):
        return b""


def read_block(db: sqlite3.Connection, number: int, cipher: Cipher | None, path: str) -> dict[int, bytes]:
    """The chunks of a block by their ids.

    Raises:
        KeyMissing: a chunk is encrypted, with a key that is not at hand.
    """
    first = number * BLOCK
    statement = "SELECT id, hash, data, key_id FROM chunks WHERE id BETWEEN ? AND ? ORDER BY id"
    raw: dict[int, bytes] = {}
    before = b""
    for chunk, context, stored, key_id in db.execute(statement, (first, first + BLOCK - 1)).fetchall():
        if key_id is not None and cipher is None:
            raise missing(key_id, path=path)
        raw[chunk] = unpack(stored, before, cipher if key_id is not None else None, context)
        before += raw[chunk]
    return raw


def chunks_of(db: sqlite3.Connection, links: Iterable[int]) -> Iterator[int]:
    """The ids of the chunks that links stand for: a chunk's own, or, where negative, those of a tail."""
    for link in links:
        if link > 0:
            yield link
            continue
        row = db.execute("SELECT chunks FROM tails WHERE id = ?", (-link,)).fetchone()
        listed = row[0] if row else b""
        yield from (int.from_bytes(listed[at : at + ID_SIZE], "big") for at in range(0, len(listed), ID_SIZE))


def join(db: sqlite3.Connection, chunks: Iterable[int], cipher: Cipher | None, path: str) -> bytes:
    """The bytes of consecutive chunks, each block read once."""
    blocks: dict[int, dict[int, bytes]] = {}
    parts = []
    for chunk in chunks:
        number = chunk // BLOCK
        if number not in blocks:
            blocks[number] = read_block(db, number, cipher, path)
        parts.append(blocks[number].get(chunk, b""))
    return b"".join(parts)
