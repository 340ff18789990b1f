"""The kernel's own guard for `steplog replay` on Linux: code with sockets of its own is refused as well.

The egress guard hears what goes through the interpreter. gRPC's core, libuv (uvloop), libcurl and other libraries in C
call the kernel directly. So the process that `steplog replay` has to itself asks the kernel to stop every `connect`,
and every datagram with an address, until a second process has looked at it (seccomp with user notification, see
seccomp_unotify(2); no privileges are needed). Child processes inherit it, whatever they are.

It is no wall against an attacker: between the look and the call another thread could change the address. It can never
be taken back, which is why a replay inside a longer-lived process goes without.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
import threading
import warnings
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from steplog._runtime import kernel_watch
from steplog._runtime.children import WATCHER
from steplog._runtime.kernel_watch import Calls, Shared


class _Machine(NamedTuple):
    """What the kernel calls things on one architecture: its audit number, and numbers of system calls."""

    audit: int
    seccomp: int
    calls: Calls


_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 317, Calls(connect=42, sendto=44, sendmsg=46, sendmmsg=307)),
    "aarch64": _Machine(0xC00000B7, 277, Calls(connect=203, sendto=206, sendmsg=211, sendmmsg=269)),
}
# Requests that go through a ring are not system calls of their own; the same number on both architectures.
_IO_URING_SETUP: Final = 425

# prctl(2) and seccomp(2).
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_PTRACER: Final = 0x59616D61
_SET_MODE_FILTER: Final = 1
_GET_ACTION_AVAIL: Final = 2
_NEW_LISTENER: Final = 1 << 3
_ALLOW: Final = 0x7FFF0000
_NOTIFY: Final = 0x7FC00000
_ERRNO: Final = 0x00050000
_ENOSYS: Final = 38

# Offsets in `struct seccomp_data`.
_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
_FIFTH_ARGUMENT: Final = 16 + 8 * 4

# Classic BPF: load a word, jump if equal, return.
_LOAD: Final = 0x20
_IF_EQUAL: Final = 0x15
_RETURN: Final = 0x06

# Before 5.9 the kernel does not tell when the last process under a filter is gone, so who watches would stay for ever.
_OLDEST: Final = (5, 9)
_SHARED_BYTES: Final = 1 << 17


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


class KernelGuard:
    """The guard of this process and of all that it starts from now on.

    Args:
        shared: what this process and the one that watches tell each other.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def passes(self, host: str, port: Any) -> None:
        """The interpreter's guard has let a connection pass, so the kernel's does too."""
        line = f"{host} {port}"
        with self._lock:
            if line not in self._said:
                self._said.add(line)
                self._shared.say(line)

    def refused(self) -> list[str]:
        """What was refused so far, in order, each once."""
        return self._shared.told()


def start(allowed: Collection[str]) -> KernelGuard | None:
    """Put this process under the kernel's guard, for good.

    Args:
        allowed: hosts, hosts with a port, and programs that pass.

    Returns:
        The guard, or None where the system has nothing of the kind: another system than Linux, an old kernel, a
        container that forbids it.
    """
    machine = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None or _kernel() < _OLDEST or not hasattr(os, "pidfd_open"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    action = ctypes.c_uint32(_NOTIFY)
    if libc.syscall(machine.seccomp, _GET_ACTION_AVAIL, 0, ctypes.byref(action)) != 0:
        return None
    shared = Shared(mmap.mmap(-1, _SHARED_BYTES))
    ours, theirs = _pipe_pair()
    watcher = _fork_watcher(machine.calls, shared, allowed, theirs)
    try:
        _let_look(libc, watcher)
        os.register_at_fork(after_in_child=lambda: _let_look(libc, watcher))
        os.environ[WATCHER] = str(watcher)
        listener = _filtered(libc, machine)
        os.write(ours[1], f"{listener}\n".encode())
        if listener < 0:
            return None
        has_it = os.read(ours[0], 1) == kernel_watch.READY
        os.close(listener)
        if not has_it:  # nobody answers, so every connection fails from now on; that is safe, and the text says why
            raise OSError("the process that decides on connections of this replay could not be set up")
    finally:
        for end in ours:
            os.close(end)
    return KernelGuard(shared)


def let_look() -> None:
    """Let the process that decides look into this one, a child that was started anew."""
    watcher = os.environ.get(WATCHER, "")
    if watcher.isdecimal() and os.path.exists("/proc/sys/kernel/yama"):
        _let_look(ctypes.CDLL(None), int(watcher))


def _let_look(libc: Any, watcher: int) -> None:
    # Where a process may look only into its descendants (Yama), it has to be allowed to look into this one.
    libc.prctl(_PR_SET_PTRACER, watcher, 0, 0, 0)


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdecimal())


def _pipe_pair() -> tuple[tuple[int, int], tuple[int, int]]:
    """Two ends to read from and write to, one for each process."""
    to_us, from_them = os.pipe()
    to_them, from_us = os.pipe()
    return (to_us, from_us), (to_them, from_them)


def _fork_watcher(calls: Calls, shared: Shared, allowed: Collection[str], theirs: tuple[int, int]) -> int:
    """Start the process that watches; returns its id. It is no child of this one, whose program may wait for any."""
    root = os.getpid()
    id_out, id_in = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads do not follow: it needs none
        middle = os.fork()
        if middle == 0:
            try:
                watcher = os.fork()
                if watcher == 0:
                    kernel_watch.serve(root, calls, shared, allowed, theirs)
                os.write(id_in, str(watcher).encode())
            finally:
                os._exit(0)
    os.waitpid(middle, 0)
    for end in (id_in, *theirs):
        os.close(end)
    try:
        return int(os.read(id_out, 20))
    finally:
        os.close(id_out)


def _filtered(libc: Any, machine: _Machine) -> int:
    """Install the filter on this thread and all that it starts; returns the listener's descriptor, or -1."""
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return -1
    instructions = [_Instruction(*each) for each in _program(machine)]
    program = _Program(len(instructions), (_Instruction * len(instructions))(*instructions))
    return int(libc.syscall(machine.seccomp, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program)))


def _program(machine: _Machine) -> list[tuple[int, int, int, int]]:
    """The filter: which system calls are looked at, by number; `sendto` only where it names an address."""
    calls = machine.calls
    allow, notify, no_ring = ((_RETURN, 0, 0, what) for what in (_ALLOW, _NOTIFY, _ERRNO | _ENOSYS))
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, machine.audit),
        allow,
        (_LOAD, 0, 0, _NUMBER),
        (_IF_EQUAL, 9, 0, calls.connect),
        (_IF_EQUAL, 8, 0, calls.sendmsg),
        (_IF_EQUAL, 7, 0, calls.sendmmsg),
        (_IF_EQUAL, 7, 0, _IO_URING_SETUP),
        (_IF_EQUAL, 0, 4, calls.sendto),
        (_LOAD, 0, 0, _FIFTH_ARGUMENT),
        (_IF_EQUAL, 0, 3, 0),
        (_LOAD, 0, 0, _FIFTH_ARGUMENT + 4),
        (_IF_EQUAL, 0, 1, 0),
        allow,
        notify,
        no_ring,
    ]
