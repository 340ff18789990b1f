"""Small agents that wait for a provider in the ways that take long: streams, background responses, batches.

    python -m tests.faults.programs.streamer      reads [NAME, FOLDER, URL, PLAN] as JSON lines, runs each in a fork,
                                                  and answers with its exit status

A dispatch leaves `outcome` in its folder, unless it was killed. PLAN is the moment at which it kills itself: `piece:K`
after K chunks, once they are written down; `end` when the stream has been read; `created` when a job was created;
`poll:K` after K polls. `request` is the provider's part: it kills whoever asks.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai

import steplog

RUN = "r"
ASK = {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]}
JOB: dict[str, Any] = {"model": "gpt-x", "input": "hi", "background": True}
HANGS_AFTER_SECONDS = 120


class Agent:
    """What the agents share: clients that say who they are, a moment to die at, and a ledger."""

    def __init__(self, folder: Path, url: str, plan: str) -> None:
        self.folder = folder
        self.plan = plan
        headers = {"x-pid": str(os.getpid()), "x-plan": plan}
        options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "default_headers": headers}
        self.openai = openai.OpenAI(base_url=url + "/v1", **options)
        self.async_openai = openai.AsyncOpenAI(base_url=url + "/v1", **options)
        self.anthropic = anthropic.Anthropic(base_url=url, **options)

    def at(self, moment: str) -> None:
        """Die here, if this is the moment."""
        if self.plan == moment:
            kind, _, number = moment.partition(":")
            if kind == "piece":
                # The first word is among the first five events of every agent, the name of its job is in the first one.
                self._await_piece(b"one " if int(number) >= 5 else b'"chunks"')
            os.kill(os.getpid(), signal.SIGKILL)

    def _await_piece(self, wanted: bytes) -> None:
        log = self.folder / "home/runs" / RUN / "events.jsonl"
        deadline = time.monotonic() + 30
        # Behind the last beginning: what earlier attempts have noted does not tell what this one has.
        while wanted not in log.read_bytes().rpartition(b'"type":"step.started"')[2]:
            assert time.monotonic() < deadline, "nothing was written down"
            time.sleep(0.01)

    def act(self, text: str) -> str:
        """A side effect that must happen once."""

        @steplog.step(name="act")
        def act(text: str) -> str:
            with (self.folder / "ledger").open("a") as ledger:
                ledger.write(text + "\n")
            return text

        return act(text)


def chat(agent: Agent) -> str:
    """A chat completion as a stream."""
    text = ""
    for number, chunk in enumerate(agent.openai.chat.completions.create(stream=True, **ASK), 1):
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        agent.at(f"piece:{number}")
    agent.at("end")
    return text


def chat_async(agent: Agent) -> str:
    """The same in a task."""

    async def read() -> str:
        text, number = "", 0
        async for chunk in await agent.async_openai.chat.completions.create(stream=True, **ASK):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            number += 1
            agent.at(f"piece:{number}")
        agent.at("end")
        return text

    return asyncio.run(read())


def messages(agent: Agent) -> str:
    """An anthropic message through the stream helper."""
    ask = {"model": "claude-x", "max_tokens": 64, "messages": ASK["messages"]}
    with agent.anthropic.messages.stream(**ask) as stream:
        for number, _event in enumerate(stream, 1):
            agent.at(f"piece:{number}")
        agent.at("end")
        return stream.get_final_text()


def background(agent: Agent) -> str:
    """A response in the background, as a stream."""
    text = ""
    for number, event in enumerate(agent.openai.responses.create(stream=True, **JOB), 1):
        text += event.delta if event.type == "response.output_text.delta" else ""
        agent.at(f"piece:{number}")
    agent.at("end")
    return text


def background_async(agent: Agent) -> str:
    """The same in a task."""

    async def read() -> str:
        text, number = "", 0
        async for event in await agent.async_openai.responses.create(stream=True, **JOB):
            text += event.delta if event.type == "response.output_text.delta" else ""
            number += 1
            agent.at(f"piece:{number}")
        agent.at("end")
        return text

    return asyncio.run(read())


def polled(agent: Agent) -> str:
    """A response in the background that is asked for until it is there."""
    response = agent.openai.responses.create(**JOB)
    agent.at("created")
    polls = 0
    while response.status in ("queued", "in_progress"):
        response = agent.openai.responses.retrieve(response.id)
        polls += 1
        agent.at(f"poll:{polls}")
    return response.output_text


def batch(agent: Agent) -> str:
    """An openai batch."""
    created = agent.openai.batches.create(
        completion_window="24h", endpoint="/v1/chat/completions", input_file_id="file-1"
    )
    agent.at("created")
    polls = 0
    while created.status != "completed":
        created = agent.openai.batches.retrieve(created.id)
        polls += 1
        agent.at(f"poll:{polls}")
    return str(created.output_file_id)


def message_batch(agent: Agent) -> str:
    """An anthropic batch."""
    params = {"model": "claude-x", "max_tokens": 64, "messages": ASK["messages"]}
    created = agent.anthropic.messages.batches.create(requests=[{"custom_id": "one", "params": params}])  # type: ignore[typeddict-item]
    agent.at("created")
    polls = 0
    while created.processing_status != "ended":
        created = agent.anthropic.messages.batches.retrieve(created.id)
        polls += 1
        agent.at(f"poll:{polls}")
    return str(created.results_url)


AGENTS: dict[str, Callable[[Agent], str]] = {
    one.__name__: one
    for one in (chat, chat_async, messages, background, background_async, polled, batch, message_batch)
}


def dispatch(name: str, folder: Path, url: str, plan: str) -> None:
    """Run or resume an agent in this process, which has not used steplog before."""
    signal.alarm(HANGS_AFTER_SECONDS)
    steplog.install(home=folder / "home", strict=True, interceptors=["openai", "anthropic"])
    agent = Agent(folder, url, plan)
    outcome: dict[str, Any]
    try:
        with steplog.run(RUN):
            outcome = {"answer": agent.act(AGENTS[name](agent))}
    except steplog.RunStopped as stopped:
        outcome = {"stopped": stopped.reason, "message": str(stopped), "commands": stopped.commands}
    (folder / "outcome").write_text(json.dumps(outcome))


def serve() -> None:
    """Fork one child for each line of standard input."""
    for client in (openai.OpenAI(api_key="none"), openai.AsyncOpenAI(api_key="none")):
        assert client.chat.completions
        assert client.responses
        assert client.batches
    assert anthropic.Anthropic(api_key="none").messages.batches
    for line in sys.stdin:
        name, folder, url, plan = json.loads(line)
        child = os.fork()
        if not child:
            dispatch(name, Path(folder), url, plan)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
