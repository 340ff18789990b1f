"""A run in one file: its lines exactly as they are, and every body that they name.

A zip with three members, all read by name and none ever written to the disk under it:

    manifest.json   format, run id, size and SHA-256 of everything; for each body the pieces that it is made of
    events.jsonl    the log
    pieces          the distinct pieces of all bodies, one behind the other

The pieces of a body are those of an earlier one, up to some number, and then others: like the store itself, the file
grows with what is said and not with what is sent. It holds bodies in the clear, whatever the store does.
"""

from __future__ import annotations

import io
import os
import uuid
import zipfile
from collections.abc import Callable, Collection, Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from steplog._kernel.line import scan
from steplog.errors import BodyMissing, Corrupt, InvalidArgument, StoreError, UnknownRun, UnsupportedFormat
from steplog.stores.base import check_run_id
from steplog.stores.chunks import MOST, prefixes
from steplog.stores.explain import failure
from steplog.stores.fs import FS, make_dirs

if TYPE_CHECKING:
    from steplog._kernel.events import Event
    from steplog.stores.base import BodyStore
    from steplog.stores.files import FileStore

FORMAT: Final = "steplog-run/1"
MANIFEST: Final = "manifest.json"
LOG: Final = "events.jsonl"
PIECES: Final = "pieces"

# More than any run needs, and less than a machine has: what a file claims is believed up to here.
MOST_MANIFEST: Final = 256 << 20
MOST_BYTES: Final = 4 << 30
MOST_BODY: Final = 1 << 30

# What a member may unpack to: so much, and so many times the size of the file.
FREE_BYTES: Final = 64 << 20
MOST_RATIO: Final = 200

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


class Imported(NamedTuple):
    """What an import did.

    Attributes:
        archived: what the file holds.
        new: whether the run was not there before.
    """

    archived: Archived
    new: bool


# export ---------------------------------------------------------------------------------------------------------------


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
    view = store.read(run_id)
    log = _read(store.path_of(run_id), run_id)[: view.end]
    pieces = _Pieces()
    missing = []
    wanted = dict.fromkeys(name for event in view.events for name in names(event))
    for name in wanted:
        try:
            pieces.add(name, store.bodies.get(name))
        except BodyMissing:
            missing.append(name)
    manifest = {
        "format": FORMAT,
        "run_id": run_id,
        "log": {"size": len(log), "sha256": sha256(log).hexdigest(), "events": len(view.events)},
        "pieces": {"sizes": pieces.sizes, "sha256": sha256(pieces.data.getbuffer()).hexdigest()},
        "bodies": pieces.bodies,
        "missing": missing,
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for member, content in ((MANIFEST, orjson.dumps(manifest)), (LOG, log), (PIECES, pieces.data.getvalue())):
            # A fixed time: the same run gives the same bytes.
            file.writestr(zipfile.ZipInfo(member), content, zipfile.ZIP_DEFLATED)
    _write_whole(target, data.getvalue())
    return Archived(run_id, len(view.events), len(pieces.bodies), missing, len(data.getvalue()))


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


def _read(path: str, run_id: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise failure(error, run_id, "read the log", path) from error


def _write_whole(target: str, data: bytes) -> None:
    fs = FS()
    folder = os.path.dirname(os.path.abspath(target))
    temporary = os.path.join(folder, f".{os.path.basename(target)}.{uuid.uuid4().hex[:8]}")
    try:
        _write_new(fs, temporary, data)
        try:
            os.replace(temporary, target)
        except OSError:
            os.unlink(temporary)
            raise
        fs.sync_dir(folder)
    except OSError as error:
        raise failure(error, None, "write the file", target) from error


def _write_new(fs: FS, path: str, data: bytes) -> None:
    fd = fs.create(path, os.O_WRONLY)
    try:
        written = 0
        while written < len(data):
            written += fs.write(fd, data[written : written + (16 << 20)])
        fs.sync(fd)
    except OSError:
        os.unlink(path)
        raise
    finally:
        fs.close(fd)


# import ---------------------------------------------------------------------------------------------------------------


def import_run(store: FileStore, source: str, names: Names) -> Imported:
    """Take a run from a file into a store. Everything is verified before anything is written.

    A run that is there already with the very same log is left alone; bodies that it lacks are added.

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
    known = {name for name, _ in _bodies(members)}
    missing = [str(name) for name in manifest["missing"]]
    if lost := {name for event in found.events for name in names(event)} - known - set(missing):
        raise members.damaged(f"its log names body {min(lost)}, which is not in it")
    archived = Archived(run_id, len(found.events), len(known), missing, os.path.getsize(source))
    present = _present(store, run_id)
    if present is not None and present != log:
        raise _refusal(store, run_id, present, log)
    with store.bodies.held():
        _put(store.bodies, members)
        if present is None:
            _place(store, run_id, log)
    return Imported(archived, present is None)


def _put(store: BodyStore, members: _Members) -> None:
    try:
        # One after the other, and one sync at the end: together they may be larger than the memory.
        for body in _bodies(members):
            store.put([body], sync=False)
        store.put([], sync=True)
    except InvalidArgument as error:
        message = "its bodies have names made with a key. Set STEPLOG_KEY to the key of the home that it comes from"
        raise members.damaged(message) from error


def _present(store: FileStore, run_id: str) -> bytes | None:
    try:
        view = store.read(run_id)
    except UnknownRun:
        return None
    return _read(store.path_of(run_id), run_id)[: view.end]


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


def _place(store: FileStore, run_id: str, log: bytes) -> None:
    """Put a whole log in place under its name: half of one would look like a run that did less."""
    fs, path = FS(), store.path_of(run_id)
    directory = os.path.dirname(path)
    runs = os.path.dirname(directory)
    temporary = os.path.join(runs, f".import-{uuid.uuid4().hex[:8]}")
    try:
        make_dirs(fs, temporary)
        _write_new(fs, os.path.join(temporary, os.path.basename(path)), log)
        fs.sync_dir(temporary)
        try:
            os.rename(temporary, directory)
        except OSError:
            os.unlink(os.path.join(temporary, os.path.basename(path)))
            os.rmdir(temporary)
            raise
        for parent in (runs, store.home):
            fs.sync_dir(parent)
    except OSError as error:
        raise failure(error, run_id, "import the run", directory, "No run was added.") from error


class _Members:
    """The members of a file, each read as far as the manifest says and no further."""

    def __init__(self, source: str) -> None:
        self.source = source
        try:
            with zipfile.ZipFile(source) as file:
                self.sizes = {info.filename: info.file_size for info in file.infolist()}
            self._most = FREE_BYTES + MOST_RATIO * os.path.getsize(source)
        except zipfile.BadZipFile as error:
            message = f"{source} is no exported run: it is not a zip file. Make one: steplog export RUN -o run.steplog"
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
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise self.damaged("its manifest does not fit together") from error
        return dict(manifest)

    def read(self, member: str, size: int, digest: str | None = None) -> bytes:
        """The content of a member, which must have this size and hash."""
        if size > min(MOST_BYTES, self._most) or size != self.sizes[member]:
            raise self.damaged(f"{member} has not the size that it should have")
        try:
            with zipfile.ZipFile(self.source) as file, file.open(member) as stream:
                data = stream.read(size + 1)  # what it unpacks to may be more than it says
        except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, ValueError) as error:
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
    numbers = [manifest["log"]["size"], *sizes]
    if not all(isinstance(name, str) for name in manifest["missing"]) or any(size > MOST for size in sizes):
        raise ValueError("pieces")
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


def _bodies(members: _Members) -> Iterator[tuple[str, bytes]]:
    pieces = members.manifest["pieces"]
    data = members.read(PIECES, sum(pieces["sizes"]), pieces["sha256"])
    raw, start = [], 0
    for size in pieces["sizes"]:
        raw.append(data[start : start + size])
        start += size
    made_of: list[list[int]] = []
    for body in members.manifest["bodies"]:
        listed = (made_of[body["as"]][: body["first"]] if "as" in body else []) + body["pieces"]
        made_of.append(listed)
        if sum(len(raw[piece]) for piece in listed) != body["size"]:
            raise members.damaged(f"body {body['name']} is not made of what it should be")
        whole = b"".join(raw[piece] for piece in listed)
        if sha256(whole).hexdigest() != body["sha256"]:
            raise members.damaged(f"body {body['name']} does not hash to its name")
        yield body["name"], whole
