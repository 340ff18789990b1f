"""Nothing leaves the process unseen: while the guard is on, connections and child processes are refused.

The interceptors refuse what they know; this stands behind them, for plain functions that open a socket, libraries that
nobody has patched, background threads and child processes. It listens to the interpreter's own audit events rather than
replace `socket.connect`, which other tools replace too. What is sent over a connection that was there before raises no
event and is asked about where it is sent (`sends`).

Refused are connections, datagrams and name look-ups that lead off this machine, from any thread; inside a run those to
this machine too, since a service on it is a service. Unix sockets and socket pairs, of which event loops and test
runners are made, pass. A child process passes where it is a python that is under this guard itself; others are refused.

Code that does not go through the interpreter (libraries in C with sockets of their own, such as gRPC's) raises no audit
event and is not seen here; `kernel_guard` stands behind this one where a replay has a process to itself.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from steplog._runtime.children import Marked, Told, why_unguarded
from steplog._runtime.context import frame
from steplog._runtime.reach import LOCAL, Reach, address, is_local
from steplog._runtime.sends import Sends
from steplog._runtime.spawns import Spawns

Refuse = Callable[[str], BaseException]
"""Makes the exception that a refused action raises, given what was refused in a few words."""

Passes = Callable[[str, Any], None]
"""Hears of a connection that is let pass: host and port."""

# Modules that ask the system about itself by a child process (`uname`, `ldconfig`): SDKs name the machine in a header.
_ASKS_THE_SYSTEM: Final = frozenset({"platform", "ctypes.util", "uuid", "distro", "distro.distro"})
_STARTERS: Final = frozenset({"subprocess", "os", "steplog._runtime.spawns", __name__})


class _Guard:
    """One who wants the guard on.

    Attributes:
        refuse: makes the exception for what is refused.
        reach: hosts, `host:port` pairs and commands that pass.
        local: whether connections to this machine pass outside a run.
        passes: hears of connections that pass, or None.
        told: what child processes are told.
    """

    def __init__(self, refuse: Refuse, told: Told, *, local: bool, passes: Passes | None) -> None:
        self.refuse = refuse
        self.reach = Reach(told.allowed)
        self.local = local
        self.passes = passes
        self.told = told


# Those who want the guard on; it is off while there is none. The newest says what passes and how it is refused.
_guards: Final[list[_Guard]] = []
_lock: Final = threading.Lock()
_hooked = False
_marked: Marked | None = None
_replaced: tuple[Sends, Spawns] | None = None


class _Inside(threading.local):
    """Whether this thread is in the guard already: making the refusal may itself raise audit events."""

    busy: bool = False


_inside: Final = _Inside()


@contextmanager
def guarded(refuse: Refuse, allowed: Collection[str] = ()) -> Iterator[None]:
    """Keep the guard on inside, for the whole process. May be nested and used from several threads.

    Args:
        refuse: makes the exception that a refused action raises.
        allowed: hosts (`127.0.0.1`), hosts with a port (`127.0.0.1:5432`) and names of programs (`git`) that pass.
    """
    release = engage(refuse, allowed)
    try:
        yield
    finally:
        release()


def engage(
    refuse: Refuse,
    allowed: Collection[str] = (),
    *,
    ignored: Collection[str] = (),
    report: str = "",
    local: bool = True,
    passes: Passes | None = None,
) -> Callable[[], None]:
    """Switch the guard on; returns what switches it off again.

    Args:
        refuse: makes the exception that a refused action raises.
        allowed: as for `guarded`.
        ignored: hosts that are, in child processes, as if they were down.
        report: the file into which child processes tell what happened, or "".
        local: whether connections to this machine pass outside a run.
        passes: hears of connections that pass.
    """
    global _hooked, _marked, _replaced  # noqa: PLW0603  # one hook and one environment for the process
    guard = _Guard(refuse, Told(report, list(allowed), list(ignored)), local=local, passes=passes)
    with _lock:
        _guards.append(guard)
        _marked = _marked or Marked()
        _marked.say(guard.told)
        _replaced = _replaced or (Sends(_sent), Spawns(_started))
        if not _hooked:
            # It cannot be taken back; with nobody on guard it does nothing.
            _hooked = True
            sys.addaudithook(_listen)

    def release() -> None:
        global _marked, _replaced  # noqa: PLW0603  # as above
        with _lock:
            if guard in _guards:
                _guards.remove(guard)
            if _guards and _marked is not None:
                _marked.say(_guards[-1].told)
            if not _guards and _marked is not None:
                _marked.take_back()
                _marked = None
            if not _guards and _replaced is not None:
                for replaced in _replaced:
                    replaced.take_back()
                _replaced = None

    return release


def guard_child() -> None:
    """Put this process under the guard of the one that has started it."""
    from steplog._runtime import replay_child

    replay_child.guard()


def active() -> bool:
    """Whether the guard is on."""
    return bool(_guards)


def _listen(event: str, args: tuple[Any, ...]) -> None:
    # The interpreter calls this for every audited action, thousands of times in an import; most of them end here.
    if not _guards:
        return
    look = _LOOKS.get(event)
    if look is not None:
        _ask(look, args)


def _sent(host: Any, port: Any) -> None:
    """Something is about to be sent over a connection that is open."""
    _ask(lambda guard, _: _address(guard, "connection to", host, port), ())


def _started(program: Any, words: list[Any], environment: dict[str, str] | None) -> None:
    """A child process is about to be started below `subprocess`."""
    _ask(lambda guard, _: _child(guard, program, words, environment), ())


def _ask(look: _Look, args: tuple[Any, ...]) -> None:
    if _inside.busy:
        return
    _inside.busy = True
    try:
        guard = _guards[-1]
        refused = look(guard, args)
        if refused:
            raise guard.refuse(refused)
    except IndexError:  # switched off by another thread just now
        return
    finally:
        _inside.busy = False


def _connection(guard: _Guard, args: tuple[Any, ...]) -> str:
    address = args[1]
    if address is None:
        address = _other_end(args[0])  # `sendmsg` over an open connection
    if not isinstance(address, tuple) or len(address) < 2:
        return ""  # a unix socket
    return _address(guard, "connection to", address[0], address[1])


def _other_end(sock: Any) -> Any:
    try:
        return sock.getpeername()
    except OSError:
        return None  # nobody is there, so the call itself fails


def _look_up(guard: _Guard, args: tuple[Any, ...]) -> str:
    host = args[0]
    host = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if host is None or str(host) in LOCAL:
        return ""  # a name of this machine; whether it is connected to is asked when it is
    return _address(guard, "look-up of", host, args[1] if len(args) > 1 else None)


def _address(guard: _Guard, what: str, host: Any, port: Any) -> str:
    host = str(host)
    is_free = is_local(host) and ((guard.local and frame() is None) or _makes_a_pair())
    if not is_free and not guard.reach.allows(host, port):
        return f"{what} {address(host, port)}"
    if guard.passes is not None:
        guard.passes(host, port)
    return ""


def _makes_a_pair() -> bool:
    """Whether a socket pair is being made, which is two connected sockets where the system has no other."""
    found = sys._getframe(1)  # noqa: SLF001  # `inspect` reads source files to say the same
    for _ in range(8):
        if found.f_code.co_name in ("socketpair", "_fallback_socketpair"):
            return True
        if found.f_back is None:
            break
        found = found.f_back
    return False


def _process(guard: _Guard, args: tuple[Any, ...]) -> str:
    """`subprocess.Popen`: executable, words, directory, environment."""
    words = [args[1]] if isinstance(args[1], (str, bytes, os.PathLike)) else list(args[1])
    return _child(guard, args[0], words, args[3])


def _spawn(guard: _Guard, args: tuple[Any, ...]) -> str:
    """`os.posix_spawn` and `os.exec`: path, words, environment."""
    return _child(guard, args[0], list(args[1]), args[2])


def _spawn_in_mode(guard: _Guard, args: tuple[Any, ...]) -> str:
    return _spawn(guard, args[1:])


def _shell(guard: _Guard, args: tuple[Any, ...]) -> str:
    command = _text(args[0])
    return _child(guard, command.partition(" ")[0], command.split(), {})


def _child(guard: _Guard, program: Any, words: list[Any], environment: Any) -> str:
    name = _text(program) if program is not None else _text(words[0] if words else "")
    if not guard.reach.named.isdisjoint((name, os.path.basename(name))):
        return ""
    why = why_unguarded(program, words, environment or None)
    return f"child process {name} ({why})" if why and not _asks_the_system() else ""


def _asks_the_system() -> bool:
    found: FrameType | None = sys._getframe(1)  # noqa: SLF001  # as above
    while found is not None:
        module = found.f_globals.get("__name__")
        if module not in _STARTERS:
            return module in _ASKS_THE_SYSTEM
        found = found.f_back
    return False


def _text(value: Any) -> str:
    try:
        return os.fsdecode(value)
    except TypeError:
        return str(value)


_Look = Callable[[_Guard, tuple[Any, ...]], str]

_LOOKS: Final[dict[str, _Look]] = {
    "socket.connect": _connection,
    "socket.sendto": _connection,
    "socket.sendmsg": _connection,
    "socket.getaddrinfo": _look_up,
    "socket.gethostbyname": _look_up,
    "socket.gethostbyaddr": _look_up,
    "subprocess.Popen": _process,
    "os.posix_spawn": _spawn,
    "os.spawn": _spawn_in_mode,
    "os.exec": _spawn,
    "os.system": _shell,
    "os.startfile": _shell,
}
