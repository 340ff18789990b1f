"""What is done to a body store as a whole: checking it, measuring it, pruning it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from steplog.stores.blocks import BLOCK, chunks_of, decode_ids, pack, read_block

if TYPE_CHECKING:
    import sqlite3

    from steplog.stores.base import Cipher
    from steplog.stores.bodies import SqliteBodies

_EPOCH: Final = date(1970, 1, 1)


class BodyFault(NamedTuple):
    """Something in a body store that is not as it should be.

    Attributes:
        what: what is wrong, for people.
        sha256: the body that cannot be read because of it, or None where it concerns none or no single one.
    """

    what: str
    sha256: str | None


class BodyCheck(NamedTuple):
    """What a check of a body store found.

    Attributes:
        bodies: how many bodies there are.
        chunks: how many distinct pieces they are made of.
        unused: how many pieces no body needs: space that the next prune gives back, not a fault.
        faults: what is wrong; empty where every body can be read exactly.
    """

    bodies: int
    chunks: int
    unused: int
    faults: list[BodyFault]


class Pruned(NamedTuple):
    """What a prune took away.

    Attributes:
        bodies: names of the bodies, sorted.
        plain: bytes in them.
        stored: bytes that they took in the file.
    """

    bodies: list[str]
    plain: int
    stored: int


class Usage(NamedTuple):
    """What the bodies of one run take.

    Attributes:
        bodies: how many.
        plain: bytes in them, each body counted once.
        own: stored bytes of pieces that only this run's bodies have.
        shared: stored bytes of pieces that other runs' bodies have too.
        missing: how many are not in the store.
    """

    bodies: int
    plain: int
    own: int
    shared: int
    missing: int


# check ----------------------------------------------------------------------------------------------------------------


def check(store: SqliteBodies) -> BodyCheck:
    """Read everything: the file's structure, every piece against its hash, every body against its name."""
    database = store.database
    with database.guard, database.explained("check the bodies"):
        if not database.exists():
            return BodyCheck(0, 0, 0, [])
        db = database.connect()
        db.execute("BEGIN")  # one state of the file throughout, while others go on writing
        try:
            return _check(db, store.cipher, store.path)
        finally:
            db.execute("ROLLBACK")


def _check(db: sqlite3.Connection, cipher: Cipher | None, path: str) -> BodyCheck:
    faults = [BodyFault(str(said), None) for (said,) in db.execute("PRAGMA integrity_check") if said != "ok"]
    hashes = dict(db.execute("SELECT chunk, hash FROM hashes"))
    for (number,) in db.execute("SELECT DISTINCT id / ? FROM chunks ORDER BY 1", (BLOCK,)).fetchall():
        for chunk, raw in read_block(db, number, cipher, path).items():
            if not _is_named(hashes.pop(chunk, b""), raw, cipher):
                faults.append(BodyFault(f"piece {chunk} is damaged or not what its hash says", None))
    faults += [BodyFault(f"piece {chunk} is missing", None) for chunk in hashes]
    bodies = _Bodies(db, cipher, path)
    names = [name for (name,) in db.execute("SELECT sha256 FROM bodies ORDER BY spine")]
    for name in names:
        if bodies.what_is_wrong(name):
            faults.append(BodyFault("it does not hash to its name: a part of it is damaged or missing", name.hex()))
    (count,) = db.execute("SELECT count(*) FROM chunks").fetchone()
    return BodyCheck(len(names), count, len(_dead_chunks(db)), faults)


def _is_named(name: bytes, raw: bytes, cipher: Cipher | None) -> bool:
    digest = sha256(raw).digest()
    return bool(name) and (digest.startswith(name) if cipher is None else cipher.is_name(name, digest))


class _Bodies:
    """Hashes bodies, each spine once: a thousand requests of one conversation are read in the time of the last."""

    def __init__(self, db: sqlite3.Connection, cipher: Cipher | None, path: str) -> None:
        self._db = db
        self._cipher = cipher
        self._path = path
        self._spines: dict[int, Any] = {0: sha256()}
        self._block: tuple[int, dict[int, bytes]] = (-1, {})

    def what_is_wrong(self, name: bytes) -> bool:
        """Whether a body does not hash to its name."""
        row = self._db.execute("SELECT spine, chunks, tail FROM bodies WHERE sha256 = ?", (name,)).fetchone()
        digest = self._spine(row[0]).copy()
        tail = self._db.execute("SELECT chunks FROM tails WHERE id = ?", (row[2],)).fetchone()
        for listed in (row[1], tail[0] if tail else b""):
            self._feed(digest, listed)
        plain = digest.digest()
        return name != plain and (self._cipher is None or not self._cipher.is_name(name, plain))

    def _spine(self, number: int) -> Any:
        chain = []
        while number not in self._spines:
            row = self._db.execute("SELECT parent, chunks FROM spines WHERE id = ?", (number,)).fetchone()
            chain.append((number, row[1] if row else b"\0"))
            number = row[0] if row and row[0] < number else 0
        found = self._spines[number]
        for spine, listed in reversed(chain):
            found = found.copy()
            self._feed(found, listed)
            self._spines[spine] = found
        return found

    def _feed(self, digest: Any, listed: bytes) -> None:
        for chunk in decode_ids(listed):
            if self._block[0] != chunk // BLOCK:
                self._block = (chunk // BLOCK, read_block(self._db, chunk // BLOCK, self._cipher, self._path))
            digest.update(self._block[1].get(chunk, b"\0missing"))


# usage ----------------------------------------------------------------------------------------------------------------


def usage(store: SqliteBodies, runs: dict[str, Collection[str]]) -> dict[str, Usage]:
    """What the bodies that each run names take, by run."""
    database = store.database
    with database.guard, database.explained("measure the bodies"):
        db = database.connect() if database.exists() else None
        chunks: dict[str, list[int]] = {}
        plain: dict[str, int] = {}
        for name in {name for names in runs.values() for name in names}:
            row = None if db is None else _row_of(db, name)
            if db is not None and row is not None:
                plain[name], chunks[name] = row[0], chunks_of(db, bytes.fromhex(name))
        users: dict[int, int] = {}
        pieces = {run: {chunk for name in names for chunk in chunks.get(name, ())} for run, names in runs.items()}
        for found in pieces.values():
            for chunk in found:
                users[chunk] = users.get(chunk, 0) + 1
        size = {} if db is None else dict(db.execute("SELECT id, length(data) FROM chunks"))
        return {
            run: Usage(
                bodies=len(names),
                plain=sum(plain.get(name, 0) for name in names),
                own=sum(size.get(chunk, 0) for chunk in pieces[run] if users[chunk] == 1),
                shared=sum(size.get(chunk, 0) for chunk in pieces[run] if users[chunk] > 1),
                missing=sum(name not in plain for name in names),
            )
            for run, names in runs.items()
        }


def _row_of(db: sqlite3.Connection, name: str) -> tuple[int] | None:
    try:
        row: tuple[int] | None = db.execute(
            "SELECT size FROM bodies WHERE sha256 = ?", (bytes.fromhex(name),)
        ).fetchone()
    except ValueError:
        return None
    return row


# prune ----------------------------------------------------------------------------------------------------------------


def begin(store: SqliteBodies, day: int) -> int:
    """Begin a prune: take the next number, while nobody is between putting a body and appending its line.

    What is put from here on carries this number and is left alone; the lines of what was put before are in the logs.
    """
    database = store.database
    with store.alone(), database.explained("prune the bodies"):
        db = database.connect()
        with database.transaction(db, sync=True):
            cursor = db.execute("INSERT INTO prunes (day) VALUES (?)", (day,))
        return cursor.lastrowid or 0


def prune(
    store: SqliteBodies, number: int | None, is_wanted: Callable[[str, int], bool], named: Collection[str]
) -> Pruned:
    """Take away bodies that are not wanted, and give back their space.

    Args:
        store: where.
        number: of this prune, as `begin` gave it before the logs were read, or None to change nothing and tell what
            would go.
        is_wanted: whether to keep a body, given its name and the day (since 1970) on which it was put last.
        named: the bodies that lines name. Of these it is remembered that they were pruned.
    """
    database = store.database
    with database.guard, database.explained("prune the bodies"):
        if not database.exists():
            return Pruned([], 0, 0)
        db = database.connect()
        try:
            with database.transaction(db, sync=True, undo=number is None):
                found = _prune(db, store, number, is_wanted, named)
        finally:
            store.forget()
        if number is not None:
            with database.transaction(db, sync=False):
                _free_pages(db)
            _give_back(db)
        return found


def _prune(
    db: sqlite3.Connection,
    store: SqliteBodies,
    number: int | None,
    is_wanted: Callable[[str, int], bool],
    named: Collection[str],
) -> Pruned:
    rows = db.execute("SELECT sha256, size, day, seen FROM bodies ORDER BY sha256").fetchall()
    gone = [
        (name, size)
        for name, size, day, seen in rows
        if (number is None or seen < number) and not is_wanted(name.hex(), day)
    ]
    before = _bytes_stored(db)
    db.executemany("DELETE FROM bodies WHERE sha256 = ?", [(name,) for name, _ in gone])
    remembered = [(name[:16], number or 0) for name, _ in gone if name.hex() in named]
    db.executemany("INSERT OR REPLACE INTO pruned VALUES (?, ?)", remembered)
    _sweep(db, store)
    return Pruned([name.hex() for name, _ in gone], sum(size for _, size in gone), before - _bytes_stored(db))


def remember_pruned(store: SqliteBodies, days: Mapping[str, str]) -> None:
    """Note on which day (as 2026-01-31) another store has pruned bodies; not of those that this one holds."""
    database = store.database
    if not days:
        return
    with database.guard, database.explained("note what was pruned"):
        db = database.connect()
        with database.transaction(db, sync=True):
            for day in sorted(set(days.values())):
                number = (date.fromisoformat(day) - _EPOCH).days
                cursor = db.execute("INSERT INTO prunes (day) VALUES (?)", (number,))
                names = [bytes.fromhex(name) for name, its in days.items() if its == day]
                held = [
                    name for name in names if db.execute("SELECT 1 FROM bodies WHERE sha256 = ?", (name,)).fetchone()
                ]
                rows = [(name[:16], cursor.lastrowid) for name in names if name not in held]
                db.executemany("INSERT OR IGNORE INTO pruned VALUES (?, ?)", rows)


def _sweep(db: sqlite3.Connection, store: SqliteBodies) -> None:
    """Delete what no body needs."""
    spines, tails = _live_spines(db), {tail for (tail,) in db.execute("SELECT DISTINCT tail FROM bodies")}
    dead = _dead_chunks(db)
    hashes = dict(db.execute("SELECT chunk, hash FROM hashes"))
    dead = {chunk for block in {chunk // BLOCK for chunk in dead} for chunk in _rewrite(db, store, block, dead, hashes)}
    for statement, lost in (
        ("DELETE FROM hashes WHERE hash = ?", [hashes[chunk] for chunk in dead if chunk in hashes]),
        (
            "DELETE FROM spines WHERE id = ?",
            [row for (row,) in db.execute("SELECT id FROM spines") if row not in spines],
        ),
        ("DELETE FROM tails WHERE id = ?", [row for (row,) in db.execute("SELECT id FROM tails") if row not in tails]),
    ):
        db.executemany(statement, [(each,) for each in lost])


def _rewrite(
    db: sqlite3.Connection, store: SqliteBodies, block: int, dead: Collection[int], hashes: dict[int, bytes]
) -> Iterator[int]:
    """Delete the dead chunks of a block and give their ids. What stays was compressed with them, and is packed anew."""
    raw = read_block(db, block, store.cipher, store.path)
    kept = {chunk: data for chunk, data in raw.items() if chunk not in dead}
    if any(not _is_named(hashes.get(chunk, b""), data, store.cipher) for chunk, data in kept.items()):
        return  # Damaged, and no reason to make it worse: a copy of the file may still be compared with this one.
    first = block * BLOCK
    span = (first, first + BLOCK - 1)
    (sealed,) = db.execute("SELECT max(key_id IS NOT NULL) FROM chunks WHERE id BETWEEN ? AND ?", span).fetchone()
    cipher = store.cipher if sealed else None
    db.execute("DELETE FROM chunks WHERE id BETWEEN ? AND ?", span)
    before = b""
    for chunk, data in kept.items():
        row = (chunk, pack(data, before, cipher, chunk), None if cipher is None else cipher.key_id)
        db.execute("INSERT INTO chunks VALUES (?, ?, ?)", row)
        before += data
    yield from raw.keys() - kept.keys()


def _live_spines(db: sqlite3.Connection) -> set[int]:
    parents = dict(db.execute("SELECT id, parent FROM spines"))
    live: set[int] = set()
    for (spine,) in db.execute("SELECT DISTINCT spine FROM bodies"):
        while spine and spine not in live:
            live.add(spine)
            spine = parents.get(spine, 0)  # noqa: PLW2901  the walk to the root
    return live


def _dead_chunks(db: sqlite3.Connection) -> set[int]:
    """Ids of the chunks that no body needs."""
    dead = {chunk for (chunk,) in db.execute("SELECT id FROM chunks")}
    spines = _live_spines(db)
    for spine, listed in db.execute("SELECT id, chunks FROM spines"):
        if spine in spines:
            dead.difference_update(decode_ids(listed))
    lists = "SELECT chunks FROM bodies UNION ALL SELECT chunks FROM tails WHERE id IN (SELECT tail FROM bodies)"
    for (listed,) in db.execute(lists):
        dead.difference_update(decode_ids(listed))
    return dead


def _bytes_stored(db: sqlite3.Connection) -> int:
    """Bytes of what bodies are made of; whole pages of the file would be none or many for small bodies."""
    columns = (("data", "chunks"), ("hash", "hashes"), ("chunks", "spines"), ("chunks", "tails"), ("chunks", "bodies"))
    sizes = (
        db.execute(f"SELECT coalesce(sum(length({column})), 0) FROM {table}").fetchone()[0]  # noqa: S608  # names
        for column, table in columns
    )
    return sum(sizes)


def _free_pages(db: sqlite3.Connection) -> None:
    """Take free pages off the file. The pragma gives rows without columns, of which Python asks for one and no more."""
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    for _ in range(free):
        db.execute("PRAGMA incremental_vacuum")


def _give_back(db: sqlite3.Connection) -> None:
    (mode,) = db.execute("PRAGMA auto_vacuum").fetchone()
    if not mode:
        # A file of the first format, in which pages cannot be moved one by one.
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
