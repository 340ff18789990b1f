"""The world outside: what the agents' tools act on. It outlives every process of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class Shop:
    """Orders, and a till that notes every payment in a file.

    Attributes:
        folder: gets the file `effects`, one line for each thing that was done.
        moment: called with a name whenever a process may be killed.
    """

    def __init__(self) -> None:
        self.folder = Path(os.environ.get("SHOP", "."))
        self.moment: Callable[[str], None] = lambda _name: None

    def lookup(self, order_id: str) -> str:
        """Read an order."""
        self._note(f"lookup {order_id}")
        return f"{order_id}: one teapot, paid 4200 cents, delivered broken"

    def pay_back(self, order_id: str, cents: int) -> str:
        """Pay; the customer has the money when this returns."""
        self.moment("before-effect")
        self._note(f"refund {order_id} {cents}")
        self.moment("after-effect")
        return f"refunded {cents} cents for {order_id}"

    def _note(self, line: str) -> None:
        # One unbuffered write: what a killed process has done is noted, whole.
        fd = os.open(self.folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)


shop = Shop()
