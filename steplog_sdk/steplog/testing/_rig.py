"""What the contract of interceptors stands on: both colours from one test, processes to kill, a look at what is kept.

Run as a program, it is the process to kill: it makes calls, each in a run of its own, and prints nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final

import pytest

import steplog
from steplog._kernel.references import references
from steplog.stores.files import FileStore
from steplog.testing.provider import Hit

SECONDS: Final = 120.0
"""How long a process may take to reach the provider on a busy machine."""


def perform(body: Coroutine[Any, Any, Any], *, asynchronous: bool) -> Any:
    """Run a coroutine: in an event loop, or in a plain thread where nothing in it waits."""
    if asynchronous:
        return asyncio.run(body)
    try:
        body.send(None)
    except StopIteration as stop:
        return stop.value
    body.close()
    message = "a synchronous call waited for an event loop"
    raise AssertionError(message)


async def settled(value: Any) -> Any:
    """The value, awaited where it has to be."""
    return await value if inspect.isawaitable(value) else value


async def following(stream: Any) -> Any:
    """The next item of an iterator of either colour. Raises StopAsyncIteration at its end."""
    if hasattr(stream, "__anext__"):
        return await stream.__anext__()
    try:
        return next(stream)
    except StopIteration:
        raise StopAsyncIteration from None


async def read(stream: Any) -> list[Any]:
    """All items of an iterator of either colour."""
    if hasattr(stream, "__aiter__"):
        return [item async for item in stream]
    return list(stream)


def iterator(stream: Any) -> Any:
    """The iterator of a stream of either colour."""
    return aiter(stream) if hasattr(stream, "__aiter__") else iter(stream)


async def close(thing: Any) -> None:
    """Close a client or a stream, by whatever name it does that."""
    for name in ("aclose", "close"):
        method = getattr(thing, name, None)
        if method is not None:
            await settled(method())
            return


@asynccontextmanager
async def opened(run_id: str, *, asynchronous: bool) -> AsyncIterator[steplog.Run]:
    """A run, opened the way the colour does it."""
    if asynchronous:
        async with steplog.run(run_id) as run:
            yield run
    else:
        with steplog.run(run_id) as run:
            yield run


def load(entry_point: str) -> Any:
    """The object that an entry point such as `my_package.steplog:interceptor` names."""
    module, _, name = entry_point.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


Surface = dict[tuple[Any, str], Any]


def surface(packages: tuple[str, ...]) -> Surface:
    """Every function that an imported package holds, by owner (class or module) and name."""
    found: Surface = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in packages or not isinstance(module, types.ModuleType):
            continue
        for owner in [module, *(value for value in list(vars(module).values()) if isinstance(value, type))]:
            if getattr(owner, "__module__", name).partition(".")[0] in packages:
                found.update({(owner, key): value for key, value in list(vars(owner).items()) if _is_method(value)})
    return found


def changed(one: Surface, other: Surface) -> list[tuple[Any, str]]:
    """Where two looks at the same packages found different functions."""
    return [place for place, found in one.items() if place in other and other[place] is not found]


def _is_method(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def kind_of(function: Any) -> tuple[bool, ...]:
    """What `inspect` says a function is."""
    questions = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return tuple(question(function) for question in questions)


def log_of(home: Path, run_id: str = "r") -> list[dict[str, Any]]:
    """The beginnings and ends of steps in a run's log; none where there is no such run.

    What is noted in between is left out: how much of a stream that is depends on how slow the machine is.
    """
    file = home / "runs" / run_id / "events.jsonl"
    events = [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []
    return [event for event in events if event["type"].startswith("step.") and event["type"] != "step.progressed"]


def everything_in(home: Path) -> bytes:
    """All that is on disk below a home: the files as they are, and the bodies as they were before compression."""
    kept = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    store = FileStore(home)
    with suppress(steplog.StoreError):  # no body was stored
        for run_id in store.runs():
            names = {name for event in store.read(run_id).events for name in references(event.data)}
            kept += [store.bodies.get(name) for name in names]
    store.bodies.close()
    return b"\n".join(kept)


def sent(hit: Hit) -> str:
    """All that a request says, but for its method."""
    return "\n".join([hit.path, *hit.headers.values(), hit.body.decode("utf-8", "replace")])


@contextmanager
def unreachable() -> Iterator[list[Any]]:
    """Forbid every connection; yields the addresses that somebody tried to reach."""
    tried: list[Any] = []

    def refuse(_socket: socket.socket, address: Any) -> None:
        tried.append(address)
        raise ConnectionRefusedError(f"a replayed call connects to {address}")

    held = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex")}
    for name in held:
        setattr(socket.socket, name, refuse)
    try:
        yield tried
    finally:
        for name, method in held.items():
            setattr(socket.socket, name, method)


@contextmanager
def raising(kind: type[BaseException], otherwise: str) -> Iterator[list[BaseException]]:
    """Fail with these words where the block raises no such exception; yields a list that will hold it."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:  # what the caller names
        caught.append(error)
    if not caught:
        pytest.fail(otherwise)


def holding(texts: Iterable[str], answers: Iterable[Any]) -> None:
    """Fail where an answer does not hold the text that it was given for."""
    for text, answer in zip(texts, answers, strict=True):
        assert text in str(answer), (
            f"the call for {text!r} got {answer!r}. Either it is the answer to another call, which the interceptor "
            "mixed up, or the text is not in it: put it into what `answer(hit)` returns, and let `facts` keep it"
        )


def only_equal_to_themselves(value: Any) -> Iterator[str]:
    """Names of classes without `__eq__` whose objects are in a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from only_equal_to_themselves(item)
        return
    has_eq = any("__eq__" in vars(base) for base in type(value).__mro__[:-1])
    if not has_eq and not isinstance(value, type | Enum | types.NoneType):
        yield type(value).__qualname__


Case = tuple[str, str]
"""A hook of a contract, and the colour of the client to call it with."""


@contextmanager
def process(contract: type, home: Path, url: str, cases: list[Case]) -> Iterator[Callable[[], None]]:
    """A process that makes calls at the same time, each in a run of its own; yields a function that kills it."""
    where = [contract.__module__, inspect.getfile(contract), contract.__qualname__]
    command = [sys.executable, "-m", __name__, *where, str(home), url, *("-".join(case) for case in cases)]
    child = subprocess.Popen(command, env=_environment(), stderr=subprocess.PIPE, text=True)  # noqa: S603  # our own

    def kill() -> None:
        child.send_signal(signal.SIGKILL)
        _, complaint = child.communicate(timeout=SECONDS)
        assert child.returncode == -signal.SIGKILL, f"the call ended before the process was killed:\n{complaint}"

    try:
        yield kill
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def python(code: str) -> str:
    """What a fresh interpreter with this one's path prints. Raises `AssertionError` with what it complained of."""
    options: Any = {"env": _environment(), "capture_output": True, "text": True, "timeout": SECONDS}
    done = subprocess.run([sys.executable, "-c", code], check=False, **options)  # noqa: S603  # our own
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


def main(module: str, file: str, name: str, home: str, url: str, *cases: str) -> None:
    """Make one call for each case, in a thread and a run of its own."""
    found: Any = _module(module, file)
    for part in name.split("."):
        found = getattr(found, part)
    contract = found()
    steplog.install(home=home, durability="process", interceptors=())
    load(contract.interceptor).install()

    def make(case: str) -> None:
        hook, _, colour = case.partition("-")
        asynchronous = colour == "async"

        async def body() -> None:
            client = contract.client(url, contract.key, asynchronous=asynchronous)
            async with opened(case, asynchronous=asynchronous):
                await settled(getattr(contract, hook)(client, "one"))

        perform(body(), asynchronous=asynchronous)

    with ThreadPoolExecutor(len(cases)) as pool:
        list(pool.map(make, cases))


def _module(name: str, file: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        # A test file that only pytest can name.
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


if __name__ == "__main__":
    main(*sys.argv[1:])
