"""How the hand-written methods above the generated ones are used: what they need beyond their types."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anthropic
import openai

from tests.interceptors import support
from tests.interceptors.support import listed, settled
from tests.interceptors.walk.answers import Answer, Body, answer, events, json_body
from tests.interceptors.walk.entered import entered
from tests.interceptors.walk.inventory import hints_of
from tests.interceptors.walk.snapshot import snapshot
from tests.interceptors.walk.values import FILE, tree
from tests.support.recorded import OWN

Reader = Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]]

_SSE: Final = "text/event-stream; charset=utf-8"
_FINALS: Final = ("get_final_completion", "get_final_response", "get_final_message", "get_final_text", "get_final_run")
# A file that is there whenever this module is.
_HERE: Final = Path(__file__)


@dataclass(frozen=True)
class Helper:
    """What to know about a method.

    Attributes:
        arguments: those that its types do not tell.
        answer: what the provider answers, where the return type does not tell.
        read: calls the function and reads its result, where that takes more than iterating.
        complete: nothing has to be added to the arguments.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    answer: Callable[[], Answer] | None = None
    read: Reader | None = None
    complete: bool = False


async def _through_manager(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Enter a stream, read its events, and ask for what it has put together."""
    async with entered(function(**given)) as stream:
        seen = [snapshot(event) for event in await listed(stream)]
        return [type(stream).__qualname__, seen, await _finals(stream)]


async def _until_done(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """The same where the helper's snapshots ask for more than the first events tell."""
    async with entered(function(**given)) as stream:
        return [type(stream).__qualname__, [snapshot(event) for event in await listed(stream)]]


async def _finals(stream: Any) -> dict[str, Any]:
    return {name: snapshot(await settled(getattr(stream, name)())) for name in _FINALS if hasattr(stream, name)}


async def _thread(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    thread = function(**given)
    return snapshot(await settled(thread.send({"role": "user", "content": "hi"})))


async def _runner(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    runner = function(**given)
    return [type(runner).__qualname__, snapshot(await settled(runner.until_done()))]


async def _artifacts(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    from openai.lib.beta.agents import AgentTurnResult
    from openai.types.beta.agents.sessions.turn import Turn

    found = function(AgentTurnResult(turn=Turn.construct(id="turn_1", session_id="session_1"), messages=[]))
    return await settled((await settled(found.content("/workspace/outputs/a.txt"))).read())


def _lines_of_a_batch(beta: bool) -> Callable[[], Answer]:
    def made() -> Answer:
        batches = (
            anthropic.resources.beta.messages.batches.Batches if beta else anthropic.resources.messages.batches.Batches
        )
        batch = tree(hints_of(batches.retrieve)["return"]) | {"results_url": "/v1/messages/batches/batch_1/results"}
        lines = answer(hints_of(batches.results)["return"])
        assert lines is not None
        return Answer("lines", (json_body(batch), *lines.bodies))

    return made


def _sse(text: Callable[[], bytes]) -> Callable[[], Answer]:
    return lambda: Answer("stream", (Body(text(), _SSE),))


@functools.cache
def _chat() -> bytes:
    written = [event if isinstance(event, str) else json.dumps(event) for event in support.chat_events("Hel", "lo")]
    return "".join(f"data: {event}\n\n" for event in written).encode()


@functools.cache
def _responses() -> bytes:
    return bytes(json.loads((OWN / "openai/responses/stream.json").read_bytes())["response"]["body"].encode())


def _assistants() -> bytes:
    return events(openai.types.beta.AssistantStreamEvent)


def _messages() -> bytes:
    return support.message_events("Hel", "lo").encode()


def _message() -> Answer:
    return Answer("model", (json_body(support.message()),))


def _file() -> Answer:
    return Answer("model", (json_body(tree(openai.types.FileObject)),))


def _agent_events() -> Answer:
    return Answer("stream", (Body(events(openai.types.beta.AgentSessionEvent), _SSE),))


def _turn() -> Answer:
    """An idle session, its events, and the provider's thanks for the input."""
    head = {"session_id": "session_1", "turn_id": "turn_1"}
    turn = {"id": "turn_1", "session_id": "session_1", "subagent_id": None, "status": "completed"}
    told = [
        {"type": "error", "event_id": "e0", **head, "error": {"message": "a tool was slow", "code": "slow"}},
        {"type": "agent.session.turn.created", "event_id": "e1", **head, "turn": turn},
        {"type": "agent.session.turn.completed", "event_id": "e2", **head, "turn": turn},
        {"type": "agent.session.idle", "event_id": "e3", **head, "session": {"id": "session_1"}},
    ]
    text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in told)
    session = {**tree(openai.types.beta.AgentSession), "id": "session_1", "status": "idle"}
    return Answer("stream", (json_body(session), Body(text.encode(), _SSE), json_body({})))


def _result() -> Answer:
    where = {"session_id": "session_1", "turn_id": "turn_1", "path": "/workspace/outputs/a.txt"}
    artifact = {**tree(hints_of(openai.resources.beta.agents.sessions.artifacts.Artifacts.retrieve)["return"]), **where}
    listed_once = {"data": [artifact], "has_more": False, "object": "list"}
    return Answer("binary", (json_body(listed_once), Body(FILE, "application/octet-stream")))


def _assistant(given: dict[str, Any]) -> Helper:
    return Helper(given, _sse(_assistants), _until_done, complete=True)


_CLAUDE: Final = {"model": "claude-x", "max_tokens": 8}
_ASK: Final = {"messages": [{"role": "user", "content": "hi"}]}
_RUN: Final = {"thread_id": "thread_1", "assistant_id": "asst_1"}
_OUTPUTS: Final = {"thread_id": "thread_1", "run_id": "run_1", "tool_outputs": []}
_CHAT: Final = Helper({"model": "gpt-x", **_ASK}, _sse(_chat), _through_manager, complete=True)
_MESSAGES: Final = Helper({**_CLAUDE, **_ASK}, _sse(_messages), _through_manager, complete=True)
_AGENT_FILE: Final = Helper({"files": {"/workspace/a.txt": str(_HERE)}}, _file)

HELPERS: Final[dict[str, Helper]] = {
    "openai.chat.completions.stream": _CHAT,
    "openai.beta.chat.completions.stream": _CHAT,
    "openai.responses.stream": Helper(
        {"model": "gpt-x", "input": "hi"}, _sse(_responses), _through_manager, complete=True
    ),
    "openai.beta.threads.create_and_run_stream": _assistant({"assistant_id": "asst_1"}),
    "openai.beta.threads.runs.create_and_stream": _assistant(_RUN),
    "openai.beta.threads.runs.stream": _assistant(_RUN),
    "openai.beta.threads.runs.submit_tool_outputs_stream": _assistant(_OUTPUTS),
    # Bytes, because older releases leave a file that they open themselves to the garbage collector.
    "openai.uploads.upload_file_chunked": Helper(
        {"file": b"some bytes", "filename": "a.txt", "bytes": 10, "mime_type": "text/plain", "purpose": "batch"}
    ),
    "openai.beta.agents.environments.files.prepare": _AGENT_FILE,
    "openai.beta.agents.environments.files.prepare_directory": Helper(
        {"root": str(_HERE.parent), "destination": "/workspace/src", "include": ["helpers.py"]}, _file
    ),
    "openai.beta.agents.environments.files.upload": Helper({"path": "/workspace/a.txt", "file": FILE}, _file),
    "openai.beta.agents.sessions.create [stream]": Helper(answer=_agent_events),
    "openai.beta.agents.sessions.stream": Helper({"input": "hi"}, _turn, _through_manager),
    "openai.beta.agents.sessions.artifacts.for_result": Helper({"result": None}, _result, _artifacts),
    "anthropic.messages.stream": _MESSAGES,
    "anthropic.beta.messages.stream": _MESSAGES,
    "anthropic.beta.messages.thread": Helper(_CLAUDE, _message, _thread, complete=True),
    "anthropic.beta.messages.tool_runner": Helper({"tools": [], **_CLAUDE, **_ASK}, _message, _runner),
    "anthropic.beta.messages.tool_runner [stream]": Helper({"tools": [], **_CLAUDE, **_ASK}, _sse(_messages), _runner),
    "anthropic.messages.batches.results": Helper(answer=_lines_of_a_batch(beta=False)),
    "anthropic.beta.messages.batches.results": Helper(answer=_lines_of_a_batch(beta=True)),
}
