"""What stands for a secret argument in a step's identity: the same for the same value, and no help in guessing it.

With `STEPLOG_KEY` it is an HMAC under a key derived from it, so nobody without the key can try values. Without a key
there is nothing secret to hash with that a resumed run would find again: it is scrypt over the value, salted with the
run id, which costs whoever tries values 16 MB and some 50 ms for each. That protects an API key, and not a PIN.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Final

from steplog._kernel.canonical import canonical
from steplog.stores.cipher import Namer, missing

_DIGITS: Final = 32


class Fingerprints:
    """Fingerprints of the secret arguments of one run.

    Args:
        run_id: the run.
        created: data of its `run.created`; `key` names the key that it began with, which its ids depend on.
        cipher: the keys at hand, or None.

    Raises:
        KeyMissing: the run began with a key that is not at hand.
    """

    def __init__(self, run_id: str, created: dict[str, Any], cipher: Any) -> None:
        self._run_id = run_id
        self._key: Namer | None = None
        key_id = created.get("key")
        if key_id is not None:
            if cipher is None:
                raise missing(bytes.fromhex(key_id), run_id=run_id)
            self._key = cipher.namer(bytes.fromhex(key_id), run_id=run_id)

    def of(self, tree: Any) -> str:
        """32 hex digits for an encoded value."""
        data = canonical(tree)
        made = _slow(self._run_id, data) if self._key is None else self._key.fingerprint(data)
        return made.hex()[:_DIGITS]


@lru_cache(maxsize=256)
def _slow(run_id: str, data: bytes) -> bytes:
    # OWASP's setting for scrypt at this size would take four times the time; a step is to stay well below a model call.
    return hashlib.scrypt(data, salt=b"steplog " + run_id.encode(), n=1 << 14, r=8, p=1, dklen=32)
