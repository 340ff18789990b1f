"""A loop around a model and tools that always ends, for those who have no framework.

    from steplog import bounded

    agent = bounded.Agent(ask_model, [bounded.Tool(get_order, writes=False, facts=["total_cents"], subject="order_id"),
                                      bounded.Tool(refund, writes=True)])
    outcome = agent.run("refund the damaged jacket", user_id="cu_ana", run_id="refund-1001")
    print(outcome.stop, outcome.message)

The model proposes; the loop checks the proposal, keeps the state, counts, and stops; docs/bounded.md tells how to use
it. Everything in it stands on what `steplog` and `steplog.plugins` offer to anybody.
"""

from steplog.bounded.agent import Agent, Outcome
from steplog.bounded.closing import closing_message
from steplog.bounded.core import Answered, AskModel, AwaitDecision, CallTool, Decision, Loop
from steplog.bounded.limits import Limits
from steplog.bounded.memory import TRUSTED_SOURCES, Memory
from steplog.bounded.plan import problems_of
from steplog.bounded.state import STOPS, TaskState
from steplog.bounded.tools import Tool
from steplog.bounded.view import estimate_tokens, render

__all__ = [
    "STOPS",
    "TRUSTED_SOURCES",
    "Agent",
    "Answered",
    "AskModel",
    "AwaitDecision",
    "CallTool",
    "Decision",
    "Limits",
    "Loop",
    "Memory",
    "Outcome",
    "TaskState",
    "Tool",
    "closing_message",
    "estimate_tokens",
    "problems_of",
    "render",
]
