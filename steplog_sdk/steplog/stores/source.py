"""A log file that gives single events back: read where the index says, and checked against the seal it had."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, overload

import orjson

from steplog._kernel.events import Event
from steplog._kernel.index import SEAL_BYTES, Index
from steplog._kernel.line import first_prev, parse
from steplog.errors import Corrupt, StoreError
from steplog.stores.explain import failure
from steplog.stores.fs import FS

_BLOCK = 4 << 20
_AHEAD = 64 << 10
_SEAL = 40  # len(',"h":"' + 32 hex digits + '"}')
_BEHIND = _SEAL + 1  # the same with the newline
_PREV = 42  # len(',"prev":"' + 32 hex digits + '"')
_LINK = 82  # the same with ',"prev":"' + 32 hex digits + '"' before it


class LogFile:
    """The events of one log file by number; those that were appended since it was verified are found as well.

    Attributes:
        index: the verified lines.
        path: the file.
        run_id: its run.
    """

    def __init__(self, fs: FS, path: str, run_id: str, index: Index, fd: int | None = None) -> None:
        self.index = index
        self.path = path
        self.run_id = run_id
        self._fs = fs
        self._fd = fd
        self._own: int | None = None
        self._near = (0, b"")

    def adopt(self) -> None:
        """Take the descriptor over: it is closed when nobody holds this object any more."""
        self._own, self._fd = self._fd, None

    def detach(self) -> None:
        """Leave the descriptor, which its owner is about to close; from here on the file is opened by its name."""
        self._fd = None

    def read(self, seq: int) -> tuple[dict[str, Any], bytes]:
        """The data of an event, and the JSON that it was parsed from.

        Raises:
            StoreError: the file cannot be read.
            Corrupt: what stands there is not what was verified.
        """
        index, (at, block) = self.index, self._near
        ends, place, body = index.ends, seq * SEAL_BYTES, b""
        if 0 < seq < len(ends) and at <= (start := ends[seq - 1]):
            body = block[start - at : ends[seq] - _BEHIND - at]
        if sha256(body).digest()[:SEAL_BYTES] != index.seals[place : place + SEAL_BYTES]:
            body = self._verified(seq)
        # A quote inside a text is escaped, so this is a key. Where it is not that of the data, because somebody has put
        # spaces there, a brace too many is left at the end.
        text = body[body.find(b',"data":{') + 8 : -_PREV]
        try:
            return orjson.loads(text), text
        except orjson.JSONDecodeError:
            return orjson.loads(body + b"}")["data"], body

    def event(self, seq: int) -> Event:
        """One event. Raises as `read` does."""
        event = parse(b'%b,"h":"%b"}' % (self._verified(seq), self.index.seal(seq).hex().encode()))
        assert event is not None
        return event

    def _verified(self, seq: int) -> bytes:
        """What the seal of a line is made of, checked against the seal that it was verified with."""
        try:
            if seq >= len(self.index.ends):
                self.extend(seq + 1)
            index = self.index
            if seq >= len(index.ends):
                raise self._damaged(seq)
            start, stop = index.ends[seq - 1] if seq else 0, index.ends[seq] - 1
            at, block = self._near
            if not at <= start or stop > at + len(block):
                # And some of what follows: recorded steps are mostly returned in the order in which they lie there.
                at, block = self._near = start, self._read(max(stop - start, _AHEAD), start)
            body = block[start - at : stop - at - _SEAL]
            seal = index.seals[seq * SEAL_BYTES : (seq + 1) * SEAL_BYTES]
            return body if sha256(body).digest()[:SEAL_BYTES] == seal else self._read_again(seq)
        except OSError as error:
            raise failure(error, self.run_id, f"read event {seq} again", self.path) from error

    def _read_again(self, seq: int) -> bytes:
        # The writer's descriptor may have been closed meanwhile, and its number given to another file.
        self._fd, self._near = None, (0, b"")
        start, stop = self.index.span(seq)
        body = b"".join(self.blocks(start, stop - _SEAL))
        if sha256(body).digest()[:SEAL_BYTES] != self.index.seal(seq):
            raise self._damaged(seq)
        return body

    def extend(self, count: int) -> None:
        """Index what was appended, up to `count` lines, as far as it continues the chain. Raises OSError."""
        # Put in place as a whole, so that two threads which extend at once do not mix theirs.
        index = self.index.copy()
        link = index.seal(len(index) - 1).hex() if index else first_prev(self.run_id)
        rest, offset = b"", index.end
        while len(index) < count and (block := self._read(_BLOCK, offset + len(rest))):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                digest = sha256(line[:-_SEAL]).digest()[:SEAL_BYTES]
                seal = digest.hex()
                if line[-_LINK:] != f',"prev":"{link}","h":"{seal}"}}'.encode():
                    count = 0
                    break
                offset += len(line) + 1
                index.add(offset, digest)
                link = seal
        self.index = index

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes of the file in blocks, up to `stop` or to its end. Raises OSError."""
        while stop is None or start < stop:
            block = self._read(_BLOCK if stop is None else min(_BLOCK, stop - start), start)
            if not block:
                break
            yield block
            start += len(block)

    def events(self, count: int) -> Iterator[Event]:
        """The first `count` events in order. Raises as `data` does."""
        yield from map(self.event, range(count))

    def _read(self, size: int, offset: int) -> bytes:
        fd = self._fd
        if fd is not None:
            try:
                return self._fs.read(fd, size, offset)
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
                self._fd = None  # the writer has closed it; the name leads to the file as well
        if self._own is None:
            self._own = self._fs.open(self.path, os.O_RDONLY)
        return self._fs.read(self._own, size, offset)

    def _damaged(self, seq: int) -> StoreError:
        start = self.index.span(seq)[0] if seq < len(self.index) else self.index.end
        message = (
            f"run {self.run_id!r}: {self.path}, line {seq + 1} (byte {start}): the line is no longer what it was when "
            f"the log was opened; the file was changed or its disk fails.\nLook: steplog verify {self.run_id}"
        )
        last = seq - 1 if seq else None
        return Corrupt(
            message,
            run_id=self.run_id,
            path=self.path,
            line=seq + 1,
            offset=start,
            expected=self.index.seal(seq).hex() or None,
            found=None,
            last_good_seq=last,
        )

    def __del__(self) -> None:
        if self._own is not None:
            with suppress(OSError):
                os.close(self._own)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without descriptors: a copy of a state opens the file by its name.
        index = (bytes(self.index.ends), bytes(self.index.seals))
        return _again, (self.path, self.run_id, *index)


def _again(path: str, run_id: str, ends: bytes, seals: bytes) -> LogFile:
    return LogFile(FS(), path, run_id, Index(ends, seals))


class Events(Sequence[Event]):
    """The events of a verified log file, each read when it is asked for."""

    def __init__(self, log: LogFile, count: int) -> None:
        self._log = log
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Event: ...

    @overload
    def __getitem__(self, at: slice) -> list[Event]: ...

    def __getitem__(self, at: int | slice) -> Event | list[Event]:
        numbers = range(self._count)[at]
        return self._log.event(numbers) if isinstance(numbers, int) else [self._log.event(seq) for seq in numbers]

    def __iter__(self) -> Iterator[Event]:
        return self._log.events(self._count)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, tuple, Events)):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like every sequence that compares by its items

    def __repr__(self) -> str:
        return f"<{self._count} events of {self._log.path}>"
