"""Encryption of bodies with the keys in `STEPLOG_KEY`: AES-256-GCM of `cryptography`, imported when first used.

A key is 32 random bytes, written in base64 or hex. Three keys are derived from it (HMAC-SHA256), so that none does two
jobs: one encrypts, one makes names of bodies, one makes the fingerprints that tell secret arguments apart. Its id, the
first 8 bytes of a fourth, is stored beside everything that it has encrypted and tells nothing of the key.

The lines of a log cannot be rewritten, so the names and fingerprints in them stay those of the key of their time. Where
that key was rotated away (`rotation.py`), the two keys that make these lie in the body store, sealed under the newest.

What is sealed begins with a format byte, the key id and a random nonce of 12 bytes. NIST SP 800-38D allows 2^32
messages under one key with random nonces; change the key (the new one first, the old ones behind it) before that.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

from steplog.errors import Corrupt, InvalidArgument, KeyMissing

_FORMAT: Final = b"\x01"
_ID: Final = 8
_NONCE: Final = 12
_SIZE: Final = 32
_RETIRED: Final = b"retired "


class Namer:
    """What of a key makes names and fingerprints: all that is kept of one that was rotated away.

    Attributes:
        id: 8 bytes that name the key.
    """

    def __init__(self, key_id: bytes, naming: bytes, printing: bytes) -> None:
        self.id = key_id
        self._naming = naming
        self._printing = printing

    def name(self, digest: bytes) -> bytes:
        """The keyed name of what has this SHA-256."""
        return hmac.digest(self._naming, digest, "sha256")

    def fingerprint(self, data: bytes) -> bytes:
        """32 bytes that are the same for the same data, and tell nobody without the key what it is."""
        return hmac.digest(self._printing, data, "sha256")

    def kept(self) -> bytes:
        """Both keys, for `Keyring.learn`."""
        return self._naming + self._printing


class Key(Namer):
    """One key, and what is derived from it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        super().__init__(self._derived(b"id")[:_ID], self._derived(b"name"), self._derived(b"fingerprint"))

    def _derived(self, use: bytes) -> bytes:
        return hmac.digest(self._secret, b"steplog 1 " + use, "sha256")

    @cached_property
    def aead(self) -> Any:
        """AES-256-GCM under this key."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._derived(b"encrypt"))


class Keyring:
    """Several keys: the first encrypts, all decrypt. Implements `Cipher`.

    Attributes:
        keys: the newest first.
        key_id: id of the first.
        source: gives what a body store keeps of keys that were rotated away; set by the store.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        self.keys = {key.id: key for key in keys}
        self.source: Callable[[], Iterable[tuple[bytes, bytes]]] | None = None
        self._retired: dict[bytes, Namer] = {}
        self._newest = keys[0]
        self.key_id = keys[0].id

    def key(self, key_id: bytes, *, run_id: str | None = None) -> Key:
        """The key of this id. Raises KeyMissing where it is not among them."""
        found = self.keys.get(key_id)
        if found is None:
            raise missing(key_id, self.keys, run_id=run_id)
        return found

    def namer(self, key_id: bytes, *, run_id: str | None = None) -> Namer:
        """What makes names and fingerprints under a key, at hand or rotated away. Raises KeyMissing."""
        if key_id not in self.keys and key_id not in self._retired:
            self._learn()
        return self._retired.get(key_id) or self.key(key_id, run_id=run_id)

    def name(self, digest: bytes) -> bytes:
        """The name of a body, under the newest key."""
        return self._newest.name(digest)

    def is_name(self, name: bytes, digest: bytes) -> bool:
        """Whether it is, or begins, the name of a body under any key or none, one that was rotated away included."""
        if name and not self._names(name, digest):
            self._learn()
        return bool(name) and self._names(name, digest)

    def _names(self, name: bytes, digest: bytes) -> bool:
        namers = (*self.keys.values(), *self._retired.values())
        return digest.startswith(name) or any(namer.name(digest).startswith(name) for namer in namers)

    def retire(self, namer: Namer) -> bytes:
        """What a body store is to keep of a key that is rotated away: sealed under the newest."""
        return self.seal(namer.kept(), _RETIRED + namer.id)

    def _learn(self) -> None:
        for key_id, sealed in self.source() if self.source else ():
            if key_id not in self._retired and key_id not in self.keys and key_id_of(sealed) in self.keys:
                self._retired[key_id] = self.retired(key_id, sealed)

    def retired(self, key_id: bytes, sealed: bytes) -> Namer:
        """What `retire` has sealed. Raises KeyMissing, Corrupt."""
        kept = self.open(sealed, _RETIRED + key_id)
        return Namer(key_id, kept[:_SIZE], kept[_SIZE:])

    def seal(self, data: bytes, context: bytes) -> bytes:
        """Encrypt, under the newest key."""
        nonce = os.urandom(_NONCE)
        head = _FORMAT + self.key_id + nonce
        sealed: bytes = head + self._newest.aead.encrypt(nonce, data, head + context)
        return sealed

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Decrypt.

        Raises:
            KeyMissing: it was sealed with a key that is not among these.
            Corrupt: it was altered, moved, or is no sealed text.
        """
        from cryptography.exceptions import InvalidTag

        end = len(_FORMAT) + _ID + _NONCE
        head = sealed[:end]
        if len(head) < end or head[:1] != _FORMAT:
            raise Corrupt("an encrypted body is damaged: it does not begin as one. Restore bodies.db from a copy.")
        try:
            data: bytes = self.key(key_id_of(head)).aead.decrypt(head[-_NONCE:], sealed[end:], head + context)
        except InvalidTag:
            message = "an encrypted body is damaged: its seal does not fit. Restore bodies.db from a copy."
            raise Corrupt(message) from None
        return data


def missing(
    key_id: bytes, held: Collection[bytes] = (), *, run_id: str | None = None, path: str | None = None
) -> KeyMissing:
    """The error for something that was encrypted with a key that is not at hand."""
    have = f"STEPLOG_KEY holds {', '.join(sorted(one.hex() for one in held))}" if held else "STEPLOG_KEY is not set"
    what = f"run {run_id}" if run_id else f"a body in {path}" if path else "a body"
    go_on = f"\nThen go on: steplog resume {run_id}" if run_id else ""
    add = (
        "Add that key to STEPLOG_KEY, behind the newest: STEPLOG_KEY=NEW,OLD" if held else "Set STEPLOG_KEY to that key"
    )
    return KeyMissing(
        f"{what} needs the key {key_id.hex()}, and {have}.\n{add}. Nothing is lost while the key is kept.{go_on}",
        key_id=key_id.hex(),
        run_id=run_id,
        path=path,
    )


def key_id_of(sealed: bytes) -> bytes:
    """The id of the key that something was sealed with."""
    return sealed[len(_FORMAT) : len(_FORMAT) + _ID]


def new_key() -> str:
    """A new random key, in base64."""
    return base64.b64encode(os.urandom(_SIZE)).decode()


def keyring(text: str) -> Keyring | None:
    """The keys of a setting: keys in base64 or hex, separated by commas, the newest first; None where there is none.

    Raises:
        InvalidArgument: one of them is no key, or `cryptography` is not installed.
    """
    parts = [part for one in text.split(",") if (part := one.strip())]
    if not parts:
        return None
    keys = [Key(_parsed(part, number)) for number, part in enumerate(parts, 1)]
    from importlib.util import find_spec

    if find_spec("cryptography") is None:
        message = "encryption with a key (STEPLOG_KEY) needs a library: pip install 'steplog[crypto]'"
        raise InvalidArgument(message)
    return Keyring(keys)


def _parsed(text: str, number: int) -> bytes:
    try:
        key = bytes.fromhex(text) if len(text) == 2 * _SIZE else base64.b64decode(_standard(text), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != _SIZE:
        # Not the text itself: what is nearly a key does not belong into a message.
        message = (
            f"STEPLOG_KEY: number {number} is no key ({len(text)} characters). A key is 32 random bytes in base64 or "
            f"hex; several are separated by commas, the newest first.\nMake one: steplog key"
        )
        raise InvalidArgument(message)
    return key


def _standard(text: str) -> str:
    text = text.replace("-", "+").replace("_", "/").rstrip("=")
    return text + "=" * (-len(text) % 4)
