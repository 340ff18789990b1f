"""What is remembered from one task to the next, and what is never let in.

Four rules: only trusted sources may write; a note belongs to one user, and nobody else finds it; it expires; it can be
removed by user and by source. What is found is shown to the model as notes, not as facts and not as instructions.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from steplog.bounded.state import fingerprint
from steplog.errors import InvalidArgument

TRUSTED_SOURCES: Final = frozenset({"user_message", "validated_tool"})

_TABLE: Final = """
create table if not exists notes (
    id text primary key, user text not null, text text not null, source text not null, expires real not null
) without rowid;
create index if not exists notes_of_user on notes (user, expires);
"""

_PUT: Final = """
insert into notes values (?, ?, ?, ?, ?) on conflict (id) do update set expires = max(expires, excluded.expires)
"""

_WORD: Final = re.compile(r"[^\W\d_]+")
_LONG: Final = 4


class Memory:
    """Notes about users, in an SQLite file or in memory.

    Attributes:
        sources: who may write.
    """

    def __init__(
        self,
        path: str | Path = ":memory:",
        *,
        sources: Collection[str] = TRUSTED_SOURCES,
        clock: Callable[[], float] = time.time,
        rank: Callable[[str, str], float] | None = None,
    ) -> None:
        """Open a memory.

        Args:
            path: the file; without one it lasts as long as the object.
            sources: names of the sources that may write. What somebody else wrote (a page, an e-mail, free text of a
                tool) is none of them: its author would give instructions to every task to come.
            clock: seconds since the epoch.
            rank: how well a note answers a query, from 0 (not at all); by the words that they share by default.
        """
        self.sources = frozenset(sources)
        self._clock = clock
        self._rank = rank or shared_words
        self._lock = threading.Lock()
        self._notes = sqlite3.connect(str(path), check_same_thread=False, isolation_level=None)
        self._notes.executescript(_TABLE)

    def write(self, user_id: str, text: str, *, source: str, ttl: float) -> bool:
        """Remember a note. The same note written again lasts as long as the longer of the two.

        Args:
            user_id: whose it is.
            text: the note.
            source: where it comes from.
            ttl: seconds until it expires.

        Returns:
            Whether it was stored; False where its source is not trusted.

        Raises:
            InvalidArgument: no user, no text, or no time to live.
        """
        if not user_id or not text.strip() or not ttl > 0:
            message = "a note has a user, a text, and a ttl above zero in seconds."
            raise InvalidArgument(message)
        if source not in self.sources:
            return False
        row = (fingerprint([user_id, text, source]), user_id, text, source, self._clock() + ttl)
        with self._lock:
            self._notes.execute(_PUT, row)
        return True

    def read(self, user_id: str, query: str, *, limit: int = 2) -> list[str]:
        """The live notes of one user that answer a query best, best first.

        Whose a note is and whether it has expired is looked at before anything is compared.

        Args:
            user_id: from the session, never from the query.
            query: what is looked for.
            limit: the most notes.
        """
        with self._lock:
            mine = "select text from notes where user = ? and expires > ? order by expires desc, id"
            notes = [text for (text,) in self._notes.execute(mine, (user_id, self._clock()))]
        scored = sorted(((self._rank(query, text), text) for text in notes), key=lambda each: -each[0])
        return [text for score, text in scored[:limit] if score > 0]

    def forget(self, user_id: str, *, source: str | None = None) -> int:
        """Remove the notes of a user, or those of one source. Returns how many there were."""
        chosen = "delete from notes where user = ? and source = coalesce(?, source)"
        with self._lock:
            return self._notes.execute(chosen, (user_id, source)).rowcount

    def expire(self) -> int:
        """Remove what has expired, which nobody finds any more. Returns how many notes."""
        with self._lock:
            return self._notes.execute("delete from notes where expires <= ?", (self._clock(),)).rowcount

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._notes.close()


def shared_words(query: str, text: str) -> float:
    """How many words of four letters and more two texts share; a plural counts as its singular."""
    return float(len(_words(query) & _words(text)))


def _words(text: str) -> set[str]:
    return {word.rstrip("s") for word in _WORD.findall(text.lower()) if len(word) >= _LONG}
