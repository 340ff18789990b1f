"""The folded state of a long run, kept beside its log: opening then hashes what it covers and folds only the rest.

    <home>/runs/<run_id>/events.checkpoint       one JSON document, sealed by its own SHA-256

It saves time and nothing else. It counts only when its own seal holds, the same fold wrote it, and the log begins with
exactly the bytes that it covers; else it is passed over, and the log is read as if there were none. Nothing waits until
it is on the medium.
"""

from __future__ import annotations

import base64
import logging
import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

import orjson

from steplog._kernel.checkpoint import added_up, differences, fold_digest, pack, unpack
from steplog._kernel.index import Index
from steplog._kernel.state import RunState
from steplog.stores.fs import FS, open_or_create
from steplog.stores.source import LogFile

_logger = logging.getLogger("steplog.stores")

FORMAT: Final = "steplog-checkpoint/3"

# Below this, folding the log takes less than a hundredth of a second.
_FEWEST_EVENTS: Final = 2_000
_SMALLEST_LOG: Final = 256 << 10
# A new one is written when the log has grown by an eighth, so that writing them costs a fraction of recording.
_GROWTH: Final = 8

_SEALED: Final = 64  # more bytes than the seal of a line and what stands behind it
_SEAL: Final = 75  # len(',"seal":"' + 64 hex digits + '"}')


class Covered(NamedTuple):
    """The beginning of a log, as far as a checkpoint goes.

    Attributes:
        events: how many events.
        size: how many bytes.
        digest: the SHA-256 object that has taken these bytes in.
    """

    events: int
    size: int
    digest: Any

    @classmethod
    def nothing(cls) -> Covered:
        """The beginning that every log has."""
        return cls(0, 0, sha256())


def path_of(log: str) -> str:
    """The checkpoint of a log."""
    return log.removesuffix(".jsonl") + ".checkpoint"


def load(fs: FS, log: LogFile, size: int) -> tuple[RunState, Covered] | None:
    """The state at a checkpoint, and what it covers; the log's index is set to that. None where none counts.

    Args:
        fs: the file system.
        log: the log, nothing of which is verified yet.
        size: its size in bytes.

    Raises:
        OSError: the log cannot be read.
    """
    if size < _SMALLEST_LOG:
        return None
    document = _read(fs, path_of(log.path))
    try:
        tree = _opened(document, log.run_id)
        if tree is None or tree["offset"] > size:
            return None
        ends = array("Q", added_up(array("I", _expanded(tree["lines"]))))
        state = unpack(orjson.loads(_expanded(tree["state"])), log)
        covered = Covered(tree["seq"] + 1, tree["offset"], sha256())
        if (state.seq, state.head, len(ends), ends[-1]) != (tree["seq"], tree["h"], covered.events, covered.size):
            return None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        _logger.debug("run %r: its checkpoint is passed over: %r", log.run_id, error)
        return None
    seals = bytearray()
    for block in _with_seals(log.blocks(0, covered.size), ends, seals):
        covered.digest.update(block)
    if covered.digest.hexdigest() != tree["sha256"]:
        _logger.debug("run %r: its checkpoint is passed over: it is of another log", log.run_id)
        return None
    log.index = Index(ends.tobytes(), bytes(seals))
    return state, covered


def _with_seals(blocks: Iterable[bytes], ends: Sequence[int], seals: bytearray) -> Iterator[bytes]:
    """The blocks of a log, whose lines end at `ends`; puts the seals that stand in them into `seals`, 16 bytes each."""
    first, rest, offset = 0, b"", 0
    for block in blocks:
        yield block
        data = rest + block
        start, offset = offset - len(rest), offset + len(block)
        last = bisect_right(ends, offset)
        found = b"".join([data[end - start - 35 : end - start - 3] for end in ends[first:last]])
        try:
            seals += bytes.fromhex(found.decode("ascii"))
        except ValueError:
            # Not the log that the checkpoint is of, as its hash will tell.
            return
        first, rest = last, data[-_SEALED:]


def _shortened(data: bytes) -> str:
    """Bytes as Zstandard in base64: ids and offsets repeat themselves, and a checkpoint is small beside its log."""
    import zstandard

    return base64.b64encode(zstandard.ZstdCompressor(3).compress(data)).decode()


def _expanded(text: str) -> bytes:
    import zstandard

    try:
        return zstandard.ZstdDecompressor().decompress(base64.b64decode(text))
    except zstandard.ZstdError as error:
        raise ValueError("not as it was written") from error


def _read(fs: FS, path: str) -> bytes:
    try:
        fd = fs.open(path, os.O_RDONLY)
        try:
            size = fs.fstat(fd).st_size
            document = b""
            while len(document) < size and (block := fs.read(fd, size - len(document), len(document))):
                document += block
            return document
        finally:
            fs.close(fd)
    except OSError as error:
        _logger.debug("no checkpoint at %s: %s", path, error)
        return b""


def _opened(document: bytes, run_id: str) -> dict[str, Any] | None:
    """The tree of a whole checkpoint of this run that this fold wrote, else None."""
    body = document[:-_SEAL]
    if not document or document[-_SEAL:] != b',"seal":"%b"}' % sha256(body).hexdigest().encode():
        return None
    tree = orjson.loads(document)
    known = isinstance(tree, dict) and (tree["format"], tree["by"], tree["run_id"]) == (FORMAT, _writer(), run_id)
    return tree if known else None


@cache
def _writer() -> str:
    """Who can read what this process writes: the same fold, compiled by the same Python, with the same byte order."""
    return f"{sys.implementation.cache_tag} {sys.byteorder} {fold_digest()}"


def save(fs: FS, log: LogFile, state: RunState, covered: Covered) -> Covered:
    """Keep a state beside its log, where that is worth it. Returns what the checkpoint covers now.

    Whatever fails here costs the next opening some time, and nothing else.
    """
    events = state.seq + 1
    if events < _FEWEST_EVENTS or events - covered.events < events // _GROWTH:
        return covered
    try:
        return _write(fs, log, state, covered)
    except Exception as error:  # noqa: BLE001  # whatever it is, the run is recorded, and must end as it would without
        _logger.debug("run %r: no checkpoint was written: %r", log.run_id, error)
        return covered


def _write(fs: FS, log: LogFile, state: RunState, covered: Covered) -> Covered:
    events = state.seq + 1
    log.extend(events)
    if len(log.index) < events or log.index.seal(state.seq).hex() != state.head:
        return covered
    ends = log.index.ends[:events]
    now = Covered(events, ends[-1], covered.digest.copy())
    for block in log.blocks(covered.size, now.size):
        now.digest.update(block)
    head = {"format": FORMAT, "by": _writer(), "run_id": log.run_id, "seq": state.seq, "h": state.head}
    sizes = {"offset": now.size, "sha256": now.digest.hexdigest(), "state": _shortened(orjson.dumps(pack(state)))}
    lines = {"lines": _shortened(array("I", differences(ends)).tobytes())}
    body = orjson.dumps({**head, **sizes, **lines})[:-1]
    _replace(fs, path_of(log.path), b'%b,"seal":"%b"}' % (body, sha256(body).hexdigest().encode()))
    return now


def _replace(fs: FS, path: str, data: bytes) -> None:
    # Under a name of its own until it is whole. Only the holder of the run writes it, so one name is enough.
    draft = path + ".new"
    fd, _ = open_or_create(fs, draft, os.O_WRONLY)
    try:
        fs.truncate(fd, 0)
        written = 0
        while written < len(data):
            written += fs.write(fd, data[written:])
    finally:
        fs.close(fd)
    fs.rename(draft, path)
