"""A refund agent of Agno that survives being killed."""

from __future__ import annotations

from agno.agent import Agent
from agno.models.anthropic import Claude
from agno.models.openai import OpenAIChat, OpenAIResponses
from agno.tools import tool

import steplog
from tests.frameworks.shop import shop

steplog.install()


@tool
@steplog.step(mode="safe")
def lookup_order(order_id: str) -> str:
    """Look an order up."""
    return shop.lookup(order_id)


@tool
@steplog.step
def refund(order_id: str, cents: int) -> str:
    """Pay money back."""
    return shop.pay_back(order_id, cents)


def agent(model: OpenAIChat | OpenAIResponses | Claude) -> Agent:
    return Agent(model=model, tools=[lookup_order, refund], instructions="You work for a shop.", telemetry=False)


def run(question: str) -> str:
    return agent(OpenAIChat("gpt-5.2")).run(question).content


async def responses(question: str) -> str:
    return (await agent(OpenAIResponses("gpt-5.2")).arun(question)).content


def streamed(question: str) -> str:
    *_, last = agent(OpenAIChat("gpt-5.2")).run(question, stream=True, stream_events=True)
    return last.content


def anthropic(question: str) -> str:
    return agent(Claude("claude-sonnet-4-6")).run(question).content


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
