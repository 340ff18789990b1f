"""Rotation of the key: what is encrypted is sealed anew under the newest, piece by piece, while programs go on.

A piece is one row, sealed by itself and marked with its key, so whoever holds both keys reads it before and after,
and a rotation that was killed is carried on by the next one. What names bodies in lines, which cannot be rewritten, is
kept of the old key before the first piece changes; after the last one the old key itself is needed no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from steplog.errors import Corrupt, InvalidArgument
from steplog.stores.blocks import place
from steplog.stores.bodies import SqliteBodies
from steplog.stores.cipher import Keyring, missing

if TYPE_CHECKING:
    import sqlite3

# Pieces a transaction, of up to 64 KiB each: programs that write wait for no longer than this takes.
_AT_ONCE: Final = 128

_KEYS: Final = "CREATE TABLE IF NOT EXISTS keys (id BLOB PRIMARY KEY, sealed BLOB NOT NULL) WITHOUT ROWID"
_LEFT: Final = "SELECT count(*), coalesce(sum(length(data)), 0) FROM chunks WHERE key_id IS NOT NULL AND key_id != ?"
_NEXT: Final = """
    SELECT id, data FROM chunks WHERE id > ? AND key_id IS NOT NULL AND key_id != ? ORDER BY id LIMIT ?
"""


class Rotated(NamedTuple):
    """What a rotation did, or would do.

    Attributes:
        key_id: the newest key, in hex: what everything is sealed with now.
        old: the other keys that pieces were sealed with.
        pieces: how many were sealed anew, or would be.
        size: bytes of these.
        left: pieces under another key still: a program has written them meanwhile, or they are damaged.
        damaged: how many of these do not open.
        plain: pieces that are not encrypted, stored before there was a key. They stay as they are.
    """

    key_id: str
    old: list[str]
    pieces: int
    size: int
    left: int
    damaged: int
    plain: int


def rotate(store: SqliteBodies, *, dry_run: bool = False) -> Rotated:
    """Seal everything under the newest key of the store's keyring.

    Raises:
        InvalidArgument: there is no key.
        KeyMissing: something is sealed with a key that is not in the keyring; nothing was changed.
        StoreError: the file could not be written. What was sealed anew stays so; rotate again to go on.
    """
    ring, database = store.cipher, store.database
    if not isinstance(ring, Keyring):
        message = "there is no key to rotate to: STEPLOG_KEY is not set.\nMake one: steplog key"
        raise InvalidArgument(message)
    newest = ring.key_id
    with database.guard, database.explained("rotate the key"):
        if not database.exists():
            return Rotated(newest.hex(), [], 0, 0, 0, 0, 0)
        db = database.connect()
        old = _old_keys(db, store, ring)
        pieces, size = db.execute(_LEFT, (newest,)).fetchone()
        (plain,) = db.execute("SELECT count(*) FROM chunks WHERE key_id IS NULL").fetchone()
        if dry_run:
            return Rotated(newest.hex(), old, pieces, size, pieces, 0, plain)
        # What lay in the file under the old key is written over, not only let go.
        db.execute("PRAGMA secure_delete = ON")
        try:
            with database.transaction(db, sync=True):
                _keep_names(db, store, ring)
            pieces, size, damaged = 0, 0, 0
            for done, length, broken in _seal_all(db, store, ring):
                pieces, size, damaged = pieces + done, size + length, damaged + broken
            with database.transaction(db, sync=True):
                left, _ = db.execute(_LEFT, (newest,)).fetchone()
        finally:
            store.forget()
            db.execute("PRAGMA secure_delete = OFF")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Rotated(newest.hex(), old, pieces, size, left, damaged, plain)


def _old_keys(db: sqlite3.Connection, store: SqliteBodies, ring: Keyring) -> list[str]:
    """The other keys that something is sealed with. Raises KeyMissing for one that is not at hand."""
    found = {key_id for (key_id,) in db.execute("SELECT DISTINCT key_id FROM chunks WHERE key_id IS NOT NULL")}
    for key_id, sealed in store.retired_keys():
        if key_id not in ring.keys:
            ring.retired(key_id, sealed)
    for key_id in found - ring.keys.keys():
        raise missing(key_id, ring.keys, path=store.path)
    return sorted(key_id.hex() for key_id in found - {ring.key_id})


def _keep_names(db: sqlite3.Connection, store: SqliteBodies, ring: Keyring) -> None:
    """Keep of every other key what makes names and fingerprints, under the newest key."""
    db.execute(_KEYS)
    namers = [ring.retired(key_id, sealed) for key_id, sealed in store.retired_keys() if key_id not in ring.keys]
    namers += [key for key_id, key in ring.keys.items() if key_id != ring.key_id]
    rows = [(namer.id, ring.retire(namer)) for namer in namers]
    db.executemany("INSERT OR REPLACE INTO keys VALUES (?, ?)", rows)


def _seal_all(db: sqlite3.Connection, store: SqliteBodies, ring: Keyring) -> Iterator[tuple[int, int, int]]:
    """Seal some pieces at a time; gives how many, their bytes, and how many did not open."""
    last = 0
    while True:
        with store.database.transaction(db, sync=False):
            rows = db.execute(_NEXT, (last, ring.key_id, _AT_ONCE)).fetchall()
            sealed = [(data, ring.key_id, chunk) for chunk, stored in rows if (data := _anew(ring, chunk, stored))]
            db.executemany("UPDATE chunks SET data = ?, key_id = ? WHERE id = ?", sealed)
        if not rows:
            return
        yield len(sealed), sum(len(data) for data, _, _ in sealed), len(rows) - len(sealed)
        last = rows[-1][0]


def _anew(ring: Keyring, chunk: int, stored: bytes) -> bytes | None:
    """A piece under the newest key; None where it is damaged, which it stays: the file may be put right from a copy."""
    try:
        return ring.seal(ring.open(stored, place(chunk)), place(chunk))
    except Corrupt:
        return None
