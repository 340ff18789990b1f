"""A task in the bounded loop, which asks for approval and goes on when it has it.

    python examples/bounded_agent.py            # a small refund: done at once
    python examples/bounded_agent.py 8000       # a large one: it waits for somebody, and prints how to decide
    touch approved                              # the payment service's side: from now on it takes large refunds
    python examples/bounded_agent.py 8000       # after both: the held refund first, then the rest

The model is a stand-in that reads what it is shown, as a real one would; docs/bounded.md has one that asks a provider.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import steplog
from steplog import bounded

LEDGER = Path("ledger.txt")  # stands for the world: what has happened to money and mail
NEEDS_NOBODY = 5000


def model(view: str, **_limits: float) -> dict[str, Any]:  # max_output_tokens, and timeout in seconds
    shown = json.loads(view)
    cents = int(shown["goal"].split()[1])
    if not shown["plan"]:
        steps = [("s1", "get_order", []), ("s2", "refund", ["s1"]), ("s3", "send_mail", ["s2"])]
        return {"type": "plan", "steps": [{"id": i, "tool": t, "depends_on": d} for i, t, d in steps]}
    failed = [step["tool"] for step in shown["plan"] if step["status"] == "failed"]
    if failed:
        return {"type": "final", "outcome": "cannot_complete", "text": f"This could not be done: {', '.join(failed)}."}
    todo = next((step for step in shown["plan"] if step["status"] == "pending"), None)
    if todo is None:
        return {"type": "final", "outcome": "completed", "text": "Refund issued and confirmation sent."}
    args = {"order_id": "ord_1004"} | ({"cents": cents} if todo["tool"] == "refund" else {})
    return {"type": "tool", "name": todo["tool"], "args": args, "plan_step": todo["id"]}


def entries() -> list[str]:
    return LEDGER.read_text().splitlines() if LEDGER.exists() else []


def write(entry: str) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(f"{entry}\n")


def get_order(order_id: str) -> dict[str, Any]:
    return {"order_id": order_id, "total_cents": 15000, "order_status": "delivered"}


def refund(order_id: str, cents: int, *, idempotency_key: str) -> dict[str, Any]:
    if cents > NEEDS_NOBODY and not Path("approved").exists():  # what the payment service knows
        return {"status": "needs_approval"}
    entry = f"refund {order_id} {cents} {idempotency_key}"
    if entry not in entries():  # a payment service refuses a key that it has seen
        write(entry)
    return {"refunded_cents": cents}


def send_mail(order_id: str) -> dict[str, Any]:
    write(f"mail {order_id}")
    return {"sent": True}


AGENT = bounded.Agent(
    model,
    [
        bounded.Tool(get_order, writes=False, subject="order_id", facts=["total_cents", "order_status"]),
        bounded.Tool(refund, writes=True, done="The refund was issued.", undone="The refund was not issued."),
        bounded.Tool(send_mail, writes=True, done="A confirmation was sent.", undone="No confirmation was sent."),
    ],
)


def main(cents: str = "3000") -> None:
    steplog.install(interceptors=[])
    outcome = AGENT.run(f"refund {cents} cents of ord_1004", user_id="cu_ana", run_id=f"refund-{cents}")
    print(f"{outcome.stop}: {outcome.message}")
    if outcome.stop == "needs_approval":
        print("  touch approved")
    for command in outcome.commands:
        print(f"  {command}")


if __name__ == "__main__":
    main(*sys.argv[1:])
