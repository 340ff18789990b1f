"""The tea shop: an agent on the anthropic SDK. `steplog run` records it; nothing here opens a run."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import shop

import steplog

SYSTEM = (
    "You keep the shelves of a tea shop. Order only what is below its minimum, up to twice the minimum, "
    "and say what you did."
)
REQUEST = "Go through tea-7 and cup-2, please."


def schema(name: str, description: str, **fields: tuple[str, str]) -> dict[str, Any]:
    properties = {field: {"type": kind, "description": text} for field, (kind, text) in fields.items()}
    wanted = {"type": "object", "properties": properties, "required": list(fields)}
    return {"name": name, "description": description, "input_schema": wanted}


SCHEMAS = [
    schema("check_stock", "How much of an article is on the shelf.", sku=("string", "Article number.")),
    schema(
        "restock",
        "Order more of an article.",
        sku=("string", "Article number."),
        quantity=("integer", "How many to order."),
    ),
    schema(
        "notify", "Post a message to a channel.", channel=("string", "Channel name."), text=("string", "Plain text.")
    ),
]
SHELVES = {"tea-7": (6, 20), "cup-2": (31, 12)}


@steplog.step(mode="safe")  # changes nothing: may run again
def check_stock(sku: str) -> dict[str, Any]:
    on_hand, minimum = SHELVES[sku]
    return {"sku": sku, "on_hand": on_hand, "minimum": minimum}


@steplog.step(mode="keyed")  # may run again under the same key: the shop recognises it
def restock(sku: str, quantity: int, *, idempotency_key: str) -> dict[str, Any]:
    shop.book("restock", sku=sku, quantity=quantity, key=idempotency_key)
    shop.halfway("restock")
    return {"order": f"po_{sku}", "sku": sku, "quantity": quantity}


@steplog.step  # mode "unsafe": never again by itself
def notify(channel: str, text: str) -> dict[str, Any]:
    shop.book("notify", channel=channel, text=text)
    shop.halfway("notify")
    return {"posted": True, "channel": channel}


TOOLS = {"check_stock": check_stock, "restock": restock, "notify": notify}


def main() -> None:
    client = anthropic.Anthropic()
    messages: list[Any] = [{"role": "user", "content": REQUEST}]
    while True:
        message = client.messages.create(
            model="claude-sonnet-5", max_tokens=1024, system=SYSTEM, messages=messages, tools=SCHEMAS
        )
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            print("".join(block.text for block in message.content if block.type == "text"))
            return
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": json.dumps(TOOLS[call.name](**call.input))}
            for call in calls
        ]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


if __name__ == "__main__":
    main()
