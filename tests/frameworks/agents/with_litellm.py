"""A refund agent that asks its model through LiteLLM and survives being killed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm

import steplog
from tests.frameworks.shop import shop

steplog.install()


@steplog.step(mode="safe")
def lookup_order(order_id: str) -> str:
    return shop.lookup(order_id)


@steplog.step
def refund(order_id: str, cents: int) -> str:
    return shop.pay_back(order_id, cents)


TOOLS = {"lookup_order": lookup_order, "refund": refund}


def schema(name: str, **properties: str) -> dict[str, Any]:
    fields = {field: {"type": kind} for field, kind in properties.items()}
    parameters = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


SCHEMAS = [schema("lookup_order", order_id="string"), schema("refund", order_id="string", cents="integer")]


def act(message: Any) -> list[dict[str, Any]]:
    results = [TOOLS[call.function.name](**json.loads(call.function.arguments)) for call in message.tool_calls]
    calls = zip(message.tool_calls, results, strict=True)
    return [{"role": "tool", "tool_call_id": call.id, "content": result} for call, result in calls]


def run(question: str, model: str = "openai/gpt-5.2") -> str:
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        message = litellm.completion(model=model, messages=messages, tools=SCHEMAS).choices[0].message
        if not message.tool_calls:
            return message.content
        messages += [message, *act(message)]


def anthropic(question: str) -> str:
    return run(question, "anthropic/claude-sonnet-4-6")


def responses(question: str) -> str:
    asked: list[Any] = [{"role": "user", "content": question}]
    tools = [{"type": "function", **schema["function"]} for schema in SCHEMAS]
    while True:
        response = litellm.responses(model="openai/gpt-5.2", input=asked, tools=tools)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output[0].content[0].text
        for call in calls:
            result = TOOLS[call.name](**json.loads(call.arguments))
            called = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            asked += [called, {"type": "function_call_output", "call_id": call.call_id, "output": result}]


async def streamed(question: str) -> str:
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        stream = await litellm.acompletion(model="openai/gpt-5.2", messages=messages, tools=SCHEMAS, stream=True)
        message = litellm.stream_chunk_builder([chunk async for chunk in stream]).choices[0].message
        if not message.tool_calls:
            return message.content
        messages += [message, *await asyncio.to_thread(act, message)]


async def anthropic_streamed(question: str) -> str:
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        stream = await litellm.acompletion(
            model="anthropic/claude-sonnet-4-6", messages=messages, tools=SCHEMAS, stream=True
        )
        message = litellm.stream_chunk_builder([chunk async for chunk in stream]).choices[0].message
        if not message.tool_calls:
            return message.content
        messages += [message, *await asyncio.to_thread(act, message)]


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
