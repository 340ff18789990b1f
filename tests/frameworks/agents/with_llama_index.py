"""A refund agent of LlamaIndex that survives being killed."""

from __future__ import annotations

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI, OpenAIResponses

import steplog
from tests.frameworks.shop import shop

steplog.install()


@FunctionTool.from_defaults
@steplog.step(mode="safe")
def lookup_order(order_id: str) -> str:
    """Look an order up."""
    return shop.lookup(order_id)


@FunctionTool.from_defaults
@steplog.step
def refund(order_id: str, cents: int) -> str:
    """Pay money back."""
    return shop.pay_back(order_id, cents)


def agent(model: OpenAI | OpenAIResponses, **options: bool) -> FunctionAgent:
    return FunctionAgent(tools=[lookup_order, refund], llm=model, system_prompt="You work for a shop.", **options)


async def run(question: str) -> str:
    return str(await agent(OpenAI("gpt-4.1"), streaming=False).run(question))


def around(question: str) -> str:
    """The run is opened around the event loop."""
    return asyncio.run(run(question))


async def streamed(question: str) -> str:
    return str(await agent(OpenAI("gpt-4.1")).run(question))


async def responses(question: str) -> str:
    return str(await agent(OpenAIResponses("gpt-4.1"), streaming=False).run(question))


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(around("Refund the broken teapot of order ord_1001."))
