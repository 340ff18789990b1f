"""Answers, clients and programs that the tests of this folder share."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import json
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self

import anthropic
import openai

from steplog.testing.provider import Hit, Reply

# For the reason of a skipped test: what is too old for it.
RELEASES = f"openai {openai.__version__} with anthropic {anthropic.__version__}"

KEY = "sk-test-0123456789abcdefghijklmnopqrstuvwxyz"
OTHER_KEY = "sk-test-zyxwvutsrqponmlkjihgfedcba9876543210"


def http_of(sdk: Any) -> Any:
    """The HTTP library that an SDK's default client comes from."""
    client = sdk.OpenAI if sdk is openai else sdk.Anthropic
    with client(api_key=KEY) as opened_client:
        tops = {base.__module__.partition(".")[0] for base in type(opened_client._client).__mro__}
    return importlib.import_module((tops & {"httpx", "httpx2"}).pop())


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat completion."""
    message = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    tree = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-x-2026", "choices": [choice]}
    return {**tree, "usage": usage, **fields}


def message(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """An anthropic message."""
    usage = {"input_tokens": 9, "output_tokens": 3, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 0}
    tree = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_sequence": None}
    return {**tree, "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": usage, **fields}


def chat_events(*words: str) -> list[Any]:
    """The events of a streamed chat completion, with its end mark."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x-2026"}
    chunks = [{**head, "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]} for word in words]
    last = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {**head, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}
    return [*chunks, last, usage, "[DONE]"]


def message_events(*words: str) -> str:
    """The events of a streamed anthropic message."""
    usage = {"input_tokens": 9, "output_tokens": 1, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 0}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message(stop_reason=None, content=[], usage=usage)},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": w}} for w in words),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 3},
        },
        {"type": "message_stop"},
    ]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def answers(*replies: Reply | dict[str, Any]) -> Callable[[Hit], Reply]:
    """A handler that gives these answers in turn, and the last one for ever."""
    queue = list(replies)

    def handle(_hit: Hit) -> Reply:
        reply = queue.pop(0) if len(queue) > 1 else queue[0]
        return reply if isinstance(reply, Reply) else Reply.json(reply)

    return handle


def echo(hit: Hit) -> Reply:
    """A chat completion that says what the last message said."""
    return Reply.json(chat("echo " + hit.json["messages"][-1]["content"]))


def rate_limited() -> Reply:
    """Status 429, to be tried again at once."""
    return Reply.json({"error": {"message": "slow down", "type": "rate"}}, 429, retry_after="0", x_request_id="req_429")


opened: list[Any] = []
"""Synchronous clients to close when the test is over; an asynchronous one is closed in the loop that it was used in."""


def openai_client(url: str, *, asynchronous: bool = False, **options: Any) -> Any:
    """A client of the openai SDK."""
    cls = openai.AsyncOpenAI if asynchronous else openai.OpenAI
    return _noted(cls(base_url=url + "/v1", **{"api_key": KEY, "max_retries": 0, **options}))


def anthropic_client(url: str, *, asynchronous: bool = False, **options: Any) -> Any:
    """A client of the anthropic SDK."""
    cls = anthropic.AsyncAnthropic if asynchronous else anthropic.Anthropic
    return _noted(cls(base_url=url, **{"api_key": KEY, "max_retries": 0, **options}))


def _noted(client: Any) -> Any:
    if not inspect.iscoroutinefunction(client.close):
        opened.append(client)
    return client


ASK = {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]}
ASK_CLAUDE = {"model": "claude-x", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}


def chunk_lengths(events: Callable[[str], list[dict[str, Any]]], run: str = "r") -> list[int]:
    """Lengths of the chunks of the only stream in a log; a slow machine has written some of them before the end."""
    pieces = [event["data"] for event in events(run, notes=True) if event["type"] == "step.progressed"]
    ended = [event["data"]["exchanges"][-1] for event in events(run) if event["type"] == "step.finished"]
    return [length for piece in [*pieces, *ended[-1:]] for length in piece.get("chunks", ())]


def open_records() -> list[Any]:
    """Recordings of streams that have not been concluded, those of earlier tests of this process included."""
    return [found for found in gc.get_objects() if type(found).__name__ == "StreamRecord" and not found.over]


async def settled(value: Any) -> Any:
    """The value, awaited where it has to be."""
    return await value if inspect.isawaitable(value) else value


async def listed(stream: Any) -> list[Any]:
    """The items of a stream of either colour."""
    if hasattr(stream, "__aiter__"):
        return [item async for item in stream]
    return list(stream)


def perform(program: Callable[[], Any]) -> Any:
    """Run a coroutine function in a loop of its own, even where everything it awaits is synchronous."""
    return asyncio.run(program())


def complete(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in which nothing waits, without an event loop: synchronous code must not see one."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a synchronous client waited for an event loop")


class RawServer:
    """A server that answers every connection with these bytes, piece by piece, and closes it."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            with connection:
                _read_request(connection)
                for piece in self._pieces:
                    connection.sendall(piece)

    def close(self) -> None:
        """Stop answering."""
        # Closing alone would leave `accept` waiting.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket.fileno() >= 0:
            self.close()


def _read_request(connection: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += connection.recv(65536)


def lets_go_of_streams() -> bool:
    """Whether the SDKs here only let go of a stream whose reader is gone; newer releases close it."""
    return "finally" not in inspect.getsource(openai.Stream.__stream__)
