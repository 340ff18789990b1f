"""A refund agent of the OpenAI Agents SDK that survives being killed."""

from __future__ import annotations

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

import steplog
from tests.frameworks.shop import shop

steplog.install()
set_tracing_disabled(disabled=True)


@function_tool
@steplog.step(mode="safe")
def lookup_order(order_id: str) -> str:
    """Look an order up."""
    return shop.lookup(order_id)


@function_tool
@steplog.step
def refund(order_id: str, cents: int) -> str:
    """Pay money back."""
    return shop.pay_back(order_id, cents)


def agent(model: str | OpenAIChatCompletionsModel = "gpt-5.2") -> Agent:
    return Agent("refunds", instructions="You work for a shop.", model=model, tools=[lookup_order, refund])


def run(question: str) -> str:
    return Runner.run_sync(agent(), question).final_output


def chat(question: str) -> str:
    model = OpenAIChatCompletionsModel("gpt-5.2", openai_client=AsyncOpenAI())
    return Runner.run_sync(agent(model), question).final_output


def streamed(question: str) -> str:
    async def consume() -> str:
        result = Runner.run_streamed(agent(), question)
        async for _event in result.stream_events():
            pass
        return result.final_output

    return asyncio.run(consume())


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
