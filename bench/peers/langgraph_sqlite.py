"""LangGraph's functional API with SqliteSaver: tasks inside an entrypoint."""

from __future__ import annotations

from typing import Any

import workload
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task

order = workload.Order.read()
step = task(workload.body)

with SqliteSaver.from_conn_string(str(order.folder / "checkpoints.sqlite")) as saver:

    @entrypoint(checkpointer=saver)
    def workflow(_: Any) -> int:
        """The steps, one after the other."""
        workload.each(order, lambda number, payload: step(number, payload).result())
        return order.steps

    # None takes up the thread where its last checkpoint left it.
    workflow.invoke(None if order.resume else {}, {"configurable": {"thread_id": "bench"}})
