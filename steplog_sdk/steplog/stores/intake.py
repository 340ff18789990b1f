"""A run out of one file (see `archive.py`), which may have been made by anybody.

Everything in it is verified before anything is written, and none of it is believed: sizes have limits, members have
fixed names, the run's id is checked, and every hash is computed.
"""

from __future__ import annotations

import os
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from datetime import date
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from steplog._kernel.inbox import Message, parse, seal
from steplog._kernel.line import scan
from steplog.errors import Corrupt, InvalidArgument, KeyMissing, StoreError, UnknownRun, UnsupportedFormat
from steplog.stores.archive import FORMAT, LOG, MANIFEST, PIECES, PLACE, Archived, Names, cipher_of, read_log, write_new
from steplog.stores.base import check_run_id
from steplog.stores.bodies import SqliteBodies
from steplog.stores.chunks import MOST
from steplog.stores.explain import failure
from steplog.stores.fs import FS, make_dirs
from steplog.stores.inbox import INBOX, FileInbox
from steplog.stores.upkeep import remember_pruned

if TYPE_CHECKING:
    from steplog.stores.base import Cipher
    from steplog.stores.files import FileStore

# More than any run needs, and less than a machine has: what a file claims is believed up to here.
MOST_MANIFEST: Final = 256 << 20
MOST_BYTES: Final = 4 << 30
MOST_BODY: Final = 1 << 30

# What a member may unpack to: so much, and so many times the size of the file.
FREE_BYTES: Final = 64 << 20
MOST_RATIO: Final = 200

_NAME: Final = 32

# What `zipfile` raises for a damaged file.
_UNREADABLE: Final = (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, ValueError)


class Imported(NamedTuple):
    """What an import did.

    Attributes:
        archived: what the file holds.
        new: whether the run was not there before.
    """

    archived: Archived
    new: bool


def import_run(store: FileStore, source: str, names: Names) -> Imported:
    """Take a run from a file into a store. Everything is verified before anything is written.

    A run that is there already with the very same log is left alone; bodies and messages that it lacks are added.

    Raises:
        InvalidArgument: the file is no run.
        Corrupt: it is damaged: a hash, the chain, or a body that it names and does not hold.
        UnsupportedFormat: it was written by a newer release.
        StoreError: another log is there under this run's id, or writing failed.
    """
    members = _Members(source)
    manifest = members.manifest
    run_id = check_run_id(manifest.get("run_id"))
    log = members.read(LOG, manifest["log"]["size"], manifest["log"]["sha256"])
    found = scan(log, run_id)
    if found.verdict != "clean" or not found.events:
        raise members.damaged("its log is not whole")
    content = _content(members, cipher_of(store))
    known = {name for name, _ in _bodies(members, content, cipher_of(store))}
    missing = [str(name) for name in manifest["missing"]]
    if lost := {name for event in found.events for name in names(event)} - known - set(missing):
        raise members.damaged(f"its log names body {min(lost)}, which is not in it")
    archived = Archived(run_id, len(found.events), len(known), missing, os.path.getsize(source))
    inbox = str(manifest.get("inbox", "")).encode()
    said = parse(inbox)
    if said.size != len(inbox):
        raise members.damaged("a message of its inbox is not what was sent")
    present = _present(store, run_id)
    if present is not None and present != log:
        raise _refusal(store, run_id, present, log)
    with store.bodies.held():
        _put(store, members, content)
        if isinstance(store.bodies, SqliteBodies):
            remember_pruned(store.bodies, manifest.get("pruned", {}))
        if present is None:
            place(store, run_id, log, inbox)
        else:
            _hand_over(store.inbox(run_id), said.messages)
    return Imported(archived, present is None)


def _hand_over(inbox: FileInbox, messages: list[Message]) -> None:
    """Add the messages that an inbox lacks."""
    known = {message.id for message in parse(inbox.read()).messages}
    for message in messages:
        if message.id not in known:
            inbox.append(seal(message))


def _put(store: FileStore, members: _Members, content: bytes) -> None:
    # One after the other, and one sync at the end: together they may be larger than the memory.
    for body in _bodies(members, content, cipher_of(store)):
        store.bodies.put([body], sync=False)
    store.bodies.put([], sync=True)


def _present(store: FileStore, run_id: str) -> bytes | None:
    try:
        view = store.read(run_id)
    except UnknownRun:
        return None
    return read_log(store.path_of(run_id), run_id)[: view.end]


def _refusal(store: FileStore, run_id: str, present: bytes, log: bytes) -> StoreError:
    relation = "has another log"
    if present.startswith(log):
        relation = "has gone on since it was exported"
    elif log.startswith(present):
        relation = "is an earlier state of it"
    message = (
        f"run {run_id!r} is in {store.home} already and {relation}; nothing was changed. An import never replaces a "
        f"run: effects that only one of the two has recorded would happen again.\n"
        f"Import into another home: steplog import FILE --home DIR"
    )
    return StoreError(message, run_id=run_id, path=store.path_of(run_id))


def place(store: FileStore, run_id: str, log: bytes, inbox: bytes = b"") -> None:
    """Put a whole log and its inbox in place under its name: half of one would look like a run that did less."""
    files = {os.path.basename(store.path_of(run_id)): log, **({INBOX: inbox} if inbox else {})}
    fs, directory = FS(), os.path.dirname(store.path_of(run_id))
    runs = os.path.dirname(directory)
    temporary = os.path.join(runs, f".import-{uuid.uuid4().hex[:8]}")
    try:
        make_dirs(fs, temporary)
        for name, content in files.items():
            write_new(fs, os.path.join(temporary, name), content)
        fs.sync_dir(temporary)
        try:
            fs.rename(temporary, directory)
        except OSError:
            for name in files:
                fs.unlink(os.path.join(temporary, name))
            fs.rmdir(temporary)
            raise
        for parent in (runs, store.home):
            fs.sync_dir(parent)
    except OSError as error:
        raise failure(error, run_id, "add the run", directory, "No run was added.") from error


class _Members:
    """The members of a file, each read as far as the manifest says and no further."""

    def __init__(self, source: str) -> None:
        self.source = source
        try:
            with zipfile.ZipFile(source) as file:
                self.sizes = {info.filename: info.file_size for info in file.infolist()}
            self._most = FREE_BYTES + MOST_RATIO * os.path.getsize(source)
        except _UNREADABLE as error:
            message = (
                f"{source} is no exported run: it is cut off, or another kind of file.\n"
                "Make one: steplog export RUN -o run.steplog"
            )
            raise InvalidArgument(message) from error
        except OSError as error:
            raise failure(error, None, "read the file", source) from error
        if set(self.sizes) != {MANIFEST, LOG, PIECES}:
            message = f"{source} is no exported run: it does not hold {MANIFEST}, {LOG} and {PIECES} and nothing else."
            raise InvalidArgument(message)
        self.manifest = self._manifest()

    def _manifest(self) -> dict[str, Any]:
        try:
            manifest = orjson.loads(self.read(MANIFEST, min(self.sizes[MANIFEST], MOST_MANIFEST)))
            version = manifest["format"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise self.damaged("its manifest is not one") from error
        if version != FORMAT:
            message = (
                f"{self.source} has format {version!r}; this release reads {FORMAT}. Upgrade: pip install -U steplog"
            )
            raise UnsupportedFormat(message, path=self.source, found=str(version))
        try:
            _check_manifest(manifest)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise self.damaged("its manifest does not fit together") from error
        return dict(manifest)

    def read(self, member: str, size: int, digest: str | None = None) -> bytes:
        """The content of a member, which must have this size and hash."""
        if size > min(MOST_BYTES, self._most) or size != self.sizes[member]:
            raise self.damaged(f"{member} has not the size that it should have")
        try:
            with zipfile.ZipFile(self.source) as file, file.open(member) as stream:
                data = stream.read(size + 1)  # what it unpacks to may be more than it says
        except _UNREADABLE as error:
            raise self.damaged(f"{member} cannot be unpacked ({error})") from error
        except OSError as error:
            raise failure(error, None, "read the file", self.source) from error
        if len(data) != size or (digest is not None and sha256(data).hexdigest() != digest):
            raise self.damaged(f"{member} does not hash to what its manifest says")
        return data

    def damaged(self, what: str) -> Corrupt:
        """The refusal of a file."""
        return Corrupt(f"{self.source} was not imported: {what}. Nothing was changed.", path=self.source)


def _check_manifest(manifest: dict[str, Any]) -> None:
    sizes = manifest["pieces"]["sizes"]
    numbers = [manifest["log"]["size"], manifest["pieces"]["size"], *sizes]
    if sum(sizes) > MOST_BYTES or not isinstance(manifest["sealed"], bool):
        raise ValueError("sizes")
    if not all(isinstance(name, str) for name in manifest["missing"]) or any(size > MOST for size in sizes):
        raise ValueError("pieces")
    for name, day in manifest.get("pruned", {}).items():
        if name not in manifest["missing"] or len(bytes.fromhex(name)) != _NAME:
            raise ValueError(name)
        date.fromisoformat(day)
    for number, body in enumerate(manifest["bodies"]):
        before = range(number) if "as" in body else range(1)
        known = all(piece in range(len(sizes)) for piece in body["pieces"])
        if (
            not known
            or body.get("as", 0) not in before
            or body["size"] > MOST_BODY
            or not isinstance(body["name"], str)
        ):
            raise ValueError(number)
        numbers += (body["size"], body.get("first", 0), *body["pieces"])
    if not all(isinstance(size, int) and size >= 0 for size in numbers):
        raise ValueError("numbers")


def _content(members: _Members, cipher: Cipher | None) -> bytes:
    """The pieces, one behind the other."""
    pieces = members.manifest["pieces"]
    size = sum(pieces["sizes"])
    data = members.read(PIECES, pieces["size"], pieces["sha256"])
    if members.manifest["sealed"]:
        if cipher is None:
            message = (
                f"{members.source} is encrypted. Set STEPLOG_KEY to the key of the home that it comes from. "
                f"Nothing was changed."
            )
            raise KeyMissing(message, path=members.source)
        try:
            data = zlib.decompressobj().decompress(cipher.open(data, PLACE), size + 1)
        except (zlib.error, Corrupt) as error:
            raise members.damaged("its bodies cannot be decrypted") from error
    if len(data) != size:
        raise members.damaged("its pieces have not the size that they should have")
    return data


def _bodies(members: _Members, data: bytes, cipher: Cipher | None) -> Iterator[tuple[str, bytes]]:
    raw, start = [], 0
    for size in members.manifest["pieces"]["sizes"]:
        raw.append(data[start : start + size])
        start += size
    made_of: list[list[int]] = []
    for body in members.manifest["bodies"]:
        listed = (made_of[body["as"]][: body["first"]] if "as" in body else []) + body["pieces"]
        made_of.append(listed)
        if sum(len(raw[piece]) for piece in listed) != body["size"]:
            raise members.damaged(f"body {body['name']} is not made of what it should be")
        whole = b"".join(raw[piece] for piece in listed)
        digest = sha256(whole).digest()
        if body["name"] != digest.hex() and not _is_keyed(body["name"], digest, cipher):
            raise members.damaged(f"body {body['name']} does not hash to its name")
        yield body["name"], whole


def _is_keyed(name: str, digest: bytes, cipher: Cipher | None) -> bool:
    try:
        raw = bytes.fromhex(name)
    except ValueError:
        return False
    return cipher is not None and len(raw) == len(digest) and cipher.is_name(raw, digest)
