"""A refund agent as a LangGraph graph, with a checkpointer of its own, that survives being killed."""

from __future__ import annotations

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

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


TOOLS = [lookup_order, refund]


def graph(model: ChatOpenAI):
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.bind_tools(TOOLS).invoke(state["messages"])]})
    builder.add_node("tools", ToolNode(TOOLS))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=InMemorySaver())


def run(question: str) -> str:
    config = {"configurable": {"thread_id": "ord_1001"}}
    end = graph(ChatOpenAI(model="gpt-5.2")).invoke({"messages": [("user", question)]}, config)
    return end["messages"][-1].content


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
