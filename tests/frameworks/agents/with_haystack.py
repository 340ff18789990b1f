"""A refund agent of Haystack that survives being killed."""

from __future__ import annotations

from typing import Annotated

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool

import steplog
from tests.frameworks.shop import shop

steplog.install()


@tool
@steplog.step(mode="safe")
def lookup_order(order_id: Annotated[str, "the order"]) -> str:
    """Look an order up."""
    return shop.lookup(order_id)


@tool
@steplog.step
def refund(order_id: Annotated[str, "the order"], cents: Annotated[int, "how much"]) -> str:
    """Pay money back."""
    return shop.pay_back(order_id, cents)


def agent(model: OpenAIChatGenerator | OpenAIResponsesChatGenerator) -> Agent:
    return Agent(chat_generator=model, tools=[lookup_order, refund], system_prompt="You work for a shop.")


def run(question: str) -> str:
    clerk = agent(OpenAIChatGenerator(model="gpt-5.2"))
    return clerk.run(messages=[ChatMessage.from_user(question)])["last_message"].text


async def responses(question: str) -> str:
    clerk = agent(OpenAIResponsesChatGenerator(model="gpt-5.2"))
    return (await clerk.run_async(messages=[ChatMessage.from_user(question)]))["last_message"].text


def streamed(question: str) -> str:
    clerk = agent(OpenAIChatGenerator(model="gpt-5.2", streaming_callback=lambda _chunk: None))
    return clerk.run(messages=[ChatMessage.from_user(question)])["last_message"].text


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
