"""A refund agent that survives being killed. Run it, kill it wherever you like, and run it again.

    python examples/refund_agent.py

With OPENAI_API_KEY in the environment it asks the real model, without it a local one. Afterwards, see what it did:

    steplog show last
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import openai

import steplog
from steplog.testing import LocalProvider

CASSETTE = Path(__file__).parents[1] / "cassettes/openai/runs/refund"
REQUEST = json.loads((CASSETTE / "01.json").read_text())["request"]["body"]  # model, prompt and tool schemas

steplog.install()


@steplog.step(mode="safe")  # only reads: may run again
def lookup_order(order_id: str) -> dict[str, Any]:
    return {"order_id": order_id, "customer": "ada@example.com", "item": "teapot", "cents": 4200, "status": "delivered"}


@steplog.step(mode="keyed")  # a payment service refuses a key that it has seen
def refund(order_id: str, cents: int, *, idempotency_key: str) -> dict[str, Any]:
    print(f"  paying {cents} back for {order_id}, key {idempotency_key}")
    return {"refund_id": order_id.replace("ord", "re"), "order_id": order_id, "cents": cents}


@steplog.step  # never again by itself: a second mail is worse than none
def send_mail(to: str, text: str) -> dict[str, Any]:
    print(f"  writing to {to}")
    return {"sent": bool(text), "to": to}


TOOLS = {"lookup_order": lookup_order, "refund": refund, "send_mail": send_mail}


def agent(client: openai.OpenAI) -> str:
    messages = list(REQUEST["messages"])
    while True:
        completion = client.chat.completions.create(**{**REQUEST, "messages": messages})
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            result = TOOLS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})


if __name__ == "__main__":
    live = "OPENAI_API_KEY" in os.environ
    with nullcontext() if live else LocalProvider(CASSETTE) as provider:
        client = openai.OpenAI() if provider is None else openai.OpenAI(base_url=f"{provider.url}/v1", api_key="local")
        with steplog.run("refund-ord_1001", goal="refund the damaged item") as run:
            print(agent(client))
            print(f"{run.executed} steps executed, {run.replayed} returned from the log")
