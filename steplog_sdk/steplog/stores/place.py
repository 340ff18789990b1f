"""Where the logs lie: what a network file system, a full disk or a foreign owner would do to them, said in time.

Each thing is said once in a process, and only a network file system has a consequence: the log notes it, and level
`durable-full` refuses it. None of this ever keeps a run from being opened because it could not be found out.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
from typing import Final

from steplog.errors import StoreError
from steplog.stores.base import Weakness
from steplog.stores.fs import FS

_logger = logging.getLogger("steplog.stores")

NETWORK: Final = frozenset(
    "nfs nfs4 cifs smb3 smbfs smb2 ncpfs 9p afs ceph lustre gpfs beegfs glusterfs ocfs2 gfs2 orangefs pvfs2 panfs "
    "vboxsf prl_fs vmhgfs webdav".split()
)
"""Types of file systems whose locks and syncs are those of another machine. FUSE has a list of its own."""

_NETWORK_FUSE: Final = re.compile(
    r"fuse\.(sshfs|s3fs|s3ql|gcsfuse|goofys|rclone|glusterfs|ceph|ceph-fuse|juicefs|davfs|vmhgfs-fuse|moosefs|mfs|nfs.*)"
)

_MEGABYTE: Final = 1_000_000
LOOK_EVERY: Final = 4 * _MEGABYTE
"""Bytes that are appended before the free space is looked at again."""

_said: set[tuple[str, str]] = set()


def network(fs: FS, path: str) -> str | None:
    """The type of the network file system on which a path lies, or None where it lies on none or nobody can tell."""
    place = os.path.join(os.path.realpath(path), "")
    best, found = "", ""
    for line in fs.mounts().splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = os.path.join(_unescaped(fields[4]), "")
        # A later line hides an earlier one of the same place.
        if place.startswith(point) and len(point) >= len(best):
            best, found = point, after.split(" ")[0]
    return found if found in NETWORK or _NETWORK_FUSE.fullmatch(found) else None


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def check(fs: FS, home: str, run_id: str, level: str) -> Weakness | None:
    """Look at the place of a home before a run is opened there; warn once of each thing that may go wrong.

    Returns:
        Why the level cannot be relied on there, or None.

    Raises:
        StoreError: level `durable-full` on a network file system.
    """
    _check_access(fs, home)
    check_space(fs, home)
    type_ = network(fs, home)
    if type_ is None:
        return None
    why = f"it lies on a network file system ({type_}), whose locks and syncs are as good as its server"
    if level == "durable-full":
        message = (
            f"run {run_id!r}: level durable-full takes nothing less than a local disk, and {home} lies on a network "
            f"file system ({type_}). Nothing was written. Point STEPLOG_HOME to a local disk, or use `durable`."
        )
        raise StoreError(message, run_id=run_id, errno=errno.ENOTSUP, path=home)
    _say(
        home,
        "network",
        "%s lies on a network file system (%s). Two machines may get hold of one run there, and what was synced may be "
        "lost with the server. Point STEPLOG_HOME to a local disk.",
        home,
        type_,
    )
    return Weakness(level, level, why)


def check_space(fs: FS, path: str) -> None:
    """Warn once when a disk is about to be full."""
    space = fs.space(path)
    if space is None:
        return
    enough = max(100 * _MEGABYTE, min(space.total // 20, 1000 * _MEGABYTE))
    if space.free < enough:
        _say(
            path,
            "space",
            "only %s are free on the disk of %s. When it is full, steps are refused and runs halt: free some space "
            "(`steplog du` says what takes it, `steplog prune` gives up what is old), or move the whole home to "
            "another disk.",
            megabytes(space.free),
            path,
        )


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e9:.1f} GB" if size >= 10**9 else f"{size / 1e6:.1f} MB"


def _check_access(fs: FS, home: str) -> None:
    """Warn where others can read or replace what the home holds, or where it belongs to somebody else."""
    for path, kind in (
        (home, "the home"),
        (os.path.join(home, "runs"), "the runs"),
        (f"{home}/bodies.db", "the bodies"),
    ):
        status = fs.look(path)
        if status is None:
            continue
        directory = kind != "the bodies"
        # A directory that others may enter holds files that they may not read; one that they may write to does not.
        if status.st_mode & (0o022 if directory else 0o077):
            _say(
                path,
                "mode",
                "%s (%s, mode %04o) can be %s by other users of this machine; prompts and results are in it. "
                "Close it: chmod go-rwx %s",
                kind,
                path,
                status.st_mode & 0o7777,
                "changed" if directory else "read",
                shlex.quote(path),
            )
        owner = fs.user()
        if owner is not None and status.st_uid != owner:
            _say(
                path,
                "owner",
                "%s (%s) belongs to user %s, and this process is user %s: what one writes there the other cannot go on "
                "with. Run both as one user, or give each a STEPLOG_HOME of its own.",
                kind,
                path,
                status.st_uid,
                owner,
            )


def _say(path: str, kind: str, text: str, *facts: object) -> None:
    if (path, kind) not in _said:
        _said.add((path, kind))
        _logger.warning(text, *facts)
