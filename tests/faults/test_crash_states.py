"""Crash states of a real run: its system calls are written down, and every loss of power between two of them is played.

After Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014): what was synced is on the medium; of the rest
any pages and any names. Unlike `test_power.py` this covers the body store too, whose calls are SQLite's own. What the
world was told and what the agent saw, at the moment of the crash, must be in what is left.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from steplog._kernel.fold import FINISHED, fold
from steplog._kernel.references import references
from steplog.errors import UnknownRun
from steplog.stores.files import FileStore
from tests.faults.programs import traced as program
from tests.support.strace import CALLS, needed, parse, traced

MODULE = "tests.faults.programs.traced"
PAGE = 4096
# The index of SQLite's write-ahead log is memory that processes share: it is made anew after a crash.
NOT_KEPT = re.compile(r"-shm$")


class Inode:
    def __init__(self):
        self.cached = bytearray()
        self.synced = b""

    def pages(self):
        size = max(len(self.cached), len(self.synced))
        places = range(0, size, PAGE)
        return [at for at in places if self.cached[at : at + PAGE] != self.synced[at : at + PAGE]]

    def left(self, kept, *, grow):
        data = bytearray(self.synced)
        if grow:
            data = data[: len(self.cached)].ljust(len(self.cached), b"\0")
        for at in kept:
            page = self.cached[at : at + PAGE]
            if page:
                data.extend(bytes(max(0, at + len(page) - len(data))))
                data[at : at + len(page)] = page
        return bytes(data)


class Machine:
    """Replays the calls of a process on files in memory, knowing what of them is on the medium."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.open = {}
        self.names = {}
        self.durable = {}
        self.directories = set()

    def play(self, call):
        getattr(self, f"_{call.name}", lambda _call: None)(call)

    def _path(self, call):
        path = call.data.decode()
        return path if path.startswith(self.folder) and not NOT_KEPT.search(path) else None

    def _openat(self, call):
        path = self._path(call)
        self.open.pop(call.result, None)
        if path is None:
            return
        if path not in self.names and path not in self.directories and "O_CREAT" in call.arguments:
            self.names[path] = Inode()
        self.open[call.result] = [path, self.names.get(path), 0, "O_APPEND" in call.arguments]

    def _close(self, call):
        self.open.pop(int(call.arguments), None)

    def _mkdir(self, call):
        path = self._path(call)
        if path:
            self.directories.add(path)
            self.names[path] = None

    def _unlink(self, call):
        if self._path(call):
            del self.names[self._path(call)]

    def _write(self, call):
        opened = self.open.get(int(call.arguments.partition(",")[0]))
        if opened and opened[1]:
            _, inode, position, append = opened
            at = len(inode.cached) if append else position
            self._put(inode, at, call.data)
            opened[2] = at + len(call.data)

    def _pwrite64(self, call):
        opened = self.open.get(int(call.arguments.partition(",")[0]))
        if opened and opened[1]:
            self._put(opened[1], int(call.arguments.rpartition(",")[2]), call.data)

    @staticmethod
    def _put(inode, at, data):
        inode.cached.extend(bytes(max(0, at + len(data) - len(inode.cached))))
        inode.cached[at : at + len(data)] = data

    def _ftruncate(self, call):
        fd, _, size = call.arguments.partition(",")
        opened = self.open.get(int(fd))
        if opened and opened[1]:
            inode = opened[1]
            inode.cached = inode.cached[: int(size)].ljust(int(size), b"\0")

    def _fdatasync(self, call):
        opened = self.open.get(int(call.arguments))
        if opened is None:
            return
        path, inode = opened[:2]
        if inode is not None:
            inode.synced = bytes(inode.cached)
            return
        for name in {*self.names, *self.durable}:
            if str(Path(name).parent) == path:
                if name in self.names:
                    self.durable[name] = self.names[name]
                else:
                    self.durable.pop(name, None)

    _fsync = _fdatasync

    def unsynced(self):
        """What a crash now may keep or lose, each for itself."""
        names = [
            ("name", path)
            for path in sorted({*self.names, *self.durable})
            if (path in self.names, self.names.get(path)) != (path in self.durable, self.durable.get(path))
        ]
        inodes = {id(inode): (path, inode) for path, inode in self.names.items() if inode is not None}
        return names + [("page", path, at) for path, inode in inodes.values() for at in inode.pages()]

    def crash(self, kept, into, *, grow):
        """Write the files that a crash leaves below another folder."""
        names = dict(self.durable)
        for path in {*self.names, *self.durable}:
            if ("name", path) in kept:
                if path in self.names:
                    names[path] = self.names[path]
                else:
                    names.pop(path, None)
        for path in sorted(names):
            target = into / Path(path).relative_to(self.folder)
            if not target.parent.is_dir():
                continue  # its directory's name was lost
            if names[path] is None:
                target.mkdir()
            else:
                pages = [one[2] for one in kept if one[0] == "page" and one[1] == path]
                target.write_bytes(names[path].left(pages, grow=grow))


def told(machine, file):
    inode = machine.names.get(f"{machine.folder}/{file}")
    return [line.partition("\t")[0] for line in inode.cached.decode().splitlines()] if inode else []


def check(home, done, seen):
    """What the world was told has its intent in the log; what the agent saw has its outcome, and its bodies."""
    store = FileStore(home, durability="process")  # the check itself need not survive
    try:
        store.open(program.RUN).close()
        state = fold(store.read(program.RUN).events)
    except UnknownRun:
        state = fold([])
    labels = {}
    for step in state.steps.values():
        args = step.started.get("args") or {}
        labels[f"{step.target} {args.get('what') or args.get('where') or ''}".strip()] = step
    for label in done:
        assert label == "drawn" or label in labels, f"{label} happened without an intent"
    for label in seen:
        assert labels[label].status in FINISHED, f"the outcome of {label} was seen and is lost"
    for step in state.steps.values():
        for sha256 in references(step.finished or {}):
            assert store.bodies.get(sha256)
    store.bodies.close()


def states(machine, pick, most):
    """Subsets of what is not synced: all where they are few, else some, with each one alone and all but each."""
    unsynced = machine.unsynced()
    if 2 ** len(unsynced) <= most:
        masks = range(2 ** len(unsynced))
    else:
        every = 2 ** len(unsynced) - 1
        single = [1 << bit for bit in range(len(unsynced))]
        masks = [0, every, *(every - one for one in single), *single][:most]
        masks += [pick.randrange(every) for _ in range(most - len(masks))]
    for mask in masks:
        yield [one for bit, one in enumerate(unsynced) if mask >> bit & 1]


@pytest.fixture
def left():
    """Where what a crash left is looked at: in memory where that is possible, since nobody waits for a disk there."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else None))
    yield folder / "left"
    shutil.rmtree(folder)


def play_crashes(folder, left, *, most, every, seed):
    """Play the losses of power between the calls of one run; how many there were."""
    needed()
    run = folder / "run"
    run.mkdir()
    options = ("-xx", "-s", "10000000", "-o", str(folder / "trace"), "-e", f"trace={','.join(CALLS)}")
    assert traced(MODULE, run, *options).returncode == 0
    machine, pick, count, known = Machine(run), random.Random(seed), 0, set()
    for number, call in enumerate(parse((folder / "trace").read_text())):
        machine.play(call)
        if number % every or not machine.names:
            continue
        done, seen = told(machine, "ledger"), told(machine, "seen")
        for kept in states(machine, pick, most):
            for grow in (False, True):
                shutil.rmtree(left, ignore_errors=True)
                left.mkdir()
                machine.crash(kept, left, grow=grow)
                files = tuple((str(path), path.read_bytes()) for path in sorted(left.rglob("*")) if path.is_file())
                if (fingerprint := hash((*files, len(done), len(seen)))) in known:
                    continue
                known.add(fingerprint)
                check(left / "home", done, seen)
                count += 1
    assert seen == list(dict.fromkeys(seen))
    assert len(seen) == 5
    for path in run.rglob("*"):
        if path.is_file() and str(path) in machine.names:
            assert machine.names[str(path)].cached == path.read_bytes(), f"{path} was not played as it was written"
    return count


def test_crash_states_of_a_real_run(tmp_path, left):
    assert play_crashes(tmp_path, left, most=6, every=11, seed=1) > 20


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2))
def test_every_crash_state_of_a_real_run(tmp_path, left, seed):
    assert play_crashes(tmp_path, left, most=64, every=1, seed=seed) > 1000
