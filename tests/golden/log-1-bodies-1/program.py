"""What golden logs are made of: every event type, every value type, calls, streams, failures, concurrency.

`python -m tests.golden.record NAME` records it, and keeps a copy of this file beside the log: that copy is what replays
it from then on, and is never changed. This file is for the next format, and may be.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import enum
import errno
import math
import os
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import anthropic
import openai
import pydantic

import steplog

executed: list[str] = []
"""Every execution of a tool; a replay has none."""
dying: set[str] = set()
"""Tools in which the process dies, as a crash would have it."""
LONG = "All work and no play makes a dull agent. " * 300


class Colour(enum.Enum):
    RED = "r"


class Pair(NamedTuple):
    left: int
    right: str


class Row(TypedDict):
    name: str


@dataclass(frozen=True)
class Order:
    number: int
    items: tuple[str, ...]


class Model(pydantic.BaseModel):
    name: str
    when: dt.date


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


steplog.register_codec(Point, to=lambda point: point.x, of=Point, name="golden.Point")


class Declined(Exception):
    """A failure that the program knows how to handle."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message, code)
        self.code = code


def tell(value: Any) -> Any:
    """A value as text that says its type, also of what is inside."""
    if isinstance(value, (set, frozenset)):
        return [type(value).__name__, sorted(map(repr, value))]
    if isinstance(value, Point):
        return ["Point", value.x]
    if isinstance(value, BaseException):
        return [type(value).__name__, str(value)]
    return [type(value).__name__, repr(value)]


# tools ----------------------------------------------------------------------------------------------------------------


def act(what: str) -> None:
    executed.append(what)
    if what in dying:
        os._exit(9)


@steplog.step(mode="safe", name="made")
def made(name: str) -> Any:
    act(name)
    return VALUES[name]


@steplog.step(mode="safe", name="order")
def order(number: int) -> Order:
    act("order")
    return Order(number, ("tea", "cup"))


@steplog.step(mode="safe", name="model")
def model() -> Model:
    act("model")
    return Model(name="ada", when=dt.date(2026, 1, 2))


@steplog.step(mode="safe", name="read")
def read(what: Any, *, again: int = 0) -> Any:
    act(f"read {what}")
    return what


@steplog.step(mode="keyed", name="pay")
def pay(what: str, *, idempotency_key: str) -> list[str]:
    act(f"pay {what}")
    return [what, idempotency_key]


def find(what: str) -> Any:
    return steplog.Happened(f"found {what}") if what == "there" else steplog.NOT_HAPPENED


@steplog.step(mode="verify", verify=find, name="check")
def check(what: str) -> str:
    act(f"check {what}")
    return f"did {what}"


@steplog.step(name="send")
def send(what: str) -> str:
    act(f"send {what}")
    return what


@steplog.step(name="decline")
def decline(what: str) -> None:
    act(f"decline {what}")
    raise Declined(f"no {what}", 7)


@steplog.step(mode="safe", retries=2, backoff=0.0, name="flaky")
def flaky() -> str:
    act("flaky")
    if executed.count("flaky") < 3:
        raise Declined("not yet")
    return "at last"


@steplog.step(mode="safe", name="outer")
def outer(what: str) -> list[str]:
    act(f"outer {what}")
    return [send(f"inner {what}"), send(f"inner {what}"), read(what)]


@steplog.step(name="later")
async def later(what: str, seconds: float = 0.0) -> str:
    act(f"later {what}")
    await asyncio.sleep(seconds)
    return what


@steplog.step(mode="safe", name="outage")
def outage() -> str:
    act("outage")
    if len(executed) == 1:
        raise ConnectionError("the line is dead")
    return "up again"


VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "big": 1 << 80,
    "negative zero": -0.0,
    "nan": math.nan,
    "infinity": -math.inf,
    "text": "ü ☃ \U0001f600 \x00 ",
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"ab"),
    "tuple": (1, ("a",)),
    "set": {1, "a"},
    "frozenset": frozenset({(1, 2)}),
    "map": {1: "a", (1, 2): "b", "$steplog": "mine"},
    "ordered": OrderedDict([("b", 1), ("a", 2)]),
    "deque": deque([1, 2], maxlen=3),
    "moment": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    "naive": dt.datetime(2026, 1, 2),
    "day": dt.date(2026, 1, 2),
    "time": dt.time(1, 2, 3),
    "span": dt.timedelta(days=1, microseconds=7),
    "decimal": decimal.Decimal("1.10"),
    "uuid": uuid.UUID(int=7),
    "enum": Colour.RED,
    "pair": Pair(1, "a"),
    "path": Path("/a/b"),
    "range": range(1, 9, 2),
    "complex": 1 + 2j,
    "point": Point(3),
    "error": Declined("kept", 3),
    "large": LONG,
    "nested": [{"a": [(), {"b": {1}}]}],
}


# runs -----------------------------------------------------------------------------------------------------------------


def values(_: str) -> list[Any]:
    return [tell(made(name)) for name in VALUES] + [tell(order(1)), tell(model()), tell(steplog.step("now", lambda: 7))]


def tools(_: str) -> list[Any]:
    found = [read({"deep": [1, None]}), pay("fee"), check("fee"), send("mail"), send("mail"), flaky(), outer("desk")]
    for declined in (decline, decline):
        try:
            declined("thanks")
        except Declined as error:
            found.append([tell(error), error.code])
    return found


def branches(_: str) -> list[Any]:
    async def all_at_once() -> list[Any]:
        same = await asyncio.gather(*(later("same") for _ in range(3)), later("other", 0.01))
        coming = [asyncio.ensure_future(later(name, wait)) for name, wait in (("slow", 0.05), ("fast", 0.0))]
        order_of_end = [await one for one in asyncio.as_completed(coming)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(later(f"task {number}")) for number in range(2)]
        return [same, order_of_end, [task.result() for task in tasks]]

    found: list[Any] = asyncio.run(all_at_once())
    with ThreadPoolExecutor(3) as pool:
        found.append(list(pool.map(send, ["a", "b", "a", "c"])))
        found.append([future.result() for future in [pool.submit(outer, name) for name in ("x", "y")]])
    return found


def given_up(_: str) -> list[Any]:
    """A call whose caller stops waiting: at once, before it begins, and in the middle."""

    async def cancelling() -> list[str]:
        found = []
        for wait in (0.0, 0.05):
            task = asyncio.ensure_future(later(f"for {wait}", 30.0))
            await asyncio.sleep(wait)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                found.append("cancelled")
        return [*found, await later("after all")]

    return asyncio.run(cancelling())


def calls(url: str) -> list[Any]:
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=1) as gpt,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as claude,
    ):
        messages: list[Any] = [{"role": "system", "content": LONG}]
        found: list[Any] = []
        for question in ("one", "two", "again"):
            messages.append({"role": "user", "content": question})
            answer = gpt.chat.completions.create(model="gpt-x", messages=messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            found.append([answer.choices[0].message.content, type(answer).__name__])
        stream = gpt.chat.completions.create(model="gpt-x", messages=messages, stream=True)
        found.append([chunk.choices[0].delta.content for chunk in stream if chunk.choices])
        with gpt.chat.completions.create(model="gpt-x", messages=messages, stream=True, seed=1) as left:
            found.append(next(iter(left)).choices[0].delta.content)
        try:
            gpt.chat.completions.create(model="refuse", messages=[])
        except openai.NotFoundError as error:
            found.append([type(error).__name__, error.status_code])
        with claude.messages.stream(model="c", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as told:
            found.append([told.get_final_text(), told.get_final_message().stop_reason])
    return [*found, asyncio.run(at_once(url))]


async def at_once(url: str) -> list[Any]:
    """Equal calls and streams side by side, for two accounts."""

    async def ask(client: openai.AsyncOpenAI, question: str) -> str:
        asked: list[Any] = [{"role": "user", "content": question}]
        answer = await client.chat.completions.create(model="gpt-x", messages=asked)
        return str(answer.choices[0].message.content)

    async def listen(client: openai.AsyncOpenAI, question: str) -> list[Any]:
        asked: list[Any] = [{"role": "user", "content": question}]
        stream = await client.chat.completions.create(model="gpt-x", messages=asked, stream=True)
        return [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]

    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="of the north", max_retries=0) as north,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="of the south", max_retries=0) as south,
    ):
        same = [ask(north, "same"), ask(north, "same"), ask(south, "same"), ask(south, "other")]
        return list(await asyncio.gather(*same, listen(north, "tell"), listen(south, "tell me")))


def doubt(_: str) -> list[Any]:
    """Dies in a tool that nobody may repeat; a person settles it."""
    return [read("before"), send("doubtful"), read("after")]


def waiting(_: str) -> list[Any]:
    """The same, and nobody has settled it yet."""
    return [read("before"), send("waiting")]


def orphans(_: str) -> list[Any]:
    """Dies in tools that may run again, each in their way."""
    return [read("orphan"), pay("orphan"), check("there"), check("nowhere")]


def failing(_: str) -> list[Any]:
    return [outage(), send("behind it")]


def escalating(_: str) -> list[Any]:
    run = steplog.current_run()
    assert run is not None
    run.escalate("ask ada")
    return [read("e")]


def torn(_: str) -> list[Any]:
    return [send("first"), send("second")]


def weakened(_: str) -> list[Any]:
    return [send("on a weak disk")]


RUNS: dict[str, Callable[[str], list[Any]]] = {
    run.__name__: run
    for run in (values, tools, branches, given_up, calls, doubt, waiting, orphans, failing, escalating, torn, weakened)
}


def say(name: str, url: str) -> Any:
    """Play a run; give what it has learnt, or why it stopped."""
    executed.clear()
    try:
        with steplog.run(name, goal=f"the run {name}"):
            return RUNS[name](url)
    except steplog.RunStopped as stopped:
        return {"stopped": stopped.reason, "step": stopped.step}


# recording ------------------------------------------------------------------------------------------------------------


def record(home: Path, url: str, crash: Callable[[Callable[[], Any]], None]) -> dict[str, Any]:
    """Record every run, with all that has to happen to some of them on the way.

    Args:
        home: where.
        url: of a provider.
        crash: calls a function in a process of its own, in which it dies.
    """
    from steplog._runtime.resolve import resolve
    from steplog.stores.files import FileStore
    from steplog.testing import FaultyFS

    def install(**options: Any) -> None:
        steplog.install(home=home, **options)

    def die(name: str, tool: str) -> None:
        dying.add(tool)
        crash(lambda: (install(), say(name, url)))
        dying.clear()

    die("doubt", "send doubtful")
    die("waiting", "send waiting")
    for tool in ("read orphan", "pay orphan", "check there", "check nowhere"):
        die("orphans", tool)
    install()
    stopped = say("doubt", url)
    resolve(FileStore(home), "doubt", stopped["step"], how="done", result="settled", by="ada", note="seen in the books")
    try:
        say("failing", url)
    except ConnectionError:
        executed.append("once before")
    log = home / "runs/torn/events.jsonl"
    say("torn", url)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-2]) + lines[-2][:20])
    fs = FaultyFS()
    fs.fail("sync", errno=errno.EINVAL, persistent=True)
    install(store=FileStore(home, fs=fs))
    weak = say("weakened", url)
    steplog.uninstall()
    install()
    return {name: weak if name == "weakened" else retold(name, url) for name in RUNS}


def retold(name: str, url: str) -> Any:
    """What a run says in the process that completes it."""
    if name != "failing":
        return say(name, url)
    with steplog.run(name):
        return RUNS[name](url)
