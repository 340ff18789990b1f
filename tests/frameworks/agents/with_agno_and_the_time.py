"""A refund agent of Agno that is told the time; it survives being killed, and is told the same time again."""

from __future__ import annotations

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.tools import tool

import steplog
from tests.frameworks.shop import shop

# What Agno writes into the prompt would be another time when the run is resumed: it has to come from the log as well.
steplog.install(also=["clock"])


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


def agent() -> Agent:
    tools = [lookup_order, refund]
    return Agent(model=OpenAIChat("gpt-5.2"), tools=tools, add_datetime_to_context=True, telemetry=False)


def run(question: str) -> str:
    return agent().run(question).content


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
