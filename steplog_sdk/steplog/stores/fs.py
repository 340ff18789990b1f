"""The seam to the operating system: every file call of the log goes through one `FS` object.

`steplog.testing.FaultyFS` counts, fails and cuts short these calls one by one and models the loss of power, which is
how each promise about a full disk, a failed sync or a crash is tested. Errors pass as the plain `OSError`; the stores
turn them into `StoreError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

FILE_MODE: Final = 0o600
DIR_MODE: Final = 0o700

END: Final = os.SEEK_END
"""From where an offset of 0 is the end of a file."""

_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOTTY, errno.ENOSYS})


class Space(NamedTuple):
    """Room on a disk.

    Attributes:
        free: bytes that this user can still write.
        total: bytes in all.
        names: whether another file can be created.
    """

    free: int
    total: int
    names: bool


class FS:
    """The real file system. Methods are thin on purpose: policy lives in the stores."""

    def open(self, path: str, flags: int) -> int:
        """Open an existing file. The descriptor is not inherited by programs that this process starts."""
        return os.open(path, flags | getattr(os, "O_BINARY", 0))

    def create(self, path: str, flags: int) -> int:
        """Create a file that must not exist, mode 0600 whatever the umask."""
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), FILE_MODE)
        if hasattr(os, "fchmod"):
            os.fchmod(fd, FILE_MODE)
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Read at most `size` bytes at `offset`; empty at the end of the file."""
        return os.pread(fd, size, offset)

    def write(self, fd: int, data: bytes) -> int:
        """Write once; may write less than was asked."""
        return os.write(fd, data)

    def rewrite(self, fd: int, data: bytes, offset: int) -> int:
        """Write once over what is at `offset`, through a descriptor that does not append; may write less."""
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        """Set the length of an open file."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Return when the file's bytes are on the medium.

        macOS leaves them in the drive's cache unless it is asked for F_FULLFSYNC, which not every volume offers.
        """
        if sys.platform == "darwin":
            import fcntl

            try:
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                os.fsync(fd)
        else:
            os.fdatasync(fd)

    def sync_whole(self, fd: int) -> None:
        """Return when bytes, times and length are on the medium, and nothing of them in a drive's cache.

        Raises:
            OSError: also where a volume of macOS does not offer F_FULLFSYNC; `sync` does with less there.
        """
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)

    def sync_dir(self, path: str) -> None:
        """Return when the names in a directory are on the medium: a new file's bytes are no use without its name."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        finally:
            os.close(fd)

    def mkdir(self, path: str) -> None:
        """Create one directory, mode 0700 whatever the umask."""
        os.mkdir(path, DIR_MODE)
        os.chmod(path, DIR_MODE)

    def unlink(self, path: str) -> None:
        """Take a file's name away."""
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        """Take an empty directory away."""
        os.rmdir(path)

    def rename(self, old: str, new: str) -> None:
        """Give a file a name that another one may have had; whoever opens it gets the one or the other, whole."""
        os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name, which must be free."""
        os.link(old, new)

    def stat(self, path: str) -> os.stat_result:
        """Describe what a path names now."""
        return os.stat(path)

    def fstat(self, fd: int) -> os.stat_result:
        """Describe an open file."""
        return os.fstat(fd)

    def end(self, fd: int) -> int:
        """The length of an open file that is only appended to, whose offset does not matter; quicker than `fstat`."""
        return os.lseek(fd, 0, os.SEEK_END)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, in no order."""
        return os.listdir(path)

    def mounts(self) -> str:
        """Which file systems are mounted where, as `/proc/self/mountinfo` says it; empty where the system does not."""
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                return file.read()
        except OSError:
            return ""

    def space(self, path: str) -> Space | None:
        """How much room there is on the disk of a path, or None where nobody can tell."""
        while True:
            try:
                found = os.statvfs(path)
            except FileNotFoundError:
                if path == os.path.dirname(path):
                    return None
                path = os.path.dirname(path)  # it is about to be created
            except (OSError, AttributeError):
                return None
            else:
                names = bool(found.f_favail) or not found.f_files
                return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, names)

    def exists(self, path: str) -> bool:
        """Whether a path names something; much quicker than to fail to describe it."""
        return os.access(path, os.F_OK)

    def look(self, path: str) -> os.stat_result | None:
        """Describe what a path names, or None where that cannot be found out."""
        try:
            return os.stat(path)
        except OSError:
            return None

    def user(self) -> int | None:
        """The user that this process acts as, or None where the system knows none."""
        return os.geteuid() if hasattr(os, "geteuid") else None

    def can_list(self, path: str) -> bool:
        """Whether this user may read the names in a directory."""
        return os.access(path, os.R_OK)

    def flock(self, fd: int, *, shared: bool = False) -> bool:
        """Try to lock an open file as a whole; tell whether that succeeded. The lock ends when the file is closed.

        `flock`, never `lockf`: a POSIX record lock is lost when any descriptor of the file is closed anywhere in the
        process.
        """
        import fcntl

        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, fd: int) -> None:
        """Give up the lock, for every descriptor that shares this open file."""
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)


Write = Callable[[int, bytes], int]
Stat = Callable[[str], os.stat_result]
Sync = Callable[[int], None]
Seek = Callable[[int, int, int], int]


def shortest(fs: FS) -> tuple[Write, Stat, Sync, Seek]:
    """What every append calls: `write`, `stat`, `sync` and `end`, of the real file system without a detour.

    The last is called as `os.lseek` is, with `END`.
    """
    if type(fs) is not FS:
        return fs.write, fs.stat, fs.sync, lambda fd, _offset, _whence: fs.end(fd)
    return os.write, os.stat, fs.sync if sys.platform == "darwin" else os.fdatasync, os.lseek


def read_file(fs: FS, path: str) -> bytes:
    """The bytes of a file."""
    fd = fs.open(path, os.O_RDONLY)
    try:
        blocks, offset = [], 0
        while block := fs.read(fd, 4 << 20, offset):
            blocks.append(block)
            offset += len(block)
        return b"".join(blocks)
    finally:
        fs.close(fd)


def is_unsupported(error: OSError) -> bool:
    """Tell whether a call failed because this kind of file system does not offer it, rather than for its data."""
    return error.errno in _UNSUPPORTED


def make_dirs(fs: FS, path: str) -> None:
    """Create a directory and its missing parents."""
    try:
        fs.mkdir(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent == path:
            raise
        make_dirs(fs, parent)
        # Once more and no further: below a directory like /proc it fails for ever.
        with contextlib.suppress(FileExistsError):
            fs.mkdir(path)


def open_or_create(fs: FS, path: str, flags: int) -> tuple[int, bool]:
    """Open a file, creating it if there is none; tell whether it was created.

    Creation is tried first, so that two processes which begin at once agree on one file.
    """
    try:
        return fs.create(path, flags), True
    except FileExistsError:
        return fs.open(path, flags), False
