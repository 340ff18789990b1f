"""The line: how an event becomes bytes, and how bytes are proved to be the log that was written.

    {"seq":7,"type":"step.finished","step":"s_…","epoch":2,"ts":"…Z","data":{…},"prev":"<32 hex>","h":"<32 hex>"}

`h`, the seal, is the first 128 bits of SHA-256 over the line's own bytes before `,"h":"`; `prev` is the seal of the
line before. A line therefore proves itself and the chain proves order, and neither needs a canonical encoding: a
verifier cuts forty bytes, hashes and compares. The `prev` of line 0 is derived from the run id, which binds a file to
its run.

A crash can leave exactly two traces: a last line without its newline, and a fragment behind the last whole line.
Everything else was done to the log after it was written, and is never repaired in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Final, Literal, NamedTuple

import orjson

from steplog._kernel.events import FORMAT, Event
from steplog._kernel.index import SEAL_BYTES, Index
from steplog.errors import EncodeError

MAX_LINE: Final = 1 << 20
"""Bytes in one line, its newline included."""

MAX_BATCH: Final = 16 << 20
"""Bytes in one write; a longer fragment behind the last whole line is not the trace of one crash."""

_SEAL: Final = 40  # len(',"h":"' + 32 hex digits + '"}')
# Looked for by its number: bytes in bytes are found only after a failed attempt to read them as one.
_NEWLINE: Final = 10
_LINK: Final = 82  # the same with ',"prev":"' + 32 hex digits + '"' before it
_KEYS: Final = tuple(Event._fields)
_SEALED: Final = re.compile(rb',"h":"([0-9a-f]{32})"\}')
_NAMED_FORMAT: Final = re.compile(r"steplog/([0-9]+)")

Verdict = Literal["clean", "unterminated", "torn", "conflict", "corrupt", "unsupported"]


def first_prev(run_id: str) -> str:
    """Return the `prev` of line 0, which binds a log to its run."""
    return sha256(f"{FORMAT}\n{run_id}".encode()).hexdigest()[:32]


class Mark(NamedTuple):
    """A position of a chain, to which it can be set back when a batch could not be written."""

    seq: int
    epoch: int
    prev: str


class Chain:
    """Seals events one after the other.

    Attributes:
        seq: sequence number of the next line.
        epoch: epoch of the next line; whoever claims a run adds one before sealing `run.claimed`.
        prev: seal of the line before.
    """

    __slots__ = ("epoch", "prev", "seq")

    def __init__(self, run_id: str, events: Sequence[Event] = ()) -> None:
        """Continue a log that holds `events`, or begin one."""
        last = events[-1] if events else None
        self.seq = last.seq + 1 if last else 0
        self.epoch = last.epoch if last else 0
        self.prev = last.h if last else first_prev(run_id)

    def seal(self, type: str, step: str | None, ts: str, data: bytes) -> bytes:
        """Return the sealed line with its newline, and advance.

        Args:
            type: event type.
            step: step id, or None for an event of the run.
            ts: ISO 8601 in UTC.
            data: a JSON object, encoded without newlines.

        Raises:
            EncodeError: the line would exceed `MAX_LINE` or break in two. The chain has not advanced.
        """
        if data[:1] != b"{" or _NEWLINE in data:
            message = f"the data of a {type} event must be one JSON object encoded without newlines"
            raise EncodeError(message, path="data", type_name=type, step=step)
        head = orjson.dumps({"seq": self.seq, "type": type, "step": step, "epoch": self.epoch, "ts": ts})
        body = b"".join((head[:-1], b',"data":', data, b',"prev":"', self.prev.encode(), b'"'))
        if len(body) + _SEAL >= MAX_LINE:
            message = (
                f"a {type} event of {len(data):,} bytes does not fit in one line of the log ({MAX_LINE:,} bytes). "
                "Nothing was written. Values of this size belong into the body store."
            )
            raise EncodeError(message, path="data", type_name=type, step=step)
        seal = sha256(body).hexdigest()[:32]
        self.seq += 1
        self.prev = seal
        return b"".join((body, b',"h":"', seal.encode(), b'"}\n'))

    def mark(self) -> Mark:
        """Return the present position."""
        return Mark(self.seq, self.epoch, self.prev)

    def rewind(self, mark: Mark) -> None:
        """Go back to a position, because the lines sealed since then were not written."""
        self.seq, self.epoch, self.prev = mark


def blocks(lines: Sequence[bytes]) -> Iterator[bytes]:
    """A batch of more than ordinary size, cut between lines so that a fragment stays small."""
    block: list[bytes] = []
    size = 0
    for line in lines:
        if size + len(line) > MAX_BATCH:
            yield b"".join(block)
            block, size = [], 0
        block.append(line)
        size += len(line)
    yield b"".join(block)


class Damage(NamedTuple):
    """The first line of a log that does not verify.

    Attributes:
        line: line number, from 1.
        offset: byte offset of the line.
        what: what is wrong with it, one clause.
        expected: the seal, or sequence number and link, that should stand there, or None.
        found: what stands there, or None.
        last_good_seq: sequence number of the last event that verifies, or None.
        hint: which program usually does this, or an empty string.
        epochs: for a conflict, the epoch of the last good event and that of the line that breaks the chain.
        owner: for the log of another run, that run's id; "" where the log does not say it; else None.
    """

    line: int
    offset: int
    what: str
    expected: str | None
    found: str | None
    last_good_seq: int | None
    hint: str = ""
    epochs: tuple[int, int] | None = None
    owner: str | None = None


class Scan(NamedTuple):
    """What a log holds.

    Attributes:
        events: the longest verified prefix; empty where the events were handed on as they were found.
        end: offset behind its last byte.
        size: bytes that were scanned.
        verdict: `clean`; `unterminated`: only the last newline is missing, the last event counts; `torn`: a crash cut
            the last write short, the bytes from `end` on are no event; `conflict`: a line proves itself but does not
            continue the chain; `corrupt`: anything else; `unsupported`: a newer format.
        damage: the first bad line, for the last three verdicts.
    """

    events: list[Event]
    end: int
    size: int
    verdict: Verdict
    damage: Damage | None = None


def scan(data: bytes, run_id: str) -> Scan:
    """Verify a whole log."""
    scanner = Scanner(run_id)
    scanner.feed(data)
    return scanner.finish()


class Scanner:
    """Verifies a log that arrives in blocks, so that a large one is never held whole.

    Args:
        run_id: the run that the log is to be of.
        receive: called with each event once it is verified; without it they are collected in `Scan.events`.
        index: the lines before the first block, which are verified already; grows with each line.
        epoch: the epoch of the last of these.
    """

    def __init__(
        self,
        run_id: str,
        receive: Callable[[Event], None] | None = None,
        index: Index | None = None,
        epoch: int = 0,
    ) -> None:
        self._run_id = run_id
        self._events: list[Event] = []
        self._receive = receive or self._events.append
        self._index = Index() if index is None else index
        self._prev = self._index.seal(len(self._index) - 1).hex() if self._index else first_prev(run_id)
        self._epoch = epoch
        self._end = self._index.end
        self._rest = b""
        self._failed = False

    def feed(self, block: bytes) -> None:
        """Verify the whole lines in what has arrived so far."""
        data = self._rest + block if self._rest else block
        position = 0 if self._failed else self._walk(data)
        self._end += position
        self._rest = data[position:]

    def finish(self) -> Scan:
        """Judge what is left behind the verified prefix."""
        size = self._end + len(self._rest)
        if not self._rest:
            return Scan(self._events, self._end, size, "clean")
        # A newline that fell onto a page which a power failure lost reads as zeros.
        line = self._rest.rstrip(b"\0")
        if not self._failed and self._accept(line, self._end + len(line) + 1):
            return Scan(self._events, self._end + len(line), size, "unterminated")
        verdict, damage = self._judge(self._rest)
        return Scan(self._events, self._end, size, verdict, damage)

    def _walk(self, data: bytes) -> int:
        position = 0
        while (newline := data.find(b"\n", position)) >= 0:
            if not self._accept(data[position:newline], self._end + newline + 1):
                self._failed = True
                break
            position = newline + 1
        return position

    def _accept(self, line: bytes, end: int) -> bool:
        """Take the line if it is the next one of the chain, sealed and well formed."""
        digest = sha256(line[:-_SEAL]).digest()[:SEAL_BYTES]
        if line[-_LINK:] != f',"prev":"{self._prev}","h":"{digest.hex()}"}}'.encode():
            return False
        event = parse(line)
        seq = len(self._index)
        if event is None or event.seq != seq or event.epoch < self._epoch:
            return False
        if seq == 0 and _newer_format(line):
            return False  # a later format may keep the line and change what it means
        self._prev, self._epoch = event.h, event.epoch
        self._index.add(end, digest)
        self._receive(event)
        return True

    def _judge(self, rest: bytes) -> tuple[Verdict, Damage | None]:
        line, newline, _ = rest.partition(b"\n")
        if not self._index and (newer := _newer_format(line)):
            return "unsupported", self._damage("it is written in a newer format", FORMAT, newer)
        hint = _hint(rest, line, first=not self._index)
        proof = parse(line) if _proves_itself(line) else None
        if proof is not None:
            return "conflict", self._conflict(proof)
        if not hint and self._is_torn(rest, line, terminated=bool(newline)):
            return "torn", None
        return "corrupt", self._corrupt(rest, line, hint)

    def _is_torn(self, rest: bytes, line: bytes, *, terminated: bool) -> bool:
        """Tell whether one interrupted write explains everything behind the verified prefix.

        A newline that was flipped or zeroed fuses two good lines into what looks like a fragment; cutting it would
        lose acknowledged events. So a fragment that holds any line that proves itself is not torn.
        """
        if (terminated and b"\0" not in line) or len(rest) > MAX_BATCH:
            return False
        # With no verified line before it the fragment is the whole file, which may be no log at all.
        if not self._index and not _may_begin_log(line):
            return False
        return _find_proof(rest) is None

    def _conflict(self, event: Event) -> Damage:
        next_seq = len(self._index)
        owner = None
        if event.seq == next_seq == 0:
            what = "it is the log of another run, copied or renamed"
            owner = str(event.data.get("run_id") or "")
        elif event.seq > next_seq:
            what = f"the line is intact, but the events from seq {next_seq} to {event.seq - 1} before it are missing"
        elif event.seq >= 0 and self._index.seal(event.seq).hex() == event.h:
            what = f"the line repeats the event with seq {event.seq}"
        else:
            what = "the line is intact, but another writer wrote it"
        expected = f"seq {next_seq} after {self._prev}"
        damage = self._damage(what, expected, f"seq {event.seq} after {event.prev}")
        return damage._replace(epochs=(self._epoch, event.epoch), owner=owner)

    def _corrupt(self, rest: bytes, line: bytes, hint: str) -> Damage:
        at = _find_proof(rest)
        if at is not None and 0 < at < len(line):
            what = f"a whole line begins {at} bytes into it, so that two lines are fused or one has grown a prefix"
        elif at == 0:
            what = "a whole line is followed by bytes that no writer puts there"
        elif _proves_itself(line):
            what = "it is sealed but is not an event"
        else:
            what = "its bytes do not match its seal" if _SEALED.fullmatch(line[-_SEAL:]) else "it has no seal"
        seal = _SEALED.search(line[-_SEAL:])
        expected = sha256(line[:-_SEAL]).hexdigest()[:32]
        return self._damage(what, expected, seal[1].decode() if seal else None)._replace(hint=hint)

    def _damage(self, what: str, expected: str | None, found: str | None) -> Damage:
        count = len(self._index)
        return Damage(count + 1, self._end, what, expected, found, count - 1 if count else None)


def parse(line: bytes) -> Event | None:
    """The event that a line holds, or None; neither its seal nor its place is looked at."""
    try:
        tree = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if type(tree) is not dict or tuple(tree) != _KEYS:
        return None
    seq, type_, step, epoch, ts, data, _, _ = values = tuple(tree.values())
    well_formed = (
        type(seq) is int
        and type(type_) is str
        and (step is None or type(step) is str)
        and type(epoch) is int
        and type(ts) is str
        and type(data) is dict
    )
    return Event._make(values) if well_formed else None


def _proves_itself(line: bytes) -> bool:
    seal = _SEALED.fullmatch(line[-_SEAL:])
    return seal is not None and sha256(line[:-_SEAL]).hexdigest()[:32].encode() == seal[1]


def _find_proof(rest: bytes) -> int | None:
    """Return the offset of the first line inside `rest` that proves itself, wherever it begins."""
    seals = [(match.start(), match[1]) for match in _SEALED.finditer(rest)]
    start = rest.find(b'{"seq":') if seals else -1
    while start >= 0:
        digest, hashed = sha256(), start
        for stop, seal in seals:
            if start < stop < start + MAX_LINE:
                digest.update(rest[hashed:stop])
                hashed = stop
                if digest.hexdigest()[:32].encode() == seal:
                    return start
        start = rest.find(b'{"seq":', start + 1)
    return None


def _may_begin_log(line: bytes) -> bool:
    opening = b'{"seq":0,"type":"'
    head = line.partition(b"\0")[0][: len(opening)]
    return opening.startswith(head)


def _newer_format(line: bytes) -> str | None:
    try:
        named = orjson.loads(line)["data"]["format"]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return None  # whatever it is, it names no format
    match = _NAMED_FORMAT.fullmatch(named) if isinstance(named, str) else None
    return named if match and int(match[1]) > int(FORMAT.partition("/")[2]) else None


def _hint(rest: bytes, line: bytes, *, first: bool) -> str:
    """Recognise what usually damages a log: a program that converts text."""
    if line.endswith(b"\r") and _proves_itself(line[:-1]):
        return "its line ends were converted to CRLF, as some editors and git's autocrlf do"
    if rest.startswith(b"\xef\xbb\xbf"):
        return "a byte order mark was put before it, as some editors do"
    if rest.startswith((b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{")):
        return "it was converted to UTF-16, as PowerShell's redirection does"
    if rest[:1] in b"\n\r" and not line.strip():
        return "a blank line was put in, as an editor does"
    if first and re.match(rb'\[|\{\s|\{"seq":\s', rest):
        return "its JSON was formatted again, as an editor or jq does"
    return ""
