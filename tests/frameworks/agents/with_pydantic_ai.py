"""A refund agent of Pydantic AI that survives being killed."""

from __future__ import annotations

from pydantic_ai import Agent

import steplog
from tests.frameworks.shop import shop

steplog.install()


@steplog.step(mode="safe")
def lookup_order(order_id: str) -> str:
    """Look an order up."""
    return shop.lookup(order_id)


@steplog.step
def refund(order_id: str, cents: int) -> str:
    """Pay money back."""
    return shop.pay_back(order_id, cents)


def agent(model: str) -> Agent:
    return Agent(model, instructions="You work for a shop.", tools=[lookup_order, refund])


def run(question: str) -> str:
    return agent("openai-chat:gpt-5.2").run_sync(question).output


async def responses(question: str) -> str:
    return (await agent("openai-responses:gpt-5.2").run(question)).output


async def streamed(question: str) -> str:
    async with agent("openai-chat:gpt-5.2").run_stream(question) as result:
        return [text async for text in result.stream_text()][-1]


async def anthropic(question: str) -> str:
    return (await agent("anthropic:claude-sonnet-4-6").run(question)).output


async def anthropic_streamed(question: str) -> str:
    async with agent("anthropic:claude-sonnet-4-6").run_stream(question) as result:
        return [text async for text in result.stream_text()][-1]


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
