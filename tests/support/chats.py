"""An agent of a few lines with the real openai SDK, and a provider whose model is a function of the conversation."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, Self

import openai

from steplog.testing import Hit, LocalProvider, Reply

Messages = list[dict[str, Any]]
# What the model says: a text, or a tool call as (name, arguments).
Say = str | tuple[str, dict[str, Any]]

MODEL = "gpt-5.2"


class Model:
    """A model behind a real HTTP server.

    Attributes:
        asked: the conversations that reached it, in order.
        models: the model that each asked for.
    """

    def __init__(self, say: Callable[[Messages], Say], *, tokens: Callable[[Messages], int] | None = None) -> None:
        self.asked: list[Messages] = []
        self.models: list[str] = []
        self._say = say
        self._tokens = tokens or (lambda messages: len(json.dumps(messages)) // 4)
        self._numbers = itertools.count(1)
        self.provider = LocalProvider(handler=self._answer)
        self._clients: list[openai.OpenAI] = []

    def __enter__(self) -> Self:
        self.provider.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        for client in self._clients:
            client.close()  # the server waits for connections that are open
        self.provider.__exit__(*details)

    @property
    def url(self) -> str:
        """For `OPENAI_BASE_URL`."""
        return f"{self.provider.url}/v1"

    def client(self) -> openai.OpenAI:
        """A client of this model."""
        self._clients.append(openai.OpenAI(api_key="none", base_url=self.url, max_retries=0))
        return self._clients[-1]

    def _answer(self, hit: Hit) -> Reply:
        number = next(self._numbers)
        messages = hit.json["messages"]
        self.asked.append(messages)
        self.models.append(hit.json["model"])
        said = self._say(messages)
        message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
        if not isinstance(said, str):
            function = {"name": said[0], "arguments": json.dumps(said[1])}
            # A new name each time, as a real provider makes them up.
            message["tool_calls"] = [{"id": f"call_{number:06d}", "type": "function", "function": function}]
        used = self._tokens(messages)
        return Reply.json(
            {
                "id": f"chatcmpl-{number}",
                "object": "chat.completion",
                "created": 1_700_000_000 + number,
                "model": hit.json["model"],
                "choices": [
                    {"index": 0, "message": message, "finish_reason": "stop" if isinstance(said, str) else "tool_calls"}
                ],
                "usage": {"prompt_tokens": used, "completion_tokens": 20, "total_tokens": used + 20},
            }
        )


def agent(
    client: openai.OpenAI, tools: Mapping[str, Callable[..., Any]], task: str, *, system: str = "You are a clerk.",
    model: str = MODEL, turns: int = 50, **more: Any,
) -> str:  # fmt: skip
    """Let the model call tools until it says something; its last words."""
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": task}]
    for _ in range(turns):
        message = client.chat.completions.create(model=model, messages=messages, **more).choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            result = tools[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    raise RuntimeError(f"no answer after {turns} turns")


def in_turn(*said: Say) -> Callable[[Messages], Say]:
    """A model that says these one after the other, by how many answers the conversation holds."""

    def say(messages: Messages) -> Say:
        spoken = sum(message["role"] == "assistant" for message in messages)
        return said[min(spoken, len(said) - 1)]

    return say
