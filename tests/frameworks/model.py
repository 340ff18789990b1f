"""A scripted model behind a real HTTP server, in the shapes of three APIs: chat completions, responses, messages.

    python -m tests.frameworks.model PORT_FILE HITS_FILE

It looks an order up, refunds it, and answers; where it stands it reads from the request, as a model does. So a request
that is sent again gets the same answer, and what counts it is the file of hits. A program speaks to it below a path of
its own (`/CASE/v1/...`), by which its requests are told from those of others.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steplog.testing import Hit, LocalProvider, Reply

ORDER, CENTS = "ord_1001", 4200
ANSWER = "Order ord_1001 is refunded: 42.00 EUR."
MODEL = "gpt-5.2"

Turn = tuple[str, dict[str, Any]]
CALLS: list[Turn] = [("lookup_order", {"order_id": ORDER}), ("refund", {"order_id": ORDER, "cents": CENTS})]


def reply(hit: Hit) -> Reply:
    """Answer a request as the model would."""
    path, request = hit.path.partition("?")[0], hit.json
    if path.endswith("/chat/completions"):
        return chat(request)
    if path.endswith("/responses"):
        return responses(request)
    if path.endswith("/messages"):
        return messages(request)
    return Reply.json({"error": {"type": "not_found", "message": f"{hit.method} {path}"}}, 404)


def turn(results: int, offered: list[str], past: Any) -> Turn | str:
    """What comes after so many results of tools: a call, or the answer."""
    wanted = [name for name in offered if name.endswith("Action")]
    if wanted:  # Instructor asks for one of its types in the form of a call
        return wanted[0], action(sum(f"{name}: " in json.dumps(past) for name, _arguments in CALLS))
    if results < len(CALLS):
        name, arguments = CALLS[results]
        return next(tool for tool in offered if tool.endswith(name)), arguments
    # Some frameworks take the answer as the call of a tool.
    return ("final_answer", {"answer": ANSWER}) if "final_answer" in offered else ANSWER


def action(done: int) -> dict[str, Any]:
    """The turn as a value that says what to do."""
    if done == len(CALLS):
        return {"tool": "answer", "text": ANSWER}
    name, arguments = CALLS[done]
    return {"tool": name, **arguments}


def pieces(text: str) -> list[str]:
    """Cut a text as a stream would."""
    return [text[i : i + 12] for i in range(0, len(text), 12)]


# chat completions ----------------------------------------------------------------------------------------------------


def chat(request: dict[str, Any]) -> Reply:
    """Answer `POST /chat/completions`."""
    past = request["messages"]
    results = sum(message["role"] == "tool" or observed(message) for message in past)
    offered = [tool["function"]["name"] for tool in request.get("tools", ())]
    said = turn(results, offered, past) if offered else spoken(past)
    head = {"id": f"chatcmpl-{results}", "created": 1_760_000_000, "model": MODEL, "service_tier": "default"}
    message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None, "annotations": []}
    if not isinstance(said, str):
        called = {"name": said[0], "arguments": json.dumps(said[1])}
        call = {"id": f"call_{results}", "type": "function", "function": called}
        message |= {"content": None, "tool_calls": [call]}
    reason = "stop" if isinstance(said, str) else "tool_calls"
    usage = {"prompt_tokens": 100 + results, "completion_tokens": 20, "total_tokens": 120 + results}
    if request.get("stream"):
        return Reply.sse(chat_events(head, message, reason, usage, request))
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    return Reply.json({**head, "object": "chat.completion", "choices": [choice], "usage": usage})


def observed(message: dict[str, Any]) -> bool:
    """Whether this is a result as smolagents writes it down: as text."""
    return message["role"] == "user" and "Observation:" in json.dumps(message["content"])


def chat_events(head: Any, message: Any, reason: str, usage: Any, request: Any) -> Iterator[Any]:
    """The same answer as a stream."""

    def chunk(delta: Any, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**head, "object": "chat.completion.chunk", "choices": [choice]}

    for index, call in enumerate(message.get("tool_calls", ())):
        name = {"name": call["function"]["name"], "arguments": ""}
        yield chunk({"role": "assistant", "content": None, "tool_calls": [{**call, "index": index, "function": name}]})
        for piece in pieces(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if message["content"] is not None:
        yield chunk({"role": "assistant", "content": "", "refusal": None})
        yield from (chunk({"content": piece}) for piece in pieces(message["content"]))
    yield chunk({}, reason)
    if (request.get("stream_options") or {}).get("include_usage"):
        yield {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
    yield "[DONE]"


def spoken(past: list[dict[str, Any]]) -> str:
    """The turn as text, for frameworks that ask for a form of their own instead of offering tools."""
    text = "\n".join(json.dumps(message.get("content")) for message in past)
    if "<code>" in text:  # smolagents
        return python(sum(message["role"] == "assistant" for message in past))
    done = len(re.findall(r"\[\[ ## observation_\d+ ## \]\]", json.dumps(past[-1]["content"])))
    if "[[ ## next_tool_name ## ]]" not in text:  # DSPy, when the tools have been called
        return fields(reasoning="Both tools have answered.", answer=ANSWER)
    name, arguments = CALLS[done] if done < len(CALLS) else ("finish", {})
    return fields(next_thought=f"Now {name}.", next_tool_name=name, next_tool_args=json.dumps(arguments))


def python(done: int) -> str:
    """The turn as code."""
    name, arguments = CALLS[done] if done < len(CALLS) else ("final_answer", {"answer": ANSWER})
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"Thought: now {name}.\n<code>\nprint({name}({written}))\n</code>"


def fields(**values: str) -> str:
    """Fields in the markup of DSPy."""
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in {**values, "completed": ""}.items())


# responses -----------------------------------------------------------------------------------------------------------


def responses(request: dict[str, Any]) -> Reply:
    """Answer `POST /responses`."""
    past = request["input"] if isinstance(request["input"], list) else []
    results = sum(item.get("type") == "function_call_output" for item in past)
    results += int((request.get("previous_response_id") or "resp_0").removeprefix("resp_"))
    offered = [tool["name"] for tool in request.get("tools", ())]
    said = turn(results, offered, past) if offered else spoken(past)
    if isinstance(said, str):
        part = {"type": "output_text", "text": said, "annotations": [], "logprobs": []}
        item = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}
    else:
        call = {"call_id": f"call_{results}", "name": said[0], "arguments": json.dumps(said[1])}
        item = {"type": "function_call", "id": f"fc_{results}", "status": "completed", **call}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    response = {
        "id": f"resp_{results}",
        "object": "response",
        "created_at": 1_760_000_000,
        "model": MODEL,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "tool_choice": "auto",
        "tools": request.get("tools", []),
        "output": [item],
        "usage": {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120, **details},
    }
    if not request.get("stream"):
        return Reply.json(response)
    numbers = itertools.count()
    events = (event | {"sequence_number": next(numbers)} for event in response_events(response, item))
    return Reply.sse("".join(named_event(event) for event in events))


def response_events(response: Any, item: Any) -> Iterator[dict[str, Any]]:
    """The same answer as a stream."""
    begun = response | {"status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    at = {"item_id": item["id"], "output_index": 0}
    empty = item | {"status": "in_progress"} | ({"content": []} if "content" in item else {"arguments": ""})
    yield {"type": "response.output_item.added", "output_index": 0, "item": empty}
    if "content" in item:
        part = item["content"][0]
        at["content_index"] = 0
        yield {"type": "response.content_part.added", **at, "part": part | {"text": ""}}
        for piece in pieces(part["text"]):
            yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
        yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **at, "part": part}
    else:
        kind = "response.function_call_arguments"
        for piece in pieces(item["arguments"]):
            yield {"type": f"{kind}.delta", **at, "delta": piece}
        yield {"type": f"{kind}.done", **at, "name": item["name"], "arguments": item["arguments"]}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": response}


def named_event(event: dict[str, Any]) -> str:
    """One server-sent event with its type as its name."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


# messages ------------------------------------------------------------------------------------------------------------


def messages(request: dict[str, Any]) -> Reply:
    """Answer `POST /messages`."""
    blocks = [block for message in request["messages"] for block in content_of(message)]
    results = sum(block.get("type") == "tool_result" for block in blocks)
    said = turn(results, [tool["name"] for tool in request.get("tools", ())], request["messages"])
    block: dict[str, Any] = {"type": "text", "text": said}
    if not isinstance(said, str):
        block = {"type": "tool_use", "id": f"toolu_{results}", "name": said[0], "input": said[1]}
    message = {
        "id": f"msg_{results}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [block],
        "stop_reason": "end_turn" if block["type"] == "text" else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 20},
    }
    if request.get("stream"):
        return Reply.sse("".join(named_event(event) for event in message_events(message, block)))
    return Reply.json(message)


def content_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a message."""
    return message["content"] if isinstance(message["content"], list) else []


def message_events(message: Any, block: Any) -> Iterator[dict[str, Any]]:
    """The same answer as a stream."""
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None}}
    if block["type"] == "text":
        start, kind, text = {"text": ""}, ("text_delta", "text"), block["text"]
    else:
        start, kind, text = {"input": {}}, ("input_json_delta", "partial_json"), json.dumps(block["input"])
    yield {"type": "content_block_start", "index": 0, "content_block": block | start}
    yield {"type": "ping"}
    for piece in pieces(text):
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": kind[0], kind[1]: piece}}
    yield {"type": "content_block_stop", "index": 0}
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20}}
    yield {"type": "message_stop"}


def main() -> None:
    """Serve until SIGTERM."""
    port_file, hits_file = map(Path, sys.argv[1:])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with LocalProvider(handler=reply, hits_file=hits_file) as provider:
        draft = port_file.with_suffix(".draft")
        draft.write_text(provider.url)
        draft.replace(port_file)
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main()
