"""What every recorder under comparison has to record and to replay: the same small agents, with the openai SDK.

Each recorder is a module beside this one, run in a process of its own as `python NAME.py record|replay CASE FOLDER
URL`. The recording process talks to a provider on 127.0.0.1, which is gone for the replaying one. Each writes what the
agent has learnt, and which tool bodies were executed, to FOLDER/record.json or FOLDER/replay.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import openai

KEY = "sk-test-0123456789abcdefghijklmnopqrstuvwxyz"


class Order(NamedTuple):
    """What the command line asks for."""

    replay: bool
    case: str
    folder: Path
    url: str

    @classmethod
    def read(cls) -> Order:
        """Parse `record|replay CASE FOLDER URL`."""
        verb, case, folder, url = sys.argv[1:5]
        return cls(verb == "replay", case, Path(folder), url)

    @property
    def is_concurrent(self) -> bool:
        """Whether the agent does several things at the same time."""
        return CASES[self.case].concurrent


class Case(NamedTuple):
    """One row of the table.

    Attributes:
        title: what it shows.
        play: the agent.
        concurrent: it does several things at the same time.
        tools: it has tools of its own, which a recorder of HTTP traffic does not know.
    """

    title: str
    play: Callable[[Agent], Any]
    concurrent: bool = False
    tools: bool = False


@dataclass(frozen=True)
class Receipt:
    """What a tool returns."""

    number: int


class Agent:
    """Clients, and tools that are recorded in the recorder's own way.

    Args:
        order: what is to be done.
        tool: the recorder's decorator for tools; none, where it has none.
    """

    def __init__(self, order: Order, tool: Callable[[Any], Any] = lambda function: function) -> None:
        self.order = order
        self.executed: list[str] = []
        options: dict[str, Any] = {"base_url": f"{order.url}/v1", "api_key": KEY, "max_retries": 0}
        self.client = openai.OpenAI(**options)
        self.options = options

        def look_up(what: str) -> Any:
            self.executed.append(what)
            return VALUES.get(what, f"found {what}")

        self.look_up = tool(look_up)

    def ask(self, question: str) -> str:
        """Ask the model."""
        return str(self.client.chat.completions.create(**asked(question)).choices[0].message.content)

    async def ask_async(self, client: openai.AsyncOpenAI, question: str) -> str:
        """The same from a task."""
        answer = await client.chat.completions.create(**asked(question))
        return str(answer.choices[0].message.content)

    def asynchronous(self, use: Callable[[openai.AsyncOpenAI], Any]) -> Any:
        """Use an async client in an event loop of its own."""

        async def body() -> Any:
            async with openai.AsyncOpenAI(**self.options) as client:
                return await use(client)

        return asyncio.run(body())

    def play(self) -> None:
        """Play the case and write down what came of it."""
        said = CASES[self.order.case].play(self)
        file = self.order.folder / ("replay.json" if self.order.replay else "record.json")
        file.write_text(json.dumps({"said": said, "executed": self.executed}))


VALUES: dict[str, Any] = {"tuple": (1, 2), "set": {1}, "bytes": b"\x00\xff", "receipt": Receipt(7)}


def asked(question: str) -> Any:
    """A request."""
    return {"model": "gpt-x", "messages": [{"role": "user", "content": question}]}


def _text(stream: Any) -> list[str]:
    return [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]


async def _text_async(stream: Any) -> list[str]:
    return [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]


# the agents -----------------------------------------------------------------------------------------------------------


def one(agent: Agent) -> Any:
    return agent.ask("one")


def one_async(agent: Agent) -> Any:
    return agent.asynchronous(lambda client: agent.ask_async(client, "one"))


def same_twice(agent: Agent) -> Any:
    return [agent.ask("same"), agent.ask("other"), agent.ask("same")]


def stream(agent: Agent) -> Any:
    return _text(agent.client.chat.completions.create(stream=True, **asked("tell")))


def stream_async(agent: Agent) -> Any:
    async def use(client: openai.AsyncOpenAI) -> Any:
        return await _text_async(await client.chat.completions.create(stream=True, **asked("tell")))

    return agent.asynchronous(use)


def helper(agent: Agent) -> Any:
    with agent.client.chat.completions.stream(**asked("tell")) as events:
        *_, last = [event.type for event in events]
        return [last, events.get_final_completion().choices[0].message.content]


def raw(agent: Agent) -> Any:
    answer = agent.client.chat.completions.with_raw_response.create(**asked("raw"))
    return [answer.status_code, answer.headers["x-request-id"], answer.parse().choices[0].message.content]


def limited(agent: Agent) -> Any:
    try:
        return agent.ask("too much")
    except openai.RateLimitError as error:
        return [type(error).__name__, error.status_code]


def gather_same(agent: Agent) -> Any:
    async def use(client: openai.AsyncOpenAI) -> Any:
        return await asyncio.gather(*(agent.ask_async(client, question) for question in ("same", "other", "same")))

    return agent.asynchronous(use)


def gather_five(agent: Agent) -> Any:
    async def use(client: openai.AsyncOpenAI) -> Any:
        return await asyncio.gather(*(agent.ask_async(client, f"number {number}") for number in range(5)))

    return agent.asynchronous(use)


def as_completed(agent: Agent) -> Any:
    async def use(client: openai.AsyncOpenAI) -> Any:
        questions = ("slow", "quick", "slower", "number 1")
        tasks = [asyncio.ensure_future(agent.ask_async(client, question)) for question in questions]
        return [await done for done in asyncio.as_completed(tasks)]

    return agent.asynchronous(use)


def threads(agent: Agent) -> Any:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(agent.ask, [f"number {number}" for number in range(4)]))


def threads_same(agent: Agent) -> Any:
    with ThreadPoolExecutor(4) as pool:
        return sorted(pool.map(agent.ask, ["same"] * 4))


def streams_interleaved(agent: Agent) -> Any:
    async def use(client: openai.AsyncOpenAI) -> Any:
        create, questions = client.chat.completions.create, ("tell", "tell me", "tell")
        streams = [await create(stream=True, **asked(question)) for question in questions]
        parts: list[list[str]] = [[] for _ in streams]
        open_ones = list(enumerate(streams))
        while open_ones:  # one chunk of each in turn
            for number, chunks in list(open_ones):
                chunk = await anext(chunks, None)
                if chunk is None:
                    open_ones.remove((number, chunks))
                elif chunk.choices:
                    parts[number].append(chunk.choices[0].delta.content or "")
        return ["".join(part) for part in parts]

    return agent.asynchronous(use)


def nested(agent: Agent) -> Any:
    """Sub-agents side by side, each of which asks, looks something up and asks again."""

    async def sub_agent(client: openai.AsyncOpenAI, topic: str) -> list[str]:
        first = await agent.ask_async(client, f"plan {topic}")
        found = agent.look_up(topic)
        both = await asyncio.gather(*(agent.ask_async(client, f"check {found}") for _ in range(2)))
        return [first, found, *both]

    async def use(client: openai.AsyncOpenAI) -> Any:
        return await asyncio.gather(*(sub_agent(client, topic) for topic in ("north", "south", "north")))

    return agent.asynchronous(use)


def tool_loop(agent: Agent) -> Any:
    return [agent.ask("plan"), agent.look_up("ord_1"), agent.look_up("ord_2"), agent.ask("done")]


def tool_types(agent: Agent) -> Any:
    return [[type(value).__name__, repr(value)] for value in map(agent.look_up, VALUES)]


def fresh_id(agent: Agent) -> Any:
    return agent.ask(f"number {uuid.uuid4()}")


def changed(agent: Agent) -> Any:
    """The prompt of the replay is another one: an old answer to it would be wrong."""
    return agent.ask("changed " + ("since" if agent.order.replay else "before"))


def killed(agent: Agent) -> Any:
    """The recording process is killed; what it had got by then is replayed."""
    found = [agent.ask("one"), agent.ask("two")]
    if not agent.order.replay:
        (agent.order.folder / "record.json").write_text(json.dumps({"said": found, "executed": []}))
        os.kill(os.getpid(), signal.SIGKILL)
    return found


CASES: dict[str, Case] = {
    "one": Case("a call", one),
    "one_async": Case("an async call", one_async),
    "same_twice": Case("the same call twice, with different answers", same_twice),
    "stream": Case("a stream", stream),
    "stream_async": Case("an async stream", stream_async),
    "helper": Case("the `.stream()` helper", helper),
    "raw": Case("`with_raw_response`, with its headers", raw),
    "limited": Case("status 429 as `RateLimitError`", limited),
    "gather_same": Case("`gather`: 3 calls, 2 of them identical", gather_same, concurrent=True),
    "gather_five": Case("`gather`: 5 calls", gather_five, concurrent=True),
    "as_completed": Case("`as_completed`: answers in their order", as_completed, concurrent=True),
    "threads": Case("thread pool: 4 calls", threads, concurrent=True),
    "threads_same": Case("thread pool: 4 identical calls", threads_same, concurrent=True),
    "streams_interleaved": Case("3 streams read in turns, 2 identical", streams_interleaved, concurrent=True),
    "nested": Case("sub-agents side by side, with a tool", nested, concurrent=True, tools=True),
    "tool_loop": Case("tools are not executed again", tool_loop, tools=True),
    "tool_types": Case("a tool's tuple, set, bytes, dataclass", tool_types, tools=True),
    "fresh_id": Case("a fresh `uuid4()` in the prompt", fresh_id),
    "changed": Case("a changed prompt is noticed", changed),
    "killed": Case("SIGKILL while recording: what was got by then", killed),
}
