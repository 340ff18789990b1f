"""What a replay may reach although it is not recorded: hosts and programs by name, with the addresses of hosts.

A program connects to an address that a name was resolved to, so a host that is allowed by its name is looked up here
as well, once, when an address is asked about that is not allowed by itself.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Any, Final

LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::", ""})  # noqa: S104  # a list of names


class Reach:
    """Hosts (`127.0.0.1`), hosts with a port (`db.internal:5432`) and programs (`git`), as they were typed.

    Args:
        named: what may be reached.
    """

    def __init__(self, named: Collection[str]) -> None:
        self.named: Final = frozenset(named)
        self._addresses: frozenset[str] | None = None

    def allows(self, host: str, port: Any) -> bool:
        """Whether this address, or this name, may be connected to or looked up."""
        wanted = {host, address(host, port)}
        if not wanted.isdisjoint(self.named):
            return True
        return bool(self.named) and is_address(host) and not wanted.isdisjoint(self._resolved())

    def looks_up(self) -> bool:
        """Whether anything may be reached whose name has to be resolved."""
        return bool(self._resolved())

    def _resolved(self) -> frozenset[str]:
        if self._addresses is None:
            found: set[str] = set()
            for one in self.named:
                host, divided, port = one.rpartition(":")
                host, port = (host, port) if divided and port.isdecimal() else (one, "")
                if host in LOCAL or is_address(host) or "." not in host:
                    continue  # an address is compared as it stands, and a word without a dot is a program
                found.update(address(ip, port or None) for ip in _addresses_of(host))
            self._addresses = frozenset(found)
        return self._addresses


def address(host: str, port: Any) -> str:
    """`host:port`, or the host alone where there is no port."""
    return host if port is None else f"{host}:{port}"


def is_local(host: str) -> bool:
    """Whether a host is this machine."""
    return host in LOCAL or host.startswith(("127.", "::ffff:127."))


def is_address(host: str) -> bool:
    """Whether a host is written as an address rather than as a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return True
    return False


def _addresses_of(host: str) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None)]
    except OSError:
        return []  # it has no address, so nothing can be connected to under its name
