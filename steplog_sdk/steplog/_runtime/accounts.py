"""For whom a call is made: how that is recorded, and how long a branch waits until others have taken what is theirs."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from steplog._runtime.context import Frame
from steplog._runtime.drive import Pause, Steps

if TYPE_CHECKING:
    from steplog._runtime.dispatch import Dispatch, Submitted
    from steplog._runtime.ticket import Call

# Enough to tell the accounts of one program apart, and too little to try guesses of a credential on.
_BYTES: Final = 2

_PAUSE_SECONDS: Final = 0.01
# Where branches go on asking meanwhile, at most this many times longer.
_MOST: Final = 12


class Doubt(NamedTuple):
    """A request of an account of which the log does not tell which recorded one it is.

    Attributes:
        taken: its own was given to another account before.
        account: who asked.
        steps: ids of the recorded steps that it could be.
    """

    taken: bool
    account: str
    steps: tuple[str, ...]


class Digests:
    """What accounts are called in the log of one run.

    The digest is keyed with the run's id, so that the logs of two runs do not show that they were made with one key.
    """

    def __init__(self, run_id: str) -> None:
        self._key = hashlib.sha256(run_id.encode()).digest()
        self._known: dict[str, str] = {"": ""}

    def of(self, account: str) -> str:
        """16 bits of a digest, as four hex digits; "" of no account."""
        found = self._known.get(account)
        if found is None:
            found = hashlib.blake2b(account.encode(), digest_size=_BYTES, key=self._key).hexdigest()
            self._known[account] = found
        return found


def await_accounts(
    dispatch: Dispatch, call: Call, place: Frame, hashed: str, branch: str, grace: float
) -> Steps[Submitted]:
    """Submit a call when other branches have asked for what is theirs, or ask for nothing any more."""
    began = since = time.monotonic()
    asked = dispatch.asked
    while True:
        yield Pause(_PAUSE_SECONDS)
        now = time.monotonic()
        if asked != dispatch.asked:
            asked, since = dispatch.asked, now
        if now - since > grace or now - began > grace * _MOST:
            # Who has waited in vain once need not do so for every account whose credentials have changed.
            dispatch.patient = False
        submitted = dispatch.submit(call, place, hashed, branch)
        if submitted is not None:
            return submitted
