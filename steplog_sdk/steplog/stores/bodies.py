"""Large values, stored once: a SQLite file that all runs of one home share.

Three tables. `nodes` are prefixes of bodies (see `chunks.py`), each naming the prefix that it extends and the chunk
that it adds, so that a conversation sent again with one message more stores one message. `chunks` are the distinct
pieces, compressed. `bodies` says which prefixes are whole bodies.

Thirty-two consecutive chunks form a block, and a chunk is compressed with the chunks before it in its block as
dictionary: neighbours come from the same conversation, and short JSON alone compresses badly.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256 as sha256_of
from typing import TYPE_CHECKING, Final

from steplog.errors import BodyMissing, Corrupt, InvalidArgument, StoreError, UnsupportedFormat
from steplog.stores.chunks import MOST, Prefix, prefixes
from steplog.stores.explain import failure
from steplog.stores.fs import FS, make_dirs, open_or_create

if TYPE_CHECKING:
    import sqlite3

_VERSION: Final = 1
_BLOCK: Final = 32
_WINDOW: Final = 64 << 10
_LEVEL: Final = 6
_SECONDS_A_DAY: Final = 86_400
_BUSY_SECONDS: Final = 30.0

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS chunks (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, data BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS nodes (key BLOB PRIMARY KEY, parent BLOB, chunk INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS bodies (sha256 BLOB PRIMARY KEY, size INT NOT NULL, day INT NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {_VERSION}",
)

_CHAIN: Final = """
    WITH RECURSIVE chain (parent, chunk) AS (
        SELECT parent, chunk FROM nodes WHERE key = ?
        UNION ALL SELECT nodes.parent, nodes.chunk FROM chain JOIN nodes ON nodes.key = chain.parent
    )
    SELECT chunk FROM chain
"""


class SqliteBodies:
    """Content-addressed bytes in one SQLite file, for any number of threads and processes at once.

    One connection per process, opened when first needed and closed before a fork: SQLite connections must not cross
    one.
    """

    def __init__(self, path: str, *, durability: str = "durable", fs: FS | None = None) -> None:
        self.path = path
        self._durable = durability == "durable"
        self._fs = fs or FS()
        self._guard = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._synchronous = ""
        self._unsynced = False
        self._recent = (0, b"")  # the last chunk's id and its block so far, which the next chunk is compressed with
        _live.add(self)

    def put(self, bodies: Iterable[tuple[str, bytes]], *, sync: bool = True) -> None:
        """Store bodies in one transaction; those already present are skipped.

        Raises:
            InvalidArgument: a body does not hash to its name; nothing was stored.
            StoreError: the file could not be written; nothing was stored.
        """
        cut = [(name, data, _checked(name, data)) for name, data in bodies]
        sync = sync and self._durable
        with self._guard, self._explained("store bodies"):
            db = self._connect()
            absent = [entry for entry in cut if not self._has(db, entry[0])]
            if absent:
                with self._transaction(db, sync=sync):
                    for name, data, found in absent:
                        self._add(db, name, data, found)
            elif sync and self._unsynced:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")  # syncs the log of what was committed without
            self._unsynced = self._durable and not sync and (self._unsynced or bool(absent))

    def get(self, sha256: str) -> bytes:
        """Return the exact bytes.

        Raises:
            BodyMissing: there is no such body.
            Corrupt: what is stored does not hash to its name.
            StoreError: the file could not be read.
        """
        with self._guard, self._explained("read a body"):
            db = self._connect() if self._exists() else None
            if db is None or not self._has(db, sha256):
                raise BodyMissing(
                    f"body {sha256} is not in {self.path}: it was pruned, or the log was copied without its bodies. "
                    "Lines that name it stay readable; only the step that needs it cannot be replayed.",
                    sha256=sha256,
                    path=self.path,
                )
            key = bytes.fromhex(sha256)[:16]
            chain = [chunk for (chunk,) in db.execute(_CHAIN, (key,))]
            data = _join(db, reversed(chain))
        if sha256_of(data).hexdigest() != sha256:
            raise Corrupt(
                f"body {sha256} in {self.path} is damaged: it does not hash to its name. Restore the file from a copy.",
                path=self.path,
                expected=sha256,
                found=sha256_of(data).hexdigest(),
            )
        return data

    def has(self, sha256: str) -> bool:
        """Tell whether a body is present, without reading it."""
        with self._guard, self._explained("look for a body"):
            return self._exists() and self._has(self._connect(), sha256)

    def close(self) -> None:
        """Close this process's connection. Idempotent; a later call opens it again."""
        with self._guard, self._explained("close"):
            db, self._db = self._db, None
            if db is not None:
                db.close()

    def _exists(self) -> bool:
        try:
            self._fs.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    @staticmethod
    def _has(db: sqlite3.Connection, sha256: str) -> bool:
        try:
            key = bytes.fromhex(sha256)
        except ValueError:
            return False
        return db.execute("SELECT 1 FROM bodies WHERE sha256 = ?", (key,)).fetchone() is not None

    def _add(self, db: sqlite3.Connection, name: str, data: bytes, found: list[Prefix]) -> None:
        """Store the part of a body behind its longest stored prefix.

        A stored prefix has all its shorter ones stored too, so the longest is found by halving.
        """
        low, high = 0, len(found)
        while low < high:
            middle = (low + high) // 2
            if db.execute("SELECT 1 FROM nodes WHERE key = ?", (found[middle].key,)).fetchone():
                low = middle + 1
            else:
                high = middle
        parent = found[low - 1].key if low else None
        for prefix in found[low:]:
            chunk = self._add_chunk(db, data[prefix.start : prefix.stop])
            db.execute("INSERT OR IGNORE INTO nodes VALUES (?, ?, ?)", (prefix.key, parent, chunk))
            parent = prefix.key
        today = int(time.time()) // _SECONDS_A_DAY
        db.execute("INSERT OR IGNORE INTO bodies VALUES (?, ?, ?)", (bytes.fromhex(name), len(data), today))

    def _add_chunk(self, db: sqlite3.Connection, raw: bytes) -> int:
        key = sha256_of(raw).digest()[:16]
        row = db.execute("SELECT id FROM chunks WHERE hash = ?", (key,)).fetchone()
        if row is not None:
            return int(row[0])
        (last,) = db.execute("SELECT coalesce(max(id), 0) FROM chunks").fetchone()
        before = self._block_before(db, last)
        db.execute("INSERT INTO chunks VALUES (?, ?, ?)", (last + 1, key, _pack(raw, before)))
        self._recent = (last + 1, before + raw)
        return int(last) + 1

    def _block_before(self, db: sqlite3.Connection, last: int) -> bytes:
        """Return the raw bytes of the block that the chunk after `last` joins."""
        if (last + 1) % _BLOCK == 0:
            return b""
        if self._recent[0] == last:
            return self._recent[1]
        return b"".join(_read_block(db, last // _BLOCK).values())

    @contextmanager
    def _transaction(self, db: sqlite3.Connection, *, sync: bool) -> Iterator[None]:
        level = "FULL" if sync else "NORMAL"
        if level != self._synchronous:
            db.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            self._recent = (0, b"")
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _connect(self) -> sqlite3.Connection:
        if self._db is None:
            import sqlite3

            make_dirs(self._fs, os.path.dirname(self.path))
            fd, created = open_or_create(self._fs, self.path, os.O_RDWR)
            self._fs.close(fd)
            if created and self._durable:
                self._fs.sync_dir(os.path.dirname(self.path))
            db = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(db)
            except BaseException:
                db.close()
                raise
            self._db, self._synchronous, self._recent = db, "", (0, b"")
        return self._db

    def _prepare(self, db: sqlite3.Connection) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise UnsupportedFormat(
                f"{self.path} has format {version}; this release reads {_VERSION}. Upgrade: pip install -U steplog",
                path=self.path,
                found=str(version),
            )
        if version < _VERSION:
            db.execute("PRAGMA page_size = 2048")
            db.execute("PRAGMA journal_mode = WAL")
            with self._transaction(db, sync=self._durable):
                for statement in _SCHEMA:
                    db.execute(statement)
        # A small write-ahead log: what is not yet in the main file is stored twice.
        db.execute("PRAGMA wal_autocheckpoint = 64")

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except OSError as error:
            raise failure(error, None, action, self.path) from error
        except sqlite3.Error as error:
            raise _explain(error, action, self.path) from error


_live: weakref.WeakSet[SqliteBodies] = weakref.WeakSet()
_at_fork: list[SqliteBodies] = []
_forking = threading.RLock()


def _before_fork() -> None:
    _forking.acquire()
    for store in list(_live):
        store._guard.acquire()  # noqa: SLF001  one module, one mechanism
        _at_fork.append(store)
        store.close()


def _after_fork_in_parent() -> None:
    while _at_fork:
        _at_fork.pop()._guard.release()  # noqa: SLF001
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking  # noqa: PLW0603  the parent's lock cannot be released here
    _forking = threading.RLock()
    while _at_fork:
        _at_fork.pop()._guard = threading.RLock()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _checked(name: str, data: bytes) -> list[Prefix]:
    found, digest = prefixes(data)
    if digest != name:
        raise InvalidArgument(
            f"a body of {len(data)} bytes was named {name} but hashes to {digest}. Nothing was stored."
        )
    return found


def _pack(raw: bytes, before: bytes) -> bytes:
    """Compress a chunk, with what comes before it in its block as dictionary; random bytes grow by a few bytes."""
    import zstandard as zstd

    window = before[-_WINDOW:]
    dictionary = zstd.ZstdCompressionDict(window, dict_type=zstd.DICT_TYPE_RAWCONTENT) if window else None
    parameters = zstd.ZstdCompressionParameters.from_level(
        _LEVEL, source_size=len(raw), dict_size=len(window), format=zstd.FORMAT_ZSTD1_MAGICLESS
    )
    return zstd.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress(raw)


def _unpack(packed: bytes, before: bytes) -> bytes:
    import zstandard as zstd

    window = before[-_WINDOW:]
    dictionary = zstd.ZstdCompressionDict(window, dict_type=zstd.DICT_TYPE_RAWCONTENT) if window else None
    unpacker = zstd.ZstdDecompressor(dict_data=dictionary, format=zstd.FORMAT_ZSTD1_MAGICLESS)
    try:
        return unpacker.decompress(packed, max_output_size=MOST)
    except zstd.ZstdError:
        return b""  # the body that needs it fails its hash


def _read_block(db: sqlite3.Connection, number: int) -> dict[int, bytes]:
    first = number * _BLOCK
    rows = db.execute("SELECT id, data FROM chunks WHERE id BETWEEN ? AND ? ORDER BY id", (first, first + _BLOCK - 1))
    raw: dict[int, bytes] = {}
    before = b""
    for chunk, packed in rows:
        raw[chunk] = _unpack(packed, before)
        before += raw[chunk]
    return raw


def _join(db: sqlite3.Connection, chunks: Iterable[int]) -> bytes:
    blocks: dict[int, dict[int, bytes]] = {}
    parts = []
    for chunk in chunks:
        number = chunk // _BLOCK
        if number not in blocks:
            blocks[number] = _read_block(db, number)
        parts.append(blocks[number].get(chunk, b""))
    return b"".join(parts)


def _explain(error: sqlite3.Error, action: str, path: str) -> StoreError:
    import sqlite3

    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Corrupt(
            f"cannot {action}: {path} is damaged ({error}). Logs stay readable; steps whose bodies it held cannot be "
            f"replayed. Restore it from a copy, or save what it holds: sqlite3 {path} .recover",
            path=path,
        )
    if code == sqlite3.SQLITE_BUSY:
        text = f"cannot {action}: another process has kept {path} locked for {_BUSY_SECONDS:.0f} s. Stop it, or wait."
        return StoreError(text, errno=errno.EBUSY, path=path)
    system = {
        sqlite3.SQLITE_FULL: errno.ENOSPC,
        sqlite3.SQLITE_READONLY: errno.EROFS,
        sqlite3.SQLITE_CANTOPEN: errno.EACCES,
        sqlite3.SQLITE_IOERR: errno.EIO,
    }
    return failure(OSError(system.get(code, 0), str(error)), None, action, path, "Nothing was stored.")
