"""Where the cassette of a test lies: `cassettes/FILE/Class.test[case].steplog.json`, beside the file of the test.

So two tests never share a file, workers of a parallel run write each their own, and of every cassette one can tell
which test it belongs to without reading it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from typing import Final

from steplog.testing._files import SUFFIX, beside_of

FOLDER: Final = "cassettes"

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.\-\[\]=,+]+")
# File systems take 255 bytes for a name, and the suffix and a name for writing need some of them.
_LONGEST: Final = 150


def path_of(file: str, names: Iterable[str]) -> str:
    """The cassette of a test.

    Args:
        file: the file of the test.
        names: its classes and its own name with the case in brackets, from the outside in.
    """
    name = ".".join(names)
    safe = _UNSAFE.sub("-", name)
    if safe != name or len(safe) > _LONGEST:
        # What was replaced may be all that tells two cases apart.
        safe = f"{safe[:_LONGEST]}~{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    module = os.path.basename(file).removesuffix(".py")
    return os.path.join(os.path.dirname(file), FOLDER, module, safe + SUFFIX)


def test_file_of(path: str) -> str:
    """The file of the test that a cassette belongs to."""
    folder = os.path.dirname(path)
    return os.path.join(os.path.dirname(os.path.dirname(folder)), os.path.basename(folder) + ".py")


def below(place: str) -> Iterator[str]:
    """The cassettes that belong to a file of tests, or to any below a folder."""
    if os.path.isfile(place):
        module = os.path.basename(place).removesuffix(".py")
        yield from _in(os.path.join(os.path.dirname(place), FOLDER, module))
        return
    for folder, folders, _ in os.walk(place):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
        if os.path.basename(os.path.dirname(folder)) == FOLDER:
            yield from _in(folder)


def _in(folder: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from (os.path.join(folder, name) for name in names if name.endswith(SUFFIX))


def orphans(places: Iterable[str], used: Iterable[str], collected: Iterable[str]) -> list[str]:
    """Cassettes of tests that are gone.

    Args:
        places: files and folders of tests that were collected as a whole.
        used: the cassettes of the tests that there are.
        collected: the files of tests that were collected. One that is there and was not (left out by an option, or
            skipped as a whole) says nothing about its cassettes.
    """
    known, read = {os.path.realpath(path) for path in used}, {os.path.realpath(path) for path in collected}
    found = dict.fromkeys(path for place in places for path in below(place))
    return [path for path in found if os.path.realpath(path) not in known and _is_judged(path, read)]


def _is_judged(path: str, read: set[str]) -> bool:
    file = test_file_of(path)
    return not os.path.exists(file) or os.path.realpath(file) in read


def remove(path: str) -> None:
    """Delete a cassette and what lies beside it."""
    import shutil

    os.unlink(path)
    shutil.rmtree(beside_of(path), ignore_errors=True)
