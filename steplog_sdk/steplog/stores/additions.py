"""Bodies that are added to the body store in one transaction, with as few statements as there can be.

SQLite lets other threads run in each statement, and whoever writes bodies waits for the interpreter after it. Beside an
event loop that is busy this costs more than the statement. So what a group commit brings is looked up together, and
its rows are kept until the end of the transaction and inserted many at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256 as sha256_of
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from steplog.stores.blocks import BLOCK, encode_ids, pack, read_block

if TYPE_CHECKING:
    import sqlite3

    from steplog.stores.base import Cipher
    from steplog.stores.chunks import Prefix

_SPINE: Final = 16

# A shorter tail is said where it stands. A longer one is cut off: where all of a growing body is known, as when
# somebody says the same again and again, it would grow with it.
_TAIL: Final = range(4, 65)

# Parameters of one statement; older releases of SQLite take 999.
_PARAMETERS: Final = 900

Content = tuple[bytes, "list[Prefix]"]
"""A body's bytes, and where they are cut."""


def matching(db: sqlite3.Connection, statement: str, keys: Iterable[bytes], first: Sequence[Any] = ()) -> set[bytes]:
    """Which of these keys a statement finds; it ends in `IN`, and gives the key."""
    return {row[0] for row in _rows_of(db, statement, keys, first)}


def _rows_of(
    db: sqlite3.Connection, statement: str, keys: Iterable[bytes], first: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    left = iter(keys)
    while part := list(islice(left, _PARAMETERS - len(first))):
        found += db.execute(f"{statement} ({_marks(len(part))})", (*first, *part)).fetchall()
    return found


def _marks(count: int) -> str:
    return ("?," * count)[:-1]


class Additions:
    """What one transaction adds.

    Args:
        db: the connection, in a transaction.
        cipher: seals what is stored and names it, or None.
        path: of the file.
        recent: the id of the last chunk and its block so far; an id of 0 where that is not known.
    """

    def __init__(self, db: sqlite3.Connection, cipher: Cipher | None, path: str, recent: tuple[int, bytes]) -> None:
        self._db = db
        self._cipher = cipher
        self._path = path
        self._recent = recent
        self._last: tuple[int, bytes | None] | None = None
        # The keys of the last chunks of prefixes.
        self._keys: dict[Prefix, bytes] = {}
        # Chunks by their keys: those of which it is known whether they are stored, and as what.
        self._known: dict[bytes, int | None] = {}
        self._chunks: list[tuple[Any, ...]] = []
        self._hashes: list[tuple[Any, ...]] = []
        self._bodies: list[tuple[Any, ...]] = []

    def add(self, bodies: Mapping[bytes, Content], today: int) -> tuple[int, bytes]:
        """Add what is missing, and note of the rest that it was put today. Returns the newest `recent`."""
        db = self._db
        (seen,) = db.execute("SELECT coalesce(max(id), 0) FROM prunes").fetchone()
        present = matching(db, "SELECT sha256 FROM bodies WHERE sha256 IN", bodies)
        db.executemany("UPDATE bodies SET day = ?, seen = ? WHERE sha256 = ?", [(today, seen, key) for key in present])
        missing = {key: content for key, content in bodies.items() if key not in present}
        self._look_up(missing.values())
        for key, (data, found) in missing.items():
            self._bodies.append((key, len(data), today, seen, *self._place(data, found)))
        self._insert("chunks", self._chunks)
        self._insert("hashes", self._hashes)
        self._insert("bodies", self._bodies)
        pruned = [key[:16] for key in missing]
        for start in range(0, len(pruned), _PARAMETERS):
            part = pruned[start : start + _PARAMETERS]
            db.execute(f"DELETE FROM pruned WHERE sha256 IN ({_marks(len(part))})", part)  # noqa: S608  # marks only
        return self._recent

    def _insert(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        width = len(rows[0])
        for start in range(0, len(rows), _PARAMETERS // width):
            part = rows[start : start + _PARAMETERS // width]
            marks = (f"({_marks(width)})," * len(part))[:-1]
            self._db.execute(f"INSERT INTO {table} VALUES {marks}", [value for row in part for value in row])  # noqa: S608  # names of tables, and marks

    def _look_up(self, contents: Collection[Content]) -> None:
        """Find at once which chunks of short bodies are stored; most of a long one is found by its spine."""
        short = [content for content in contents if len(content[1]) < _SPINE]
        keys = {self._key(data, part) for data, found in short for part in found}
        self._known = dict.fromkeys(keys)
        self._known.update(_rows_of(self._db, "SELECT hash, chunk FROM hashes WHERE hash IN", keys))

    def _key(self, data: bytes, part: Prefix) -> bytes:
        """What the last chunk of a prefix is found by."""
        key = self._keys.get(part)
        if key is None:
            # The first chunk is the whole prefix.
            digest = sha256_of(data[part.start : part.stop]).digest() if part.start else part.digest
            key = self._keys[part] = self._keyed(digest)[:16]
        return key

    def _keyed(self, digest: bytes) -> bytes:
        return digest if self._cipher is None else self._cipher.name(digest)

    def _place(self, data: bytes, found: list[Prefix]) -> tuple[int, bytes, int]:
        """Store what a body has behind its longest stored spine; returns spine, chunks and tail.

        It is found by halving: a stored spine has all its shorter ones stored too.
        """
        db = self._db
        parent, low, high = 0, 0, len(found) // _SPINE
        while low < high:
            middle = (low + high + 1) // 2
            row = db.execute("SELECT id FROM spines WHERE key = ?", (self._spine(found, middle),)).fetchone()
            if row is None:
                high = middle - 1
            else:
                parent, low = row[0], middle
        chunks, tail = self._add_chunks(data, found[low * _SPINE :])
        while len(chunks) >= _SPINE:
            low += 1
            row = (self._spine(found, low), parent, encode_ids(chunks[:_SPINE]))
            parent = _inserted(db.execute("INSERT INTO spines (key, parent, chunks) VALUES (?, ?, ?)", row))
            del chunks[:_SPINE]
        return parent, encode_ids(chunks), tail

    def _spine(self, found: list[Prefix], number: int) -> bytes:
        return self._keyed(found[number * _SPINE - 1].digest)[:16]

    def _add_chunks(self, data: bytes, found: list[Prefix]) -> tuple[list[int], int]:
        """Store pieces that are not yet there; return the ids of all, but for a tail, and the id of that."""
        chunks, new = [], 0
        for number, prefix in enumerate(found, 1):
            chunk, added = self._add_chunk(data, prefix)
            chunks.append(chunk)
            new = number if added else new
        start = max(new, len(chunks) - _TAIL.stop + 1)
        if len(chunks) - start < _TAIL.start:
            return chunks, 0
        listed = encode_ids(chunks[start:])
        row = self._db.execute("SELECT id FROM tails WHERE chunks = ?", (listed,)).fetchone()
        if row is not None:
            return chunks[:start], int(row[0])
        return chunks[:start], _inserted(self._db.execute("INSERT INTO tails (chunks) VALUES (?)", (listed,)))

    def _add_chunk(self, data: bytes, part: Prefix) -> tuple[int, bool]:
        key = self._key(data, part)
        if key not in self._known:
            row = self._db.execute("SELECT chunk FROM hashes WHERE hash = ?", (key,)).fetchone()
            self._known[key] = None if row is None else row[0]
        stored = self._known[key]
        if stored is not None:
            return stored, False
        raw = data[part.start : part.stop]
        key_id = None if self._cipher is None else self._cipher.key_id
        last, last_key = self._last or self._newest()
        # What is encrypted shares no block with what is not, or is under another key: each block is read by one key.
        chunk = last + 1 if last_key == key_id else (last // BLOCK + 1) * BLOCK
        before = self._block_before(chunk, last)
        self._chunks.append((chunk, pack(raw, before, self._cipher, chunk), key_id))
        self._hashes.append((key, chunk))
        self._known[key] = chunk
        self._last, self._recent = (chunk, key_id), (chunk, before + raw)
        return chunk, True

    def _newest(self) -> tuple[int, bytes | None]:
        row = self._db.execute("SELECT id, key_id FROM chunks ORDER BY id DESC LIMIT 1").fetchone()
        return (0, None) if row is None else (int(row[0]), row[1])

    def _block_before(self, chunk: int, last: int) -> bytes:
        """Return the raw bytes of the block that a new chunk joins."""
        if chunk % BLOCK == 0:
            return b""
        if self._recent[0] == last:
            return self._recent[1]
        # Only before the first one: what is kept here is not in the file yet.
        return b"".join(read_block(self._db, chunk // BLOCK, self._cipher, self._path).values())


def _inserted(cursor: sqlite3.Cursor) -> int:
    return cursor.lastrowid or 0
