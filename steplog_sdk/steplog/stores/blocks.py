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
_WINDOW: Final = 64 << 10
# What a chunk is compressed with is indexed anew for each, which takes longer than the chunk itself. What a short one
# could find far back saves less than it costs: of 1 KB, 16 KB of what was said before make as small a form as 64 KB do.
_REACH: Final = 16
_LOW: Final = 0x7F
_MORE: Final = 0x80
_MOST_CHUNKS: Final = 1 << 60
_LEVEL: Final = 6


def pack(raw: bytes, before: bytes, cipher: Cipher | None, chunk: int) -> bytes:
    """The stored form of a chunk, given what comes before it in its block; random bytes grow by a few bytes."""
    import zstandard as zstd

    # Whoever unpacks it has more of what was before, and finds what is named at the same distance.
    window = before[-min(_WINDOW, max(_REACH << 10, _REACH * len(raw))) :]
    dictionary = zstd.ZstdCompressionDict(window, dict_type=zstd.DICT_TYPE_RAWCONTENT) if window else None
    parameters = zstd.ZstdCompressionParameters.from_level(
        _LEVEL, source_size=len(raw), dict_size=len(window), format=zstd.FORMAT_ZSTD1_MAGICLESS
    )
    packed = zstd.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress(raw)
    return packed if cipher is None else cipher.seal(packed, place(chunk))


def unpack(stored: bytes, before: bytes, cipher: Cipher | None, chunk: int) -> bytes:
    """The chunk; empty where what is stored is damaged, so that the body that needs it fails its hash."""
    import zstandard as zstd

    window = before[-_WINDOW:]
    dictionary = zstd.ZstdCompressionDict(window, dict_type=zstd.DICT_TYPE_RAWCONTENT) if window else None
    unpacker = zstd.ZstdDecompressor(dict_data=dictionary, format=zstd.FORMAT_ZSTD1_MAGICLESS)
    try:
        packed = stored if cipher is None else cipher.open(stored, place(chunk))
        return unpacker.decompress(packed, max_output_size=MOST)
    except (zstd.ZstdError, Corrupt):
        return b""


def read_block(db: sqlite3.Connection, number: int, cipher: Cipher | None, path: str) -> dict[int, bytes]:
    """The chunks of a block by their ids.

    Raises:
        KeyMissing: a chunk is encrypted, with a key that is not at hand.
    """
    first = number * BLOCK
    statement = "SELECT id, data, key_id FROM chunks WHERE id BETWEEN ? AND ? ORDER BY id"
    raw: dict[int, bytes] = {}
    before = b""
    for chunk, stored, key_id in db.execute(statement, (first, first + BLOCK - 1)).fetchall():
        if key_id is not None and cipher is None:
            raise missing(key_id, path=path)
        raw[chunk] = unpack(stored, before, cipher if key_id is not None else None, chunk)
        before += raw[chunk]
    return raw


def place(chunk: int) -> bytes:
    """What a sealed chunk is bound to, so that it opens nowhere else."""
    return chunk.to_bytes(8, "big")


_BODY: Final = """
    WITH RECURSIVE
        body AS (SELECT spine, chunks, tail FROM bodies WHERE sha256 = ?),
        chain (depth, id, parent, chunks) AS (
            SELECT 0, id, parent, chunks FROM spines WHERE id = (SELECT spine FROM body)
            UNION ALL SELECT depth + 1, spines.id, spines.parent, spines.chunks
            FROM chain JOIN spines ON spines.id = chain.parent WHERE spines.id < chain.id
        )
    SELECT depth, chunks FROM chain
    UNION ALL SELECT -1, chunks FROM body
    UNION ALL SELECT -2, chunks FROM tails WHERE id = (SELECT tail FROM body)
    ORDER BY 1 DESC
"""


def chunks_of(db: sqlite3.Connection, sha256: bytes) -> list[int]:
    """The ids of the chunks of a body, in order."""
    return [chunk for _, listed in db.execute(_BODY, (sha256,)) for chunk in decode_ids(listed)]


def encode_ids(chunks: Iterable[int]) -> bytes:
    """A list of ids, each as its distance from the one before: mostly one byte."""
    out = bytearray()
    before = 0
    for chunk in chunks:
        step = chunk - before
        number = step << 1 if step >= 0 else (-step << 1) - 1
        while number > _LOW:
            out.append(number & _LOW | _MORE)
            number >>= 7
        out.append(number)
        before = chunk
    return bytes(out)


def decode_ids(listed: bytes) -> Iterator[int]:
    """The ids of such a list; of a damaged one whatever it gives, at most up to the first that no chunk can have."""
    number = shift = chunk = 0
    for byte in bytes(listed):
        number |= (byte & _LOW) << shift
        shift += 7
        if byte < _MORE:
            chunk += -((number + 1) >> 1) if number & 1 else number >> 1
            if not 0 < chunk < _MOST_CHUNKS:
                return
            yield chunk
            number = shift = 0


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
