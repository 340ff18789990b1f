"""What a replay has refused outside its runs, and what of it counts against the verdict."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from steplog._runtime.open_sockets import held, leading_off
from steplog._runtime.reach import address
from steplog._runtime.reports import REFUSED

if TYPE_CHECKING:
    from steplog._runtime.kernel_guard import KernelGuard

_CONNECTIONS: Final = ("connection to ", "look-up of ")

# Libraries that open sockets in C. Only the kernel's guard stops them.
_PAST_THE_INTERPRETER: Final = {"grpc._cython.cygrpc": "grpc", "uvloop.loop": "uvloop", "pycurl": "pycurl"}


class Refusals:
    """Noted as they happen.

    Args:
        ignored: hosts, or hosts with a port, whose connections fail like those of a host that is down.
        kernel: the kernel's guard, or None where there is none.
    """

    def __init__(self, ignored: Collection[str], kernel: KernelGuard | None) -> None:
        self.kernel = kernel
        self._ignored = frozenset(ignored)
        self._noted: list[str] = []
        self._lock = threading.Lock()
        self._held = held()
        self._passed: set[str] = set()

    @classmethod
    def under_guard(cls, ignored: Collection[str], allowed: Collection[str], *, for_good: bool) -> Refusals:
        """Noted from now on, under the kernel's guard as well where that may stay for ever."""
        if not for_good:
            return cls(ignored, None)
        from steplog._runtime import kernel_guard

        return cls(ignored, kernel_guard.start(allowed))

    @property
    def guard(self) -> str:
        """What refuses connections: `kernel` or `interpreter`."""
        return "interpreter" if self.kernel is None else "kernel"

    def note_told(self, told: Collection[dict[str, Any]]) -> None:
        """Note what child processes tell."""
        for line in told:
            if line["what"] == REFUSED:
                self.note(f"{line['refused']}, in a child process")

    def note(self, what: str) -> None:
        """Something was refused outside the runs."""
        with self._lock:
            self._noted.append(what)

    def everything(self) -> list[str]:
        """What was refused, in order: first what the interpreter's guard has refused, then what the kernel's has."""
        told = [] if self.kernel is None else self.kernel.refused()
        with self._lock:
            return [*self._noted, *told]

    def first(self) -> str | None:
        """The first that counts, or None."""
        return next((what for what in self.everything() if not self.ignores(what)), None)

    def ignores(self, what: str) -> bool:
        """Whether this is a connection that is named as none of the replay's business."""
        if not self._ignored:
            return False
        for start in _CONNECTIONS:
            if what.startswith(start):
                named = what.removeprefix(start)
                return not self._ignored.isdisjoint((named, named.rpartition(":")[0]))
        return False

    def as_if_down(self, what: str) -> OSError:
        """The exception for a connection that is ignored."""
        return ConnectionRefusedError(errno.ECONNREFUSED, f"{what} is refused in a replay, as if it were down")

    def passes(self, host: str, port: Any) -> None:
        """The interpreter's guard has let a connection pass."""
        if self.kernel is not None:
            self.kernel.passes(host, port)
        self._passed.add(address(host, port))

    def unseen(self) -> list[str]:
        """Connections to other machines that are open, were not before, and that no guard has seen."""
        return [to for to in leading_off(held() - self._held) if to not in self._passed]


def past_the_interpreter() -> list[str]:
    """Loaded libraries whose connections the interpreter's guard does not see."""
    return sorted(name for module, name in _PAST_THE_INTERPRETER.items() if module in sys.modules)
