"""Small agents as trees: what they do is decided by a generator, and printed when a test fails.

Two interpreters play them, one for threads and one for tasks; each branch node changes the colour.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import steplog
from steplog import plugins
from steplog._runtime.context import frame


class Act(NamedTuple):
    """A tool of this name and mode, which acts on the world."""

    mode: str
    label: str


class Stream(NamedTuple):
    """A stream in this mode, which acts on the world before its first item and is read to its end."""

    mode: str
    label: str


class Refuse(NamedTuple):
    """An unsafe tool that acts and then raises `Declined`."""

    label: str


class Outage(NamedTuple):
    """A safe tool that raises `Down` until somebody has seen the run fail; nobody handles that."""

    label: str


class Value(NamedTuple):
    """A local value."""

    label: str


class Seq(NamedTuple):
    """One after the other."""

    parts: tuple[Any, ...]


class Loop(NamedTuple):
    """The same again and again."""

    times: int
    body: Any


class Gather(NamedTuple):
    """Asyncio tasks, all of which come to their end."""

    parts: tuple[Any, ...]


class Threads(NamedTuple):
    """Workers of a thread pool, all of which come to their end."""

    parts: tuple[Any, ...]


class Nest(NamedTuple):
    """A safe step around other steps."""

    label: str
    body: Any


class Try(NamedTuple):
    """A failure of the body that the program handles by doing something else."""

    body: Any
    handler: Any


class Report(NamedTuple):
    """An outage in the body that the program tells somebody of, before it fails."""

    body: Any
    note: Any


class Finally(NamedTuple):
    """Something that is done behind the body, whether or not it failed."""

    body: Any
    last: Any


def apart(node: Any, branch: str = "") -> Any:
    """The program with labels that tell concurrent branches apart.

    Branches of one scope that make identical calls and go on differently cannot be told apart by a log that knows what
    was asked and not by whom; such a run may halt where it could have gone on.
    """
    if isinstance(node, Gather | Threads):
        return type(node)(tuple(apart(part, f"{branch}{number}") for number, part in enumerate(node.parts)))
    if isinstance(node, tuple) and not hasattr(node, "_fields"):
        return tuple(apart(part, branch) for part in node)
    if not isinstance(node, tuple):
        return node
    return type(node)(**{name: _apart(name, value, branch) for name, value in node._asdict().items()})


def _apart(name: str, value: Any, branch: str) -> Any:
    return f"{value}{branch}" if name == "label" else apart(value, branch)


class Declined(Exception):
    """What `Try` handles."""


class Down(Exception):
    """What nothing handles."""


class World:
    """What effects change: it outlives every process of the run.

    Attributes:
        ledger: step id and label of every effect, in order.
        executed: how often each step was executed.
        repaired: labels of the outages that are over.
        pauses: seconds that effects take, in turn, so that branches overtake each other.
    """

    def __init__(self, pauses: Iterable[float] = (0.0,)) -> None:
        self.ledger: list[tuple[str, str]] = []
        self.executed: Counter[str] = Counter()
        self.repaired: set[str] = set()
        self.failing: set[str] = set()
        self.pauses = itertools.cycle(pauses)
        self._lock = threading.Lock()

    def effect(self, label: str, step: str = "") -> str:
        """Act, in this step or in the one around the caller; return what the receiver says."""
        step = step or frame().scope  # type: ignore[union-attr]
        with self._lock:
            self.executed[step] += 1
            self.ledger.append((step, label))
            pause = next(self.pauses)
        time.sleep(pause)
        return label

    def outage(self, label: str) -> str:
        """Act only where the outage is over."""
        with self._lock:
            self.executed[frame().scope] += 1  # type: ignore[union-attr]
            if label not in self.repaired:
                self.failing.add(label)
                raise Down(label)
        return label

    def repair(self) -> None:
        """Somebody has seen that the run failed."""
        self.repaired |= self.failing


world: Any = None  # a World, before a program is played
bodies: dict[str, Any] = {}  # what a nested step plays: its argument, which the log must be able to hold, is the key


@steplog.step
def unsafe(label: str) -> str:
    return world.effect(label)


@steplog.step(mode="keyed")
def keyed(label: str, *, idempotency_key: str) -> str:
    assert idempotency_key.endswith(frame().scope)  # type: ignore[union-attr]
    return world.effect(label)


@steplog.step(mode="safe")
def safe(label: str) -> str:
    return world.effect(label)


@steplog.step
def refuse(label: str) -> str:
    raise Declined(world.effect(label))


@steplog.step(mode="safe")
def outage(label: str) -> str:
    return world.outage(label)


@steplog.step(mode="safe")
def nest(label: str, body: str) -> list[Any]:
    return [label, play(bodies[body])]


@steplog.step(name="unsafe")
async def unsafe_async(label: str) -> str:
    return await asyncio.to_thread(world.effect, label)


@steplog.step(name="keyed", mode="keyed")
async def keyed_async(label: str, *, idempotency_key: str) -> str:
    return await asyncio.to_thread(world.effect, label)


@steplog.step(name="safe", mode="safe")
async def safe_async(label: str) -> str:
    return await asyncio.to_thread(world.effect, label)


@steplog.step(name="refuse")
async def refuse_async(label: str) -> str:
    raise Declined(await asyncio.to_thread(world.effect, label))


@steplog.step(name="outage", mode="safe")
async def outage_async(label: str) -> str:
    return await asyncio.to_thread(world.outage, label)


@steplog.step(name="nest", mode="safe")
async def nest_async(label: str, body: str) -> list[Any]:
    return [label, await play_async(bodies[body])]


def stream(mode: str, label: str) -> list[str]:
    """Read a recorded stream."""

    def items(step: str) -> Iterator[str]:
        yield world.effect(label, step)
        yield from ("of", "three")

    call = plugins.Call("llm_call", "stream", {"label": label}, mode)
    return list(plugins.record_items(call, lambda ticket: items(ticket.step)))


async def stream_async(mode: str, label: str) -> list[str]:
    """Read a recorded stream in a task."""

    async def items(step: str) -> AsyncIterator[str]:
        yield await asyncio.to_thread(world.effect, label, step)
        for item in ("of", "three"):
            yield item

    async def opened(ticket: plugins.Ticket) -> AsyncIterator[str]:
        return items(ticket.step)

    call = plugins.Call("llm_call", "stream", {"label": label}, mode)
    return [item async for item in await plugins.record_items_async(call, opened)]


TOOLS = {"unsafe": unsafe, "keyed": keyed, "safe": safe}
ASYNC_TOOLS = {"unsafe": unsafe_async, "keyed": keyed_async, "safe": safe_async}


def play(node: Any) -> Any:
    """Play a program in this thread."""
    match node:
        case Seq(parts):
            return [play(part) for part in parts]
        case Loop(times, body):
            return [play(body) for _ in range(times)]
        case Gather(parts):
            return asyncio.run(_gather([play_async(part) for part in parts]))
        case Threads(parts):
            with ThreadPoolExecutor(len(parts)) as pool:
                futures = [pool.submit(play, part) for part in parts]
            return [future.result() for future in futures]
        case Nest(label, body):
            return nest(label, _key(body))
        case Try(body, handler):
            try:
                return play(body)
            except (Declined, steplog.StepFailed) as declined:  # the latter when an operator says so
                return [str(declined), play(handler)]
        case Report(body, note):
            try:
                return play(body)
            except Down:
                play(note)
                raise
        case Finally(body, last):
            try:
                return play(body)
            finally:
                play(last)
        case Act(mode, label):
            return TOOLS[mode](label)
        case Stream(mode, label):
            return stream(mode, label)
        case Refuse(label):
            return refuse(label)
        case Outage(label):
            return outage(label)
        case Value(label):
            return steplog.step(label, lambda: f"value {label}")
    raise TypeError(f"{node!r} is no part of a program")


async def play_async(node: Any) -> Any:
    """Play a program in this task."""
    match node:
        case Seq(parts):
            return [await play_async(part) for part in parts]
        case Loop(times, body):
            return [await play_async(body) for _ in range(times)]
        case Gather(parts):
            return await _gather([play_async(part) for part in parts])
        case Threads(parts):
            return await _gather([asyncio.to_thread(play, part) for part in parts])
        case Nest(label, body):
            return await nest_async(label, _key(body))
        case Try(body, handler):
            try:
                return await play_async(body)
            except (Declined, steplog.StepFailed) as declined:  # the latter when an operator says so
                return [str(declined), await play_async(handler)]
        case Report(body, note):
            try:
                return await play_async(body)
            except Down:
                await play_async(note)
                raise
        case Finally(body, last):
            try:
                return await play_async(body)
            finally:
                await play_async(last)
        case Act(mode, label):
            return await ASYNC_TOOLS[mode](label)
        case Stream(mode, label):
            return await stream_async(mode, label)
        case Refuse(label):
            return await refuse_async(label)
        case Outage(label):
            return await outage_async(label)
        case Value(label):
            return await steplog.step(label, _value(label))
    raise TypeError(f"{node!r} is no part of a program")


def _value(label: str) -> Callable[[], Awaitable[str]]:
    async def fetch() -> str:
        return f"value {label}"

    return fetch


def _key(body: Any) -> str:
    return bodies.setdefault(repr(body), body) and repr(body)


async def _gather(branches: list[Any]) -> list[Any]:
    # Every branch is waited for, so that what a program does never depends on who fails first.
    results = await asyncio.gather(*branches, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
