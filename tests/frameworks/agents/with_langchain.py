"""A refund agent of LangChain and LangGraph that survives being killed."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

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


def agent(model: ChatOpenAI | ChatAnthropic):
    return create_agent(model, [lookup_order, refund], system_prompt="You work for a shop.")


def ask(question: str) -> dict:
    return {"messages": [("user", question)]}


def run(question: str) -> str:
    return agent(ChatOpenAI(model="gpt-5.2")).invoke(ask(question))["messages"][-1].content


async def responses(question: str) -> str:
    model = ChatOpenAI(model="gpt-5.2", use_responses_api=True)
    return (await agent(model).ainvoke(ask(question)))["messages"][-1].text


def streamed(question: str) -> str:
    *_, last = agent(ChatOpenAI(model="gpt-5.2")).stream(ask(question), stream_mode=["messages", "values"])
    return last[1]["messages"][-1].content


def anthropic(question: str) -> str:
    return agent(ChatAnthropic(model="claude-sonnet-4-6")).invoke(ask(question))["messages"][-1].text


async def anthropic_streamed(question: str) -> str:
    model = ChatAnthropic(model="claude-sonnet-4-6", streaming=True)
    events = agent(model).astream(ask(question), stream_mode=["messages", "values"])
    *_, last = [event async for event in events]
    return last[1]["messages"][-1].text


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
