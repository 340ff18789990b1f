"""A refund agent of smolagents that survives being killed."""

from __future__ import annotations

import os

from smolagents import CodeAgent, LiteLLMModel, OpenAIModel, ToolCallingAgent, tool

import steplog
from tests.frameworks.shop import shop

steplog.install()


@tool
@steplog.step(mode="safe")
def lookup_order(order_id: str) -> str:
    """Look an order up.

    Args:
        order_id: the order.
    """
    return shop.lookup(order_id)


@tool
@steplog.step
def refund(order_id: str, cents: int) -> str:
    """Pay money back.

    Args:
        order_id: the order.
        cents: how much.
    """
    return shop.pay_back(order_id, cents)


def model() -> OpenAIModel:
    return OpenAIModel("gpt-5.2", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])


def run(question: str) -> str:
    return ToolCallingAgent([lookup_order, refund], model()).run(question)


def streamed(question: str) -> str:
    agent = ToolCallingAgent([lookup_order, refund], model(), stream_outputs=True)
    *_, last = agent.run(question, stream=True)
    return last.output


def code(question: str) -> str:
    return CodeAgent([lookup_order, refund], model()).run(question)


def through_litellm(question: str) -> str:
    return ToolCallingAgent([lookup_order, refund], LiteLLMModel("openai/gpt-5.2")).run(question)


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
