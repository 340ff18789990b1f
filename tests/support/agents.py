"""The two agents whose runs are in `cassettes/`, as a user would write them, and tools with the results they expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tests.support.recorded import OWN

Tools = Mapping[str, Callable[..., Any]]

REFUND_ANSWER = "Your order ord_1001 is refunded: 42.00 EUR (refund re_1001). A mail to ada@example.com confirms it."
RESTOCK_ANSWER = "Done: 34 of tea-7 are ordered as po_tea-7, cup-2 has enough, and the shelves channel knows."


@cache
def _first_request(run: str) -> str:
    return json.dumps(json.loads((OWN / run / "01.json").read_bytes())["request"]["body"])


def first_request(run: str) -> dict[str, Any]:
    """Return the arguments of a run's first call, fresh each time."""
    return json.loads(_first_request(run))


def refund_agent(client: Any, tools: Tools) -> str:
    """Work through the refund with an `openai.OpenAI` client; return the model's last words."""
    request = first_request("openai/runs/refund")
    while True:
        message = client.chat.completions.create(**request).choices[0].message
        if not message.tool_calls:
            return message.content
        request["messages"].append(message)
        for call in message.tool_calls:
            result = tools[call.function.name](**json.loads(call.function.arguments))
            request["messages"].append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})


def restock_agent(client: Any, tools: Tools) -> str:
    """Go through the shelves with an `anthropic.Anthropic` client; return the model's last words."""
    request = first_request("anthropic/runs/restock")
    while True:
        message = client.messages.create(**request)
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return message.content[0].text
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": json.dumps(tools[call.name](**call.input))}
            for call in calls
        ]
        request["messages"] += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


def lookup_order(order_id: str) -> dict[str, Any]:
    """Tool of the refund desk; changes nothing."""
    return {"order_id": order_id, "customer": "ada@example.com", "item": "teapot", "cents": 4200, "status": "delivered"}


def refund(order_id: str, cents: int) -> dict[str, Any]:
    """Tool of the refund desk; pays."""
    return {"refund_id": order_id.replace("ord", "re"), "order_id": order_id, "cents": cents}


def send_mail(to: str, text: str) -> dict[str, Any]:
    """Tool of the refund desk; writes to the customer."""
    return {"sent": bool(text), "to": to}


def check_stock(sku: str) -> dict[str, Any]:
    """Tool of the tea shop; changes nothing."""
    on_hand, minimum = {"tea-7": (6, 20), "cup-2": (31, 12)}[sku]
    return {"sku": sku, "on_hand": on_hand, "minimum": minimum}


def restock(sku: str, quantity: int) -> dict[str, Any]:
    """Tool of the tea shop; orders."""
    return {"order": f"po_{sku}", "sku": sku, "quantity": quantity}


def notify(channel: str, text: str) -> dict[str, Any]:
    """Tool of the tea shop; posts."""
    return {"posted": bool(text), "channel": channel}


REFUND_TOOLS: Tools = {tool.__name__: tool for tool in (lookup_order, refund, send_mail)}
RESTOCK_TOOLS: Tools = {tool.__name__: tool for tool in (check_stock, restock, notify)}
