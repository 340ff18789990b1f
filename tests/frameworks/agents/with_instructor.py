"""A refund agent whose model answers in the types of Instructor; it survives being killed."""

from __future__ import annotations

import asyncio
from typing import Literal

import instructor
from pydantic import BaseModel

import steplog
from tests.frameworks.shop import shop

steplog.install()


class Action(BaseModel):
    """What to do next: call a tool, or answer."""

    tool: Literal["lookup_order", "refund", "answer"]
    order_id: str = ""
    cents: int = 0
    text: str = ""


@steplog.step(mode="safe")
def lookup_order(order_id: str) -> str:
    return shop.lookup(order_id)


@steplog.step
def refund(order_id: str, cents: int) -> str:
    return shop.pay_back(order_id, cents)


def act(action: Action) -> str:
    if action.tool == "lookup_order":
        return lookup_order(action.order_id)
    return refund(action.order_id, action.cents)


def run(question: str, model: str = "openai/gpt-5.2") -> str:
    client = instructor.from_provider(model)
    messages = [{"role": "user", "content": question}]
    while True:
        action = client.create(response_model=Action, messages=messages, max_tokens=1000)
        if action.tool == "answer":
            return action.text
        messages.append({"role": "user", "content": f"{action.tool}: {act(action)}"})


def anthropic(question: str) -> str:
    return run(question, "anthropic/claude-sonnet-4-6")


async def streamed(question: str) -> str:
    client = instructor.from_provider("openai/gpt-5.2", async_client=True)
    messages = [{"role": "user", "content": question}]
    while True:
        *_, action = [part async for part in client.create_partial(response_model=Action, messages=messages)]
        if action.tool == "answer":
            return action.text
        messages.append({"role": "user", "content": f"{action.tool}: {await asyncio.to_thread(act, action)}"})


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
