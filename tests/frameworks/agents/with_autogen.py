"""A refund agent of AutoGen that survives being killed."""

from __future__ import annotations

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

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


def agent(*, stream: bool = False) -> AssistantAgent:
    model = OpenAIChatCompletionClient(model="gpt-4.1")
    return AssistantAgent(
        "clerk", model, tools=[lookup_order, refund], max_tool_iterations=9, model_client_stream=stream
    )


async def run(question: str) -> str:
    return (await agent().run(task=question)).messages[-1].content


async def streamed(question: str) -> str:
    *_, result = [event async for event in agent(stream=True).run_stream(task=question)]
    return result.messages[-1].content


async def team(question: str) -> str:
    clerks = RoundRobinGroupChat([agent()], termination_condition=TextMessageTermination("clerk"))
    return (await clerks.run(task=question)).messages[-1].content


def around(question: str) -> str:
    """The run is opened around the event loop."""
    return asyncio.run(team(question))


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(asyncio.run(run("Refund the broken teapot of order ord_1001.")))
