"""The process that decides on connections for the kernel's guard (`kernel_guard`), and what it is told and tells.

It is forked before the guard is there, is not under it, and lives as long as any process that is. The kernel stops a
system call, this looks at the address in the caller's memory and answers: go on, or fail with `EACCES`. Without it,
every such call fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import mmap
import os
import select
import signal
import socket
import struct
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple, NoReturn

from steplog._runtime.reach import Reach, address, is_local

READY: Final = b"+"
"""What the process that watches says when it has the listener."""


class Calls(NamedTuple):
    """Numbers of the system calls that are looked at."""

    connect: int
    sendto: int
    sendmsg: int
    sendmmsg: int


class Shared:
    """A piece of memory of both processes: two lists of lines that only grow.

    A descriptor in its place could be closed by the program.

    Args:
        memory: zeroed, and shared between processes.
    """

    # Each half begins with the number of its bytes in use.
    _HEAD: Final = struct.Struct("<Q")

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._half = len(memory) // 2

    def say(self, line: str) -> None:
        """Add a line for the process that watches."""
        self._add(0, line)

    def said(self) -> list[str]:
        """The lines for the process that watches."""
        return self._lines(0)

    def tell(self, line: str) -> None:
        """Add a line for the process that is guarded."""
        self._add(self._half, line)

    def told(self) -> list[str]:
        """The lines for the process that is guarded."""
        return self._lines(self._half)

    def _add(self, start: int, line: str) -> None:
        data = line.encode("utf-8", "replace") + b"\n"
        used = self._HEAD.unpack_from(self._memory, start)[0]
        begin = start + self._HEAD.size + used
        if begin + len(data) > start + self._half:
            return  # thousands of addresses: what is not said is refused, and what is not told was told of others
        self._memory[begin : begin + len(data)] = data
        self._HEAD.pack_into(self._memory, start, used + len(data))

    def _lines(self, start: int) -> list[str]:
        used = self._HEAD.unpack_from(self._memory, start)[0]
        begin = start + self._HEAD.size
        return self._memory[begin : begin + used].decode("utf-8", "replace").splitlines()


class Destination(NamedTuple):
    """Where a system call leads."""

    host: str
    port: int


# seccomp_unotify(2): `struct seccomp_notif` and `struct seccomp_notif_resp`.
_NOTICE: Final = struct.Struct("<QIIiIQ6Q")
_ANSWER: Final = struct.Struct("<QqiI")
_RECEIVE: Final = 0xC0502100
_SEND: Final = 0xC0182101
_GO_ON: Final = 1
_PIDFD_GETFD: Final = 438  # on every architecture

_DNS: Final = 53
# `struct msghdr`, and `struct mmsghdr` around it, of 64-bit Linux.
_MSGHDR: Final = struct.Struct("<QI")
_MMSGHDR_BYTES: Final = 64
_MOST_MESSAGES: Final = 64
_LONGEST_ADDRESS: Final = 28
# How far up a program is looked for that is allowed and has started the one that connects.
_MOST_ANCESTORS: Final = 32


def serve(root: int, calls: Calls, shared: Shared, allowed: Collection[str], pipes: tuple[int, int]) -> NoReturn:
    """Become the process that watches; ends with the last process that is guarded.

    Args:
        root: id of the process that is guarded.
        calls: numbers of the system calls.
        shared: what the two tell each other.
        allowed: what may be reached.
        pipes: to be read from and written to until the listener is here.
    """
    try:
        gc.disable()
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        _close_all_but(pipes)
        listener = _fetch(root, int(os.read(pipes[0], 20)))
        os.write(pipes[1], READY)
        for end in pipes:
            os.close(end)
        _Watch(root, listener, calls, shared, Reach(allowed)).serve()
    finally:
        os._exit(0)


def _close_all_but(kept: tuple[int, int]) -> None:
    """Let go of what was inherited: who reads the output of the guarded process waits for its end."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the one that the list was read through
                os.close(int(name))


def _fetch(process: int, descriptor: int) -> int:
    """A copy of another process's descriptor.

    Raises:
        OSError: this process may not look into that one, or it is gone.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    opened = os.pidfd_open(process)
    try:
        found = int(libc.syscall(_PIDFD_GETFD, opened, descriptor, 0))
    finally:
        os.close(opened)
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


class _Watch:
    def __init__(self, root: int, listener: int, calls: Calls, shared: Shared, reach: Reach) -> None:
        self._root = root
        self._listener = listener
        self._calls = calls
        self._shared = shared
        self._reach = reach
        self._told: set[str] = set()

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            for _, events in poll.poll():
                if events & select.POLLIN:
                    self._answer()
                elif events:
                    return  # no process is under the filter any more

    def _answer(self) -> None:
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notice)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return  # the thread was killed while it waited
            raise
        id_, thread, _, number, _, _, *arguments = _NOTICE.unpack(notice)
        refused = self._refused(thread, number, arguments)
        answer = (id_, 0, -errno.EACCES, 0) if refused else (id_, 0, 0, _GO_ON)
        with contextlib.suppress(FileNotFoundError):  # as above
            fcntl.ioctl(self._listener, _SEND, bytearray(_ANSWER.pack(*answer)))

    def _refused(self, thread: int, number: int, arguments: list[int]) -> bool:
        try:
            found = list(self._destinations(thread, number, arguments))
        except OSError:
            self._tell("connection to an address that cannot be looked at")
            return True
        if not found:
            return False
        process = _group(thread)
        refused = [one for one in found if not self._passes(process, number, arguments[0], one)]
        for one in refused:
            self._tell(f"connection to {address(*one)}")
        return bool(refused)

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._shared.tell(what)

    def _destinations(self, thread: int, number: int, arguments: list[int]) -> Iterator[Destination]:
        with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
            for start, length in _names(memory.fileno(), number, arguments, self._calls):
                found = destination(os.pread(memory.fileno(), min(length, _LONGEST_ADDRESS), start) if start else b"")
                if found is not None:
                    yield found

    def _passes(self, process: int, number: int, descriptor: int, to: Destination) -> bool:
        if self._reach.allows(to.host, to.port) or self._was_said(to):
            return True
        if to.port == _DNS and self._reach.looks_up():
            return True
        if (
            number == self._calls.connect
            and to.port != _DNS
            and is_local(to.host)
            and _is_datagram(process, descriptor)
        ):
            return True  # sends nothing: the way of the C library to sort addresses
        return self._is_allowed_program(process)

    def _was_said(self, to: Destination) -> bool:
        host = "localhost" if is_local(to.host) else to.host
        return any(_same(line, host, to.port) for line in self._shared.said())

    def _is_allowed_program(self, process: int) -> bool:
        """Whether a process is one that may reach what it likes, or was started by one."""
        if not self._reach.named:
            return False
        for _ in range(_MOST_ANCESTORS):
            if process in (0, self._root):
                return False
            if not self._reach.named.isdisjoint(_names_of(process)):
                return True
            process = _parent(process)
        return False


def _names(memory: int, number: int, arguments: list[int], calls: Calls) -> Iterator[tuple[int, int]]:
    """Where the addresses of a system call begin, and how long they are."""
    if number == calls.connect:
        yield arguments[1], arguments[2]
    elif number == calls.sendto:
        yield arguments[4], arguments[5]
    else:
        messages = min(arguments[2], _MOST_MESSAGES) if number == calls.sendmmsg else 1
        for place in range(messages):
            yield _MSGHDR.unpack(os.pread(memory, _MSGHDR.size, arguments[1] + place * _MMSGHDR_BYTES))


def destination(name: bytes) -> Destination | None:
    """What a `sockaddr` names, or None where that is no address of the internet."""
    if len(name) < 2:
        return None
    family = struct.unpack_from("=H", name)[0]
    if family == socket.AF_INET and len(name) >= 8:
        return Destination(socket.inet_ntop(socket.AF_INET, name[4:8]), struct.unpack_from("!H", name, 2)[0])
    if family == socket.AF_INET6 and len(name) >= 24:
        host = socket.inet_ntop(socket.AF_INET6, name[8:24]).removeprefix("::ffff:")
        return Destination(host, struct.unpack_from("!H", name, 2)[0])
    return None


def _same(line: str, host: str, port: int) -> bool:
    said, _, said_port = line.rpartition(" ")
    return said_port == str(port) and ("localhost" if is_local(said) else said.removeprefix("::ffff:")) == host


def _is_datagram(process: int, descriptor: int) -> bool:
    try:
        copy = socket.socket(fileno=_fetch(process, descriptor))
    except OSError:
        return False
    with copy:
        return copy.type == socket.SOCK_DGRAM


def _status(process: int, name: str) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{process}/status", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key == name:
                return int(value)
    return 0


def _group(thread: int) -> int:
    return _status(thread, "Tgid")


def _parent(process: int) -> int:
    return _status(process, "PPid")


def _names_of(process: int) -> set[str]:
    """What a program may be called: its file, and the first word of its command line, with and without folder."""
    found = set()
    with contextlib.suppress(OSError):
        found.add(os.readlink(f"/proc/{process}/exe"))
    with contextlib.suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as words:
        found.add(os.fsdecode(words.read(4096).split(b"\0")[0]))
    return found | {os.path.basename(name) for name in found}
