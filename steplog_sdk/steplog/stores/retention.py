"""What of a home is old enough to go: runs that have ended, and bodies that only old runs name.

A run goes whole: its directory gets a name that is no run's, under the run's own lock, and is deleted then. A process
that is killed in between leaves a directory of that name, which the next prune deletes.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from steplog._kernel.fold import CLOSED_OUTCOMES, RUNNING, fold
from steplog.errors import InvalidArgument, RunBusy, SteplogError
from steplog.stores.bodies import SECONDS_A_DAY, SqliteBodies
from steplog.stores.explain import failure
from steplog.stores.fs import FS, read_file
from steplog.stores.lock import acquire
from steplog.stores.upkeep import Pruned, begin, prune

if TYPE_CHECKING:
    from steplog.stores.files import FileStore

TRASH: Final = ".pruned-"

# Read from the bytes, so that a line that is damaged or half written keeps its bodies too.
_NAME: Final = re.compile(rb'"(?:body|sha256)":"([0-9a-f]{64})"')


class Limits(NamedTuple):
    """What to prune.

    Attributes:
        bodies: age in days from which bodies go, or None: only those that no line names.
        runs: age in days from which runs go, or None: none.
        only: look at these runs alone; all where empty.
        force: runs that can still be resumed go too.
        dry_run: change nothing.
    """

    bodies: int | None = None
    runs: int | None = None
    only: frozenset[str] = frozenset()
    force: bool = False
    dry_run: bool = False


class GoneRun(NamedTuple):
    """A run that was, or would be, deleted.

    Attributes:
        run_id: its id.
        size: bytes of its files.
        last: timestamp of its last event.
        status: how it ended, or that it did not.
    """

    run_id: str
    size: int
    last: str
    status: str


class KeptRun(NamedTuple):
    """An old run that stays, and why.

    Attributes:
        run_id: its id.
        why: for people.
    """

    run_id: str
    why: str


class Retained(NamedTuple):
    """What a prune did, or would do.

    Attributes:
        runs: the runs that went.
        kept: the runs that are old enough and stay, with the reason.
        bodies: the bodies that went.
    """

    runs: list[GoneRun]
    kept: list[KeptRun]
    bodies: Pruned


class _Run(NamedTuple):
    run_id: str
    size: int
    names: frozenset[str]
    last: str
    mtime: float
    status: str
    resumable: bool

    @property
    def age(self) -> float:
        """Days since its last event, by its own time or the file's, whichever is later."""
        try:
            said = datetime.fromisoformat(self.last).timestamp()
        except ValueError:
            said = 0.0
        return (time.time() - max(self.mtime, said)) / SECONDS_A_DAY


def prune_home(store: FileStore, limits: Limits) -> Retained:
    """Delete what is older than the limits, unless something younger needs it.

    Raises:
        InvalidArgument: a limit below one day.
        StoreError: a log cannot be read, so what it names is not known; nothing was deleted. Or deleting failed.
    """
    for days in (limits.bodies, limits.runs):
        if days is not None and days < 1:
            raise InvalidArgument(f"{days} days is no age to prune at: the least is 1 day.")
    bodies = store.bodies
    assert isinstance(bodies, SqliteBodies)
    today = int(time.time()) // SECONDS_A_DAY
    number = None if limits.dry_run or not bodies.database.exists() else begin(bodies, today)
    runs = [_look_at(store, name) for name in store.runs()]
    gone, kept = _delete_runs(store, runs, limits)
    left = [run for run in runs if run.run_id not in {each.run_id for each in gone}]
    named = {name for run in left for name in run.names}
    young = {name for run in left if _keeps(run, limits) for name in run.names}
    cutoff = None if limits.bodies is None else today - limits.bodies
    # Bodies of runs that were not asked about stay, whatever their age.
    asked = {name for run in runs if run.run_id in limits.only for name in run.names} if limits.only else None

    def is_wanted(name: str, day: int) -> bool:
        if asked is not None and name not in asked:
            return True
        if name not in named:
            return False
        return cutoff is None or name in young or day > cutoff

    return Retained(gone, kept, prune(bodies, number, is_wanted, named))


def _keeps(run: _Run, limits: Limits) -> bool:
    """Whether a run keeps the bodies that it names: it is young, or it can be resumed and would need them."""
    return limits.bodies is None or run.age <= limits.bodies or (run.resumable and not limits.force)


def _look_at(store: FileStore, run_id: str) -> _Run:
    path = store.path_of(run_id)
    try:
        data = read_file(FS(), path)
        size = sum(os.path.getsize(each) for each in _files(os.path.dirname(path)))
        mtime = os.path.getmtime(path)
    except OSError as error:
        raise failure(error, run_id, "read the log", path, "Nothing was deleted.") from error
    names = frozenset(name.decode() for name in _NAME.findall(data))
    try:
        state = fold(store.read(run_id).events)
    except SteplogError as error:
        return _Run(run_id, size, names, "", mtime, f"unreadable ({type(error).__name__})", resumable=True)
    ended = state.completed_once or state.status in CLOSED_OUTCOMES
    is_dead = state.status == RUNNING and store.holder(run_id) is None
    status = "interrupted" if is_dead else state.status
    return _Run(run_id, size, names, state.last_ts, mtime, status, resumable=not ended)


def _delete_runs(store: FileStore, runs: list[_Run], limits: Limits) -> tuple[list[GoneRun], list[KeptRun]]:
    gone: list[GoneRun] = []
    kept: list[KeptRun] = []
    if not limits.dry_run:
        _empty_trash(store)
    for run in runs:
        if limits.runs is None or run.age <= limits.runs or (limits.only and run.run_id not in limits.only):
            continue
        if run.resumable and not limits.force:
            kept.append(KeptRun(run.run_id, f"it can still be resumed ({run.status})"))
        elif store.holder(run.run_id) is not None or not (limits.dry_run or _delete(store, run)):
            kept.append(KeptRun(run.run_id, "a process holds it, or has written to it just now"))
        else:
            gone.append(GoneRun(run.run_id, run.size, run.last, run.status))
    return gone, kept


def _delete(store: FileStore, run: _Run) -> bool:
    """Delete a run, unless somebody has it or has written to it since it was looked at."""
    fs, path = FS(), store.path_of(run.run_id)
    directory = os.path.dirname(path)
    trash = os.path.join(os.path.dirname(directory), f"{TRASH}{run.run_id}-{uuid.uuid4().hex[:8]}")
    try:
        lock = acquire(fs, os.path.join(directory, "events.lock"), run.run_id)
    except (RunBusy, FileNotFoundError):
        return False
    except OSError as error:
        raise failure(error, run.run_id, "delete the run", directory, "It was left as it is.") from error
    try:
        if os.path.getmtime(path) > run.mtime:
            return False
        fs.rename(directory, trash)
        fs.sync_dir(os.path.dirname(directory))
        # Still under the lock: whoever has opened the run's files by their old name must not get to write to them.
        shutil.rmtree(trash)
    except OSError as error:
        raise failure(error, run.run_id, "delete the run", directory) from error
    finally:
        lock.release()
    return True


def _empty_trash(store: FileStore) -> None:
    """Delete what a prune that was killed has left."""
    runs = os.path.join(store.home, "runs")
    try:
        for name in FS().listdir(runs):
            if name.startswith(TRASH):
                shutil.rmtree(os.path.join(runs, name))
    except FileNotFoundError:
        return
    except OSError as error:
        raise failure(error, None, "delete what an earlier prune has left", runs) from error


def _files(directory: str) -> Iterator[str]:
    for name in FS().listdir(directory):
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            yield path
