"""The SQLite file of the body store: opened when first needed, one connection per process, its errors explained.

A connection must not cross a fork, so it is closed before one and opened again by whoever needs it. A file that is
deleted or replaced while it is open goes on working for the process that holds it, and is lost with it; so each use
compares the open file with what its path names now.

What a failed sync has given up (see `proof.py`) may be in SQLite's write-ahead log as well: whoever opens that reads it
from memory, and takes it for committed. So the first transaction of a connection, and the first one behind a failure,
writes the log over itself before anything is synced; nobody else writes to it meanwhile. One descriptor of it stays
open from then on, because the system tells each descriptor once of what it could not write, and a new one nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from steplog.errors import Corrupt, StoreError, UnsupportedFormat
from steplog.stores.blocks import encode_ids
from steplog.stores.explain import failure
from steplog.stores.fs import FS, make_dirs, open_or_create
from steplog.stores.proof import over_itself

if TYPE_CHECKING:
    import sqlite3

VERSION: Final = 2
BUSY_SECONDS: Final = 30.0
_SMALL: Final = 16 << 10

_TABLES: Final = (
    "CREATE TABLE chunks (id INTEGER PRIMARY KEY, data BLOB NOT NULL, key_id BLOB)",
    "CREATE TABLE hashes (hash BLOB PRIMARY KEY, chunk INT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE spines (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, parent INT NOT NULL, chunks BLOB NOT NULL)",
    "CREATE TABLE tails (id INTEGER PRIMARY KEY, chunks BLOB NOT NULL UNIQUE)",
    """CREATE TABLE bodies (
        sha256 BLOB PRIMARY KEY, size INT NOT NULL, day INT NOT NULL, seen INT NOT NULL,
        spine INT NOT NULL, chunks BLOB NOT NULL, tail INT NOT NULL
    ) WITHOUT ROWID""",
    "CREATE TABLE prunes (id INTEGER PRIMARY KEY, day INT NOT NULL)",
    "CREATE TABLE pruned (sha256 BLOB PRIMARY KEY, prune INT NOT NULL) WITHOUT ROWID",
)


_OF_1: Final = ("chunks", "nodes", "bodies")
_CHAIN_OF_1: Final = """
    WITH RECURSIVE chain (depth, parent, chunk) AS (
        SELECT 0, parent, chunk FROM old_nodes WHERE key = ?
        UNION ALL SELECT depth + 1, old_nodes.parent, old_nodes.chunk FROM chain
        JOIN old_nodes ON old_nodes.key = chain.parent
    )
    SELECT chunk FROM chain ORDER BY depth DESC
"""


class Database:
    """One SQLite file.

    Attributes:
        path: where it is.
        fs: the file layer.
        guard: held by whoever uses the connection.
        durable: whether transactions may be asked to survive the loss of power.
        whole: whether the directory is synced with each of those too.
        openings: how many connections there were so far.
    """

    def __init__(self, path: str, *, durable: bool, fs: FS, whole: bool = False) -> None:
        self.path = path
        self.fs = fs
        self.durable = durable
        self.whole = whole
        self.openings = 0
        self.guard = threading.RLock()
        self.connection: sqlite3.Connection | None = None
        self._identity = (0, 0)
        self._synchronous = ""
        self._frozen: tuple[int, int] | None = None
        # The write-ahead log, once it was written over itself, and whether that is due.
        self._log: int | None = None
        self._doubtful = True
        _live.add(self)

    def exists(self) -> bool:
        """Tell whether there is a file."""
        return self._named() is not None

    def connect(self) -> sqlite3.Connection:
        """Return the connection, creating the file where there is none.

        Raises:
            StoreError: the file was deleted or replaced since it was opened. The next call opens what is there now.
        """
        if self.connection is not None and self._frozen is not None and self._frozen != self._shape():
            # Somebody writes what this process may only read; what SQLite remembers of it is void.
            self.connection.close()
            self._leave_log()
            self.connection = self._frozen = None
        if self.connection is not None:
            if self._named() == self._identity:
                return self.connection
            self._abandon()
            message = (
                f"{self.path} was deleted or replaced while this process had it open. What it held is gone, and with "
                f"it the bodies that lines of this home name. Put the file back; else those steps cannot be replayed."
            )
            raise StoreError(message, path=self.path, errno=errno.ENOENT)
        db = self._open()
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        self.connection, self._identity, self._synchronous = db, self._named() or (0, 0), ""
        self.openings += 1
        return db

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        path = self.path
        try:
            make_dirs(self.fs, os.path.dirname(path))
            fd, created = open_or_create(self.fs, path, os.O_RDWR)
            self.fs.close(fd)
            if created and self.durable:
                self.fs.sync_dir(os.path.dirname(path))
        except OSError as error:
            if error.errno != errno.EROFS or not self.exists() or self._holds_more():
                raise
            # SQLite looks out for writers by way of a file beside it, which cannot be made here. So this looks itself.
            path = f"file:{quote(path)}?mode=ro&immutable=1"
            self._frozen = self._shape()
        uri = path != self.path
        return sqlite3.connect(path, uri=uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def _shape(self) -> tuple[int, int]:
        status = self.fs.stat(self.path)
        return status.st_size, status.st_mtime_ns

    def _holds_more(self) -> bool:
        """Whether something was committed that is not in the file itself yet."""
        try:
            return bool(self.fs.stat(f"{self.path}-wal").st_size)
        except FileNotFoundError:
            return False

    def _named(self) -> tuple[int, int] | None:
        try:
            status = self.fs.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_dev, status.st_ino

    def _abandon(self) -> None:
        """Forget a connection without closing it: that would delete the write-ahead log of the file's successor."""
        db, self.connection = self.connection, None
        self._leave_log()
        if db is not None:
            if sys.version_info >= (3, 12):
                import sqlite3

                db.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)  # noqa: FBT003
            _abandoned.append(db)

    def _prepare(self, db: sqlite3.Connection) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version < VERSION:
            if not version:
                db.execute("PRAGMA page_size = 2048")
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
                db.execute("PRAGMA journal_mode = WAL")
            with self.transaction(db, sync=self.durable):
                version = self._upgrade(db)
        if version > VERSION:
            raise UnsupportedFormat(
                f"{self.path} has format {version}; this release reads {VERSION}. Upgrade: pip install -U steplog",
                path=self.path,
                found=str(version),
            )
        if self.durable:
            # Without these macOS leaves in the drive's cache what counts as synced; elsewhere they change nothing.
            db.execute("PRAGMA fullfsync = ON")
            db.execute("PRAGMA checkpoint_fullfsync = ON")
        # A small write-ahead log: what is not yet in the main file is stored twice.
        db.execute("PRAGMA wal_autocheckpoint = 64")

    @staticmethod
    def _upgrade(db: sqlite3.Connection) -> int:
        (version,) = db.execute("PRAGMA user_version").fetchone()  # again, now that nobody else can do the same
        if version < VERSION:
            if version:
                for table in _OF_1:
                    db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
            for statement in _TABLES:
                db.execute(statement)
            if version:
                _convert(db)
                for table in _OF_1:
                    db.execute(f"DROP TABLE old_{table}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        return int(version)

    @contextmanager
    def transaction(self, db: sqlite3.Connection, *, sync: bool, undo: bool = False) -> Iterator[None]:
        """Write all or nothing; with `sync`, on the medium when this returns; with `undo`, nothing after all."""
        level = ("EXTRA" if self.whole else "FULL") if sync and self.durable else "NORMAL"
        if level != self._synchronous:
            db.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level
        db.execute("BEGIN IMMEDIATE")
        try:
            if self.durable and self._doubtful:
                self._write_log_again()
            yield
            db.execute("ROLLBACK" if undo else "COMMIT")
        except BaseException:
            self._doubtful = True
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _write_log_again(self) -> None:
        """Write the write-ahead log over itself. Only in a transaction: then nobody else writes to it."""
        if self._log is None:
            try:
                self._log = self.fs.open(self.path + "-wal", os.O_RDWR)
            except FileNotFoundError:  # not in this mode yet, since it is only being made
                return
        over_itself(self.fs, self._log, 0, self.fs.fstat(self._log).st_size)
        self._doubtful = False

    @contextmanager
    def explained(self, action: str) -> Iterator[None]:
        """Turn what SQLite and the operating system raise into errors that say what to do."""
        import sqlite3

        try:
            yield
        except OSError as error:
            raise failure(error, None, action, self.path) from error
        except sqlite3.Error as error:
            raise _explain(error, action, self.path) from error

    def sync_log(self) -> None:
        """Return when all that was committed without `sync` is on the medium."""
        if not self.exists() or not self._holds_more():
            return  # what it held has been moved into the main file, and synced
        db = self.connect()
        if self._doubtful:
            with self.transaction(db, sync=False):
                pass
        if self._log is not None:
            try:
                self.fs.sync(self._log)
            except OSError:
                self._doubtful = True
                raise

    def shrink(self) -> None:
        """Move the write-ahead log into the main file and cut it to nothing, unless it is small or in use."""
        if self.connection is None or self._named() != self._identity:
            return
        try:
            size = self.fs.stat(self.path + "-wal").st_size
        except FileNotFoundError:
            return
        if size > _SMALL:
            self.connection.execute("PRAGMA busy_timeout = 0")  # it can wait for the next time
            try:
                self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self.connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")

    def close(self) -> None:
        """Close this process's connection. Idempotent; a later call opens it again."""
        if self.connection is not None and self._named() != self._identity:
            self._abandon()
        db, self.connection = self.connection, None
        self._leave_log()
        if db is not None:
            db.close()

    def _leave_log(self) -> None:
        log, self._log, self._doubtful = self._log, None, True
        if log is not None:
            with contextlib.suppress(OSError):  # nothing was written to it but what it held
                self.fs.close(log)


def _convert(db: sqlite3.Connection) -> None:
    """Take over the tables of the first format, in which every prefix was a row of its own."""
    db.execute("INSERT INTO chunks SELECT id, data, NULL FROM old_chunks")
    db.execute("INSERT INTO hashes SELECT hash, id FROM old_chunks")
    for sha256, size, day in db.execute("SELECT sha256, size, day FROM old_bodies").fetchall():
        chunks = encode_ids(chunk for (chunk,) in db.execute(_CHAIN_OF_1, (sha256[:16],)))
        db.execute("INSERT INTO bodies VALUES (?, ?, ?, 0, 0, ?, 0)", (sha256, size, day, chunks))


_live: weakref.WeakSet[Database] = weakref.WeakSet()
_abandoned: list[sqlite3.Connection] = []
_at_fork: list[Database] = []
_forking = threading.RLock()


def _before_fork() -> None:
    _forking.acquire()
    for database in list(_live):
        database.guard.acquire()
        _at_fork.append(database)
        database.close()


def _after_fork_in_parent() -> None:
    while _at_fork:
        _at_fork.pop().guard.release()
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking  # noqa: PLW0603  the parent's lock cannot be released here
    _forking = threading.RLock()
    while _at_fork:
        _at_fork.pop().guard = threading.RLock()


@atexit.register
def _at_exit() -> None:
    """Close what is open: the last process to close a file takes its write-ahead log away."""
    for database in list(_live):
        if database.guard.acquire(timeout=1.0):  # a thread that is still at it keeps its connection
            with contextlib.suppress(StoreError), database.explained("close"):
                database.close()
            database.guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


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
        text = f"cannot {action}: another process has kept {path} locked for {BUSY_SECONDS:.0f} s. Stop it, or wait."
        return StoreError(text, errno=errno.EBUSY, path=path)
    system = {
        sqlite3.SQLITE_FULL: errno.ENOSPC,
        sqlite3.SQLITE_READONLY: errno.EROFS,
        sqlite3.SQLITE_CANTOPEN: errno.EACCES,
        sqlite3.SQLITE_IOERR: errno.EIO,
    }
    return failure(OSError(system.get(code, 0), str(error)), None, action, path, "Nothing was stored.")
