"""What a person gives as the result of a call that was cut off, to a program that reads a stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import steplog
from steplog._runtime.resolve import resolve
from steplog.errors import Indeterminate, Unreplayable
from steplog.stores.files import FileStore
from steplog.testing import LocalProvider, Reply
from tests.interceptors.support import ASK, answers, anthropic_client, message, openai_client

MAIL: dict[str, Any] = {"type": "mcp", "server_label": "mail", "server_url": "https://mail.example"}
MAIL["require_approval"] = "never"
ASK_CLAUDE: dict[str, Any] = {"model": "claude-x", "max_tokens": 9, "messages": ASK["messages"], "stream": True}
UNSAFE: dict[str, Callable[[str], Any]] = {
    "responses": lambda url: openai_client(url).responses.create(model="m", input="hi", tools=[MAIL], stream=True),
    "messages": lambda url: anthropic_client(url).beta.messages.create(
        **ASK_CLAUDE, mcp_servers=[{"type": "url", "name": "mail", "url": "https://mail.example"}]
    ),
}
OUTPUT = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
TEXT = {"type": "output_text", "text": "sent", "annotations": [], "logprobs": []}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "tools": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "output": [{**OUTPUT, "content": [TEXT]}],
}


def begun(**event: Any) -> Reply:
    return Reply.sse(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n")


FIRST = {
    "responses": begun(type="response.created", sequence_number=0, response={**RESPONSE, "output": []}),
    "messages": begun(type="message_start", message=message()),
}


class Died(BaseException):
    """Stands for the death of the process."""


def in_doubt(call: Callable[[str], Any], url: str) -> str:
    """Have the process die in a call in run `r`; gives the step."""
    with pytest.raises(Died), steplog.run("r"):
        stream = call(url)
        next(iter(stream))
        raise Died
    with pytest.raises(steplog.RunStopped) as stopped, steplog.run("r"):
        call(url)
    assert isinstance(stopped.value.__cause__, Indeterminate)
    return str(stopped.value.step)


def test_a_response_given_by_hand_is_a_stream_to_a_program_that_reads_one(home):
    with LocalProvider(handler=answers(FIRST["responses"])) as provider:
        step = in_doubt(UNSAFE["responses"], provider.url)
        resolve(FileStore(str(home)), "r", step, how="done", result=RESPONSE)
        with steplog.run("r"):
            read = list(UNSAFE["responses"](provider.url))
        assert len(provider.hits) == 1
    assert (read[0].type, read[-1].type) == ("response.created", "response.completed")
    assert read[-1].response.output_text == "sent"


@pytest.mark.parametrize("sdk", UNSAFE)
def test_no_stream_is_made_of_what_tells_of_none_and_another_word_may_be_given(sdk, home):
    given = "event: message_stop\ndata: " + json.dumps({"type": "message_stop"})
    with LocalProvider(handler=answers(FIRST[sdk])) as provider:
        step = in_doubt(UNSAFE[sdk], provider.url)
        resolve(FileStore(str(home)), "r", step, how="done", result={"id": "msg_1", "type": "message"})
        with pytest.raises(steplog.RunStopped, match="a stream cannot be made of the JSON given") as stopped:
            with steplog.run("r"):
                list(UNSAFE[sdk](provider.url))
        assert isinstance(stopped.value.__cause__, Unreplayable)
        resolve(FileStore(str(home)), "r", step, how="done", result=given)
        with steplog.run("r"):
            assert [event.type for event in UNSAFE[sdk](provider.url)] == ["message_stop"]
        assert len(provider.hits) == 1
