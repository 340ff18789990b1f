"""A refund agent of CrewAI that survives being killed."""

from __future__ import annotations

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

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


def crew(question: str, model: LLM) -> Crew:
    clerk = Agent(
        role="clerk", goal="Help customers.", backstory="You work for a shop.", llm=model, tools=[lookup_order, refund]
    )
    return Crew(agents=[clerk], tasks=[Task(description=question, expected_output="One sentence.", agent=clerk)])


def run(question: str) -> str:
    return crew(question, LLM("openai/gpt-4.1")).kickoff().raw


def streamed(question: str) -> str:
    return crew(question, LLM("openai/gpt-4.1", stream=True)).kickoff().raw


async def threads(question: str) -> str:
    return (await crew(question, LLM("openai/gpt-4.1")).kickoff_async()).raw


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
