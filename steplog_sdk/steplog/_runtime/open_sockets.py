"""The sockets that this process holds, as Linux tells of them in /proc: to find connections that no guard has seen."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Collection, Iterator
from typing import Final

from steplog._runtime.reach import address, is_local

_TABLES: Final = {"tcp": socket.AF_INET, "tcp6": socket.AF_INET6}
# Columns of /proc/net/tcp.
_LOCAL: Final = 1
_REMOTE: Final = 2
_STATE: Final = 3
_INODE: Final = 9

_LISTENING: Final = "0A"


def held() -> frozenset[str]:
    """Inodes of the sockets that are open now; none where the system has no /proc."""
    found = set()
    with contextlib.suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile, such as the one that the list is read through
                name = os.readlink(f"/proc/self/fd/{number}")
                if name.startswith("socket:["):
                    found.add(name[8:-1])
    return frozenset(found)


def leading_off(inodes: Collection[str]) -> list[str]:
    """Where those of these sockets lead that are connected, or connecting, to another machine, as `host:port`."""
    return sorted({there for name in _TABLES for there in _others(name, inodes)}) if inodes else []


def _others(name: str, inodes: Collection[str]) -> Iterator[str]:
    try:
        with open(f"/proc/self/net/{name}", encoding="ascii") as table:
            rows = [line.split() for line in table][1:]
    except OSError:
        return  # a kernel without IPv6, or a sandbox that hides it
    # What has come in at a port on which somebody listens, this process has not connected to.
    served = {_port(row) for row in rows if row[_STATE] == _LISTENING}
    for row in rows:
        if row[_INODE] in inodes and _port(row) not in served:
            host, port = _address(row[_REMOTE], _TABLES[name])
            if port and not is_local(host):
                yield address(host, port)


def _port(row: list[str]) -> str:
    return row[_LOCAL].rpartition(":")[2]


def _address(written: str, family: int) -> tuple[str, int]:
    """An address as the kernel writes it: 32-bit words of the machine's byte order, in hexadecimal."""
    host, _, port = written.partition(":")
    words = [int(host[start : start + 8], 16) for start in range(0, len(host), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(family, packed).removeprefix("::ffff:"), int(port, 16)
