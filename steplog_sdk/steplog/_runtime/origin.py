"""Where a run comes from: the program, its revision, and the versions of what it runs on."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel.codec import encode
from steplog._runtime.context import frame

if TYPE_CHECKING:
    from pathlib import Path

log: Final = logging.getLogger("steplog")

WRAPPED: Final = "steplog run"
"""The trigger of a run that was opened around an unedited program; any other program opens its run by itself."""


def created_data(
    *, workflow: str | None, version: str | None, trigger: dict[str, Any], goal: str | None
) -> dict[str, Any]:
    """What `run.created` says of the program, apart from the run's own settings."""
    script = main_script()
    return {
        "workflow": workflow or (script.stem if script else None),
        "version": version_of(version, script),
        "trigger": trigger,
        "goal": goal,
        "python": ".".join(map(str, sys.version_info[:3])),
        "steplog": steplog_version(),
        "packages": packages(),
        "entry": entry(),
        **_inside(),
    }


def _inside() -> dict[str, str]:
    """The run at whose top this one is opened. A step that is returned does not open what it had opened inside."""
    place = frame()
    return {"inside": place.recorder.journal.run_id} if place is not None and not place.scope else {}


def version_of(version: str | None, script: Path | None) -> str | None:
    """The code revision of a run: what the program says, else what the environment says, else that of its script."""
    return version or os.environ.get("STEPLOG_VERSION") or (revision(script) if script else None)


def warn_of_less(run_id: str, created: dict[str, Any], options: dict[str, Any]) -> None:
    """Say so when this process records less than the one that began the run: its steps would be missed here."""
    for name in ("also", "http"):
        less = [one for one in created.get(name, ()) if one not in options[name]]
        if less:
            what = "run %s was recorded with install(%s=%r), and this process leaves out %s; it will halt as drift. %s"
            fix = f"Add it, or set STEPLOG_{name.upper()}={','.join(created[name])}"
            log.warning(what, run_id, name, created[name], ", ".join(less), fix)


def main_script() -> Path | None:
    """The file that was started as the program, or None in an interactive session."""
    from pathlib import Path

    found = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(found).absolute() if found else None


def entry() -> dict[str, Any]:
    """How the program was started, for `steplog resume`. Encoded, because names of files may be any bytes."""
    script = main_script()
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return {
        "script": encode(str(script), "script") if script else None,
        "module": spec.name if spec is not None and spec.name != "__main__" else None,
        "argv": encode(sys.argv[1:], "argv"),
        "cwd": encode(os.getcwd(), "cwd"),  # pathlib is not worth importing for it
    }


def packages() -> dict[str, str]:
    """Versions of the SDKs, as far as they are known without importing anything."""
    versions = {}
    for name in ("openai", "anthropic", "httpx2", "httpx", "pydantic"):
        version = getattr(sys.modules.get(name), "__version__", None) or _installed(name)
        if isinstance(version, str):
            versions[name] = version
    return versions


def _installed(name: str) -> str | None:
    # Under `steplog run` the run opens before the script imports its SDKs. `install()` has loaded the metadata module.
    metadata = sys.modules.get("importlib.metadata")
    if metadata is None:
        return None
    try:
        return _metadata_version(name)
    except metadata.PackageNotFoundError:
        return None


# Reading a package's metadata takes as long as recording ten steps, and a process may open many runs.
@lru_cache(maxsize=8)
def _metadata_version(name: str) -> str:
    version: str = sys.modules["importlib.metadata"].version(name)
    return version


@lru_cache(maxsize=8)
def revision(script: Path) -> str | None:
    """The code's revision: `sha256:<16 digits>` of the script, behind `git:<commit> ` where it lies in a repository.

    The digest shows an edit that is not committed. The commit is read from the repository's files, since a process
    start would cost more than opening the run.
    """
    try:
        digest = f"sha256:{hashlib.sha256(script.read_bytes()).hexdigest()[:16]}"
        commit = next((found for folder in script.parents if (found := _head(folder / ".git"))), None)
    except OSError:
        return None
    return f"git:{commit} {digest}" if commit else digest


def _head(git: Path) -> str | None:
    head = git / "HEAD"
    return _commit(git, head.read_text(encoding="utf-8").strip()) if head.is_file() else None


def _commit(git: Path, head: str) -> str | None:
    if not head.startswith("ref: "):
        return head or None
    name = head.removeprefix("ref: ")
    ref = git / name
    if ref.is_file():
        return ref.read_text(encoding="utf-8").strip()
    packed = git / "packed-refs"
    if packed.is_file():
        for line in packed.read_text(encoding="utf-8").splitlines():
            if line.endswith(f" {name}"):
                return line.split(" ", 1)[0]
    return None


def steplog_version() -> str:
    """The version of steplog that is running."""
    from steplog import __version__

    return __version__
