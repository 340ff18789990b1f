"""What is sent over a connection that was there before the guard was switched on.

A pooled connection of an HTTP client or a database driver raises no audit event when it is used again, so while the
guard is on, sockets ask before they send. The methods are put on the classes and taken off again.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any, Final

Check = Callable[[Any, Any], None]
"""Given host and port of the other end; raises where nothing may be sent there."""

_INTERNET: Final = frozenset({socket.AF_INET, socket.AF_INET6})
_BEFORE: Final = "__steplog_before__"


class Sends:
    """The senders of this process, each asking `check` first.

    Args:
        check: raises where nothing may be sent.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._put: list[tuple[type, str, Any]] = []
        for name in ("send", "sendall", "sendfile"):
            self._wrap(socket.socket, name)
        # Only who has imported it can hold a connection of its kind; one that is made later is seen being made.
        if "ssl" in sys.modules:
            for name in ("send", "sendall", "write"):
                self._wrap(sys.modules["ssl"].SSLSocket, name)

    def _wrap(self, owner: type, name: str) -> None:
        original = getattr(owner, name)
        check = self._check

        def asks_first(sock: Any, *args: Any, **kwargs: Any) -> Any:
            _ask(sock, check)
            return original(sock, *args, **kwargs)

        setattr(asks_first, _BEFORE, vars(owner).get(name))
        setattr(owner, name, asks_first)
        self._put.append((owner, name, asks_first))

    def take_back(self) -> None:
        """Leave the classes as they were; what somebody else has put there meanwhile stays."""
        for owner, name, put in reversed(self._put):
            if vars(owner).get(name) is not put:
                continue
            before = getattr(put, _BEFORE)
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _ask(sock: Any, check: Check) -> None:
    if sock.family not in _INTERNET:
        return
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return  # nobody is at the other end, so the call itself fails
    check(host, port)
