"""Turns what the operating system or a damaged log says into errors that say what to do."""

from __future__ import annotations

import errno
import os
import posixpath
import shlex
from typing import Final

from steplog._kernel.line import Damage, Scan
from steplog.errors import Conflict, Corrupt, InvalidArgument, StoreError, UnsupportedFormat
from steplog.stores.base import check_run_id
from steplog.stores.fs import FS

TYPED_HOME: Final = "STEPLOG_TYPED_HOME"
"""The environment variable that holds the home, absolute, where `--home` named it to whoever started the program."""

# A run that is looked for in an empty home begins anew, with all its effects.
_MOVE: Final = "move the whole home to another disk and set STEPLOG_HOME to it (in an empty one a run would begin anew)"

_REMEDIES: Final = {
    errno.ENOSPC: "The disk is full: free some space (`steplog du` says what takes it, `steplog prune` gives up what "
    f"is old), or {_MOVE}; then go on with the run.",
    errno.EDQUOT: f"Your disk quota is used up: free some space, or {_MOVE}.",
    errno.EFBIG: f"A file size limit was reached: raise it (`ulimit -f`), or {_MOVE}.",
    errno.EROFS: "The file system is read-only: mount it writable, or point STEPLOG_HOME to a writable directory.",
    errno.EACCES: "This user may not do that there: check owner and mode (`ls -ld`), or set STEPLOG_HOME.",
    errno.EPERM: "This user may not do that there: check owner and mode (`ls -ld`), or set STEPLOG_HOME.",
    errno.ENOENT: "The directory is missing: it was moved or deleted, or its disk is not mounted.",
    errno.ENOTDIR: "A file stands where a directory should be: move it away, or set STEPLOG_HOME.",
    errno.EISDIR: "A directory stands where a file should be: move it away.",
    errno.EMFILE: "This process has too many files open: raise the limit (`ulimit -n`), or close some.",
    errno.ENFILE: "This machine has too many files open.",
    errno.EIO: "The disk failed. Check it (`dmesg`), and copy the run to another one before going on.",
}


def failure(error: OSError, run_id: str | None, action: str, path: str, meaning: str = "") -> StoreError:
    """Explain a failed file call. `action` completes the sentence "cannot …"."""
    subject = f"run {run_id!r}" if run_id else "the store"
    remedy = " ".join(filter(None, (_REMEDIES.get(error.errno or 0, ""), _found(error.errno, path))))
    reason = error.strerror or type(error).__name__
    text = " ".join(filter(None, (f"{subject}: cannot {action}: {reason} ({path}).", meaning, remedy)))
    return StoreError(text, run_id=run_id, errno=error.errno, path=path)


def _found(code: int | None, path: str) -> str:
    """What the machine says about it now."""
    fs = FS()
    if code in (errno.ENOSPC, errno.EDQUOT) and (space := fs.space(path)) is not None:
        names = "" if space.names else ", and no file more can be created"
        return f"Free there now: {space.free:,} of {space.total:,} bytes{names}."
    if code in (errno.EACCES, errno.EPERM):
        while (status := fs.look(path)) is None and path != os.path.dirname(path):
            path = os.path.dirname(path)
        if status is not None and fs.user() is not None:
            mode = status.st_mode & 0o7777
            return f"{path} belongs to user {status.st_uid} (mode {mode:04o}); this process is user {fs.user()}."
    return ""


def refusal(scan: Scan, run_id: str, path: str) -> Corrupt | UnsupportedFormat:
    """Explain why a log is not opened. Only for a scan with damage."""
    damage = scan.damage
    assert damage is not None
    where = f"run {run_id!r}: {path}, line {damage.line} (byte {damage.offset})"
    if scan.verdict == "unsupported":
        text = (
            f"{where}: {damage.what}, {damage.found}; this release reads {damage.expected}. "
            "Nothing was changed. Upgrade steplog: pip install -U steplog"
        )
        return UnsupportedFormat(text, run_id=run_id, path=path, found=damage.found)
    kind = Conflict if scan.verdict == "conflict" else Corrupt
    return kind(
        f"{where}: {_what(damage)}\n{_advice(damage, run_id, path)}",
        run_id=run_id,
        path=path,
        line=damage.line,
        offset=damage.offset,
        expected=damage.expected,
        found=damage.found,
        last_good_seq=damage.last_good_seq,
    )


def _what(damage: Damage) -> str:
    cause = f"; {damage.hint}" if damage.hint else ""
    epochs = f" Writers: epoch {damage.epochs[0]} before it, epoch {damage.epochs[1]} on it." if damage.epochs else ""
    return f"{damage.what}{cause}.\nExpected {damage.expected}, found {damage.found or 'none'}.{epochs}"


def _advice(damage: Damage, run_id: str, path: str) -> str:
    if damage.owner is not None:
        return _misplaced(damage.owner, path)
    verified = "No event" if damage.last_good_seq is None else f"Every event up to seq {damage.last_good_seq}"
    return (
        f"{verified} verifies. No killed process leaves this: the file was changed after it was written, or a loss "
        f"of power tore a large batch. steplog leaves it "
        f"as it is.\nLook: steplog verify {run_id}{home_option(path)}\n{_way_out(damage, run_id, path)}"
    )


def _way_out(damage: Damage, run_id: str, path: str) -> str:
    if "CRLF" in damage.hint:
        return f"Convert it back: sed -i 's/\\r$//' {shlex.quote(path)}"
    if damage.last_good_seq is None:
        # Cutting would leave an empty log, and the same id would do everything a second time.
        return (
            "Restore the file from a copy. Without one, do not empty it: a run that is begun anew under this id "
            "executes every step again, side effects too."
        )
    return (
        f"Restore the file from a copy. Without one you can give up what follows; steps whose outcome is cut off are "
        f"executed again by a resumed run, side effects too where not even their intent is readable any more:\n"
        f"  steplog repair {run_id} --to-seq {damage.last_good_seq}{home_option(path)}"
    )


def home_option(path: str) -> str:
    """` --home DIR` for a command about the run with this log, where the command line would look elsewhere, else ""."""
    usual = os.path.abspath(os.environ.get("STEPLOG_HOME") or ".agent")
    return option_for(os.path.dirname(os.path.dirname(os.path.dirname(path))), usual)


def option_for(home: str, usual: str) -> str:
    """The same for a home, where `usual` is the one that a command without the option would find; absolute paths.

    A program that `steplog run --home DIR` started has that home in its environment; the shell in which the command
    will be typed has not.
    """
    is_found = home == usual and os.environ.get(TYPED_HOME) != home
    return "" if is_found else f" --home {shlex.quote(home)}"


def _misplaced(owner: str, path: str) -> str:
    folder = posixpath.dirname(path)
    name = _checked(owner) or "ITS-OWN-ID"
    back = posixpath.join(posixpath.dirname(folder), name)
    said = f"It is the log of run {name!r}" if name == owner else "It does not say of which run"
    return (
        f"{said}; steplog leaves it as it is. A run's directory bears the run's id.\n"
        f"Where it was renamed, rename it back:\n"
        f"  mv {shlex.quote(folder)} {shlex.quote(back)}\n"
        f"Where it is a copy and {back} exists, move it out of the runs; a copy is no second run."
    )


def _checked(owner: str) -> str | None:
    """The id, unless a stranger has written something into the log that is none and does not belong into a command."""
    try:
        return check_run_id(owner)
    except InvalidArgument:
        return None
