"""Large values, stored once: a SQLite file that all runs of one home share.

    chunks    the distinct pieces of all bodies (see `chunks.py` and `blocks.py`); `hashes` finds one by its content
    spines    prefixes of bodies, sixteen chunks at a time, each naming the one that it extends: a conversation that is
              sent again with one message more finds the longest that is stored, and adds what is new
    tails     lists of chunks that were known before: what stands behind the messages of a request, such as its tools,
              stands behind those of the next one too
    bodies    a spine, the chunks behind it, a tail; the day on which each was put last, and `seen`, for pruning
    prunes    when bodies were pruned; `pruned` says which

A body may be pruned once nothing that is kept needs it. That a writer finds a body present, and appends the line that
names it after the body was pruned, cannot happen: presence counts only together with `seen`, the number of the newest
prune when the body was put last. A prune begins by taking the next number while no process is between putting a
body and appending its line (`held`), reads the logs after that, and deletes only what carries an older number.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256 as sha256_of
from typing import TYPE_CHECKING, Final

from steplog.errors import BodyMissing, Corrupt, InvalidArgument, StoreError
from steplog.stores.additions import Additions, matching
from steplog.stores.blocks import chunks_of, join
from steplog.stores.chunks import Prefix, prefixes
from steplog.stores.cipher import Keyring
from steplog.stores.database import BUSY_SECONDS, Database
from steplog.stores.fs import FS, make_dirs, open_or_create

if TYPE_CHECKING:
    import sqlite3

    from steplog.stores.base import Cipher
    from steplog.stores.upkeep import BodyCheck

SECONDS_A_DAY: Final = 86_400
_PATIENCE: Final = 0.001

_FRESH: Final = """
    SELECT sha256 FROM bodies WHERE day = ? AND seen = (SELECT coalesce(max(id), 0) FROM prunes) AND sha256 IN
"""


class SqliteBodies:
    """Content-addressed bytes in one SQLite file, for any number of threads and processes at once.

    Args:
        path: the file.
        durability: `durable`: what is put with `sync` survives the loss of power.
        fs: the file layer.
        cipher: seals what is stored and names it, or None to store it as it is.
    """

    def __init__(
        self, path: str, *, durability: str = "durable", fs: FS | None = None, cipher: Cipher | None = None
    ) -> None:
        self.path = path
        self.cipher = cipher
        if isinstance(cipher, Keyring):
            cipher.source = self.retired_keys
        self.database = Database(
            path,
            durable=durability in ("interval", "durable", "durable-full"),
            whole=durability == "durable-full",
            fs=fs or FS(),
        )
        self._window = _Window(path.removesuffix(".db") + ".lock", self.database)
        # What this connection has committed without a sync, and as of which version all that others have is synced.
        self._unsynced = False
        self._synced = (0, 0)
        # The last chunk's id and its block so far, which the next chunk is compressed with, and as of which version.
        self._recent = (0, b"")
        self._version = (0, 0)

    def name(self, data: bytes) -> str:
        """The name under which these bytes are put: their SHA-256, or what the cipher makes of it, in hex."""
        return self._keyed(sha256_of(data).digest()).hex()

    def _keyed(self, digest: bytes) -> bytes:
        return digest if self.cipher is None else self.cipher.name(digest)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep what is put in here from being pruned before the lines that name it are appended, in here too."""
        with self.database.explained("store bodies"):
            self._window.enter()
        try:
            yield
        finally:
            self._window.leave()

    def put(self, bodies: Iterable[tuple[str, bytes]], *, sync: bool = True) -> None:
        """Store bodies in one transaction; those already present are skipped.

        Raises:
            InvalidArgument: a body does not hash to its name; nothing was stored.
            StoreError: the file could not be written, or was replaced meanwhile; nothing was stored.
        """
        cut = {name: (data, self._checked(name, data)) for name, data in dict.fromkeys(bodies)}
        sync = sync and self.database.durable
        today = int(time.time()) // SECONDS_A_DAY
        with self.database.guard, self.database.explained("store bodies"):
            db = self.database.connect()
            keys = {bytes.fromhex(name): name for name in cut}
            fresh = matching(db, _FRESH, keys, (today,))
            due = {key: cut[name] for key, name in keys.items() if key not in fresh}
            if due:
                try:
                    with self.database.transaction(db, sync=sync):
                        self._notice_others(db)
                        self._recent = Additions(db, self.cipher, self.path, self._recent).add(due, today)
                except BaseException:
                    self._recent = (0, b"")
                    raise
                if sync:
                    self._synced = self._version
            elif sync:
                # What is found present another process, at a lower level perhaps, may have put without a sync.
                version = self._version_of(db)
                if self._unsynced or version != self._synced:
                    self.database.sync_log()
                self._synced = version
            self._unsynced = self.database.durable and not sync and (self._unsynced or bool(due))

    def touch(self, names: Iterable[str]) -> None:
        """Note that these bodies are named anew, today, by lines that are about to be written: inside `held`.

        A prune that is under way leaves them alone then, like those that are put. What is not there is passed over.
        """
        keys = [_raw(name) for name in names]
        today = int(time.time()) // SECONDS_A_DAY
        with self.database.guard, self.database.explained("store bodies"):
            if not keys or not self.database.exists():
                return
            db = self.database.connect()
            with self.database.transaction(db, sync=self.database.durable):
                (seen,) = db.execute("SELECT coalesce(max(id), 0) FROM prunes").fetchone()
                db.executemany(
                    "UPDATE bodies SET day = ?, seen = ? WHERE sha256 = ?", [(today, seen, key) for key in keys]
                )

    def sync(self) -> None:
        """Return when all that any process has put is on the medium, as far as this store's level is about it."""
        if self.database.durable:
            with self.database.guard, self.database.explained("store bodies"):
                self.database.sync_log()

    def get(self, sha256: str) -> bytes:
        """Return the exact bytes.

        Raises:
            BodyMissing: there is no such body.
            Corrupt: what is stored does not hash to its name, or is encrypted and there is no key.
            StoreError: the file could not be read.
        """
        with self.database.guard, self.database.explained("read a body"):
            db = self.database.connect() if self.database.exists() else None
            if db is None or not self._has(db, sha256):
                raise self._missing(db, sha256)
            data = join(db, chunks_of(db, bytes.fromhex(sha256)), self.cipher, self.path)
        digest = sha256_of(data).digest()
        if digest.hex() != sha256 and (self.cipher is None or not self.cipher.is_name(bytes.fromhex(sha256), digest)):
            raise Corrupt(
                f"body {sha256} in {self.path} is damaged: it does not hash to its name. Restore the file from a copy.",
                path=self.path,
                expected=sha256,
                found=digest.hex(),
            )
        return data

    def has(self, sha256: str) -> bool:
        """Tell whether a body is present, without reading it."""
        with self.database.guard, self.database.explained("look for a body"):
            return self.database.exists() and self._has(self.database.connect(), sha256)

    def rest(self) -> None:
        """Give back space that only writing needs. For when a run is closed; costs two syncs, where there is any."""
        # Where it fails nothing is lost: what was committed is as safe in the write-ahead log, and is moved later.
        with suppress(StoreError), self.database.guard, self.database.explained("close"):
            self.database.shrink()

    def close(self) -> None:
        """Close this process's connection. Idempotent; a later call opens it again."""
        with self.database.guard, self.database.explained("close"):
            self.database.close()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold off every process that is between putting a body and appending its line.

        Raises:
            StoreError: writers were busy all the time.
        """
        with self.database.explained("prune"):
            self._window.shut()
        try:
            yield
        finally:
            self._window.open()

    @staticmethod
    def _has(db: sqlite3.Connection, sha256: str) -> bool:
        try:
            key = bytes.fromhex(sha256)
        except ValueError:
            return False
        return db.execute("SELECT 1 FROM bodies WHERE sha256 = ?", (key,)).fetchone() is not None

    def _missing(self, db: sqlite3.Connection | None, sha256: str) -> BodyMissing:
        row = None
        if db is not None:
            statement = "SELECT prunes.day FROM pruned JOIN prunes ON prunes.id = pruned.prune WHERE sha256 = ?"
            row = db.execute(statement, (_raw(sha256)[:16],)).fetchone()
        day = None if row is None else time.strftime("%Y-%m-%d", time.gmtime(row[0] * SECONDS_A_DAY))
        why = f"it was pruned on {day}" if day else "the file was lost, or the log was copied without it"
        return BodyMissing(
            f"body {sha256} is not in {self.path}: {why}. "
            "Lines that name it stay readable; only the step that needs it cannot be replayed.",
            sha256=sha256,
            path=self.path,
            pruned=day,
        )

    def check(self) -> BodyCheck:
        """Read everything that is stored and tell what is wrong with it."""
        from steplog.stores.upkeep import check

        return check(self)

    def retired_keys(self) -> list[tuple[bytes, bytes]]:
        """The ids of keys that were rotated away, each with what is kept of it, sealed."""
        with self.database.guard, self.database.explained("read what is kept of earlier keys"):
            if not self.database.exists():
                return []
            db = self.database.connect()
            known = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'keys'").fetchone()
            return db.execute("SELECT id, sealed FROM keys").fetchall() if known else []

    def forget(self) -> None:
        """Forget what is remembered of the last block, because it was rewritten."""
        self._recent = (0, b"")

    def _notice_others(self, db: sqlite3.Connection) -> None:
        """Forget what another connection may have changed: after a prune the last block may hold something else."""
        version = self._version_of(db)
        if version != self._version:
            self._version, self._recent = version, (0, b"")

    def _version_of(self, db: sqlite3.Connection) -> tuple[int, int]:
        """What changes when another connection has changed the file. SQLite counts anew in each connection."""
        return self.database.openings, db.execute("PRAGMA data_version").fetchone()[0]

    def _checked(self, name: str, data: bytes) -> list[Prefix]:
        found, digest = prefixes(data)
        plain = bytes.fromhex(digest)
        # Another than its newest name is that of a run that was recorded under an earlier key, and is imported.
        if name != self._keyed(plain).hex() and (self.cipher is None or not self.cipher.is_name(_raw(name), plain)):
            message = f"a body of {len(data)} bytes was named {name} but hashes to {digest}. Nothing was stored."
            raise InvalidArgument(message)
        return found


class _Window:
    """The time between putting a body and appending its line, told to other processes by a shared lock on a file."""

    def __init__(self, path: str, database: Database) -> None:
        self._path = path
        self._database = database
        self._fd = -1
        self._pid = 0
        self._inside = 0

    def enter(self) -> None:
        with self._database.guard:
            if self._pid != os.getpid() or not self._inside:
                deadline = time.monotonic() + BUSY_SECONDS
                while not self._flock(shared=True):
                    if time.monotonic() > deadline:
                        raise OSError(errno.EBUSY, "another process is pruning the bodies")
                    time.sleep(_PATIENCE)
            self._inside += 1

    def leave(self) -> None:
        with self._database.guard:
            self._inside -= 1
            if not self._inside:
                self._database.fs.unlock(self._fd)

    def shut(self) -> None:
        """Return when no process is inside, this one's threads included; they wait until `open`."""
        deadline = time.monotonic() + BUSY_SECONDS
        while not self._try_shut():
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "others are busy with the bodies")
            time.sleep(_PATIENCE)

    def _try_shut(self) -> bool:
        guard = self._database.guard
        guard.acquire()
        try:
            shut = not self._inside and self._flock(shared=False)
        except BaseException:
            guard.release()
            raise
        if not shut:
            guard.release()
        return shut

    def open(self) -> None:
        self._database.fs.unlock(self._fd)
        self._database.guard.release()

    def _flock(self, *, shared: bool) -> bool:
        fs = self._database.fs
        if self._pid != os.getpid():
            # What a fork has left here is the parent's open file, and its lock with it.
            if self._fd >= 0:
                fs.close(self._fd)
            make_dirs(fs, os.path.dirname(self._path))
            self._fd, _ = open_or_create(fs, self._path, os.O_RDWR)
            self._pid, self._inside = os.getpid(), 0
        return fs.flock(self._fd, shared=shared)


def _raw(sha256: str) -> bytes:
    try:
        return bytes.fromhex(sha256)
    except ValueError:
        return b""
