"""The refund desk: an agent on the openai SDK. `steplog run` records it; nothing here opens a run."""

from __future__ import annotations

import json
from typing import Any

import openai
import shop

import steplog

SYSTEM = (
    "You run the refund desk of a small shop. Look an order up before you refund it, refund what was paid, "
    "then write to the customer."
)
REQUEST = "My order ord_1001 arrived damaged. I would like my money back."


def schema(name: str, description: str, **fields: tuple[str, str]) -> dict[str, Any]:
    properties = {field: {"type": kind, "description": text} for field, (kind, text) in fields.items()}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(fields),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


SCHEMAS = [
    schema("lookup_order", "Find an order by its id.", order_id=("string", "Order id, as ord_1001.")),
    schema(
        "refund",
        "Pay money back for an order.",
        order_id=("string", "Order id."),
        cents=("integer", "Amount in cents."),
    ),
    schema("send_mail", "Send a mail to a customer.", to=("string", "Address."), text=("string", "Plain text.")),
]


@steplog.step(mode="safe")  # changes nothing: may run again
def lookup_order(order_id: str) -> dict[str, Any]:
    return {"order_id": order_id, "customer": "ada@example.com", "item": "teapot", "cents": 4200, "status": "delivered"}


@steplog.step(mode="keyed")  # may run again under the same key: the shop recognises it
def refund(order_id: str, cents: int, *, idempotency_key: str) -> dict[str, Any]:
    shop.book("refund", order_id=order_id, cents=cents, key=idempotency_key)
    shop.halfway("refund")
    return {"refund_id": order_id.replace("ord", "re"), "order_id": order_id, "cents": cents}


@steplog.step  # mode "unsafe": never again by itself
def send_mail(to: str, text: str) -> dict[str, Any]:
    shop.book("send_mail", to=to, text=text)
    shop.halfway("send_mail")
    return {"sent": True, "to": to}


TOOLS = {"lookup_order": lookup_order, "refund": refund, "send_mail": send_mail}


def main() -> None:
    client = openai.OpenAI()
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": REQUEST}]
    while True:
        completion = client.chat.completions.create(model="gpt-4o-mini", messages=messages, tools=SCHEMAS)
        message = completion.choices[0].message
        if not message.tool_calls:
            print(message.content)
            return
        messages.append(message)
        for call in message.tool_calls:
            result = TOOLS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})


if __name__ == "__main__":
    main()
