"""A refund agent of Strands that survives being killed."""

from __future__ import annotations

from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel

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


def agent(model: OpenAIModel | AnthropicModel) -> Agent:
    return Agent(model=model, tools=[lookup_order, refund], system_prompt="You work for a shop.", callback_handler=None)


def text(message: dict) -> str:
    return message["content"][0]["text"]


def run(question: str) -> str:
    return text(agent(OpenAIModel(model_id="gpt-5.2"))(question).message)


async def streamed(question: str) -> str:
    events = agent(OpenAIModel(model_id="gpt-5.2")).stream_async(question)
    *_, last = [event async for event in events]
    return text(last["result"].message)


def anthropic(question: str) -> str:
    return text(agent(AnthropicModel(model_id="claude-sonnet-4-6", max_tokens=1000))(question).message)


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
