"""Cassettes on disk: read whole, and replaced whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import Final

from steplog.testing.cassettes import Cassette, CassetteError, dumps, loads, nothing_beside

SUFFIX: Final = ".steplog.json"
_BESIDE: Final = ".bodies"


def read(path: str) -> Cassette:
    """Read a cassette.

    Raises:
        CassetteError: it is none, or one of another format.
        FileNotFoundError: there is none.
    """
    with open(path, "rb") as file:
        text = file.read()

    def beside(name: str) -> bytes:
        if "/" in name or not name:
            message = f"{name!r} is no file beside it"
            raise ValueError(message)
        with contextlib.suppress(FileNotFoundError), open(os.path.join(beside_of(path), name), "rb") as file:
            return file.read()
        return nothing_beside(name)

    return loads(text, path, beside)


def write(path: str, cassette: Cassette) -> bool:
    """Write a cassette, whole or not at all: whatever happens meanwhile, the file is the old one or the new one.

    Returns:
        Whether anything but the day changed.

    Raises:
        CassetteError: it could not be read back.
        OSError: it could not be written.
    """
    text = dumps(cassette)
    if not _is_the_same(loads(text, path, cassette.files.__getitem__), cassette):
        message = f"{path} would not read back as what was recorded, so it was not written. This is a fault of steplog."
        raise CassetteError(message, path=path)
    before = _text_of(path)
    folder = beside_of(path)
    for name, content in cassette.files.items():
        _replace(os.path.join(folder, name), content)
    _replace(path, text.encode())
    _sweep(folder, cassette)
    return before is None or _undated(before) != _undated(text)


def beside_of(path: str) -> str:
    """The folder for what lies beside a cassette."""
    return path.removesuffix(SUFFIX) + _BESIDE


def _is_the_same(one: Cassette, other: Cassette) -> bool:
    return one.tapes == other.tapes and all(one.bodies.get(name) == data for name, data in other.bodies.items())


def _text_of(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _undated(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith(' "recorded": ')]


def _replace(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex[:8]}.new")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _sweep(folder: str, cassette: Cassette) -> None:
    """Take away what lay beside the cassette before and is named by it no more."""
    if not os.path.isdir(folder):
        return
    for name in os.listdir(folder):
        if name not in cassette.files:
            os.unlink(os.path.join(folder, name))
    if not os.listdir(folder):
        os.rmdir(folder)
