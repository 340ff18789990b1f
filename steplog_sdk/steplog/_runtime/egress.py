"""Nothing leaves the process unseen: while the guard is on, connections and child processes are refused.

The interceptors refuse what they know; this stands behind them, for plain functions that open a socket, libraries that
nobody has patched, background threads and child processes. It listens to the interpreter's own audit events rather than
replace `socket.connect`, which other tools replace too. What is sent over a connection that was there before raises no
event and is asked about where it is sent (`sends`).

Refused are connections, datagrams and name look-ups that lead off this machine, from any thread; inside a run those to
this machine too, since a service on it is a service. Unix sockets and socket pairs, of which event loops and test
runners are made, pass. A child process passes where it is a python that is under this guard itself; others are refused.

Code that does not go through the interpreter (libraries in C with sockets of their own, such as gRPC's) raises no audit
event and is not seen.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from steplog._runtime.children import Marked, why_unguarded
from steplog._runtime.context import frame
from steplog._runtime.sends import Sends

Refuse = Callable[[str], BaseException]
"""Makes the exception that a refused action raises, given what was refused in a few words."""

# Modules that ask the system about itself by a child process (`uname`, `ldconfig`): SDKs name the machine in a header.
_ASKS_THE_SYSTEM: Final = frozenset({"platform", "ctypes.util", "uuid", "distro", "distro.distro"})
_STARTERS: Final = frozenset({"subprocess", "os", __name__})

_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::", ""})  # noqa: S104  # a list of names


class _Guard:
    """One who wants the guard on.

    Attributes:
        refuse: makes the exception for what is refused.
        allowed: hosts, `host:port` pairs and commands that pass.
        local: whether connections to this machine pass outside a run.
    """

    def __init__(self, refuse: Refuse, allowed: Collection[str], *, local: bool) -> None:
        self.refuse = refuse
        self.allowed = frozenset(allowed)
        self.local = local


# Those who want the guard on; it is off while there is none. The newest says what passes and how it is refused.
_guards: Final[list[_Guard]] = []
_lock: Final = threading.Lock()
_hooked = False
_marked: Marked | None = None
_sends: Sends | None = None


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


def engage(refuse: Refuse, allowed: Collection[str] = (), *, local: bool = True) -> Callable[[], None]:
    """Switch the guard on; returns what switches it off again.

    Args:
        refuse: makes the exception that a refused action raises.
        allowed: as for `guarded`.
        local: whether connections to this machine pass outside a run.
    """
    global _hooked, _marked, _sends  # noqa: PLW0603  # one hook and one environment for the process
    guard = _Guard(refuse, allowed, local=local)
    with _lock:
        _guards.append(guard)
        _marked = _marked or Marked()
        _marked.say(guard.allowed)
        _sends = _sends or Sends(_sent)
        if not _hooked:
            # It cannot be taken back; with nobody on guard it does nothing.
            _hooked = True
            sys.addaudithook(_listen)

    def release() -> None:
        global _marked, _sends  # noqa: PLW0603  # as above
        with _lock:
            if guard in _guards:
                _guards.remove(guard)
            if _guards and _marked is not None:
                _marked.say(_guards[-1].allowed)
            if not _guards and _marked is not None:
                _marked.take_back()
                _marked = None
            if not _guards and _sends is not None:
                _sends.take_back()
                _sends = None

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
    if host is None or str(host) in _LOCAL:
        return ""  # a name of this machine; whether it is connected to is asked when it is
    return _address(guard, "look-up of", host, args[1] if len(args) > 1 else None)


def _address(guard: _Guard, what: str, host: Any, port: Any) -> str:
    host = str(host)
    named = f"{host}:{port}" if port is not None else host
    if host in guard.allowed or named in guard.allowed:
        return ""
    if _is_local(host) and ((guard.local and frame() is None) or _makes_a_pair()):
        return ""
    return f"{what} {named}"


def _is_local(host: str) -> bool:
    return host in _LOCAL or host.startswith("127.")


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
    if name in guard.allowed or os.path.basename(name) in guard.allowed:
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
