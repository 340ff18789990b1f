"""A run in one file: its lines exactly as they are, and every body that they name.

A zip with three members, all read by name and none ever written to the disk under it:

    manifest.json   format, run id, size and SHA-256 of everything; for each body the pieces that it is made of; the
                    lines of the run's inbox
    events.jsonl    the log
    pieces          the distinct pieces of all bodies, one behind the other

The pieces of a body are those of an earlier one, up to some number, and then others: like the store itself, the file
grows with what is said and not with what is sent. Out of a store that encrypts, they are encrypted as a whole, and
bodies are named by their keyed names alone.
"""

from __future__ import annotations

import io
import os
import uuid
import zipfile
import zlib
from collections.abc import Callable, Collection
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from steplog._kernel.inbox import parse, seal
from steplog.errors import BodyMissing
from steplog.stores.chunks import prefixes
from steplog.stores.explain import failure
from steplog.stores.fs import FS, make_dirs, read_file
from steplog.stores.inbox import damaged

if TYPE_CHECKING:
    from steplog._kernel.events import Event
    from steplog.stores.base import Cipher
    from steplog.stores.files import FileStore

FORMAT: Final = "steplog-run/1"
MANIFEST: Final = "manifest.json"
LOG: Final = "events.jsonl"
PIECES: Final = "pieces"
PLACE: Final = b"steplog-run/1 pieces"

Names = Callable[["Event"], Collection[str]]


class Archived(NamedTuple):
    """What a file holds.

    Attributes:
        run_id: the run.
        events: how many events.
        bodies: how many bodies.
        missing: names of bodies that the log names and that were gone when it was exported.
        size: bytes of the file.
    """

    run_id: str
    events: int
    bodies: int
    missing: list[str]
    size: int


def export_run(store: FileStore, run_id: str, target: str, names: Names) -> Archived:
    """Write a run and its bodies to a new file, all or nothing, readable by its owner only.

    Args:
        store: where the run is.
        run_id: the run; it may be under way.
        target: the file; one of that name is replaced.
        names: gives the bodies that an event names.

    Raises:
        UnknownRun, Corrupt, StoreError: the log cannot be read, or the file not written.
    """
    # Before the log: a message that is taken meanwhile is in both, which the log tells, and never in neither.
    inbox = store.inbox(run_id)
    messages = parse(inbox.read())
    if messages.damaged is not None:
        raise damaged(run_id, inbox.path, messages.damaged)
    view = store.read(run_id)
    log = read_log(store.path_of(run_id), run_id)[: view.end]
    pieces = _Pieces()
    missing = []
    pruned = {}
    wanted = dict.fromkeys(name for event in view.events for name in names(event))
    for name in wanted:
        try:
            pieces.add(name, store.bodies.get(name))
        except BodyMissing as gone:
            missing.append(name)
            if gone.pruned is not None:
                pruned[name] = gone.pruned
    cipher = cipher_of(store)
    content = pieces.data.getvalue()
    if cipher is not None:
        content = cipher.seal(zlib.compress(content), PLACE)
    manifest = {
        "format": FORMAT,
        "run_id": run_id,
        "log": {"size": len(log), "sha256": sha256(log).hexdigest(), "events": len(view.events)},
        "pieces": {"sizes": pieces.sizes, "size": len(content), "sha256": sha256(content).hexdigest()},
        "sealed": cipher is not None,
        "bodies": [body if cipher is None else {**body, "sha256": None} for body in pieces.bodies],
        "missing": missing,
        "pruned": pruned,
        "inbox": b"".join(map(seal, messages.messages)).decode(),
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for member, inside in ((MANIFEST, orjson.dumps(manifest)), (LOG, log), (PIECES, content)):
            # A fixed time: the same run gives the same bytes.
            file.writestr(zipfile.ZipInfo(member), inside, zipfile.ZIP_DEFLATED)
    _write_whole(target, data.getvalue())
    return Archived(run_id, len(view.events), len(pieces.bodies), missing, len(data.getvalue()))


def cipher_of(store: FileStore) -> Cipher | None:
    """What a store encrypts bodies with, or None."""
    found: Cipher | None = getattr(store.bodies, "cipher", None)
    return found


class _Pieces:
    """The distinct pieces of bodies, and of which each body is made."""

    def __init__(self) -> None:
        self.data = io.BytesIO()
        self.sizes: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self._known: dict[bytes, int] = {}
        self._latest: dict[int, tuple[int, list[int]]] = {}  # by first piece: the last body that begins with it

    def add(self, name: str, data: bytes) -> None:
        found, digest = prefixes(data)
        made_of = [self._piece(data[prefix.start : prefix.stop]) for prefix in found]
        number, before = self._latest.get(made_of[0], (0, []))
        same = 0
        while same < min(len(made_of), len(before)) and made_of[same] == before[same]:
            same += 1
        self._latest[made_of[0]] = (len(self.bodies), made_of)
        body: dict[str, Any] = {"name": name, "sha256": digest, "size": len(data), "pieces": made_of[same:]}
        if same:
            body |= {"as": number, "first": same}
        self.bodies.append(body)

    def _piece(self, raw: bytes) -> int:
        key = sha256(raw).digest()
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.sizes)
            self.sizes.append(len(raw))
            self.data.write(raw)
        return number


def read_log(path: str, run_id: str) -> bytes:
    """The bytes of a log."""
    try:
        return read_file(FS(), path)
    except OSError as error:
        raise failure(error, run_id, "read the log", path) from error


def _write_whole(target: str, data: bytes) -> None:
    fs = FS()
    folder = os.path.dirname(os.path.abspath(target))
    temporary = os.path.join(folder, f".{os.path.basename(target)}.{uuid.uuid4().hex[:8]}")
    try:
        make_dirs(fs, folder)
        write_new(fs, temporary, data)
        try:
            fs.rename(temporary, target)
        except OSError:
            fs.unlink(temporary)
            raise
        fs.sync_dir(folder)
    except OSError as error:
        raise failure(error, None, "write the file", target) from error


def write_new(fs: FS, path: str, data: bytes) -> None:
    """Write a file that must not exist, and sync it; where that fails it is taken away again."""
    fd = fs.create(path, os.O_WRONLY)
    try:
        written = 0
        while written < len(data):
            written += fs.write(fd, data[written : written + (16 << 20)])
        fs.sync(fd)
    except OSError:
        fs.unlink(path)
        raise
    finally:
        fs.close(fd)
